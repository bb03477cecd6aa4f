"""Runs tramark commands in this process, as a user would at a terminal."""

import pytest

from tramark.cli import main


class Shell:
    """Runs a command, checks its exit code, and gives what it printed: stderr if it failed, else stdout."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: object, code: int = 0) -> str:
        self.monkeypatch.setattr("sys.argv", ["tramark", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = self.capsys.readouterr()
        assert (stop.value.code or 0) == code, out + err
        assert "--debug" in words or "Traceback" not in err
        return err if code in (2, 5, 7, 8, 9, 70, 130) else out
