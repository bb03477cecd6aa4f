"""Attacks on the weights themselves and by training, by name."""

from collections.abc import Callable
from functools import partial

from tramark.attacks.adversarial import AdversarialTraining
from tramark.attacks.base import Attack
from tramark.attacks.convert import Onnx
from tramark.attacks.distil import Distil, Extract, Knockoff
from tramark.attacks.fineprune import FinePrune
from tramark.attacks.finetune import FineTune, Retrain
from tramark.attacks.noise import WeightNoise, WeightShift
from tramark.attacks.overwrite import Overwrite
from tramark.attacks.permute import PermuteUnits, RescaleUnits
from tramark.attacks.prune import Prune, PruneStructured
from tramark.attacks.quantise import Cast, FewBits, Int8
from tramark.attacks.regularise import Regularise
from tramark.attacks.rnp import RNP
from tramark.attacks.smooth import LabelSmoothing

WEIGHTS_AND_TRAINING: dict[str, Callable[..., Attack]] = {
    "prune": Prune,
    "prune-global": partial(Prune, scope="global"),
    "prune-structured": PruneStructured,
    "fine-tune": FineTune,
    "fine-tune-last": partial(FineTune, layers="last"),
    "retrain": Retrain,
    "retrain-all": partial(Retrain, layers="all", epochs=5),
    "cast": Cast,
    "int8": Int8,
    "int8-dynamic": partial(Int8, kind="dynamic"),
    "few-bits": FewBits,
    "rnp": RNP,
    "fine-prune": FinePrune,
    "weight-noise": WeightNoise,
    "weight-shift": WeightShift,
    "regularise": Regularise,
    "label-smoothing": LabelSmoothing,
    "adversarial-training": AdversarialTraining,
    "overwrite": Overwrite,
    "distil": Distil,
    "extract": Extract,
    "knockoff": Knockoff,
    "permute-units": PermuteUnits,
    "rescale-units": RescaleUnits,
    "onnx": Onnx,
}
