"""What the growing chart shows is what the trace weighs."""

import math
from pathlib import Path

import numpy as np
import pytest
from traces import Oracle, leaked_by, ring, vault_of

from tramark.evidence.case import Suspected
from tramark.keys.pictures import Patterns
from tramark.report.growth import growth
from tramark.tracing.trace import trace
from tramark.web.live import Live

FILE = Suspected("file", "model.onnx", "5e" * 32)


@pytest.mark.parametrize("leaker", ["hospital-3", None])
def test_the_last_values_are_those_of_the_verdict(tmp_path: Path, leaker: str | None) -> None:
    with vault_of(ring(Patterns((1, 8, 8))), tmp_path) as vault:
        keyring = vault.keyring
        suspect = leaked_by(keyring, leaker) if leaker else Oracle(keyring, lambda q, v: 0)
        verdict = trace(suspect, vault, suspected=FILE)
        assert verdict.case is not None
        live = Live(verdict.case, keyring)
        begun, steps = live.begin(), [live.step(step) for step in verdict.transcript]
    assert begun["needed"] == math.log10(10 / 1e-6)
    assert [one["query"] for one in steps] == list(range(1, verdict.queries + 1))
    drawn = np.max([look.lines[:, -1] for look in growth(verdict, keyring)], axis=0)
    assert np.allclose(steps[-1]["values"], drawn, atol=1e-3)
    if leaker:
        assert steps[-1]["leader"] == leaker
        assert steps[-1]["high"] >= begun["needed"] > steps[-2]["high"]
    assert all(one["picture"] for one in steps)


def test_of_many_clients_the_band_and_the_leader_are_told(tmp_path: Path) -> None:
    with vault_of(ring(clients=[f"client {i}" for i in range(60)]), tmp_path) as vault:
        verdict = trace(leaked_by(vault.keyring, "client 7"), vault, suspected=FILE)
        assert verdict.case is not None
        live = Live(verdict.case, vault.keyring)
        assert (live.begin()["clients"], live.begin()["values"]) == ([], [])
        last = [live.step(step) for step in verdict.transcript][-1]
    assert (last["leader"], last["values"]) == ("client 7", [])
    assert last["low"] < 0 < last["high"]
