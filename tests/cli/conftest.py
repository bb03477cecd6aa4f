"""What the tests of the command line share: a small run, and a shell."""

from pathlib import Path

import pytest
from commands import Shell

from tramark.lab.simulation.run import Settings, run


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with four clients. Tests must not change it."""
    out = tmp_path_factory.mktemp("federation") / "run"
    run(Settings(data="digits", clients=4, samples_per_client=200, local_epochs=2, rounds=8, warmup=6), out)
    return out


@pytest.fixture
def tramark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with label answers. Tests must not change it."""
    out = tmp_path_factory.mktemp("labelled") / "run"
    settings = Settings(
        data="digits",
        clients=3,
        samples_per_client=100,
        local_epochs=1,
        rounds=3,
        warmup=2,
        answers="label",
        triggers="waffle",
    )
    run(settings, out)
    return out


@pytest.fixture(scope="session")
def unmarked(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Nineteen models of the same task without a mark."""
    folder, paths = tmp_path_factory.mktemp("unmarked"), []
    for seed in range(19):
        out = folder / str(seed)
        run(
            Settings(
                data="digits", clients=1, samples_per_client=300, local_epochs=3, rounds=1, method="fedavg", seed=seed
            ),
            out,
        )
        paths.append(out / "models" / "client-0.safetensors")
    return paths
