"""Federations that studies share: each is played once, in a folder of `work` named by its settings, and kept.

A folder is that of `tramark run`, so that `tramark trace` and `tramark attack` can look at it, too. A federation that
was stopped goes on where it was.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tramark.lab.attacks.arena import Ledger, Stage, Which, assault, groups, make
from tramark.lab.methods import Finding, Traced, Verifiable
from tramark.lab.simulation.run import FIRST_ROUNDS, Settings, run
from tramark.lab.studies.scales import plain_settings, unmarked
from tramark.lab.studies.study import Bench, Part, Row
from tramark.vault.files import pretty, replace_file
from tramark.vault.lock import WriterLock

OUTCOME = "outcome.json"
CURVES = ("round", "ma", "vr", "confidence", "leakage", "interval", "kl", "confidence_trained")


def folder_of(settings: Settings, bench: Bench) -> Path:
    """The folder of a finished federation, which is played first if need be."""
    folder = Part(plain_settings(settings)).folder(bench.work, settings.seed)
    with _alone(folder):
        if not (folder / "summary.json").exists():
            resume = (folder / "config.json").exists()
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)

            def show(line: dict[str, Any]) -> None:
                bench.say(f"round {line['round']} of {settings.rounds}, MA {100 * line['ma']:.1f} %")

            device = torch.device(bench.device)
            same = unmarked(settings)
            first = None if same is None else Part(plain_settings(same)).folder(bench.work, settings.seed)
            if first is not None and not (first / FIRST_ROUNDS).exists():
                first = None
            run(
                settings,
                folder,
                resume=resume,
                first_rounds=first,
                data_dir=bench.data_dir,
                device=device,
                on_round=show,
            )
    return folder


def stage_of(settings: Settings, bench: Bench, which: Which) -> Stage:
    """A finished federation, with the models that its clients leak."""
    folder = folder_of(settings, bench)
    return Stage.of(folder, which, data_dir=bench.data_dir, device=torch.device(bench.device))


def outcome(settings: Settings, bench: Bench) -> Row:
    """What came of a federation: MA, VR and so on at the end, and `curve`, the same after each round.

    `vr_trained` is the VR of the models as their clients last trained them; `owned` and `owned_trained` are the shares
    of models that a method which names nobody claims for the federation.
    """
    folder = folder_of(settings, bench)
    return kept(folder / OUTCOME, lambda: _outcome(settings, folder, bench))


def attacked(
    settings: Settings,
    bench: Bench,
    attacks: Sequence[tuple[str, dict[str, Any]]],
    *,
    which: Which,
    thieves: int | None = None,
    samples: int | None = None,
) -> list[Row]:
    """What becomes of the clients' models after each attack. The run's folder keeps it for other studies.

    `thieves` is how many clients (or groups of colluders) attack, all by default; `samples` how many test samples are
    used.
    """
    folder = folder_of(settings, bench)
    stage, rows = stage_of(settings, bench, which), []
    for number, (name, parameters) in enumerate(attacks):
        attack = make(name, parameters)
        teams = list(groups(attack, stage.simulation.method.fleet.clients))[:thieves]
        key = {"attack": repr(attack), "which": which, "samples": samples, "thieves": [list(team) for team in teams]}
        found = Ledger(folder).find(key)
        if found is None:
            bench.say(f"attack {number + 1} of {len(attacks)}: {name}")
            made = assault(stage, attack, teams, samples=samples)
            with _alone(folder):
                found = Ledger(folder).add(key, made)
        rows.append({"name": name, "parameters": parameters} | {k: v for k, v in found.items() if k not in NOT_SHOWN})
    return rows


NOT_SHOWN = ("key", "thieves")


def kept(path: Path, make_it: Callable[[], Row]) -> Row:
    """What a file keeps, made and written first if it does not exist."""
    if not path.exists():
        replace_file(path, pretty(make_it()), 0o644)
    row: Row = json.loads(path.read_text())
    return row


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else works on this folder within the block, also no other command."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(folder.parent, f".{folder.name}.lock", busy=None)
    try:
        yield
    finally:
        lock.release()


def _outcome(settings: Settings, folder: Path, bench: Bench) -> Row:
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        **{name: value for name, value in summary.items() if name not in ("seconds", "per_client")},
        "ma_best": max(line["ma"] for line in lines),
        "clients_ma": [one["ma"] for one in summary["per_client"].values()],
        "seconds_run": summary["seconds"],
        **_verified(settings, bench),
        "curve": [{name: line[name] for name in CURVES if line.get(name) is not None} for line in lines],
    }


def _verified(settings: Settings, bench: Bench) -> Row:
    """How many models are verified as their clients trained them and, if the method names nobody, as issued."""
    row: Row = {}
    for which, ending in (("issued", ""), ("trained", "_trained")):
        stage = stage_of(settings, bench, "issued" if which == "issued" else "trained")
        method = stage.simulation.method
        if not isinstance(method, Verifiable):
            return row
        if method.declared.names_clients and which == "issued":
            continue
        bench.say(f"verifies models as {which}")
        findings = {client: _verify(method, stage.model(client)) for client in stage.leaked}
        if method.declared.names_clients:
            row["vr_trained"] = sum(found.accused == (client,) for client, found in findings.items()) / len(findings)
        else:
            row[f"owned{ending}"] = sum(found.owned for found in findings.values()) / len(findings)
    return row


def _verify(method: Verifiable, model: nn.Module) -> Finding:
    """What a method says of a model.

    The paper's arg-max is taken from the clients' accuracies: a trace would render every trigger anew for each model.
    """
    if isinstance(method, Traced) and method.keyring.assignment == "label":
        scores = {client: method.confidence(model, client) for client in method.keyring.clients}
        return Finding((max(scores, key=lambda client: scores[client]),), scores)
    return method.verify(model)
