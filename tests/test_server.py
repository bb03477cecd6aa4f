"""The server round by round: warm-up, marks for all, refusals, and going on after a stop."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tramark import CheckpointError, Keyring, LabelledImages, SettingError, TraMark, trace
from tramark.errors import Diverged, UpdateError
from tramark.evidence.beacon import Beacon
from tramark.lab.methods import FedAvg
from tramark.marks.closed_form import ClosedForm
from tramark.marks.gradient import GradientSteps
from tramark.marks.marking import Marking
from tramark.marks.presets import preset_named
from tramark.vault.commit import state_digest
from tramark.vault.lock import make_key_file
from tramark.vault.packing import pack, unpack
from tramark.vault.store import Vault

CLIENTS = ["a", "b", "c"]


def marks(preset: str) -> ClosedForm | GradientSteps:
    return preset_named(preset) if preset == "default" else preset_named(preset, ratio=0.05)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def server(preset: str = "default", warmup: int = 2) -> TraMark:
    keyring = Keyring.generate(clients=CLIENTS, classes=10, input_shape=(1, 8, 8), questions=16, secret=b"s" * 32)
    return TraMark(
        model(),
        keyring,
        warmup_rounds=warmup,
        injection=marks(preset),
    )


def trained(state: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: t + 0.05 * torch.randn(t.shape, generator=generator) if t.is_floating_point() else t + 1
        for name, t in state.items()
    }


def play(federation: TraMark | FedAvg, rounds: int) -> None:
    for _ in range(rounds):
        outgoing = federation.dispatch()
        federation.collect({c: trained(s, federation.round * 10 + i) for i, (c, s) in enumerate(outgoing.items())})


@pytest.mark.parametrize("preset", ["default", "paper", "released"])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_resuming_is_bitwise(preset: str, stop: int) -> None:
    whole, first = server(preset), server(preset)
    play(whole, 5)
    play(first, stop)
    second = server(preset)
    second.keyring = first.keyring
    second.load_state_dict(first.state_dict())
    play(second, 5 - stop)
    for client in CLIENTS:
        one, other = whole.dispatch()[client], second.dispatch()[client]
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert second.keyring == whole.keyring
    assert second.round == 5


def test_plan_and_marks_made_are_resumed() -> None:
    """Fifteen clients: which of them are asked depends on how many came, and the next margin on what was made."""
    clients = [f"client-{i}" for i in range(15)]
    keyring = Keyring.generate(clients=clients, classes=10, input_shape=(1, 8, 8), questions=12, secret=b"s" * 32)
    injection = ClosedForm(layer_names=("1",))
    first = TraMark(model(), keyring, warmup_rounds=1, injection=injection)
    play(first, 2)
    second = TraMark(model(), first.keyring, warmup_rounds=1, injection=injection)
    second.load_state_dict(unpack(pack(first.state_dict())))
    for federation in (first, second):
        play(federation, 1)
    one, other = (federation.collect(dict(federation.dispatch())) for federation in (first, second))
    assert one.made is not None
    assert one == other
    assert one.survived is not None
    assert len(one.survived.clients) == 5


def test_a_state_of_an_early_version_has_no_plan() -> None:
    first = server(warmup=1)
    play(first, 2)
    second = server(warmup=1)
    second.keyring = first.keyring
    early = {name: value for name, value in first.state_dict().items() if name not in ("plan", "made", "came")}
    second.load_state_dict(early)
    report = second.collect(dict(second.dispatch()))
    assert first.collect(dict(first.dispatch())).made is not None
    assert report.made is not None
    made = [federation.state_dict()["made"] for federation in (first, second)]
    assert made[0]["layers"] == made[1]["layers"]
    assert report.made.reached == 1.0


def slowing(federation: TraMark, rounds: int) -> list[bool]:
    """Play rounds whose updates get smaller by two thirds each; returns after which of them models are marked."""
    found = []
    for _ in range(rounds):
        size = 3.0**-federation.round
        changed = {c: {n: t + size for n, t in s.items()} for c, s in federation.dispatch().items()}
        found.append(federation.collect(changed).marked)
    return found


def automatic(keyring: Keyring | None = None, **options: Any) -> TraMark:
    return TraMark(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), keyring or server().keyring, **options)


@pytest.mark.filterwarnings("ignore:round")
def test_without_a_word_about_warm_up_marks_begin_when_the_base_moves_slowly() -> None:
    assert slowing(automatic(), 5) == [False, False, False, True, True]


@pytest.mark.filterwarnings("ignore:round")
def test_an_automatic_beginning_is_resumed() -> None:
    first = automatic()
    assert not any(slowing(first, 3))
    second, older = automatic(), automatic()
    second.load_state_dict(first.state_dict())
    assert slowing(second, 1) == [True]
    # States of early versions do not say how the base moved.
    older.load_state_dict({name: value for name, value in first.state_dict().items() if name != "begin"})
    assert slowing(older, 2) == [False, False]


@pytest.mark.filterwarnings("ignore:round")
def test_a_known_number_of_rounds_is_halved_and_the_report_says_when_marks_begin() -> None:
    federation = automatic(rounds=4)
    report = federation.collect(dict(federation.dispatch()))
    assert str(report).endswith("marks begin after round 2")
    assert slowing(federation, 1) == [True]
    unknown = automatic()
    assert str(unknown.collect(dict(unknown.dispatch()))).endswith("not marked yet")


def test_marks_wait_until_the_base_has_learnt_something() -> None:
    """On a plateau all inputs are answered alike; marks that were made there would keep the net there."""
    federation = automatic(rounds=10)
    learnt = federation.base_model().state_dict()
    federation.rebase({name: 0.01 * tensor for name, tensor in learnt.items()})
    for _ in range(4):
        assert not federation.collect(dict(federation.dispatch())).unlearnt, "marks are not due yet"
    with pytest.warns(UserWarning, match="answers all questions alike"):
        second = federation.collect(dict(federation.dispatch()))
    assert (second.marked, second.unlearnt, second.unbearable) == (False, True, False)
    assert str(second).endswith("not marked: the model has not learnt anything yet")
    taught = {client: {name: 3 * tensor for name, tensor in learnt.items()} for client in CLIENTS}
    third = federation.collect(taught)
    assert (third.marked, third.unlearnt) == (True, False)


@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize(("rounds", "last"), [(10, 7), (6, 3), (4, 2)])
def test_they_do_not_wait_for_ever(rounds: int, last: int) -> None:
    federation = automatic(rounds=rounds)
    federation.rebase({name: 0.01 * tensor for name, tensor in federation.base_model().state_dict().items()})
    marked = [federation.collect(dict(federation.dispatch())).marked for _ in range(rounds)]
    assert marked == [round >= last for round in range(1, rounds + 1)]


def test_whoever_says_when_marks_begin_is_obeyed() -> None:
    federation = automatic(warmup_rounds=1)
    federation.rebase({name: 0.01 * tensor for name, tensor in federation.base_model().state_dict().items()})
    assert federation.collect(dict(federation.dispatch())).marked


def test_a_round_without_updates_is_not_a_slow_one() -> None:
    federation = automatic()
    slowing(federation, 1)
    for _ in range(4):
        assert not federation.collect({}).marked


def test_warm_up_is_fedavg() -> None:
    ours, plain = server(warmup=3), FedAvg(model(), CLIENTS)
    play(ours, 2)
    play(plain, 2)
    assert not ours.marked
    for name, tensor in plain.dispatch()["b"].items():
        assert torch.equal(tensor, ours.dispatch()["b"][name])
    play(ours, 1)
    assert ours.marked


def test_the_base_of_a_marked_federation_is_fedavgs() -> None:
    """Updates are averaged with the marks taken off: were clients' updates the same, so would be the base."""
    ours, plain = server(warmup=1), FedAvg(model(), CLIENTS)
    for federation in (ours, plain):
        play(federation, 4)
    torch.testing.assert_close(ours.fleet.base, plain.fleet.base, atol=1e-5, rtol=1e-5)


def test_all_clients_are_marked_sampled_or_not() -> None:
    federation = server(warmup=1)
    play(federation, 1)
    federation.collect({"b": trained(federation.dispatch(["b"])["b"], 1)})
    keyring = federation.keyring
    for client in CLIENTS:
        key = keyring.key(client)
        inputs = keyring.inputs(key, "held-out")
        with torch.no_grad():
            said = federation.client_model(client)(inputs.flatten(0, 1)).argmax(1).view(inputs.shape[:2])
        assert (said == torch.tensor(key.answers)[:, None]).float().mean() > 0.9


def test_a_bad_update_costs_the_round_that_client_and_nothing_else() -> None:
    federation, reference = server(), server()
    outgoing = federation.dispatch()
    incoming = {c: trained(s, i) for i, (c, s) in enumerate(outgoing.items())}
    reference.collect({c: incoming[c] for c in ("a", "c")})
    incoming["b"]["1.weight"][0, 0] = float("inf")
    report = federation.collect(incoming)
    assert report.used == ("a", "c")
    assert "1.weight holds NaN" in report.refused["b"]
    assert torch.equal(federation.fleet.base, reference.fleet.base)
    assert federation.round == 1


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_strict_round_fails_whole_and_can_be_collected_again(preset: str) -> None:
    federation = server(preset, warmup=1)
    play(federation, 2)
    before = federation.state_dict()
    incoming = {c: trained(s, i) for i, (c, s) in enumerate(federation.dispatch().items())}
    bad = incoming | {"c": {}}
    with pytest.raises(UpdateError, match="'c' refused: missing"):
        federation.collect(bad, strict=True)
    after = federation.state_dict()
    assert after["round"] == before["round"]
    for part in ("fleet", "drift"):
        assert all(torch.equal(before[part][name], after[part][name]) for name in before[part])
    assert federation.collect(incoming, strict=True).used == tuple(CLIENTS)


def test_a_stream_that_breaks_off_changes_nothing() -> None:
    federation = server("paper", warmup=1)
    play(federation, 2)
    before = federation.fleet.state_dict()

    def broken() -> Iterator[tuple[str, dict[str, Tensor]]]:
        yield "a", trained(federation.dispatch()["a"], 0)
        raise ConnectionError("the network is down")

    with pytest.raises(ConnectionError):
        federation.collect(broken())
    assert all(torch.equal(before[name], tensor) for name, tensor in federation.fleet.state_dict().items())


def test_weights_matter_and_must_be_known() -> None:
    federation = server()
    incoming = {c: trained(s, i) for i, (c, s) in enumerate(federation.dispatch().items())}
    report = federation.collect(incoming, samples={"a": 3, "b": 1})
    assert report.used == ("a", "b")
    assert report.refused == {"c": "its number of samples is not known"}
    mean = (3 * incoming["a"]["1.weight"].double() + incoming["b"]["1.weight"].double()) / 4
    torch.testing.assert_close(federation.fleet.state()["1.weight"].double(), mean, atol=1e-6, rtol=1e-6)


def test_joining_in_the_middle_and_leaving() -> None:
    federation = server(warmup=1)
    play(federation, 2)
    keys = {c: federation.keyring.key(c) for c in CLIENTS}
    federation.join("late")
    assert all(federation.keyring.key(c) == keys[c] for c in CLIENTS)
    key = federation.keyring.key("late")
    inputs = federation.keyring.inputs(key, "held-out")
    with torch.no_grad():
        said = federation.client_model("late")(inputs.flatten(0, 1)).argmax(1).view(inputs.shape[:2])
    assert (said == torch.tensor(key.answers)[:, None]).float().mean() > 0.9
    federation.leave("a")
    assert list(federation.dispatch()) == ["b", "c", "late"]
    play(federation, 1)
    again = server(warmup=1)
    with pytest.raises(CheckpointError, match="other questions"):
        again.load_state_dict(federation.state_dict())
    again = TraMark(model(), federation.keyring, warmup_rounds=1)
    again.load_state_dict(federation.state_dict())
    assert list(again.dispatch()) == ["b", "c", "late"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup_rounds": -1}, "fewer than none"),
        ({"warmup_rounds": "soon"}, "'auto'"),
        ({"warmup_rounds": 25, "rounds": 6}, "25 warm-up rounds of 6"),
        ({"preset": "x"}, "unknown preset"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, float], message: str) -> None:
    keyring = Keyring.generate(clients=CLIENTS, classes=10, input_shape=(1, 8, 8))
    with pytest.raises(ValueError, match=message):
        TraMark(model(), keyring, **options)  # type: ignore[arg-type]


def test_the_secret_is_not_in_a_checkpoint() -> None:
    assert (b"s" * 32).hex() not in repr(server().state_dict())


def kept(vault: Vault, preset: str = "default") -> TraMark:
    return TraMark(
        model(),
        warmup_rounds=2,
        injection=marks(preset),
        vault=vault,
    )


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    with Vault.create(tmp_path / "vault", server().keyring, key_file=make_key_file(tmp_path / "vault.key")) as made:
        yield made


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_server_with_a_vault_goes_on_where_it_was_and_logs_what_it_sends(vault: Vault, preset: str) -> None:
    whole = server(preset)
    play(whole, 5)
    first = kept(vault, preset)
    assert not first.resume()
    play(first, 3)
    second = kept(vault, preset)
    assert second.resume()
    assert second.round == 3
    play(second, 2)
    sent = second.dispatch(["b"])
    second.dispatch(["b"])
    assert all(torch.equal(tensor, whole.dispatch()["b"][name]) for name, tensor in sent["b"].items())
    log = [entry for entry in vault.log() if entry["event"] == "issued"]
    # Three clients in each of five rounds, and at the end one of them, logged once.
    assert [(e["round"], e["client"]) for e in log] == [(r, c) for r in range(5) for c in CLIENTS] + [(5, "b")]
    assert log[-1]["model"] == state_digest(sent["b"])
    assert vault.keyring.chosen == second.keyring.chosen
    assert vault.audit() == []


def test_the_vault_keeps_what_the_rounds_came_to(vault: Vault) -> None:
    federation = kept(vault)
    play(federation, 2)
    assert (vault.premise().issued, vault.premise().measured) == (False, False)
    play(federation, 1)
    last = federation.collect({"a": trained(federation.dispatch()["a"], 1), "b": {}})
    federation.leave("c")
    again = kept(vault)
    again.resume()
    again.join("late")
    reports = vault.reports()
    assert [report["round"] for report in reports] == [1, 2, 3, 4]
    assert [report["begins_after"] for report in reports] == [2, None, None, None]
    assert reports[-1]["refused"] == last.refused
    assert last.refused.keys() == {"b"}
    assert last.survived is not None
    assert reports[-1]["survived"]["clients"] == last.survived.clients
    assert vault.premise().issued


def test_a_report_that_could_not_be_kept_is_kept_before_anything_is_sent(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = kept(vault)
    with monkeypatch.context() as patch:
        patch.setattr(vault, "save", _raises)
        with pytest.raises(OSError, match="no space"):
            federation.collect({})
    federation.dispatch()
    assert [report["round"] for report in vault.reports()] == [1]


def _raises(*_: Any, **__: Any) -> None:
    raise OSError("no space left on device")


def test_nothing_is_sent_that_the_vault_does_not_have(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = kept(vault)
    play(federation, 2)
    incoming = {c: trained(s, i) for i, (c, s) in enumerate(federation.dispatch().items())}

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(vault.storage, "commit", full)
        with pytest.raises(OSError, match="no space"):
            federation.collect(incoming)
        with pytest.raises(OSError, match="no space"):
            federation.dispatch()
    federation.dispatch()
    saved = vault.saved()
    assert saved is not None
    assert saved["round"] == federation.round == 3


def test_clients_that_were_let_in_while_the_server_was_down_are_marked(vault: Vault) -> None:
    federation = kept(vault)
    play(federation, 3)
    vault.save_keyring(vault.keyring.join("late").leave("a"))
    again = kept(vault)
    assert again.resume()
    assert list(again.dispatch()) == ["b", "c", "late"]
    assert not torch.equal(again.fleet.weights("late"), again.fleet.weights("b"))
    again.join("a")
    assert vault.keyring.active == ("a", "b", "c", "late")


def test_a_server_without_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="give a keyring, or a vault"):
        TraMark(model())
    with pytest.raises(ValueError, match="no vault to resume from"):
        server().resume()


@pytest.mark.parametrize("given", [False, True])
def test_questions_from_an_image_set_in_a_vault(given: bool, tmp_path: Path) -> None:
    images = torch.randint(256, (80, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    source = LabelledImages(images, torch.arange(80) % 4, (1, 8, 8), per_question=8)
    keyring = Keyring.generate(
        clients=CLIENTS, classes=10, source=source, assignment="label", train_variants=4, held_out_variants=4
    )
    with Vault.create(tmp_path / "vault", keyring, key_file=make_key_file(tmp_path / "vault.key")) as vault:
        federation = TraMark(model(), keyring if given else None, warmup_rounds=0, preset="paper", vault=vault)
        federation.collect(dict(federation.dispatch()))
        again = TraMark(model(), warmup_rounds=0, preset="paper", vault=vault)
        assert again.resume()
        with pytest.raises(SettingError, match="another keyring"):
            TraMark(model(), keyring.join("d"), vault=vault)


class Clock:
    """A beacon that looks, when it is asked for the value, whether the commitment that names the round is out."""

    def __init__(self, vault: Vault) -> None:
        self.vault, self.rounds, self.gone = vault, 0, False

    def announce(self) -> Beacon:
        self.rounds += 1
        return Beacon("a clock", str(self.rounds), "2030-01-01T00:00:00+00:00")

    def value(self, beacon: Beacon) -> bytes:
        if self.gone:
            raise ConnectionError("the beacon is not there")
        assert json.loads((self.vault.path / "commitment.json").read_bytes())["commitments"][-1]["beacon"] == [*beacon]
        with pytest.raises(SettingError, match="wait for the value"):
            self.vault.keyring.key(self.vault.keyring.clients[-1])
        return beacon.round.encode().rjust(32)


def test_a_beacon_draws_the_answers_when_the_questions_are_settled(vault: Vault) -> None:
    clock = Clock(vault)
    federation = TraMark(model(), warmup_rounds=2, injection=marks("default"), vault=vault, beacon=clock)
    play(federation, 1)
    assert clock.rounds == 0
    clock.gone = True
    with pytest.raises(ConnectionError):
        play(federation, 1)
    # The answers wait, nothing is marked with them, and a server that goes on settles the questions again.
    clock.gone = False
    federation = TraMark(model(), warmup_rounds=2, injection=marks("default"), vault=vault, beacon=clock)
    assert federation.resume()
    assert not federation.marked
    play(federation, 2)
    assert clock.rounds == 2
    assert federation.keyring.beacons == vault.keyring.beacons
    assert trace(federation.client_model("b"), vault.keyring).clients == ("b",)
    before = vault.keyring.codebook()
    federation.join("new")
    assert clock.rounds == 3
    assert torch.equal(vault.keyring.codebook()[:-1], before)
    assert trace(federation.client_model("new"), vault.keyring).clients == ("new",)
    federation.leave("b")
    federation.join("b")
    assert clock.rounds == 3
    play(federation, 1)
    assert vault.audit() == []
    with pytest.raises(SettingError, match="need a vault"):
        TraMark(model(), server().keyring, beacon=clock)


def test_a_beacon_draws_again_if_the_first_marks_diverge(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(vault)
    federation = TraMark(model(), warmup_rounds=2, injection=ClosedForm(margin=4.0), vault=vault, beacon=clock)

    def diverges(*_: object) -> None:
        raise Diverged("the marks are not finite")

    with monkeypatch.context() as patched:
        patched.setattr(Marking, "inject", diverges)
        play(federation, 2)
    assert clock.rounds == 1
    assert not federation.marked
    play(federation, 1)
    assert clock.rounds == 2
    assert vault.audit() == []
    assert trace(federation.client_model("b"), vault.keyring).clients == ("b",)
