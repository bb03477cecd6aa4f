"""`tramark trace`, `tramark export` and `tramark evidence`: what an auditor does."""

import hashlib
import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import torch
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import nn

from tramark.cli.common import DataDir, KeyFile, VaultPath, console, key_for, vault_at
from tramark.errors import SettingError
from tramark.evidence.verify import read_published, verify_bundle
from tramark.keys.keyring import Keyring
from tramark.lab import data, models
from tramark.lab.simulation.run import MODEL
from tramark.report.page import verdict_sentence, write_report
from tramark.suspects.base import Adapter
from tramark.suspects.conventions import Conventions
from tramark.suspects.files import load_into, open_suspect, read_weights
from tramark.suspects.http import HttpOptions
from tramark.suspects.inference import V2Suspect
from tramark.suspects.json_api import JsonSuspect, JsonTemplate
from tramark.tracing.bundle import make_bundle
from tramark.tracing.interview import Step
from tramark.tracing.trace import trace
from tramark.vault.files import replace_file
from tramark.vault.store import Vault

EXIT = {"client": 0, "several": 0, "nobody": 3, "inconclusive": 4}

evidence = typer.Typer(help="Evidence that a trace left behind.", no_args_is_help=True)


def trace_command(
    vault: VaultPath,
    suspect: Annotated[str, typer.Argument(help="A file (.safetensors, .pt, .pt2, .onnx), a model folder or a URL.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="For weights: the model they belong to, a name or package.module:factory. For a URL: its name."
        ),
    ] = None,
    conventions: Annotated[
        Path | None, typer.Option(help="JSON file: how the suspect wants inputs and names labels (docs/suspects.md).")
    ] = None,
    template: Annotated[Path | None, typer.Option(help="JSON file: how any other JSON API is asked.")] = None,
    false_accusation: Annotated[float, typer.Option(help="Bound on the probability of accusing an innocent.")] = 1e-6,
    budget: Annotated[int | None, typer.Option(help="The most queries to spend.")] = None,
    rule: Annotated[
        Literal["default", "paper"], typer.Option(help="paper: the arg-max, which always accuses.")
    ] = "default",
    reference: Annotated[
        list[str] | None,
        typer.Option(help="For label answers: an unmarked model of the same task, to compare with. Give 19 or more."),
    ] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Ask everything, to find accomplices.")] = False,
    rate: Annotated[float | None, typer.Option(help="Queries a second, at most (URLs).")] = None,
    token_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the bearer token (URLs).")
    ] = None,
    transcript: Annotated[
        Path | None,
        typer.Option(help="File to keep the answers in, so that a trace can be broken off and taken up again."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing; show what would be asked.")] = False,
    report: Annotated[Path | None, typer.Option(help="Folder for report.html and the signed evidence.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
) -> None:
    """Ask a suspect, and say which client leaked it, or that nobody did.

    Exit code 0: a client is named; 3: nobody; 4: inconclusive; 2: bad input.
    """
    code = trace_suspect(
        vault_at(vault),
        suspect,
        model=model,
        conventions=Conventions(**_json(conventions)) if conventions else None,
        template=JsonTemplate(**_json(template)) if template else None,
        http=HttpOptions(rate=rate, token_env=token_env, budget=budget),
        options={"false_accusation": false_accusation, "budget": budget, "rule": rule, "exhaustive": exhaustive},
        references=reference or (),
        transcript=transcript,
        dry_run=dry_run,
        report=report,
        as_json=as_json,
        key_file=key_file,
        data_dir=data_dir,
    )
    raise typer.Exit(code)


def trace_suspect(
    place: Path,
    target: str,
    *,
    model: str | None = None,
    conventions: Conventions | None = None,
    template: JsonTemplate | None = None,
    http: HttpOptions | None = None,
    options: dict[str, Any] | None = None,
    references: Sequence[str] = (),
    transcript: Path | None = None,
    dry_run: bool = False,
    report: Path | None = None,
    as_json: bool = False,
    key_file: Path | None = None,
    data_dir: Path | None = None,
) -> int:
    """Trace a suspect with a vault, show the verdict, and give the exit code."""
    key = key_for(place, key_file)
    with Vault.open(place, passphrase=key.passphrase, key_file=key.key_file, readonly=True) as vault:
        keyring = keyring_of(vault, data_dir)
        known = json.loads(vault.get(MODEL)) if MODEL in vault.names else {}

        def adapter_for(target: str) -> Adapter:
            return open_suspect(
                target,
                conventions=conventions or keyring.source.prepare,
                model=model or (None if "://" in target else known.get("model")),
                input_shape=tuple(known.get("input_shape", keyring.source.shape)),
                classes=known.get("classes", keyring.classes),
                template=template,
                http=http,
            )

        adapter = adapter_for(target)
        if dry_run:
            typer.echo(adapter.preview(keyring.raw(keyring.chosen or (0,), "held-out")[:, 0]))
            return 0
        steps = _read_steps(transcript)
        earlier = len(steps)
        with Progress(
            SpinnerColumn(),
            TextColumn("asking"),
            TextColumn("{task.completed} queries"),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            task = progress.add_task("asking", total=None, completed=len(steps))

            def show(_: Step) -> None:
                progress.advance(task)
                if transcript is not None:
                    replace_file(transcript, json.dumps(steps).encode())

            unmarked = [adapter_for(reference) for reference in references]
            verdict = trace(adapter, keyring, progress=show, transcript=steps, references=unmarked, **(options or {}))
        if report is not None:
            described = _described(target)
            bounded = verdict.false_accusation_bound is not None and verdict.transcript
            bundle = make_bundle(vault, verdict, suspect=described) if bounded else None
            write_report(report, verdict, keyring, suspect=described, bundle=bundle)
    if as_json:
        typer.echo(json.dumps(verdict.to_dict()))
    else:
        headline, how_sure = verdict_sentence(verdict)
        sent = adapter.asked if isinstance(adapter, (V2Suspect, JsonSuspect)) else 0
        # Whoever has a budget, or pays by the query, wants to know of those that came to nothing, too.
        repeated = f" With those repeated, {sent} were sent." if sent > verdict.queries - earlier else ""
        typer.echo(f"{headline}\n{how_sure}\n{verdict.queries} queries.{repeated}")
    return EXIT[verdict.verdict]


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    client: Annotated[str, typer.Option(help="Whose model.")],
    form: Annotated[
        Literal["safetensors", "onnx", "pt2"], typer.Option("--format", help="In which format.")
    ] = "safetensors",
    trained: Annotated[
        bool, typer.Option("--trained", help="As the client had it after its last local training.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Write a client's model as it was issued, or as the client last trained it."""
    source = run / ("trained" if trained else "models") / f"{client}.safetensors"
    if not source.exists():
        known = sorted(path.stem for path in source.parent.glob("*.safetensors"))
        raise SettingError(
            f"no model of client {client!r} in {run}" + (f": there are {', '.join(known)}" if known else "")
        )
    if form == "safetensors":
        file.write_bytes(source.read_bytes())
        return
    config, weights = _json(run / "config.json"), read_weights(source)
    dataset = data.load(config["data"], data_dir=data_dir)
    model = models.build(
        config["model"],
        input_shape=dataset.input_shape,
        classes=max(dataset.classes, config["clients"]) if config["answers"] == "label" else dataset.classes,
        vocabulary=dataset.vocabulary,
    )
    load_into(model, weights, source)
    _export(model.eval(), dataset.prepare(dataset.test_inputs[:2]), file, form)


def _export(model: nn.Module, example: torch.Tensor, file: Path, form: str) -> None:
    batch = torch.export.Dim("batch", min=1)
    if form == "pt2":
        torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: batch},)), file)
        return
    try:
        import onnxscript  # noqa: F401 - torch needs it to write ONNX
    except ImportError:
        raise SettingError("writing ONNX needs the extra tramark[onnx]") from None
    # The exporter remarks on packages that are not there and on its own internals; neither is the user's business.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (example,),
            file,
            input_names=["input"],
            output_names=["logits"],
            dynamic_shapes=({0: batch},),
            external_data=False,
            verbose=False,
        )


@evidence.command()
def verify(
    bundle: Annotated[Path, typer.Argument(help="The evidence.json of a report.")],
    commitment: Annotated[Path | None, typer.Option(help="The commitment.json that the federation published.")] = None,
    public_key: Annotated[str | None, typer.Option("--key", help="The federation's public key, in hex.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Check a signed evidence bundle, without the vault: signature, commitment, proofs, and the verdict itself."""
    published = read_published(commitment.read_bytes()) if commitment else None
    findings = verify_bundle(bundle.read_bytes(), published=published, public_key=public_key)
    if as_json:
        typer.echo(json.dumps(findings.to_dict()))
        return
    accused = ", ".join(findings.clients) or findings.verdict
    lines = [f"verdict: {accused}", f"public key: {findings.fingerprint}", "", "proven:"]
    lines += [f"  - {sentence}" for sentence in findings.proven] + ["", "not proven by this file:"]
    lines += [f"  - {sentence}" for sentence in findings.unproven]
    typer.echo("\n".join(lines))


def keyring_of(vault: Vault, data_dir: Path | None) -> Keyring:
    """A vault's keyring; questions from a known data set get their images back."""
    plain = vault.sealed_keyring
    if plain["triggers"]["kind"] == "images":
        source = data.load(plain["triggers"]["name"], data_dir=data_dir)
        return Keyring.from_dict(plain, images=(source.train_inputs, source.train_labels))
    return Keyring.from_dict(plain)


def _described(target: str) -> str:
    if "://" in target:
        # Neither a password nor a query string is for the report.
        parts = urlsplit(target)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    digest = hashlib.sha256(Path(target).read_bytes()).hexdigest() if Path(target).is_file() else "a folder"
    return f"{Path(target).name} (SHA-256 {digest})"


def _read_steps(path: Path | None) -> list[Step]:
    if path is None or not path.exists():
        return []
    return [Step(*step) for step in json.loads(path.read_text())]


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise SettingError(f"{path} must hold a JSON object")
    return value
