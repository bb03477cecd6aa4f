"""`tramark export`: write one client's model of a run to a file."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from tramark.cli.common import DataDir, console, read_as
from tramark.errors import SettingError


def export(
    run: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="The folder of a run.")],
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write.")],
    client: Annotated[str, typer.Option(help="Name of the client whose model is written.")],
    form: Annotated[
        Literal["safetensors", "onnx", "pt2"], typer.Option("--format", help="Format of the file.")
    ] = "safetensors",
    trained: Annotated[
        bool,
        typer.Option("--trained", help="Write the model as the client last trained it, not as it was issued."),
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Write a client's model, as it was issued, to a file."""
    from tramark.vault.files import replace_file

    source = run / ("trained" if trained else "models") / f"{client}.safetensors"
    if not source.exists():
        known = sorted(path.stem for path in source.parent.glob("*.safetensors"))
        raise SettingError(
            f"no model of client {client!r} in {run}" + (f": there are {', '.join(known)}" if known else "")
        )
    if not file.parent.is_dir():
        raise SettingError(f"cannot write {file}: there is no folder {file.parent}")
    if form == "safetensors":
        replace_file(file, source.read_bytes(), mode=0o644)
        return

    from tramark.lab import data, models
    from tramark.lab.models.export import export_model
    from tramark.lab.simulation.run import Settings
    from tramark.suspects.weights import load_into, read_weights

    settings = read_as(Settings, run / "config.json")
    dataset = data.load(settings.data, data_dir=data_dir)
    extended = settings.method == "tramark" and settings.answers == "label"
    model = models.build(
        settings.model,
        input_shape=dataset.input_shape,
        classes=max(dataset.classes, settings.clients) if extended else dataset.classes,
        vocabulary=dataset.vocabulary,
    )
    load_into(model, read_weights(source), source)
    with console.status(f"exporting to {form}"):
        export_model(model.eval(), dataset.prepare(dataset.test_inputs[:2]), file, form)
