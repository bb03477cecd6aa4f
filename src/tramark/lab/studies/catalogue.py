"""All studies, by name, in the order of the contents: each is made for a scale."""

from collections.abc import Callable

from tramark.lab.studies.attacks import Attacks
from tramark.lab.studies.collusion import CollusionStudy
from tramark.lab.studies.communication import Communication
from tramark.lab.studies.cost import Cost
from tramark.lab.studies.divergence import Divergence
from tramark.lab.studies.extension import Extension
from tramark.lab.studies.fairness import Fairness
from tramark.lab.studies.false_accusations import FalseAccusations
from tramark.lab.studies.finetune_rate import FinetuneRate
from tramark.lab.studies.full_cost import FullCost
from tramark.lab.studies.interval import Interval
from tramark.lab.studies.large import Large
from tramark.lab.studies.main import Main
from tramark.lab.studies.many_clients import ManyClients
from tramark.lab.studies.methods import Methods
from tramark.lab.studies.modalities import Modalities
from tramark.lab.studies.quantisation import Quantisation
from tramark.lab.studies.queries import Queries
from tramark.lab.studies.ratio import Ratio
from tramark.lab.studies.rnp import Rnp
from tramark.lab.studies.sampling import Sampling
from tramark.lab.studies.study import Scale, Study
from tramark.lab.studies.trigger_size import TriggerSize
from tramark.lab.studies.trigger_source import TriggerSource
from tramark.lab.studies.two_classes import TwoClasses
from tramark.lab.studies.warmup import Warmup
from tramark.lab.studies.zoo_study import zoo_at

STUDIES: dict[str, Callable[[Scale], Study]] = {
    "main": Main,
    "interval": Interval,
    "divergence": Divergence,
    "attacks": Attacks,
    "finetune-rate": FinetuneRate,
    "quantisation": Quantisation,
    "rnp": Rnp,
    "warmup": Warmup,
    "ratio": Ratio,
    "trigger-size": TriggerSize,
    "trigger-source": TriggerSource,
    "cost": Cost,
    "full-cost": FullCost,
    "communication": Communication,
    "sampling": Sampling,
    "extension": Extension,
    "large": Large,
    "fairness": Fairness,
    "methods": Methods,
    "false-accusations": FalseAccusations,
    "queries": Queries,
    "collusion": CollusionStudy,
    "many-clients": ManyClients,
    "two-classes": TwoClasses,
    "modalities": Modalities,
    "zoo": zoo_at,
}
