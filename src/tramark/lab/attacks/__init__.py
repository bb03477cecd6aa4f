"""Attacks on marks, by name; one file each."""

from collections.abc import Callable
from functools import partial

from tramark.lab.attacks.adversarial import AdversarialTraining
from tramark.lab.attacks.answers import HideClasses, LabelOnly, Randomise, Round
from tramark.lab.attacks.base import Attack, Collusion, Loot
from tramark.lab.attacks.clp import CLP
from tramark.lab.attacks.collusion import Average, Extreme, MixTensors, MixWeights
from tramark.lab.attacks.convert import Onnx
from tramark.lab.attacks.detector import Refuse
from tramark.lab.attacks.difference import Difference, DifferenceDirections
from tramark.lab.attacks.distil import Distil, Extract, Knockoff
from tramark.lab.attacks.fineprune import FinePrune
from tramark.lab.attacks.finetune import FineTune, Retrain
from tramark.lab.attacks.ibau import IBAU
from tramark.lab.attacks.informed import (
    AntiPatterns,
    GuessQuestions,
    ProjectInputs,
    PruneAndTune,
    QuietWeights,
    RetrainLayer,
)
from tramark.lab.attacks.nad import NAD
from tramark.lab.attacks.noise import WeightNoise, WeightShift
from tramark.lab.attacks.overwrite import Overwrite
from tramark.lab.attacks.permute import PermuteUnits, RescaleUnits
from tramark.lab.attacks.prune import Prune, PruneStructured
from tramark.lab.attacks.quantise import Cast, FewBits, Int8
from tramark.lab.attacks.regularise import Regularise
from tramark.lab.attacks.rnp import RNP
from tramark.lab.attacks.smooth import LabelSmoothing
from tramark.lab.attacks.spectrum import ReverseEdit
from tramark.lab.attacks.transforms import Transform
from tramark.lab.attacks.wrk import WRK
from tramark.lab.plugins import plugged

ATTACKS: dict[str, Callable[..., Attack | Collusion]] = {
    # On the weights themselves, and by training.
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
    "wrk": WRK,
    "reverse-edit": ReverseEdit,
    "reverse-edit-top": partial(ReverseEdit, end="top", rank=1),
    "clp": CLP,
    "nad": NAD,
    "i-bau": IBAU,
    # At inference, by collusion, and the informed thief's.
    "jpeg": partial(Transform, "jpeg"),
    "blur": partial(Transform, "blur"),
    "median": partial(Transform, "median"),
    "input-noise": partial(Transform, "noise"),
    "bit-depth": partial(Transform, "bit-depth"),
    "flip": partial(Transform, "flip"),
    "randomise": Randomise,
    "round": Round,
    "label-only": LabelOnly,
    "hide-classes": HideClasses,
    "refuse": Refuse,
    "average": Average,
    "mix-tensors": MixTensors,
    "mix-weights": MixWeights,
    "extreme": Extreme,
    "difference": Difference,
    "difference-directions": DifferenceDirections,
    "project-inputs": ProjectInputs,
    "retrain-layer": RetrainLayer,
    "quiet-weights": QuietWeights,
    "anti-patterns": AntiPatterns,
    "guess-questions": GuessQuestions,
    "prune-and-tune": PruneAndTune,
}
ATTACKS |= plugged("tramark.attacks", ATTACKS)

__all__ = ["ATTACKS", "Attack", "Collusion", "Loot"]
