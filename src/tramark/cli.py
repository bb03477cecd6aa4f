"""The command line: parse, call, show."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tramark import __version__, data, models
from tramark.federation.picture import draw_curves
from tramark.federation.run import SettingError, Settings
from tramark.federation.run import run as run_federation
from tramark.inject import PRESETS

app = typer.Typer(
    help="Find out who leaked a federation's model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="The data sets that can be trained on.", no_args_is_help=True)
app.add_typer(data_app, name="data")
console = Console(stderr=True)


class MethodName(StrEnum):
    tramark = "tramark"
    fedavg = "fedavg"


class AnswersName(StrEnum):
    code = "code"
    label = "label"


class TriggersName(StrEnum):
    auto = "auto"
    patterns = "patterns"
    waffle = "waffle"
    mnist = "mnist"
    svhn = "svhn"


class SplitName(StrEnum):
    iid = "iid"
    dirichlet = "dirichlet"


DataDir = Annotated[Path | None, typer.Option(help="Folder with data files, looked into before any download.")]


@app.command()
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
    method: Annotated[MethodName, typer.Option(help="How the server works.")] = MethodName.tramark,
    preset: Annotated[str, typer.Option(help=f"How marks are made: {', '.join(PRESETS)}.")] = "default",
    answers: Annotated[
        AnswersName, typer.Option(help="Secret codewords, or the paper's one label per client.")
    ] = AnswersName.code,
    questions: Annotated[
        int | None,
        typer.Option(help="Questions per model (code answers); as many as the bound wants, unless told."),
    ] = None,
    triggers: Annotated[
        TriggersName,
        typer.Option(help="What questions are made of; auto: patterns for codes, MNIST for labels."),
    ] = TriggersName.auto,
    split: Annotated[SplitName, typer.Option(help="How samples are spread over clients.")] = SplitName.iid,
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
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    warm_from: Annotated[
        Path | None, typer.Option(help="Folder of another run whose warm-up this one starts from, to compare methods.")
    ] = None,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps … or auto.")] = "auto",
) -> None:
    """Simulate a federation in which every client's model carries its own mark.

    Writes config.json, metrics.jsonl, summary.json, curves.png, the clients' models as safetensors (as issued:
    models/, as trained by the clients: trained/) and a checkpoint to the folder, and prints the summary.
    """
    settings = Settings(
        data=data,
        model=model,
        clients=clients,
        rounds=rounds,
        warmup=rounds // 2 if warmup is None else warmup,
        ratio=ratio,
        method=method.value,
        preset=preset,
        answers=answers.value,
        questions=questions,
        triggers=triggers.value,
        split=split.value,
        gamma=gamma,
        samples_per_client=samples_per_client,
        local_epochs=local_epochs,
        batch_size=batch_size,
        lr=lr,
        sample_fraction=sample_fraction,
        seed=seed,
    )
    summary = _run(settings, out, resume=resume, warm_from=warm_from, data_dir=data_dir, device=_device(device))
    typer.echo(json.dumps({k: v for k, v in summary.items() if k != "per_client"}, indent=2))


def _run(
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
    warm_from: Path | None = None,
    data_dir: Path | None = None,
    device: torch.device | None = None,
) -> dict[str, Any]:
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
            traced = f"  VR {line['vr']:.2f}" if "vr" in line else "  warm-up" if settings.method == "tramark" else ""
            progress.update(task, completed=line["round"], state=f"MA {100 * line['ma']:.1f} %{traced}")

        summary = run_federation(
            settings, out, resume=resume, warm_from=warm_from, data_dir=data_dir, device=device, on_round=show
        )
    title = f"{settings.data}, {settings.model}, {settings.clients} clients, {settings.method}"
    warmup = settings.warmup if settings.method == "tramark" else None
    if not draw_curves(lines, out / "curves.png", warmup=warmup, title=title):
        console.print("no picture of the curves: install tramark[studies] for it")
    return summary


@data_app.command("list")
def data_list() -> None:
    """Show which data sets there are, and which are here already."""
    table = Table("name", "what", "classes", "cached")
    for entry in data.available():
        table.add_row(entry.name, entry.what, str(entry.classes), "yes" if entry.cached else "")
    Console().print(table)


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="A name from `tramark data list`.")]) -> None:
    """Fetch a data set from whichever source answers, check it, and keep it."""
    with console.status(f"fetching {name}"):
        path = data.get(name)
    typer.echo(path)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    pass


def _device(name: str) -> torch.device:
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except RuntimeError as error:
            raise SettingError(f"no device {name!r} here: {str(error).splitlines()[0]}") from None
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def main() -> None:
    """Run the command line; what a user can mend is one line on stderr and exit code 2."""
    try:
        app()
    except (ValueError, KeyError, OSError) as error:
        console.print(
            f"tramark: {' '.join(str(error).split())}",
            style="red",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(2)
