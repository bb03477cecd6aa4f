"""Quantisation: fewer bits a weight.

The paper casts models to FP16 and to INT8; the Watermark-Robustness-Toolbox rounds weights to 5 or 6 bits, with an
epoch of training. INT8 is torch's own: weights are stored, and products computed, in eight bits.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.ao.quantization import quantize_fx
from torch.nn import functional as F

from tramark.errors import SettingError, one_line
from tramark.fleet.scratch import seeded
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.training import check_training, layers, some, train

# What static quantisation treats. Sums, attention, layer norms and token ids stay as they are: in eight bits the first
# would cost a transformer its accuracy, and the last mean nothing.
TREATED: tuple[Any, ...] = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.ReLU,
    F.relu,
    torch.relu,
    nn.MaxPool2d,
    nn.Flatten,
)


@dataclass(frozen=True)
class Cast:
    """All weights and statistics rounded to half precision. The model computes with them in the precision it had, so
    that it takes the same inputs, and on processors that have no half precision."""

    dtype: Literal["float16", "bfloat16"] = "float16"

    def __post_init__(self) -> None:
        if self.dtype not in ("float16", "bfloat16"):
            raise SettingError(f"dtype is {self.dtype!r}: say 'float16' or 'bfloat16'")

    @torch.no_grad()
    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        cast = copied(model)
        half = torch.float16 if self.dtype == "float16" else torch.bfloat16
        for name, tensor in (*cast.named_parameters(), *cast.named_buffers()):
            if tensor.is_floating_point():
                tensor.copy_(tensor.to(half))
                if not tensor.isfinite().all():
                    raise SettingError(f"{name} holds values too large for {self.dtype}: use dtype='bfloat16'")
        return cast


@dataclass(frozen=True)
class Int8:
    """Torch's own INT8 quantisation. What turns up runs on the CPU, for torch has its kernels there only.

    Parameters
    ----------
    kind : "dynamic" treats linear layers, and scales their inputs batch by batch; convolutions stay as they are.
        "static" treats convolutions, too, folds batch norms into them, and fixes all scales beforehand on samples of
        the thief's; `torch.fx` must be able to trace the model.
    samples : how many samples the scales are fixed on.
    """

    kind: Literal["dynamic", "static"] = "static"
    samples: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("dynamic", "static"):
            raise SettingError(f"kind is {self.kind!r}: say 'dynamic' or 'static'")
        if self.samples < 1:
            raise SettingError(f"{self.samples} samples to fix scales on: there must be at least one")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        engine = str(torch.backends.quantized.engine)
        if engine == "none":
            raise SettingError("this build of torch has no INT8 kernels: use Cast or FewBits")
        random = generator(self.seed)
        inputs = loot.prepare(some(loot, self.samples, random).inputs)
        given = copied(model).cpu()
        try:
            # Torch announces at every step that these functions will move elsewhere, and draws weights for its new
            # layers before it fills them in.
            with warnings.catch_warnings(), seeded(random, torch.device("cpu")), torch.no_grad():
                warnings.simplefilter("ignore")
                if self.kind == "dynamic":
                    quantised: nn.Module = quantization.quantize_dynamic(given, {nn.Linear}, dtype=torch.qint8)
                else:
                    quantised = _static(given, inputs, engine)
                quantised(inputs[:2])
        except Exception as error:  # torch raises whatever an operator that it has no kernel for raises
            advice = "" if self.kind == "dynamic" else "; kind='dynamic' may do"
            raise SettingError(
                f"torch cannot quantise {type(model).__name__} to INT8 ({one_line(error)}){advice}"
            ) from error
        if not int8_weights(quantised):
            raise SettingError(f"{type(model).__name__} has no layer that {self.kind} INT8 quantisation treats")
        return quantised.eval()


@dataclass(frozen=True)
class FewBits:
    """The weights of each layer rounded to 2^bits values, evenly spaced from the smallest to the largest; then `epochs`
    of training, and rounded again."""

    bits: int = 5
    epochs: int = 1
    lr: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self.epochs, self.lr, least=0)
        if not 1 <= self.bits <= 16:
            raise SettingError(f"{self.bits} bits a weight: there must be 1 to 16")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        quantised = copied(model)
        self._round(quantised)
        if self.epochs:
            train(quantised, loot, epochs=self.epochs, lr=self.lr, generator=generator(self.seed))
            self._round(quantised)
        return quantised

    @torch.no_grad()
    def _round(self, model: nn.Module) -> None:
        for layer in layers(model).values():
            low, high = layer.weight.min(), layer.weight.max()
            step = (high - low) / (2**self.bits - 1)
            if step > 0:
                layer.weight.copy_(low + ((layer.weight - low) / step).round() * step)


def int8_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model that are held in eight bits, by layer."""
    found = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        # A quantised layer keeps its weight packed, and gives it when called.
        if callable(weight) and (tensor := weight()).dtype == torch.qint8:
            found[name] = tensor
    return found


def _static(model: nn.Module, inputs: Tensor, engine: str) -> nn.Module:
    mapping = quantization.QConfigMapping().set_global(None)
    for kind in TREATED:
        mapping.set_object_type(kind, quantization.get_default_qconfig(engine))
    observed = quantize_fx.prepare_fx(model, mapping, (inputs[:2],))
    for batch in inputs.split(256):
        observed(batch)
    return quantize_fx.convert_fx(observed)
