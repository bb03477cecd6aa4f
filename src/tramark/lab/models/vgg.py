"""VGG-16, pooled to 7×7 before the layers of 4096 as it is for large images: as the paper has it, and with batch
normalisation."""

from collections import OrderedDict

from torch import nn

from tramark.lab.models.shapes import conv3, pooled, with_norms

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(input_shape: tuple[int, ...], classes: int, *, norm: bool = False) -> nn.Module:
    """134 M weights for ten classes, whatever the size of the images; with `norm`, convolutions are normalised."""
    pooled("vgg16", input_shape, poolings=len(STAGES))
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = input_shape[0]
    for stage, widths in enumerate(STAGES, start=1):
        for number, width in enumerate(widths, start=1):
            layers[f"conv{stage}_{number}"] = conv3(channels, width)
            layers[f"relu{stage}_{number}"] = nn.ReLU()
            channels = width
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    layers |= OrderedDict(
        pool=nn.AdaptiveAvgPool2d(7),
        flatten=nn.Flatten(),
        fc1=nn.Linear(channels * 7 * 7, 4096),
        relu6=nn.ReLU(),
        dropout1=nn.Dropout(),
        fc2=nn.Linear(4096, 4096),
        relu7=nn.ReLU(),
        dropout2=nn.Dropout(),
        fc3=nn.Linear(4096, classes),
    )
    for layer in layers.values():
        # Without batch norm, torch's own start makes all inputs look alike after thirteen convolutions.
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return nn.Sequential(with_norms(layers) if norm else layers)
