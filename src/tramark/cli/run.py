"""`tramark run` and `tramark demo`: simulate a federation and show how it went."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from tramark.cli.common import (
    DataDir,
    Device,
    KeyFile,
    console,
    device_named,
    existing_folder,
    interactive,
    key_for,
    pairs,
)
from tramark.cli.trace import trace_suspect
from tramark.errors import NoKey, SettingError
from tramark.lab.names import MethodName, ModelName, PresetName, SplitName, TriggerKind

if TYPE_CHECKING:
    from tramark.lab.simulation.run import Settings
    from tramark.marks.begin import Warmup
    from tramark.vault.lock import KeySource


def run(
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder to write the results to.")],
    data: Annotated[
        str, typer.Option(help="Data set to train on: a name from `tramark data list`, or an .npz file.")
    ] = "fashion-mnist",
    model: Annotated[ModelName, typer.Option(help="Architecture of the model.")] = "cnn",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 10,
    rounds: Annotated[int, typer.Option(help="Number of rounds, warm-up included.")] = 50,
    warmup: Annotated[
        str,
        typer.Option(
            metavar="INTEGER|auto", help="Number of rounds without marks at the start. auto: half of all, 25 at most."
        ),
    ] = "auto",
    ratio: Annotated[
        float, typer.Option(help="Share of the weights that carry marks (presets paper and released).")
    ] = 0.01,
    method: Annotated[
        str,
        typer.Option(
            metavar=f"[{'|'.join(get_args(MethodName))}]",
            help="Method that the server follows; `tramark methods` compares them, those of other packages included.",
        ),
    ] = "tramark",
    preset: Annotated[
        PresetName,
        typer.Option(
            help="How marks are made: default is the closed form, paper follows the paper's text, released its "
            "authors' code. The last two also set --answers, --verification and --split, unless these are given."
        ),
    ] = "default",
    answers: Annotated[
        Literal["code", "label"] | None,
        typer.Option(
            help="Answers of the clients: code gives each a secret codeword, label one label (the paper's). By "
            "default, label with the presets paper and released, else code."
        ),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of questions per model (code answers). By default, as many as the false-accusation bound "
            "needs.",
        ),
    ] = None,
    triggers: Annotated[
        TriggerKind,
        typer.Option(
            help="What questions are made of. auto: patterns for code answers; for label answers MNIST, or waffle for "
            "more than ten clients."
        ),
    ] = "auto",
    trigger_count: Annotated[
        int, typer.Option(min=1, help="Number of triggers that each client's model is trained on (label answers).")
    ] = 100,
    verification: Annotated[
        Literal["held-out", "test-set"] | None,
        typer.Option(
            help="What issued models are verified with (label answers): 100 other triggers of each client, or all test "
            "images of its label. By default, test-set with the presets paper and released."
        ),
    ] = None,
    split: Annotated[
        SplitName | None,
        typer.Option(
            help="How the samples are distributed over the clients. iid-stratified deals out each label evenly; "
            "dirichlet-capped gives a client that has its n-th part no more. By default iid, and iid-stratified "
            "with the preset released."
        ),
    ] = None,
    gamma: Annotated[
        float, typer.Option(help="Parameter of the Dirichlet split. The smaller, the more the clients' data differ.")
    ] = 0.5,
    samples_per_client: Annotated[
        int | None, typer.Option(help="Number of training samples of each client. By default, all are shared out.")
    ] = None,
    local_epochs: Annotated[int, typer.Option(help="Epochs that a client trains in a round.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Batch size of the clients' training.")] = 64,
    lr: Annotated[float, typer.Option(min=0, help="Learning rate of the clients' training.")] = 0.01,
    momentum: Annotated[float, typer.Option(min=0, max=1, help="Momentum of the clients' training.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(min=0, help="Weight decay of the clients' training.")] = 1e-4,
    sample_fraction: Annotated[float, typer.Option(help="Share of the clients that take part in each round.")] = 1.0,
    evaluation_samples: Annotated[
        int,
        typer.Option(min=1, help="Number of test samples to measure on after each round; after the last, all."),
    ] = 2000,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the data split, the weights and the training. In this simulation it also seeds the keyring."
        ),
    ] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="A parameter of the method, such as projection=reversed, or of the preset: rate (η_w) and passes "
            "(τ_w) of paper and released. Repeat the option for several."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder --out.")] = False,
    warm_from: Annotated[
        Path | None,
        existing_folder(
            help="Folder of another run. This run starts from the end of that run's warm-up, to compare methods."
        ),
    ] = None,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of processes that train clients on the CPU, with one thread each. By default, more than one "
            "only if that is faster.",
        ),
    ] = None,
) -> None:
    """Simulate a federation in which every client's model carries its own mark.

    Prints a summary. The folder --out gets config.json, metrics.jsonl,
    summary.json and curves.png, the clients' models as they were issued
    (models/) and as the clients last trained them (trained/), and the vault
    that traces them.
    """
    from tramark.lab.simulation.run import Settings
    from tramark.lab.simulation.run import run as run_federation

    settings = Settings(
        data=data,
        model=model,
        clients=clients,
        rounds=rounds,
        warmup=_warmup(warmup),
        ratio=ratio,
        method=method,
        preset=preset,
        answers=answers,
        questions=questions,
        triggers=triggers,
        trigger_count=trigger_count,
        verification=verification,
        split=split,
        gamma=gamma,
        samples_per_client=samples_per_client,
        local_epochs=local_epochs,
        batch_size=batch_size,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        sample_fraction=sample_fraction,
        evaluation_samples=evaluation_samples,
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


def _watch(job: Callable[..., dict[str, Any]], settings: "Settings", out: Path) -> dict[str, Any]:
    """Runs a federation with a progress bar, and draws the curves."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tramark.lab.simulation.picture import draw_curves

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
            traced += f"  {line['survival']:.0%} left after training" if "survival" in line else ""
            progress.update(task, completed=line["round"], state=f"MA {100 * line['ma']:.1f} %{traced}")

        summary = job(settings, out, on_round=show)
    title = f"{settings.data}, {settings.model}, {settings.clients} clients, {settings.method}"
    # A run that goes on has the warm-up that it began with.
    warmup = json.loads((out / "config.json").read_text())["warmup"] if settings.method == "tramark" else None
    if not draw_curves(lines, out / "curves.png", warmup=warmup, title=title):
        console.print("no picture of the curves: install tramark[lab] for it")
    return summary


def _warmup(given: str) -> "Warmup":
    """The number of warm-up rounds, or auto."""
    if given == "auto":
        return "auto"
    try:
        return int(given)
    except ValueError:
        raise SettingError(f"--warmup {given}: it is a number of rounds, or auto") from None


def _key(out: Path, key_file: Path | None) -> "KeySource | None":
    """The key of a run's vault, or None if the run shall make a key file."""
    from tramark.vault.lock import default_key_file

    place = out / "vault"
    try:
        return key_for(place, key_file, new=not place.exists())
    except NoKey:
        if not interactive() and not place.exists():
            console.print(f"no passphrase given: the vault's key goes to {default_key_file(place)}", highlight=False)
        return None


def demo(
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder to write the results to. An earlier demo in it is replaced.")
    ] = Path("demo"),
    leaker: Annotated[int, typer.Option(min=0, max=9, help="Number of the client that leaks its model, 0 to 9.")] = 3,
) -> None:
    """Train ten clients, let one of them leak its model, and find out who it was."""
    from tramark.lab.simulation.run import Settings
    from tramark.lab.simulation.run import run as run_federation

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
    console.print(f"curves: {out / 'curves.png'}", highlight=False)
    raise typer.Exit(code)
