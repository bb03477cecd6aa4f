"""One hostile client among ten: what it sends does not spoil the base, the drift, the marks or the vault."""

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from learning import Toy, sgd, trained
from nets import drawing, mlp
from torch import Tensor, nn

from tramark import Keyring, SettingError, TraMark, VaultError
from tramark.errors import CheckpointError, UpdateError
from tramark.fleet.drift import Drift
from tramark.fleet.layout import Layout
from tramark.marks.closed_form import ClosedForm
from tramark.marks.rounds import RoundReport
from tramark.marks.survival import Survived
from tramark.vault.lock import make_key_file
from tramark.vault.store import Vault

CLIENTS = [f"site-{number}" for number in range(10)]
RANK = 24

State = dict[str, Tensor]
Attack = Callable[[State, int], State]


def ring(clients: list[str] = CLIENTS) -> Keyring:
    return Keyring.generate(
        clients=clients, classes=10, input_shape=(1, 8, 8), questions=16, pool=128, secret=b"s" * 32, normalise=(0, 1)
    )


def thin() -> tuple[Toy, Tensor]:
    """A task whose inputs use 24 of 64 directions, and the others."""
    turn = torch.linalg.qr(torch.randn(64, 64, generator=drawing(5))).Q
    labels = torch.randint(10, (3000,), generator=drawing(3))
    inside = torch.randn(10, RANK, generator=drawing())[labels] + 2 * torch.randn(3000, RANK, generator=drawing(1))
    return Toy((1.2 * inside @ turn[:, :RANK].T).view(-1, 1, 8, 8), labels), turn[:, RANK:]


def play(server: TraMark, toy: Toy, rounds: int, attack: Attack | None = None) -> list[RoundReport]:
    """Rounds in which all clients train; the first one does to its update what `attack` says."""

    def returned() -> Iterator[tuple[str, State]]:
        for number, client in enumerate(server.fleet.clients):
            model = trained(server.client_model(client), *toy.part(number, 10), sgd, seed=100 * server.round + number)
            state = model.state_dict()
            yield client, attack(state, server.round) if attack and not number else state

    return [server.collect(returned()) for _ in range(rounds)]


def honest_survival(reports: list[RoundReport]) -> float:
    shares = [
        share
        for report in reports
        if report.survived
        for client, share in report.survived.clients.items()
        if client != CLIENTS[0]
    ]
    return sum(shares) / len(shares)


def finite(server: TraMark) -> bool:
    state = server.state_dict()
    tensors = [*state["fleet"].values(), *state["drift"].values()]
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor.is_floating_point())


@pytest.mark.parametrize("spread", [1, 64 - RANK])
@pytest.mark.filterwarnings("ignore:round")
def test_large_updates_where_nobodys_data_lies_do_not_mislead_the_server(spread: int) -> None:
    """One of ten adds ten times the layer's norm, one way and then the other, in directions that no data uses."""
    toy, free = thin()
    source = drawing(7)

    def misleads(state: State, round: int) -> State:
        weight = state["1.weight"]
        noise = torch.randn(len(weight), spread, generator=source) @ free[:, :spread].T
        return state | {"1.weight": weight + (-1) ** round * 10 * weight.norm() * noise / noise.norm()}

    found = []
    for attack in (None, misleads):
        server = TraMark(mlp(96, 64), ring(), warmup_rounds=4, injection=ClosedForm(layer_names=("1",)))
        reports = play(server, toy, 8, attack)
        found.append(sum(toy.accuracy(server.client_model(client)) for client in CLIENTS[1:]) / 9)
        assert honest_survival(reports) >= 0.95
    control, attacked = found
    assert attacked >= control - 0.01


def test_one_client_in_ten_moves_the_drift_by_a_tenth() -> None:
    """However large its update is; and by less, if the last round has shown which sizes are usual."""
    layer = nn.Linear(32, 16)
    for known, share in ((False, 0.1), (True, 1e-6)):
        drift = Drift(Layout.of(layer), ("weight",))
        for _ in range(1 + known):
            used = torch.randn(10, 16, 31, generator=drawing())
            for update in used[:9] if not known or drift.rounds else used:
                drift.observe({"weight": torch.cat([update, torch.zeros(16, 1)], 1)})
            if not known or drift.rounds:
                drift.observe({"weight": 1e30 * torch.eye(32)[-1].expand(16, 32)})
            drift.settle()
        last = torch.eye(32)[:, -1:]
        assert float(drift.moment("weight").energy(last)) / 32 == pytest.approx(share / (2 if known else 1), abs=0.005)
        assert drift.finite


def hostile(kind: str, state: State) -> State:
    name, weight = "1.weight", state["1.weight"]
    return {
        "overflow": state | {name: torch.full(weight.shape, 1e300, dtype=torch.float64)},
        "complex": state | {name: torch.complex(weight, torch.full_like(weight, math.nan))},
        "integers": state | {name: weight.to(torch.int64)},
        "huge": state | {name: weight + 1e30},
        "opposite": state | {name: torch.full_like(weight, -3e38)},
        "negative variance": state | {"2.running_var": -torch.ones(64)},
        "endless mean": state | {"2.running_mean": torch.full((64,), 1e30)},
        "negative count": state | {"2.num_batches_tracked": torch.tensor(-5)},
    }[kind]


KINDS = ("overflow", "complex", "integers", "huge", "opposite", "negative variance", "endless mean", "negative count")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:round")
def test_an_update_that_would_spoil_the_base_is_refused(kind: str) -> None:
    server = TraMark(mlp(64, 48, normed=True), ring(CLIENTS[:3]), warmup_rounds=1)
    for _ in range(2):
        good = dict(server.dispatch())
        before = server.fleet.base.clone()
        report = server.collect(good | {CLIENTS[0]: hostile(kind, good[CLIENTS[0]])})
        assert set(report.refused) == {CLIENTS[0]}
        assert report.used == tuple(CLIENTS[1:3])
        assert finite(server)
        torch.testing.assert_close(server.fleet.base, before, atol=1e-5, rtol=1e-5)


def test_a_declared_weight_counts_ten_medians_at_most() -> None:
    clients = CLIENTS[:5]
    for cap, share in ((10.0, 10 / 14), (2.0, 2 / 6), (None, 1.0)):
        server = TraMark(mlp(16), ring(clients), warmup_rounds=5, weight_cap=cap)
        sent = server.fleet.base.clone()
        states = {client: server.fleet.state(client) for client in clients}
        states[clients[0]] = {name: tensor + 0.1 for name, tensor in states[clients[0]].items()}
        server.collect(states, samples=dict.fromkeys(clients, 100.0) | {clients[0]: 1e15})
        torch.testing.assert_close(server.fleet.base - sent, torch.full_like(sent, 0.1 * share), atol=1e-5, rtol=1e-3)
        again = TraMark(mlp(16), server.keyring, warmup_rounds=5, weight_cap=cap)
        again.load_state_dict(server.state_dict())
        assert again.usual.cap(1e15) == (1e15 if cap is None else cap * 100)
    with pytest.raises(SettingError, match="weight_cap"):
        TraMark(mlp(16), ring(clients), weight_cap=0.5)


@pytest.mark.parametrize("rule", ["mean", "median", "krum"])
@pytest.mark.filterwarnings("ignore:round")
def test_what_a_rule_discards_teaches_the_server_nothing(rule: str) -> None:
    """The same drift as without the hostile client, where the rule leaves its update out."""
    drifts = []
    for poisoned in (False, True):
        server = TraMark(mlp(32), ring(CLIENTS[:5]), warmup_rounds=9)
        for round in range(2):
            aggregation = server.begin(discards=rule != "mean")
            states = []
            for number, client in enumerate(CLIENTS[:5]):
                source = drawing(10 * round + number)
                state = {
                    name: tensor + 0.01 * torch.randn(tensor.shape, generator=source)
                    for name, tensor in server.fleet.state(client).items()
                }
                if number == 4:
                    if not poisoned:
                        continue
                    state["1.weight"] = state["1.weight"] + 3 * torch.eye(32, 64)
                states.append(state)
                aggregation.add(client, state)
            made = {n: torch.stack([state[n] for state in states]).median(0).values for n in states[0]}
            base = None if rule == "mean" else made if rule == "median" else states[0]
            server.end(aggregation, base)
        drifts.append(server.drift.moment("1.weight").between(torch.eye(64)))
    away = float((drifts[1] - drifts[0]).norm() / drifts[0].norm())
    assert away < (0.25 if rule == "mean" else 0.05)


@pytest.mark.filterwarnings("ignore:round")
def test_a_round_whose_base_is_not_finite_is_undone(tmp_path: Path) -> None:
    place = tmp_path / "vault"
    with Vault.create(place, ring(CLIENTS[:3]), key_file=make_key_file(tmp_path / "vault.key")) as vault:
        server = TraMark(mlp(64, 48), vault=vault, warmup_rounds=1)
        for _ in range(2):
            server.collect(dict(server.dispatch()))
        before, marks = server.fleet.base.clone(), server.fleet.marks.clone()
        for bad in (math.nan, 1e37):
            aggregation = server.begin(discards=True)
            for client, state in server.dispatch().items():
                aggregation.add(client, state)
            with pytest.warns(UserWarning, match="undone"):
                report = server.end(aggregation, {n: t * bad for n, t in server.fleet.state().items()})
            assert "undone" in str(report)
            assert torch.equal(server.fleet.base, before)
            assert torch.equal(server.fleet.marks, marks)
            assert finite(server)
        assert vault.reports()[-1]["discarded"]
        assert not server.collect(dict(server.dispatch())).discarded
        server.fleet.base[0] = math.inf
        with pytest.raises(CheckpointError, match="not saved"):
            server.leave(CLIENTS[0])


@pytest.mark.filterwarnings("ignore:round")
def test_the_vault_goes_back_to_an_earlier_round(tmp_path: Path) -> None:
    place = tmp_path / "vault"
    with Vault.create(place, ring(CLIENTS[:3]), key_file=make_key_file(tmp_path / "vault.key")) as vault:
        server = TraMark(mlp(64, 48), vault=vault, warmup_rounds=3)
        bases = {}
        for round in range(1, 8):
            server.collect({c: {n: t + 1e-3 for n, t in s.items()} for c, s in server.dispatch().items()})
            bases[round] = server.fleet.base.clone()
        assert list(vault.checkpoints) == [0, 5, 6, 7]
        entries = vault.head[0]
        vault.rewind(5)
        assert list(vault.checkpoints) == [0, 5]
        assert [report["round"] for report in vault.reports()] == [1, 2, 3, 4, 5]
        *_, last = vault.log()
        assert (last["event"], last["round"], last["from"], last["n"]) == ("rewound", 5, 7, entries)
        assert server.resume()
        assert server.round == 5
        assert torch.equal(server.fleet.base, bases[5])
        server.collect(dict(server.dispatch()))
        assert list(vault.checkpoints) == [0, 5, 6]
        assert vault.audit() == []
        for wrong, why in ((3, "no state after round 3"), (6, "newest")):
            with pytest.raises(VaultError, match=why):
                vault.rewind(wrong)


@pytest.mark.filterwarnings("ignore:round")
def test_there_is_no_way_back_to_before_the_questions_were_chosen(tmp_path: Path) -> None:
    with Vault.create(tmp_path / "vault", ring(CLIENTS[:3]), key_file=make_key_file(tmp_path / "vault.key")) as vault:
        server = TraMark(mlp(64, 48), vault=vault, warmup_rounds=2)
        for _ in range(2):
            server.collect(dict(server.dispatch()))
        assert vault.checkpoints == (0, 1, 2)
        with pytest.raises(VaultError, match="chosen after round 1"):
            vault.rewind(1)


def test_alarms() -> None:
    survived = Survived({"a": 1.0, "b": 1.0, "c": 0.25}, 3.0)
    assert "the marks of c are gone" in RoundReport(5, ("a",), survived=survived).concerns(10)[0]
    assert "come apart" in RoundReport(5, ("a",), strained=2.5).concerns(10)[0]
    assert (
        RoundReport(5, ("a",), survived=Survived({"a": 1.0, "b": 0.75, "c": 0.7}, 3.0), strained=1.2).concerns(10) == []
    )


def anything(source: random.Random, state: State) -> tuple[State, float]:
    """An update of any kind, and a declared weight."""
    name = source.choice(list(state))
    tensor = state[name]
    changes: list[Callable[[], Tensor]] = [
        lambda: tensor.to(source.choice([torch.float64, torch.float16, torch.complex64, torch.int64, torch.bool])),
        lambda: tensor * source.choice([1e4, 1e20, 1e38, -1e38, math.nan, math.inf]),
        lambda: tensor.double() * 1e300,
        lambda: tensor.reshape(-1)[: source.randrange(tensor.numel() + 1)],
        lambda: tensor + source.choice([1e-3, 0.1, 3.0]),
        lambda: -tensor,
    ]
    changed = dict(state)
    kind = source.randrange(9)
    if kind < 6:
        changed[name] = source.choice(changes)()
    elif kind == 6:
        del changed[name]
    elif kind == 7:
        changed["more\nlines" * source.randrange(500)] = tensor
    weight = source.choice([1e15, 1e300, 0.0, -1.0, math.nan, math.inf]) if kind == 8 else 10.0
    return changed, weight


@pytest.mark.parametrize("rule", ["mean", "median", "krum"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ten_thousand_updates_of_any_kind(rule: str) -> None:
    """A third of them for each rule: no crash, nothing that is not finite, and every round goes on."""
    source, clients, rounds = random.Random(0), CLIENTS[:6], 6
    server = TraMark(mlp(32, normed=True), ring(clients), warmup_rounds=3)
    sent = 0
    for _ in range(rounds):
        aggregation = server.begin(discards=rule != "mean")
        accepted: list[State] = []
        models = {client: server.fleet.state(client) for client in clients}
        for _ in range(560):
            client = source.choice([*clients, "nobody"])
            update, weight = anything(source, models.get(client, models[clients[0]]))
            sent += 1
            try:
                aggregation.add(client, update, weight)
            except UpdateError:
                continue
            accepted.append(server.fleet.unmarked(client, update))
        middle = {n: torch.stack([state[n] for state in accepted]).median(0).values for n in accepted[0]}
        server.end(aggregation, {"mean": None, "median": middle, "krum": accepted[0]}[rule])
        assert finite(server)
    assert sent == 3360
    assert server.round == rounds
