"""Updates of the warm-up must be remembered as they were, and be replayed without a trace."""

import pytest
import torch
from federations import ring
from nets import drawing, mlp
from torch import Tensor, nn

from tramark import TraMark
from tramark.fleet.fleet import Fleet
from tramark.fleet.layout import State
from tramark.marks.closed_form import ClosedForm
from tramark.marks.replay import UPDATES, Replay, replayed


class Tied(nn.Module):
    """A weight that has two names, and a flag among the buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("count", torch.tensor(3))


def moved(state: State, seed: int) -> dict[str, Tensor]:
    """A state whose numbers have changed; tied weights stay the same."""
    changed = {n: t + torch.randn(t.shape, generator=drawing(seed)) for n, t in state.items() if t.is_floating_point()}
    if "other.weight" in changed:
        changed["other.weight"] = changed["one.weight"]
    return {**state, **changed}


@pytest.mark.parametrize("model", [mlp(16, normed=True), Tied()], ids=["normed", "tied"])
def test_a_replayed_update_gives_what_the_client_returned(model: nn.Module) -> None:
    fleet = Fleet(model, ["a", "b", "c"])
    replay, returned = Replay(fleet), [moved(fleet.state(), seed) for seed in range(3)]
    for client, state in zip(fleet.clients, returned, strict=True):
        replay.watch(client, state)
    assert len(replay.updates) == UPDATES
    before = fleet.state()
    for update, state in zip(replay.updates, returned, strict=False):
        with replayed(model.train(), fleet, update) as scratch:
            assert not scratch.training
            for name, tensor in scratch.state_dict().items():
                torch.testing.assert_close(tensor, state[name], rtol=0.01, atol=0.02)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in fleet.state().items())


def test_layers_are_tried_with_the_last_warm_up_rounds_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[dict[str, Tensor]]] = []
    begin = ClosedForm.begin

    def spied(self: ClosedForm, *given: object) -> object:
        shown.append(given[-2])  # type: ignore[arg-type]
        return begin(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(ClosedForm, "begin", spied)
    server = TraMark(mlp(48), ring(), warmup_rounds=2)
    for round in range(3):
        base = server.fleet.state()
        returned = {
            client: moved(state, 10 * round + row) for row, (client, state) in enumerate(server.dispatch().items())
        }
        server.collect(returned)
        if round == 1:
            expected = [
                {name: state[name] - base[name] for name in base} for state in list(returned.values())[:UPDATES]
            ]
    updates, *_ = shown
    assert len(updates) == UPDATES
    for update, wanted in zip(updates, expected, strict=True):
        assert update.keys() == wanted.keys()
        assert all(torch.allclose(update[name].float(), wanted[name], rtol=0.01, atol=1e-6) for name in wanted)
