"""Every model: sizes of the paper, tracing, seeds, and inputs it cannot take."""

import pytest
import torch
from torch import Tensor, fx, nn

from tramark.lab.models import NAMES, build

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "cnn": [(1, 28, 28), (1, 8, 8), (3, 32, 32), (1, 13, 21)],
    "small-cnn": [(3, 32, 32), (1, 28, 28), (1, 8, 8)],
    "cnn-bn": [(1, 28, 28)],
    "alexnet": [(3, 32, 32)],
    "alexnet-bn": [(3, 32, 32)],
    "vgg16": [(3, 32, 32)],
    "vgg16-bn": [(3, 32, 32)],
    "resnet18": [(3, 16, 16), (1, 8, 8), (3, 66, 72)],
    "vit": [(3, 64, 64), (1, 28, 28), (3, 16, 24)],
    "vit-b16": [(3, 32, 32)],
    "mlp": [(108,), (1, 8, 8)],
    "text": [(48,)],
}
CASES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]


def inputs(name: str, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if name == "text":
        return torch.randint(0, 50, (3, *shape), generator=generator)
    return torch.randn(3, *shape, generator=generator)


def weights(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_every_model_is_tested() -> None:
    assert tuple(SHAPES) == NAMES


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_models_answer_and_can_be_traced(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, input_shape=shape, classes=7, vocabulary=50, seed=0).eval()
    x = inputs(name, shape)
    with torch.no_grad():
        y = model(x)
        assert y.shape == (3, 7)
        traced = fx.symbolic_trace(model)
        torch.testing.assert_close(traced(x), y)
        # A trace that had the batch size written into it would fail here.
        assert traced(x[:2]).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "millions"),
    [
        ("cnn", (1, 28, 28), 10, 1.66),
        ("small-cnn", (3, 32, 32), 10, 0.62),
        ("alexnet", (3, 32, 32), 10, 35.86),
        ("vgg16", (3, 32, 32), 10, 134.30),
        ("resnet18", (3, 32, 32), 10, 11.17),
        ("vit", (3, 64, 64), 200, 12.84),
        ("vit-b16", (3, 224, 224), 1000, 86.57),
    ],
)
def test_models_have_the_known_sizes(name: str, shape: tuple[int, ...], classes: int, millions: float) -> None:
    with torch.device("meta"):
        assert weights(build(name, input_shape=shape, classes=classes)) / 1e6 == pytest.approx(millions, abs=0.006)


def test_seed_decides_the_weights_and_nothing_else() -> None:
    before = torch.get_rng_state()
    first, again, other = (
        torch.cat([w.flatten() for w in build("cnn", input_shape=(1, 8, 8), classes=3, seed=s).parameters()])
        for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_untrained_vgg_tells_its_inputs_apart() -> None:
    model = build("vgg16", input_shape=(3, 32, 32), classes=10, seed=0).eval()
    with torch.no_grad():
        assert float(model(inputs("vgg16", (3, 32, 32))).std(dim=0).mean()) > 1e-3


def test_padding_counts_for_nothing_in_text() -> None:
    model = build("text", input_shape=(4,), classes=2, vocabulary=9, seed=0)
    assert torch.allclose(model(torch.tensor([[5, 7, 0, 0]])), model(torch.tensor([[5, 7]])))
    assert model(torch.zeros(1, 4, dtype=torch.int64)).isfinite().all()


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("lenet", (1, 28, 28), 10, "no model named 'lenet'; there are cnn"),
        ("vgg16", (1, 28, 28), 10, "at least 32×32, not 28×28"),
        ("cnn", (108,), 10, "takes images"),
        ("vit", (3, 31, 31), 10, "no patch of 2 to 8 pixels tiles 31×31"),
        ("text", (48,), 2, "vocabulary is 0"),
        ("mlp", (8,), 1, "at least 2"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, shape: tuple[int, ...], classes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, input_shape=shape, classes=classes)


def test_the_papers_nets_begin_as_in_its_authors_code() -> None:
    vit = build("vit", input_shape=(3, 64, 64), classes=200, seed=0)
    for name in ("token", "places"):
        assert float(vit.get_parameter(name).std()) == pytest.approx(1, abs=0.1)
    assert [m.p for m in vit.modules() if isinstance(m, nn.Dropout)] == [0.1] * 6
    assert not any(name.endswith("qkv.bias") for name, _ in vit.named_parameters())
    vgg = build("vgg16", input_shape=(3, 32, 32), classes=100, seed=0)
    for name, layer in vgg.named_modules():
        if isinstance(layer, nn.Conv2d):
            assert float(layer.weight.std()) == pytest.approx((2 / (9 * layer.out_channels)) ** 0.5, rel=0.1), name
        if isinstance(layer, nn.Linear):
            assert float(layer.weight.std()) == pytest.approx(0.01, rel=0.1), name
        if isinstance(layer, nn.Conv2d | nn.Linear):
            assert layer.bias is not None
            assert not layer.bias.any()


@pytest.mark.parametrize("name", ["cnn-bn", "alexnet-bn", "vgg16-bn"])
def test_every_convolution_is_normalised(name: str) -> None:
    with torch.device("meta"):
        layers = list(build(name, input_shape=(3, 32, 32), classes=10).named_children())
    convolutions = [i for i, (_, layer) in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) >= 2
    for i in convolutions:
        behind, norm = layers[i + 1]
        assert isinstance(norm, nn.BatchNorm2d)
        assert behind == layers[i][0].replace("conv", "norm")
