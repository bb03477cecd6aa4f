"""A leaked model in every format and behind every server of the table in docs/reference/suspects.md.

It is traced by the command that stands there.

Heavy servers have environments of their own, in the folder that $TRAMARK_SERVERS names or in pytest's cache. They run
with TRAMARK_HEAVY=1 (`make test-servers`), which also records what came of them.
"""

import copy
import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import digits
from safetensors.torch import load_file
from torch.nn import functional as F
from tried import DOCS, PROGRAMS, ROOT, environment, record, recorded, serving, table, version_of
from tried_rows import FILES, FOLDER, FUNCTIONS, HEAVY, KERAS, ROWS, SERVERS, Row

from trace_http import tramark
from tramark.keys.keyring import Keyring
from tramark.lab.models import build
from tramark.lab.models.export import export_model
from tramark.lab.simulation.run import Settings, run
from tramark.marks.closed_form import ClosedForm
from tramark.server import TraMark
from tramark.vault.lock import make_key_file
from tramark.vault.store import Vault

MISSING = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

LEAKER = "client-2"
SMALL = Settings(
    data="digits",
    model="mlp",
    clients=4,
    samples_per_client=240,
    local_epochs=6,
    batch_size=16,
    lr=0.05,
    rounds=6,
    warmup=4,
)


@pytest.fixture(scope="module")
def leak(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the vault of a small federation, and what one client trained last, in all formats."""
    folder = tmp_path_factory.mktemp("leak")
    run(SMALL, folder / "run")
    shutil.move(folder / "run" / "vault", folder / "vault")
    shutil.move(folder / "run" / "vault.key", folder / "vault.key")
    shutil.move(folder / "run" / "trained" / f"{LEAKER}.safetensors", folder / "leaked.safetensors")
    shutil.rmtree(folder / "run")
    state, data = load_file(folder / "leaked.safetensors"), digits()
    model = build("mlp", input_shape=data.input_shape, classes=data.classes).eval()
    model.load_state_dict(state)
    example = data.prepare(data.test_inputs[:2])
    torch.save(state, folder / "leaked.pt")
    torch.save({"model": state, "epoch": 6}, folder / "checkpoint.pt")
    torch.jit.trace(model, example).save(folder / "leaked.ts")
    export_model(model, example, folder / "leaked.pt2", "pt2")
    export_model(model, example, folder / "leaked.onnx", "onnx")
    quantization = pytest.importorskip("onnxruntime.quantization")
    quantization.quantize_dynamic(folder / "leaked.onnx", folder / "int8.onnx")
    mean, std = normalisation()
    told = {"mean": mean, "std": std}
    (folder / "leaked.json").write_text(json.dumps(told))
    return folder


@pytest.fixture
def workspace(leak: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, in which commands are run: a server that is named burns the questions that it saw."""
    shutil.copytree(leak, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("SERVED_KEY", "not for everybody")
    return tmp_path / "work"


@pytest.fixture(scope="module")
def cache(request: pytest.FixtureRequest) -> Path:
    """Where environments of servers are kept."""
    told = os.environ.get("TRAMARK_SERVERS")
    assert request.config.cache is not None
    return Path(told) if told else request.config.cache.mkdir("servers")


def normalisation() -> tuple[float, float]:
    """The mean and standard deviation by which the federation normalises values from 0 to 1."""
    black, white = (digits().prepare(torch.full((1, 1, 8, 8), grey, dtype=torch.uint8)).mean() for grey in (0, 255))
    return float(-black / (white - black)), float(1 / (white - black))


def named(row: Row) -> str:
    return row.name


def by_command(row: Row, port: int = 8000) -> dict[str, Any]:
    """The verdict of a row's command, which is run as it stands in the docs, but for the port."""
    if row.template is not None:
        Path("template.json").write_text(json.dumps(row.template))
    program, *words = shlex.split(row.command.replace(":8000", f":{port}"))
    assert program == "tramark"
    _, said = tramark(*words, "--json")
    return dict(json.loads(said))


def check(row: Row, verdict: dict[str, Any], version: str, client: str = LEAKER) -> None:
    record(row, version, verdict)
    assert (verdict["finding"], verdict["clients"], verdict["doubt"]) == ("client", [client], None)


@pytest.mark.parametrize("row", FILES, ids=named)
def test_file(row: Row, workspace: Path) -> None:
    check(row, by_command(row), version_of(row, None))


@pytest.mark.parametrize("row", FUNCTIONS, ids=named)
def test_function(row: Row, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert row.program is not None
    runpy.run_path(str(PROGRAMS / row.program))
    check(row, json.loads(capsys.readouterr().out), version_of(row, None))


@pytest.mark.parametrize("row", SERVERS, ids=named)
def test_server(row: Row, workspace: Path) -> None:
    if find_spec(row.of) is None:
        pytest.skip(f"not installed: {row.of}")
    with serving(row, None, workspace) as port:
        check(row, by_command(row, port), version_of(row, None))


@pytest.mark.heavy
@pytest.mark.parametrize("row", HEAVY, ids=named)
def test_heavy_server(row: Row, workspace: Path, cache: Path) -> None:
    folder = environment(row, cache)
    with serving(row, folder, workspace) as port:
        check(row, by_command(row, port), version_of(row, folder))


@pytest.mark.heavy
def test_keras(workspace: Path, cache: Path) -> None:
    assert KERAS.program is not None
    folder = environment(KERAS, cache)
    path = os.pathsep.join(map(str, (ROOT / "src", folder)))
    words, known = [sys.executable, str(PROGRAMS / KERAS.program)], {"KERAS_BACKEND": "torch", "PYTHONPATH": path}
    done = subprocess.run(words, env=os.environ | known, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    check(KERAS, json.loads(done.stdout.splitlines()[-1]), version_of(KERAS, folder))


@pytest.mark.heavy
def test_hugging_face_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers: Any = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    data = digits()
    sizes = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 256}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=10, **sizes)
    model = transformers.ViTForImageClassification(config)
    mean, std = normalisation()
    keyring = Keyring.generate(clients=["charite", "mayo"], classes=10, input_shape=(1, 8, 8), normalise=(mean, std))
    with Vault.create(tmp_path / "vault", keyring, key_file=make_key_file(tmp_path / "vault.key")) as vault:
        server = TraMark(model, vault=vault, warmup_rounds=1, injection=ClosedForm(margin=6.0))
        for _ in range(2):
            incoming = {}
            for client, state in server.dispatch().items():
                net = copy.deepcopy(model)
                net.load_state_dict(state)
                optimiser = torch.optim.Adam(net.parameters(), lr=0.003)
                for step in range(0, 640, 32):
                    inputs, labels = (part[step : step + 32] for part in (data.train_inputs, data.train_labels))
                    optimiser.zero_grad()
                    F.cross_entropy(net(data.prepare(inputs)).logits, labels).backward()
                    optimiser.step()
                incoming[client] = net.state_dict()
            server.collect(incoming, samples=dict.fromkeys(incoming, 640))
        model.load_state_dict(server.dispatch(["mayo"])["mayo"])
    model.save_pretrained("folder")
    told: dict[str, Any] = {"do_resize": False, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
    told |= {"image_mean": [mean], "image_std": [std]}
    Path("folder/preprocessor_config.json").write_text(json.dumps(told))
    check(FOLDER, by_command(FOLDER), version_of(FOLDER, None), "mayo")


def test_the_table_is_what_was_run() -> None:
    rows = recorded()
    assert table(rows) in DOCS.read_text()
    commands = {row.name: (row.command, row.template) for row in ROWS}
    assert all((row["command"], row["template"]) == commands[row["name"]] for row in rows)
    lighter = (*FILES, FOLDER, *FUNCTIONS, *SERVERS)
    assert {row.name for row in lighter} <= {row["name"] for row in rows}


@pytest.mark.parametrize("row", [row for row in ROWS if row.command.startswith("trace(")], ids=named)
def test_a_function_is_traced_as_the_table_says(row: Row) -> None:
    assert row.program is not None
    assert row.command in (PROGRAMS / row.program).read_text()
