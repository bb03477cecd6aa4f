"""If few of many clients are sent a model in a round, marks are made for those, and not for all."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from traces import vault_of

from tramark import Keyring, TraMark
from tramark.errors import UnknownClientError
from tramark.lab.simulation.metrics import traceability
from tramark.marks.closed_form import ClosedForm
from tramark.marks.rounds import RoundReport
from tramark.vault.store import Vault

CLIENTS = tuple(f"client-{number}" for number in range(40))


def new_server(vault: Vault | None = None) -> TraMark:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    return TraMark(
        model, None if vault else keyring(), vault=vault, warmup_rounds=1, injection=ClosedForm(margin=4.0, retouch=0)
    )


def keyring() -> Keyring:
    return Keyring.generate(
        clients=CLIENTS,
        classes=10,
        input_shape=(1, 8, 8),
        normalise=(0.5, 0.5),
        questions=8,
        pool=24,
        common=0,
    )


def play(server: TraMark, clients: Sequence[str]) -> RoundReport:
    return server.collect(dict(server.dispatch(clients)))


def test_marks_are_made_for_those_who_are_sent_one() -> None:
    server = new_server()
    play(server, CLIENTS[:4])
    assert server.marked
    assert len(server.fleet.held) < 4
    outgoing = server.dispatch(CLIENTS[10:14])
    assert len(server.fleet.marks) == len(server.fleet.held) < 8
    for client in outgoing:
        key = server.keyring.key(client)
        said = server.client_model(client)(server.keyring.inputs(key, "train")[:, 0]).argmax(1)
        assert (said == torch.tensor(key.answers)).float().mean() > 0.9
    base = server.fleet.base.clone()
    report = server.collect(dict(outgoing))
    assert report.used == CLIENTS[10:14]
    assert report.survived is not None
    assert report.survived.mean > 0.9
    # Nobody trained, so that nothing of the marks may be left in the base.
    assert torch.allclose(server.fleet.base, base, atol=1e-6)


def test_whoever_takes_part_in_full_has_all_marks_beforehand() -> None:
    server = new_server()
    play(server, CLIENTS)
    assert len(server.fleet.held) == len(CLIENTS)


def test_a_client_that_joins_gets_its_mark_when_it_is_sent_one() -> None:
    server = new_server()
    play(server, CLIENTS[:4])
    server.join("late", "later")
    server.leave("client-0")
    assert "late" not in server.fleet.held
    assert play(server, ["late", "client-5"]).refused == {}
    with pytest.raises(UnknownClientError):
        server.dispatch(["client-0"])


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_marks_are_made_where_gradients_are_off(without: type[torch.no_grad]) -> None:
    server = new_server()
    play(server, CLIENTS[:4])
    with without():
        assert traceability(server, server.keyring).vr == 1.0
    assert server.fleet.complete_marks


def test_what_is_in_flight_outlives_a_crash(tmp_path: Path) -> None:
    with vault_of(keyring(), tmp_path) as vault:
        server = new_server(vault)
        play(server, CLIENTS[:4])
        sent = dict(server.dispatch(CLIENTS[20:23]))
        base = server.fleet.base.clone()
        again = new_server(vault)
        assert again.resume()
        assert set(CLIENTS[20:23]) <= set(again.fleet.held)
        for client, state in again.dispatch(CLIENTS[20:23]).items():
            assert all(torch.allclose(state[name], sent[client][name], atol=1e-6) for name in state)
        assert again.collect(sent).refused == {}
        assert torch.allclose(again.fleet.base, base, atol=1e-6)
        issued = [entry["client"] for entry in vault.log() if entry["event"] == "issued" and entry["round"] == 1]
        assert set(issued) == set(CLIENTS[20:23])


def test_answers_are_committed_to_before_the_first_marked_model_is_sent(tmp_path: Path) -> None:
    with vault_of(keyring(), tmp_path) as vault:
        server = new_server(vault)
        play(server, CLIENTS[:4])
        server.dispatch(CLIENTS[20:23])
        server.join("late")
        server.dispatch(["late"])
        log, links = list(vault.log()), vault.commitments
    assert links[-2].chosen == server.keyring.chosen != links[0].chosen
    [chosen] = [entry["n"] for entry in log if entry.get("commitment") == links[-2].digest]
    [joined] = [entry["n"] for entry in log if entry.get("commitment") == links[-1].digest]
    marked = {entry["client"]: entry["n"] for entry in log if entry["event"] == "issued" and entry["marked"]}
    assert marked.keys() == {*CLIENTS[20:23], "late"}
    assert chosen < min(marked.values())
    assert joined < marked["late"]
