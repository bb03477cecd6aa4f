"""One simulated federation from a handful of settings to a folder of results.

The folder holds `config.json`, `metrics.jsonl` (a line a round), `summary.json`, the clients' models as they were
last issued (`models/`) and as their clients last had them (`trained/`), a picture of the curves, and what the method
keeps of itself after each round: the vault or, for a method without a keyring, `checkpoint.safetensors`.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.fleet.layout import extend_head
from tramark.fleet.scratch import device_of
from tramark.keys.keyring import Assignment, Keyring
from tramark.keys.pictures import images_of
from tramark.lab import data, models
from tramark.lab.data import Dataset
from tramark.lab.methods import METHODS, Method, Scene
from tramark.lab.names import SplitName, TriggerKind
from tramark.lab.simulation import partition
from tramark.lab.simulation.checkpoint import begin_with, save_warm_up, warm_start, write_model
from tramark.lab.simulation.client import LocalTraining
from tramark.lab.simulation.simulator import Simulation
from tramark.lab.simulation.triggers import Verification, kind_of, tests, triggers
from tramark.marks.begin import Beginning, Warmup, begin_after
from tramark.vault.files import replace_file
from tramark.vault.lock import KeySource, default_key_file, make_key_file
from tramark.vault.store import Vault

MODEL = "model"
"""The vault's note of which architecture its models have."""


CHECKPOINT = "checkpoint.safetensors"

FIRST_ROUNDS = "first-rounds.safetensors"
"""The base of a FedAvg run some rounds before the end of the warm-up, for marked runs to begin with."""

LEAD = 5
"""How many rounds before the end of the warm-up that is. Our marks follow from the updates of all rounds, each of which
counts half as much as the next: those that a run has not seen would count for a sixteenth in all."""


WORTH_WORKERS = 5e10
"""Minimum weights × samples at which worker processes pay off: about a minute of training on one core, when they start
in four seconds."""


SHARED = Path("/dev/shm")


FAITHFUL = ("paper", "released")
"""The presets that follow the paper."""


@dataclass(frozen=True)
class Settings:
    """What a run is made of; the defaults are the paper's, where it has one.

    With the presets `paper` and `released`, answers are labels and issued models are verified with the triggers' test
    set, unless told otherwise. `paper` counts all clients alike, whatever the method; `released` splits evenly label by
    label.
    """

    data: str = "fashion-mnist"
    model: str = "cnn"
    clients: int = 10
    rounds: int = 50
    warmup: Warmup = "auto"
    ratio: float = 0.01
    method: str = "tramark"
    preset: str = "default"
    answers: Assignment | None = None
    questions: int | None = None
    triggers: TriggerKind = "auto"
    trigger_count: int = 100
    verification: Verification | None = None
    split: SplitName | None = None
    gamma: float = 0.5
    samples_per_client: int | None = None
    local_epochs: int = 5
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    sample_fraction: float = 1.0
    evaluation_samples: int = 2000
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    """Parameters of the method's own."""

    def __post_init__(self) -> None:
        by_preset: dict[str, Any] = {
            "answers": "label" if self.preset in FAITHFUL else "code",
            "verification": "test-set" if self.preset in FAITHFUL and self._has_tests else "held-out",
            "split": "iid-stratified" if self.preset == "released" else "iid",
        }
        for name, value in by_preset.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.verification == "test-set" and self.answers != "label":
            raise SettingError("the triggers' test set has labels, but no codewords: say --answers label with it")
        if self.trigger_count < 1 or self.evaluation_samples < 1:
            raise SettingError(
                f"{self.trigger_count} triggers and {self.evaluation_samples} evaluation samples: there must be at "
                "least one of each"
            )
        if self.method not in METHODS:
            raise SettingError(f"no method {self.method!r}: there are {', '.join(METHODS)}")
        if self.clients < 1:
            raise SettingError(f"{self.clients} clients: there must be at least one")
        if self.rounds < 1:
            raise SettingError(f"{self.rounds} rounds: there must be at least one")
        if self.method == "tramark":
            Beginning(self.warmup, self.rounds)  # says so if no model would be marked
        if not 0 < self.ratio < 1:
            raise SettingError(f"the region's ratio k must lie between 0 and 1, not {self.ratio}")
        if not 0 < self.sample_fraction <= 1:
            raise SettingError(f"the fraction of clients sampled must lie in (0, 1], not {self.sample_fraction}")

    @property
    def _has_tests(self) -> bool:
        """Whether the questions are images of a set that has test images, as far as the settings tell."""
        few = self.triggers == "auto" and self.clients <= 10
        return self.answers in (None, "label") and (few or self.triggers in ("mnist", "svhn"))

    @property
    def begins_after(self) -> int:
        """The round after which marks begin."""
        return begin_after(self.warmup, self.rounds)


def prepare(
    settings: Settings,
    *,
    data_dir: Path | None = None,
    device: torch.device | None = None,
    workers: int | None = 1,
    vault: Callable[[Keyring], Vault] | None = None,
    checkpoint: Path | None = None,
) -> Simulation:
    """Load the data, split it and make the server. `workers` None takes as many as pay.

    `vault` and `checkpoint` say where the method keeps its state, as in `Scene`; by default nowhere.
    """
    dataset = data.load(settings.data, data_dir=data_dir)
    parts = _split(settings, dataset)
    names = [f"client-{i:0{len(str(settings.clients - 1))}d}" for i in range(settings.clients)]
    model = models.build(
        settings.model,
        input_shape=dataset.input_shape,
        classes=dataset.classes,
        vocabulary=dataset.vocabulary,
        seed=settings.seed,
    )
    assert settings.answers is not None
    kind = kind_of(settings.triggers, dataset, settings.answers, settings.clients)
    labels = settings.method == "tramark" and settings.answers == "label"
    classes = max(dataset.classes, len(names)) if labels else dataset.classes
    if classes > dataset.classes:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            extend_head(model, classes)
    model = model.to(device or torch.device("cpu"))
    own = ("answers", "questions", "ratio", "preset", "trigger_count") if settings.method == "tramark" else ()
    verified = labels and settings.verification == "test-set" and dataset.kind == "image"
    scene = Scene(
        clients=tuple(names),
        classes=classes,
        source=triggers(
            kind,
            dataset,
            count=settings.trigger_count,
            answers=settings.answers if settings.method == "tramark" else "label",
            released=settings.preset == "released",
            data_dir=data_dir,
        ),
        secret=hashlib.sha256(f"tramark simulation {settings.seed}".encode()).digest(),
        warmup=settings.begins_after,
        tests=tests(kind, dataset, settings.clients, data_dir) if verified else (),
        options={name: getattr(settings, name) for name in own} | settings.options,
        vault=vault,
        checkpoint=checkpoint,
    )
    training = LocalTraining(
        epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    try:
        method: Method = METHODS[settings.method].make(model, scene)
    except TypeError as error:
        if not settings.options:
            raise
        raise SettingError(f"{settings.method} does not take these options: {error}") from None
    return Simulation(
        method,
        dataset,
        parts,
        training,
        sample_fraction=settings.sample_fraction,
        seed=settings.seed,
        workers=_workers_that_pay(settings, model, dataset, parts) if workers is None else workers,
        evaluation_samples=settings.evaluation_samples,
        weighted=settings.preset != "paper",
    )


def _split(settings: Settings, dataset: Dataset) -> list[Tensor]:
    """Which training samples each client holds."""
    generator = torch.Generator().manual_seed(settings.seed)
    name, released = str(settings.split).partition("-")[::2]
    common: dict[str, Any] = {"generator": generator, "samples_per_client": settings.samples_per_client}
    if name == "iid":
        return partition.iid(dataset.train_labels, settings.clients, stratified=bool(released), **common)
    return partition.dirichlet(
        dataset.train_labels, settings.clients, gamma=settings.gamma, capped=bool(released), **common
    )


def run(
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
    warm_from: Path | None = None,
    first_rounds: Path | None = None,
    data_dir: Path | None = None,
    device: torch.device | None = None,
    workers: int | None = 1,
    key: KeySource | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run a federation and write everything about it to `out`; returns the summary.

    `key` opens the vault; without it, a key file beside the vault is used, and made for a new run. `workers` is how
    many processes train the clients. None takes as many as pay; a script that asks for it must start under
    `if __name__ == "__main__":`. `first_rounds` is the folder of a FedAvg run with the same clients, seed and warm-up:
    all but the last `LEAD` rounds of its warm-up, which is the same, are taken over instead of being played again.
    """
    settings, metrics = _start(settings, out, resume)
    with ExitStack() as stack:
        stack.enter_context(_removing_unused_vault(out))
        simulation = stack.enter_context(
            prepare(
                settings,
                data_dir=data_dir,
                device=device,
                workers=workers,
                vault=_vault_of(settings, out, key, "go on" if resume else "create"),
                checkpoint=out / CHECKPOINT,
            )
        )
        method = stack.enter_context(closing(simulation.method))
        if resume and method.resume():
            metrics = _up_to(simulation, metrics)
        else:
            metrics = []
            if warm_from is not None:
                warm_start(warm_from / "warmup.safetensors", method)
            elif first_rounds is not None:
                begin_with(first_rounds / FIRST_ROUNDS, method)
                metrics = [line for line in _lines(first_rounds) if line["round"] <= method.round]
        _write_json(out / "config.json", asdict(settings))
        _write_lines(out / "metrics.jsonl", metrics)
        for line in metrics:
            if on_round:
                on_round(line)
        while method.round < settings.rounds:
            began = time.perf_counter()
            line = simulation.step(keep=_writer(out / "trained") if method.round + 1 == settings.rounds else None)
            metrics.append(line | {"seconds": round(time.perf_counter() - began, 3)})
            _write_lines(out / "metrics.jsonl", metrics)
            if settings.method == "fedavg" and method.round == settings.begins_after - LEAD:
                save_warm_up(out / FIRST_ROUNDS, method)
            if method.round == settings.begins_after:
                save_warm_up(out / "warmup.safetensors", method)
            if on_round:
                on_round(metrics[-1])
        for client, state in method.dispatch().items():
            _writer(out / "models")(client, state)
    summary = _summary(simulation, metrics)
    _write_json(out / "summary.json", summary)
    return summary


def reopen(
    folder: Path,
    *,
    data_dir: Path | None = None,
    device: torch.device | None = None,
    key: KeySource | None = None,
) -> tuple[Settings, Simulation]:
    """A run as it was when it last stopped, to look at; nothing in the folder changes, whatever is done to it."""
    config = folder / "config.json"
    if not config.exists():
        raise SettingError(f"no run in {folder}")
    settings = Settings(**json.loads(config.read_text()))
    vault = _vault_of(settings, folder, key, "look")
    simulation = prepare(settings, data_dir=data_dir, device=device, vault=vault, checkpoint=folder / CHECKPOINT)
    with closing(simulation.method) as method:
        method.resume()
    return settings, simulation


def _vault_of(
    settings: Settings, out: Path, key: KeySource | None, purpose: Literal["create", "go on", "look"]
) -> Callable[[Keyring], Vault]:
    """A function that creates or opens a run's vault for the run's keyring."""
    path = out / "vault"

    def vault(keyring: Keyring) -> Vault:
        given = key or KeySource(key_file=default_key_file(path))
        if purpose == "create":
            if key is None and not default_key_file(path).exists():
                make_key_file(default_key_file(path))
            made = Vault.create(path, keyring, passphrase=given.passphrase, key_file=given.key_file, simulated=True)
            described = {"model": settings.model, "input_shape": keyring.source.shape, "classes": keyring.classes}
            made.put(MODEL, json.dumps(described).encode())
            return made
        return Vault.open(
            path,
            passphrase=given.passphrase,
            key_file=given.key_file,
            readonly=purpose == "look",
            images=images_of(keyring.source),
        )

    return vault


@contextmanager
def _removing_unused_vault(out: Path) -> Iterator[None]:
    """Remove a vault that was made for a run which could not start, so that it is not in the way of a second try."""
    new = not (out / "vault").exists()
    try:
        yield
    except BaseException:
        if new and not (out / "config.json").exists():
            shutil.rmtree(out / "vault", ignore_errors=True)
        raise


def _start(settings: Settings, out: Path, resume: bool) -> tuple[Settings, list[dict[str, Any]]]:
    """Make or check the folder; returns the settings, with the warm-up as a number, and the metrics of earlier rounds.

    A run that goes on keeps its warm-up, unless told, whatever the number of rounds is now.
    """
    config = out / "config.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not resume:
            if config.exists():
                raise SettingError(f"{out} holds a run already: use --resume to go on with it, or another folder")
            # A folder that cannot be written to shows now, and not after the data has been read.
            (out / "metrics.jsonl").touch()
            return replace(settings, warmup=settings.begins_after), []
    except OSError as error:
        raise SettingError(f"cannot write to {out}: {error.strerror}") from None
    if not config.exists():
        raise SettingError(f"no run to resume in {out}")
    before = json.loads(config.read_text())
    if settings.warmup == "auto":
        settings = replace(settings, warmup=before["warmup"])
    # A run of an earlier version lacks settings that came later; it was made with their defaults.
    before = asdict(Settings(**before))
    different = [k for k, v in asdict(settings).items() if before.get(k) != v and k != "rounds"]
    if different:
        raise SettingError(
            f"the run in {out} was made with other settings: "
            + ", ".join(f"{k} {before.get(k)}, not {getattr(settings, k)}" for k in different)
        )
    return settings, _lines(out)


def _lines(out: Path) -> list[dict[str, Any]]:
    """The metrics of a run's rounds."""
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _up_to(simulation: Simulation, metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The metrics of the rounds that the resumed method has played.

    The method keeps its state before a round's line is written: a run that was killed in between lacks the last line,
    so the round is measured again.
    """
    done = simulation.method.round
    metrics = [line for line in metrics if line["round"] <= done]
    if done > (metrics[-1]["round"] if metrics else 0):
        metrics.append({"round": done, **simulation.measure(simulation.evaluation_samples), "seconds": 0.0})
    return metrics


def _writer(folder: Path) -> Callable[[str, dict[str, Tensor]], None]:
    """A function that writes clients' models to a folder."""
    return lambda client, state: write_model(folder / f"{client}.safetensors", state)


def _summary(simulation: Simulation, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    final = simulation.measure()
    trained = [line["confidence_trained"] for line in metrics if "confidence_trained" in line]
    return {
        "ma": final["ma"],
        # The authors' code reports the best round's, measured after each round, warm-up included.
        "ma_best": max((line["ma"] for line in metrics), default=final["ma"]),
        "vr": final.get("vr"),
        "confidence": final.get("confidence"),
        "confidence_trained": trained[-1] if trained else None,
        "leakage": final.get("leakage"),
        "interval": final.get("interval"),
        "kl": final.get("kl"),
        "seconds": round(sum(line["seconds"] for line in metrics), 1),
        "per_client": final["per_client"],
    }


def _workers_that_pay(settings: Settings, model: nn.Module, dataset: Dataset, parts: Sequence[Tensor]) -> int:
    """One for each of torch's threads, if the run is long enough and models and data find room in shared memory, of
    which containers have little."""
    taking_part = settings.sample_fraction * len(parts)
    count = min(torch.get_num_threads(), max(1, round(taking_part)))
    samples = sum(len(part) for part in parts) * settings.sample_fraction * settings.local_epochs * settings.rounds
    weights = sum(weight.numel() for weight in model.parameters())
    shared = (count + 1) * sum(tensor.nbytes for tensor in model.state_dict().values()) + dataset.train_inputs.nbytes
    room = shutil.disk_usage(SHARED).free if SHARED.exists() else shared
    pays = samples * weights >= WORTH_WORKERS and device_of(model).type == "cpu" and shared <= room
    return count if pays else 1


def _write_json(path: Path, value: Any) -> None:
    replace_file(path, json.dumps(value, indent=2).encode() + b"\n", mode=0o644)


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    replace_file(path, "".join(json.dumps(line) + "\n" for line in lines).encode(), mode=0o644)
