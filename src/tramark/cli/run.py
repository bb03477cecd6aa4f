"""`tramark run` and `tramark demo`: simulate a federation and show how it went."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tramark.cli.common import DataDir, KeyFile, console, device_named, interactive, key_for, pairs
from tramark.cli.trace import trace_suspect
from tramark.errors import NoKey
from tramark.lab import models
from tramark.lab.methods import METHODS
from tramark.lab.simulation.picture import draw_curves
from tramark.lab.simulation.run import Settings, TriggerKind
from tramark.lab.simulation.run import run as run_federation
from tramark.marks.presets import PRESETS
from tramark.vault.lock import KeySource, default_key_file


def run(
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    data: Annotated[
        str, typer.Option(help="Data set: a name from `tramark data list`, or an .npz file.")
    ] = "fashion-mnist",
    model: Annotated[str, typer.Option(help=f"Model: {', '.join(models.NAMES)}.")] = "cnn",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds in all.")] = 50,
    warmup: Annotated[
        int | None,
        typer.Option(help="Rounds of plain FedAvg before the first marks; half of all, unless told."),
    ] = None,
    ratio: Annotated[
        float, typer.Option(help="The region's share k of the weights (presets paper and released).")
    ] = 0.01,
    method: Annotated[str, typer.Option(help=f"How the server works: {', '.join(METHODS)}.")] = "tramark",
    preset: Annotated[str, typer.Option(help=f"How marks are made: {', '.join(PRESETS)}.")] = "default",
    answers: Annotated[
        Literal["code", "label"], typer.Option(help="Secret codewords, or the paper's one label per client.")
    ] = "code",
    questions: Annotated[
        int | None,
        typer.Option(help="Questions per model (code answers); as many as the bound wants, unless told."),
    ] = None,
    triggers: Annotated[
        TriggerKind,
        typer.Option(help="What questions are made of; auto: patterns for codes, MNIST for labels."),
    ] = "auto",
    split: Annotated[Literal["iid", "dirichlet"], typer.Option(help="How samples are spread over clients.")] = "iid",
    gamma: Annotated[float, typer.Option(help="Dirichlet parameter: smaller is less alike.")] = 0.5,
    samples_per_client: Annotated[
        int | None, typer.Option(help="Samples of each client; all there are, unless told.")
    ] = None,
    local_epochs: Annotated[int, typer.Option(help="Epochs of each client in a round.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Batch size of the clients.")] = 64,
    lr: Annotated[float, typer.Option(help="Learning rate of the clients.")] = 0.01,
    sample_fraction: Annotated[float, typer.Option(help="Share of the clients that take part in a round.")] = 1.0,
    seed: Annotated[
        int,
        typer.Option(help="Seed of data split, weights, clients and, since this is a simulation, of the keyring."),
    ] = 0,
    option: Annotated[
        list[str] | None, typer.Option(help="A parameter of the method's own, such as projection=reversed.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    warm_from: Annotated[
        Path | None, typer.Option(help="Folder of another run whose warm-up this one starts from, to compare methods.")
    ] = None,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps … or auto.")] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that train clients on the CPU, one thread each; as many as pay, unless told."
        ),
    ] = None,
) -> None:
    """Simulate a federation in which every client's model carries its own mark.

    Writes config.json, metrics.jsonl, summary.json, curves.png, the clients' models as safetensors (as issued:
    models/, as trained by the clients: trained/) and the vault that traces them to the folder; prints the summary.
    """
    settings = Settings(
        data=data,
        model=model,
        clients=clients,
        rounds=rounds,
        warmup=rounds // 2 if warmup is None else warmup,
        ratio=ratio,
        method=method,
        preset=preset,
        answers=answers,
        questions=questions,
        triggers=triggers,
        split=split,
        gamma=gamma,
        samples_per_client=samples_per_client,
        local_epochs=local_epochs,
        batch_size=batch_size,
        lr=lr,
        sample_fraction=sample_fraction,
        seed=seed,
        options=pairs("--option", option or []),
    )
    job = partial(
        run_federation,
        resume=resume,
        warm_from=warm_from,
        data_dir=data_dir,
        device=device_named(device),
        workers=workers,
        key=_key(out, key_file) if method == "tramark" else None,
    )
    summary = _watch(job, settings, out)
    typer.echo(json.dumps({k: v for k, v in summary.items() if k != "per_client"}, indent=2))


def _watch(job: Callable[..., dict[str, Any]], settings: Settings, out: Path) -> dict[str, Any]:
    """Run with a progress bar, and draw the curves."""
    lines: list[dict[str, Any]] = []
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        task = progress.add_task("rounds", total=settings.rounds, state="")

        def show(line: dict[str, Any]) -> None:
            lines.append(line)
            warming_up = "  warm-up" if settings.method == "tramark" else ""
            traced = warming_up if line.get("vr") is None else f"  VR {line['vr']:.2f}"
            progress.update(task, completed=line["round"], state=f"MA {100 * line['ma']:.1f} %{traced}")

        summary = job(settings, out, on_round=show)
    title = f"{settings.data}, {settings.model}, {settings.clients} clients, {settings.method}"
    warmup = settings.warmup if settings.method == "tramark" else None
    if not draw_curves(lines, out / "curves.png", warmup=warmup, title=title):
        console.print("no picture of the curves: install tramark[lab] for it")
    return summary


def _key(out: Path, key_file: Path | None) -> KeySource | None:
    """The key of a run's vault; None lets the run make a key file."""
    place = out / "vault"
    try:
        return key_for(place, key_file, new=not place.exists())
    except NoKey:
        if not interactive() and not place.exists():
            console.print(f"no passphrase given: the vault's key goes to {default_key_file(place)}", highlight=False)
        return None


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; replaced if it holds an earlier demo.")] = Path(
        "demo"
    ),
    leaker: Annotated[int, typer.Option(help="Which of the ten clients leaks its model.")] = 3,
) -> None:
    """Train ten clients, let one of them leak the model it trained, and find out who it was."""
    if (out / "summary.json").exists():
        shutil.rmtree(out)
    settings = Settings(data="auto", rounds=12, warmup=8, samples_per_client=300, local_epochs=2, seed=0)
    console.rule("ten clients train together")
    summary = _watch(run_federation, settings, out)
    console.print(f"every client's own model: MA {100 * summary['ma']:.1f} %, VR {summary['vr']:.2f}", highlight=False)
    suspect = out / "leaked.safetensors"
    shutil.copyfile(out / "trained" / f"client-{leaker}.safetensors", suspect)
    console.rule("a model turns up, and nobody says whose it is")
    code = trace_suspect(out / "vault", str(suspect), report=out / "report", as_json=False)
    console.print(f"the curves: {out / 'curves.png'}\nthe report: {out / 'report' / 'report.html'}", highlight=False)
    raise typer.Exit(code)
