"""What must be true of the process in which a stranger's file runs: what it can reach, and what its end means.

The models of `hostile_models` stand for files that got hold of their process.
"""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_models import ATTEMPTS, WAYS
from safetensors.torch import save_file
from torch import Tensor, nn

from tramark.errors import SettingError, SuspectError
from tramark.keys.keyring import Keyring
from tramark.suspects.conventions import Conventions
from tramark.suspects.files import open_suspect
from tramark.suspects.sandbox import Limits
from tramark.suspects.weights import ModelName
from tramark.tracing.trace import trace

RAW = Conventions(value_range=(0, 255))


def pixels(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("found") / "found.safetensors"
    save_file({"weight": torch.zeros(1)}, path)
    return path


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vault") / "vault.key"
    path.write_text("secret")
    return path


@pytest.fixture(scope="module")
def prober(weights: Path, secret: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAMARK_PASSPHRASE", "hush")
        name = ModelName("hostile_models:Prober", {"secret": str(secret)})
        yield open_suspect(weights, conventions=RAW, model=name)


class TestWhatItCanReach:
    @pytest.mark.parametrize("attempt", ATTEMPTS)
    def test_nothing_outside(self, prober: Any, secret: Path, attempt: str) -> None:
        landlock = any(one.startswith("Landlock") for one in prober.confinement)
        if not landlock or not {"system calls filtered", "network namespace"} <= set(prober.confinement):
            pytest.skip(f"this system offers only {', '.join(prober.confinement)}")
        assert prober.ask(pixels(list(ATTEMPTS).index(attempt))).labels.tolist() == [0]
        assert secret.read_text() == "secret"
        assert [path.name for path in secret.parent.iterdir()] == ["vault.key"]

    def test_it_says_what_is_in_force(self, prober: Any) -> None:
        assert {"own process", "empty environment", "no files written", "no core dump"} <= set(prober.confinement)

    def test_a_model_that_is_an_object_stays_here_and_that_is_said(self, weights: Path) -> None:
        class Own(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(1))

        suspect: Any = open_suspect(weights, conventions=RAW, model=Own)
        assert suspect.confinement == ()


class TestHowItEnds:
    @pytest.mark.parametrize("way", WAYS)
    def test_no_verdict_from_a_suspect_that_was_cut_off(self, weights: Path, way: str) -> None:
        limits = Limits(seconds=60, memory=1 << 30)
        suspect: Any = open_suspect(
            weights, conventions=RAW, model=ModelName("hostile_models:wrecker", {"way": way}), limits=limits
        )
        keyring = Keyring.generate(clients=["a", "b"], classes=10, input_shape=(1, 8, 8), questions=8)
        suspect._run.__self__.limits = Limits(seconds=3 if way != "hoard memory" else 60)
        with pytest.raises(SuspectError) as caught:
            trace(suspect, keyring)
        assert "\n" not in str(caught.value)
        assert len(caught.value.transcript) == 1
        if way != "hoard memory":
            assert "cut off" in str(caught.value)
            with pytest.raises(SuspectError, match="cut off"):
                suspect.ask(pixels(1))
            assert suspect._run.__self__._process.returncode is not None
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20

    @pytest.mark.parametrize(
        ("model", "says"),
        [
            ("no_such_module:f", "No module named"),
            ("torch.nn:nothing", "package.module:function"),
            ("hostile_models:ATTEMPTS", "is a dict"),
        ],
    )
    def test_a_model_that_cannot_be_made(self, weights: Path, model: str, says: str) -> None:
        with pytest.raises(SettingError, match=says):
            open_suspect(weights, conventions=RAW, model=model)

    def test_limits_that_cannot_be(self) -> None:
        with pytest.raises(SettingError, match="positive"):
            Limits(seconds=0)


class TestPrograms:
    def test_torchscript(self, tmp_path: Path) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
        torch.jit.save(torch.jit.script(model), tmp_path / "model.pt")
        raw = torch.randint(0, 256, (7, 1, 2, 2), dtype=torch.uint8)
        answers = open_suspect(tmp_path / "model.pt", conventions=RAW).ask(raw)
        assert torch.equal(answers.labels, model(raw.float()).argmax(1))

    def test_an_exported_program(self, tmp_path: Path) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
        sizes = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(model, (torch.zeros(2, 1, 2, 2),), dynamic_shapes=sizes)
        torch.export.save(program, tmp_path / "model.pt2")
        raw = torch.randint(0, 256, (7, 1, 2, 2), dtype=torch.uint8)
        answers = open_suspect(tmp_path / "model.pt2", conventions=RAW).ask(raw)
        assert torch.equal(answers.labels, model(raw.float()).argmax(1))

    def test_onnx(self, tmp_path: Path) -> None:
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
        torch.onnx.export(model, (torch.zeros(2, 1, 2, 2),), tmp_path / "m.onnx", verbose=False)
        raw = torch.randint(0, 256, (7, 1, 2, 2), dtype=torch.uint8)
        answers = open_suspect(tmp_path / "m.onnx", conventions=RAW).ask(raw)
        assert torch.equal(answers.labels, model(raw.float()).argmax(1))
