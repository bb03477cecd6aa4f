"""What a user sees when something goes wrong, and with which exit code."""

import errno
from pathlib import Path

import pytest
import torch
import typer
from commands import Shell

from tramark.cli.common import device_named
from tramark.errors import SettingError, UnknownClientError, WrongKey


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trace", "{run}", "{run}/nothing.onnx"), "no file"),
        (("trace", "{run}/models", "{run}/models/client-0.safetensors"), "no vault"),
        (("trace", "{run}", "{run}/models/client-0.safetensors", "--conventions", "{run}/models/x.json"), "not JSON"),
        (("trace", "{run}", "{run}/models/client-0.safetensors", "--conventions", "{run}/config.json"), "config.json"),
        (("trace", "{run}", "{run}/models/client-0.safetensors", "--report", "{run}/config.json/x"), "config.json"),
        (("trace", "{run}", "{run}/config.json"), "no kind of file"),
        (("trace", "{run}", "{run}/models/client-0.safetensors", "--false-accusation", "2"), "probability"),
        (("export", "{run}", "{tmp}/x", "--client", "nobody"), "no model of client 'nobody'"),
        (("export", "{run}", "{tmp}/none/x", "--client", "client-0"), "no folder"),
        (("run", "--out", "{tmp}/x", "--data", "digits", "--device", "warp"), "no device 'warp'"),
        (("run", "--out", "{tmp}/x", "--data", "digits", "--clients", "0"), "0 clients"),
        (("run", "--out", "{tmp}/x", "--data", "digits", "--local-epochs", "0"), "epochs"),
        (("run", "--out", "{tmp}/x", "--data", "digits", "--model", "text"), "vocabulary"),
        (("attack", "{run}", "--attack", "prune", "--param", "share=2"), "share"),
        (("vault", "create", "{tmp}/v", "--clients", "a", "--classes", "1", "--input-shape", "1,8,8"), "1 classes"),
        (("vault", "create", "{tmp}/v", "--clients", "a,a", "--classes", "2", "--input-shape", "1,8,8"), "one name"),
    ],
)
def test_bad_input_is_one_clear_line(
    words: tuple[str, ...], message: str, federation: Path, tramark: Shell, tmp_path: Path
) -> None:
    broken = federation / "models" / "x.json"
    broken.write_text("{")
    shown = tramark(*(word.format(run=federation, tmp=tmp_path) for word in words), code=2)
    broken.unlink()
    lines = [line for line in shown.splitlines() if line.startswith("tramark: ")]
    assert len(lines) == 1, shown
    assert message in lines[0]


@pytest.mark.parametrize(
    "words",
    [
        ("trace", "nowhere", "x.onnx"),
        ("trace", "{run}", "x.onnx", "--conventions", "nowhere"),
        ("trace", "{run}", "x.onnx", "--key-file", "nowhere"),
        ("export", "nowhere", "x", "--client", "a"),
        ("attack", "nowhere", "--all"),
        ("run", "--out", "x", "--warm-from", "nowhere"),
        ("run", "--out", "x", "--data-dir", "nowhere"),
        ("vault", "show", "nowhere"),
        ("vault", "audit", "nowhere"),
        ("evidence", "verify", "nowhere"),
        ("evidence", "verify", "{run}/config.json", "--commitment", "nowhere"),
    ],
)
def test_a_path_that_is_not_there_is_named(words: tuple[str, ...], federation: Path, tramark: Shell) -> None:
    shown = tramark(*(word.format(run=federation) for word in words), code=2)
    assert "'nowhere' does not exist" in " ".join(shown.replace("│", " ").split())


def test_a_name_that_is_not_there_is_answered_with_those_that_are(tramark: Shell, tmp_path: Path) -> None:
    assert "'small-cnn'" in tramark("run", "--out", tmp_path, "--model", "cnnn", code=2)
    assert "fedtracker" in tramark("run", "--out", tmp_path, "--method", "fed", code=2)


MISTAKES: dict[str, Exception] = {
    "that does not work": SettingError("that\ndoes not work"),
    "wrong passphrase": WrongKey("wrong passphrase"),
    "no client 'x'": UnknownClientError("no client 'x'"),
    "/some/file: Permission denied": PermissionError(errno.EACCES, "Permission denied", "/some/file"),
    "No space left on device": OSError(errno.ENOSPC, "No space left on device"),
}


class Failing:
    """A `tramark vault audit` that raises an error of any kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch, self.folder = monkeypatch, folder

    def with_error(self, error: BaseException) -> tuple[str, str, Path]:
        def fail(*_: object) -> None:
            raise error

        self.monkeypatch.setattr("tramark.cli.vault.key_for", fail)
        return "vault", "audit", self.folder


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Failing:
    return Failing(monkeypatch, tmp_path)


@pytest.mark.parametrize("line", MISTAKES)
def test_what_a_user_can_mend_is_one_line(audit: Failing, tramark: Shell, line: str) -> None:
    words = audit.with_error(MISTAKES[line])
    code = 9 if isinstance(MISTAKES[line], WrongKey) else 2
    assert tramark(*words, code=code) == f"tramark: {line}\n"
    shown = tramark(*words, "--debug", code=code)
    assert "Traceback" in shown
    assert shown.endswith(f"tramark: {line}\n")


@pytest.mark.parametrize(
    "error", [ValueError("of mine"), KeyError("of mine"), RuntimeError("of mine"), OSError("of mine")], ids=repr
)
def test_anything_else_is_a_bug(audit: Failing, tramark: Shell, error: Exception) -> None:
    words = audit.with_error(error)
    first, second = tramark(*words, code=70).splitlines()
    assert "bug in tramark" in first
    assert type(error).__name__ in first
    assert "of mine" in first
    assert "--debug" in second
    for debugged in ((*words, "--debug"), ("--debug", *words)):
        shown = tramark(*debugged, code=70)
        assert "Traceback" in shown
        assert "in fail" in shown


def test_ctrl_c_is_one_line(audit: Failing, tramark: Shell) -> None:
    assert tramark(*audit.with_error(KeyboardInterrupt()), code=130) == "tramark: interrupted\n"


def test_ctrl_c_at_a_prompt_is_one_line(tramark: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> str:
        raise typer.Abort

    monkeypatch.setattr("tramark.cli.common.interactive", lambda: True)
    monkeypatch.setattr("typer.prompt", stop)
    words = ("--clients", "a,b", "--classes", "2", "--input-shape", "1,4,4")
    assert tramark("vault", "create", tmp_path / "vault", *words, code=130) == "tramark: interrupted\n"
    assert not (tmp_path / "vault").exists()


@pytest.mark.parametrize("file", ["config.json", "models/client-0.safetensors"])
def test_what_is_no_evidence_is_unreadable(file: str, federation: Path, tramark: Shell) -> None:
    shown = tramark("evidence", "verify", federation / file, code=7)
    assert len(shown.strip().splitlines()) == 1


def test_a_torch_built_for_cuda_computes_on_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # What torch's builds for CUDA say on a machine without a GPU.
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert device_named("auto") == torch.device("cpu")
