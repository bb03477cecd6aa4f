"""`tramark attack`: attack the models of a run, and see whether they can still be traced."""

import inspect
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tramark.cli.common import DataDir, Device, KeyFile, console, device_named, key_for, pairs
from tramark.errors import SettingError

if TYPE_CHECKING:
    from tramark.lab.attacks import Attack, Collusion
    from tramark.lab.attacks.arena import Ledger, Stage


def attack(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(exists=True, file_okay=False, help="Folders of finished runs.", metavar="RUN…"),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--attack", help="Name of the attack to make; --list shows all names.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="A parameter of the attack, such as share=0.9. Repeat the option for several."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Make attacks of every kind, and draw a matrix of the results.")
    ] = False,
    clients: Annotated[
        str | None,
        typer.Option(help="Clients that attack their models: a number, or names separated by commas. By default, all."),
    ] = None,
    which: Annotated[
        Literal["trained", "issued"],
        typer.Option(help="Attack the models as the clients last trained them, or as they were issued."),
    ] = "trained",
    samples: Annotated[int, typer.Option(help="Number of test samples to measure the accuracy on.")] = 2000,
    out: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="File for the picture of the matrix (--all). By default, attacks.png in the first run."
        ),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File for the matrix as a Markdown table (--all).")
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the attacks and their parameters, and attack nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Attack the models of a run as thieves would, and show whether they can still be traced.

    Results are kept in the run's folder (attacks.jsonl). An attack that is there already is not made again.
    """
    from tramark.lab.attacks.arena import MATRIX, Ledger, Stage, make, title
    from tramark.lab.attacks.picture import draw_matrix, markdown

    if show:
        typer.echo(_catalogue(as_json))
        return
    if not runs or (name is None) is not everything:
        raise SettingError("give the folder of a run, and --attack NAME or --all (--list shows the attacks)")
    named = MATRIX if everything else [(name or "", pairs("--param", param or []))]
    wanted = {title(*one): make(*one) for one in named}
    rows = []
    for folder in runs:
        place = folder / "vault"
        key = key_for(place, key_file) if place.exists() else None
        stage = Stage.of(folder, which, key=key, data_dir=data_dir, device=device_named(device))
        rows += _assaults(stage, Ledger(folder), wanted, _thieves(stage, clients), samples)
    typer.echo(json.dumps(rows if everything else rows[0], indent=2)) if as_json else _show(rows)
    if table is not None:
        table.write_text(markdown(rows))
    picture = out or runs[0] / "attacks.png"
    if everything and not draw_matrix(rows, picture):
        console.print("no picture of the matrix: install tramark[lab] for it")


def _assaults(
    stage: "Stage", ledger: "Ledger", wanted: "dict[str, Attack | Collusion]", thieves: list[str], samples: int
) -> list[dict[str, Any]]:
    """The results of all attacks on one run, from the ledger where it has them."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tramark.lab.attacks.arena import assault, groups

    rows = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        whole = progress.add_task(stage.settings.method, total=len(wanted), visible=len(wanted) > 1)
        for short, one in wanted.items():
            everybody = list(stage.simulation.method.fleet.clients)
            teams = [team for team in groups(one, everybody) if team[0] in thieves]
            key = {"attack": repr(one), "which": stage.which, "samples": samples, "thieves": [list(t) for t in teams]}
            row = ledger.find(key)
            if row is None:
                task = progress.add_task(short, total=len(teams))
                advance = partial(progress.advance, task)
                row = ledger.add(key, assault(stage, one, teams, samples=samples, progress=advance))
                progress.remove_task(task)
            rows.append({"title": short} | {k: v for k, v in row.items() if k not in ("key", "thieves")})
            progress.advance(whole)
    return rows


def _thieves(stage: "Stage", clients: str | None) -> list[str]:
    everybody = list(stage.leaked)
    if clients is None:
        return everybody
    if clients.isdecimal():
        return everybody[: max(1, int(clients))]
    chosen = [client.strip() for client in clients.split(",")]
    if unknown := [client for client in chosen if client not in everybody]:
        raise SettingError(f"no client {', '.join(unknown)} in this run: there are {', '.join(everybody)}")
    return chosen


def _catalogue(as_json: bool) -> str:
    from tramark.lab.attacks import ATTACKS

    rows = {}
    for name, kind in ATTACKS.items():
        about = inspect.getdoc(getattr(kind, "func", kind)) or ""
        values = {p.name: p.default for p in inspect.signature(kind).parameters.values()}
        rows[name] = {"about": about.splitlines()[0], "parameters": values}
    if as_json:
        return json.dumps(rows, indent=2, default=str)
    lines = (
        f"{name:22} {row['about']}\n{'':22} " + ", ".join(f"{k}={v}" for k, v in row["parameters"].items())  # type: ignore[attr-defined]
        for name, row in rows.items()
    )
    return "\n".join(line.rstrip() for line in lines)


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("method", "attack", "MA before", "MA", "VR", "confidence", "right / wrong / nobody / open", "queries")
    for row in rows:
        if "not_applicable" in row:
            table.add_row(row["method"], row["title"], "", "", "", "", row["not_applicable"], "")
            continue
        counts = " / ".join(str(n) for n in row.get("verdicts", {}).values())
        ma = f"{100 * row['ma']:.1f}" + (" †" if row["dead"] else "")
        numbers = [f"{row[name]:.2f}" if name in row else "" for name in ("vr", "confidence")]
        before, queries = f"{100 * row['ma_before']:.1f}", str(row.get("queries", ""))
        table.add_row(row["method"], row["title"], before, ma, *numbers, counts, queries)
    console.print(table)
