"""The federations of the paper at each scale.

At scale `paper` they have the paper's settings. At `laptop`, Fashion-MNIST has all rounds and a tenth of the data; the
other data sets have a smaller net instead of AlexNet, VGG-16 and ViT, which would take days, and fewer rounds. At
`smoke`, all of them are a small net on scikit-learn's digits. `VARIANTS` are the methods that are compared.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from tramark.lab.simulation.run import Settings
from tramark.lab.studies.study import Case, Part, Scale

Changes = Mapping[str, Any]

_DIGITS = {"data": "digits", "model": "mlp", "clients": 3, "rounds": 4, "warmup": 2}
_DIGITS |= {"samples_per_client": 100, "local_epochs": 1, "batch_size": 20, "lr": 0.05}

TASKS: dict[Scale, dict[str, dict[str, Any]]] = {
    "paper": {
        "fashion-mnist": {"model": "cnn", "rounds": 50, "warmup": 25},
        "cifar-10": {"model": "alexnet", "rounds": 100, "warmup": 50},
        "cifar-100": {"model": "vgg16", "rounds": 100, "warmup": 50},
        "tiny-imagenet": {"model": "vit", "rounds": 50, "warmup": 25},
    },
    "laptop": {
        "fashion-mnist": {"model": "cnn", "rounds": 50, "warmup": 25, "samples_per_client": 600},
        "cifar-10": {"model": "small-cnn", "rounds": 24, "warmup": 12, "samples_per_client": 500, "local_epochs": 2},
        "cifar-100": {"model": "small-cnn", "rounds": 24, "warmup": 12, "samples_per_client": 1000, "local_epochs": 1},
        "tiny-imagenet": {"model": "small-cnn", "rounds": 20, "warmup": 10, "samples_per_client": 400}
        | {"local_epochs": 1, "batch_size": 32},
    },
    "smoke": {
        name: dict(_DIGITS) for name in ("fashion-mnist", "cifar-10", "cifar-100", "tiny-imagenet")
    },
}  # fmt: skip

VARIANTS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "waffle": {"method": "waffle", "triggers": "mnist", "options": {"source": "table1"}},
    "fedtracker": {"method": "fedtracker", "options": {"source": "table1"}},
    "paper": {"preset": "paper", "answers": "label"},
    "released": {"preset": "released", "answers": "label"},
    "ours": {},
}
"""Methods, as `tramark run` is told of them."""

TITLES = {
    "fedavg": "FedAvg",
    "waffle": "WAFFLE",
    "fedtracker": "FedTracker",
    "paper": "TraMark, text",
    "released": "TraMark, released",
    "ours": "TraMark, ours",
    "fashion-mnist": "Fashion-MNIST",
    "cifar-10": "CIFAR-10",
    "cifar-100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
    "iid": "IID",
    "dirichlet": "Dirichlet 0.5",
    "mnist": "MNIST",
    "svhn": "SVHN",
    "patterns": "our patterns",
}
"""Names as tables and pictures write them; others are written as they are."""


def title(name: str) -> str:
    """A name as tables write it."""
    return TITLES.get(name, name)


def datasets(scale: Scale, *names: str) -> tuple[str, ...]:
    """These of the paper's data sets, or all; the smoke scale takes the first alone."""
    chosen = names or tuple(TASKS["paper"])
    return chosen[:1] if scale == "smoke" else chosen


def splits(scale: Scale) -> tuple[str, ...]:
    """The paper's splits of the data; the smoke scale takes the first alone."""
    return ("iid",) if scale == "smoke" else ("iid", "dirichlet")


SPLITS = {"iid": "iid-stratified", "dirichlet": "dirichlet-capped"}
"""The paper's splits as its released code makes them, as `tramark run` is told of them."""


def federation(data: str, scale: Scale, variant: str = "ours", *, split: str = "iid", **changes: Any) -> Settings:
    """A federation of the paper at a scale, by a method, with some settings changed."""
    chosen = {"data": data, "split": SPLITS[split]} | TASKS[scale][data] | VARIANTS[variant]
    chosen |= changes
    return Settings(**(without_pictures(chosen) if scale == "smoke" else chosen))


def without_pictures(chosen: Changes) -> dict[str, Any]:
    """The same federation with triggers that are drawn: pictures would have to be fetched."""
    if chosen.get("method") == "waffle":
        return {name: value for name, value in chosen.items() if name not in ("triggers", "options")}
    return {**chosen, **({"triggers": "waffle"} if chosen.get("answers") == "label" else {})}


def case(name: str, settings: Settings, *, minutes: float = 0.0, **labels: Any) -> Case:
    """A case that uses one federation. `labels` say what it is, and go into the settings of its row."""
    plain = plain_settings(settings)
    same = unmarked(settings)
    return Case(
        re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-"),
        {**labels, "federation": plain},
        sets=sets_of(settings),
        parts=(Part(plain, minutes_for(settings), begins_as=None if same is None else plain_settings(same)),),
        minutes=minutes,
    )


def unmarked(settings: Settings) -> Settings | None:
    """The FedAvg federation whose first rounds are this one's; None if there is none."""
    # The text's plain mean is FedAvg's if all clients have as many samples. Added output neurons make another net.
    uneven = settings.preset == "paper" and (settings.split != "iid-stratified" or settings.samples_per_client is None)
    if settings.method != "tramark" or uneven or (settings.answers == "label" and settings.clients > 10):
        return None
    marks = ("preset", "answers", "questions", "triggers", "trigger_count", "verification", "ratio", "options")
    defaults = Settings(split=settings.split)
    return replace(settings, method="fedavg", **{name: getattr(defaults, name) for name in marks})


def plain_settings(settings: Settings) -> dict[str, Any]:
    """Settings but the seed, as plain JSON."""
    plain = asdict(settings)
    del plain["seed"]
    return plain


def settings_of(case: Case, seed: int) -> Settings:
    """The settings of the federation that a case uses."""
    return Settings(**case.settings["federation"], seed=seed)


def sets_of(settings: Settings) -> tuple[str, ...]:
    """The data sets that a federation needs: its task's, and that of its triggers."""
    labels = settings.method == "tramark" and settings.answers == "label"
    triggers = "mnist" if labels and settings.triggers == "auto" else settings.triggers
    if settings.method == "waffle" and settings.options.get("source") == "table1":
        triggers = "mnist"
    return tuple(dict.fromkeys([settings.data, *([triggers] if triggers in ("mnist", "svhn") else [])]))


TRAINING = {"fashion-mnist": 60_000, "cifar-10": 50_000, "cifar-100": 50_000, "tiny-imagenet": 100_000}
"""Training samples of the whole sets."""

MACS = {"cnn": 12.3, "small-cnn": 10.8, "alexnet": 200, "vgg16": 433, "vit": 850, "mlp": 0.3, "text": 0.3}
"""Millions of multiply-accumulates a sample."""

SPEED = 18_500
"""Millions of multiply-accumulates, of samples trained, in a second on two cores: the CNN's 1500 samples."""

OVERHEAD = 1.15
"""What marks and evaluation add."""


def minutes_for(settings: Settings) -> float:
    """How long a federation takes on two cores, estimated."""
    each = settings.samples_per_client or TRAINING.get(settings.data, 10_000) / settings.clients
    # A last batch that is not full is left out.
    each = max(each // settings.batch_size, 1) * settings.batch_size
    samples = each * settings.clients * settings.sample_fraction * settings.local_epochs * settings.rounds
    macs = MACS.get(settings.model, 10) * (4 if settings.data == "tiny-imagenet" and settings.model != "vit" else 1)
    return round(0.1 + OVERHEAD * samples * macs / SPEED / 60, 2)


def described(settings: Mapping[str, Any]) -> str:
    """A federation in one line, from the settings in a row."""
    each = settings["samples_per_client"]
    samples = f"{each} samples each" if each else "all samples"
    sampled = f", {100 * settings['sample_fraction']:.0f} % of them a round" if settings["sample_fraction"] < 1 else ""
    return (
        f"{title(settings['data'])} with `{settings['model']}`: {settings['clients']} clients{sampled}, {samples}, "
        f"{settings['rounds']} rounds of which {settings['warmup']} without marks, {settings['local_epochs']} local "
        f"epochs, batches of {settings['batch_size']}, rate {settings['lr']}"
    )
