"""Attacks at inference, collusions and the informed thief's, by name."""

from collections.abc import Callable
from functools import partial

from tramark.attacks.answers import HideClasses, LabelOnly, Randomise, Round
from tramark.attacks.base import Attack, Collusion
from tramark.attacks.collusion import Average, Extreme, MixTensors, MixWeights
from tramark.attacks.detector import Refuse
from tramark.attacks.difference import Difference, DifferenceDirections
from tramark.attacks.informed import AntiPatterns, ProjectInputs, PruneAndTune, QuietWeights, RetrainLayer
from tramark.attacks.transforms import Transform

INFERENCE_AND_COLLUSION: dict[str, Callable[..., Attack | Collusion]] = {
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
    "prune-and-tune": PruneAndTune,
}
