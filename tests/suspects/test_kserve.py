"""Models behind a real inference server, KServe's, in a process of its own: traced by their labels, over HTTP."""

import statistics
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from trace_http import Traced, export, export_all, serving, trace_all, tramark
from tramark.errors import SuspectUnavailable
from tramark.lab.simulation.run import Settings, run
from tramark.suspects.conventions import Conventions
from tramark.suspects.files import open_suspect
from tramark.suspects.http import HttpOptions

# KServe is looked for, not imported: on import, it takes pytest's command line for its own.
MISSING = [name for name in ("kserve", "onnxruntime", "onnxscript") if find_spec(name) is None]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")]

CLIENTS = 4
SMALL: dict[str, Any] = {
    "data": "digits",
    "clients": CLIENTS,
    "samples_per_client": 120,
    "local_epochs": 2,
    "rounds": 8,
    "warmup": 6,
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("federation") / "run"
    run(Settings(**SMALL), out)
    return out


@pytest.fixture(scope="module")
def issued(federation: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return export_all(federation, tmp_path_factory.mktemp("issued"))


@pytest.fixture(scope="module")
def easy(federation: Path, issued: dict[str, Path]) -> list[Traced]:
    return trace_all(federation, issued)


def every_client_is_named(found: list[Traced]) -> bool:
    return len(found) == CLIENTS and all(one.right and one.exit_code == 0 for one in found)


def few_queries(found: list[Traced]) -> bool:
    queries = [one.queries for one in found]
    return statistics.median(queries) <= 16 and max(queries) <= 48


def test_a_model_without_a_mark(federation: Path, tmp_path: Path) -> None:
    # It comes first: every trace leaves less error for the next.
    # The same federation, from the same warm-up on, in which nobody's model was marked.
    run(Settings(**SMALL, method="fedavg"), tmp_path / "plain", warm_from=federation)
    export(tmp_path / "plain", "client-0", tmp_path / "plain.onnx")
    (found,) = trace_all(federation, {"client-0": tmp_path / "plain.onnx"})
    assert (found.verdict, found.named, found.exit_code) == ("nobody", (), 3)


def test_models_as_they_were_issued(easy: list[Traced]) -> None:
    assert every_client_is_named(easy)
    assert few_queries(easy)


def test_models_as_their_clients_trained_them(federation: Path, tmp_path: Path) -> None:
    found = trace_all(federation, export_all(federation, tmp_path, trained=True))
    assert every_client_is_named(found)
    assert few_queries(found)


def test_a_server_that_makes_it_hard(federation: Path, issued: dict[str, Path], easy: list[Traced]) -> None:
    hard = trace_all(federation, issued, "--randomise", "0.2", "--fail", "0.1")
    assert every_client_is_named(hard)
    assert sum(one.queries for one in hard) > sum(one.queries for one in easy)


def test_a_server_that_always_fails(issued: dict[str, Path]) -> None:
    with serving([issued["client-0"]], "--fail", "1") as (address,):
        suspect = open_suspect(address, conventions=Conventions(), http=HttpOptions(retries=0))
        with pytest.raises(SuspectUnavailable, match="503 Service Unavailable"):
            suspect.ask(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))


def test_queries_that_were_repeated_are_told(federation: Path, issued: dict[str, Path]) -> None:
    with serving([issued["client-0"]], "--fail", "0.5", "--seed", "3") as (address,):
        code, said = tramark("trace", str(federation), address, "--budget", "6")
    assert code == 4
    assert "3 queries. With those repeated, 6 were sent." in said
