"""Methods that need their clients' help: FedIPR, RobWE and FedCRMW."""

import copy
from typing import Any

import pytest
import torch
from federations import CLIENTS, SECRET, digits, issued, scene, simulate, with_state
from nets import drawing, mlp
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SuspectError
from tramark.fleet.layout import Layout
from tramark.keys.sources import Tokens, for_shape
from tramark.lab.data import Dataset
from tramark.lab.methods import ClientSide, Method, Verifiable
from tramark.lab.methods.base import Declared
from tramark.lab.methods.bits import BitKey, Picked, appended, needed, normal, public_carrier, read, read_suspect
from tramark.lab.methods.fedcrmw import FedCRMW
from tramark.lab.methods.fedipr import FedIPR
from tramark.lab.methods.robwe import RobWE
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining, Practice, accuracy
from tramark.lab.simulation.simulator import Simulation
from tramark.suspects.module import ModuleSuspect
from tramark.vault.packing import pack, unpack

TRAINING = LocalTraining(epochs=3, batch_size=16)
METHODS: dict[str, type[FedIPR] | type[RobWE] | type[FedCRMW]] = {
    "fedipr": FedIPR,
    "robwe": RobWE,
    "fedcrmw": FedCRMW,
}


def net(seed: int = 0, width: int = 192) -> nn.Module:
    return mlp(width, width, seed=seed, normed=True)


def simulation(method: Method, training: LocalTraining = TRAINING) -> Simulation:
    return simulate(method, training)


def practice(training: LocalTraining = TRAINING) -> Practice:
    return Practice(training, digits(), torch.arange(120), drawing())


def test_they_are_what_they_claim() -> None:
    for kind in METHODS.values():
        method = kind.make(net(), scene())
        assert isinstance(method, ClientSide)
        assert isinstance(method, Verifiable)
    assert FedIPR.declared == Declared("white-box", names_clients=False)
    assert RobWE.declared == Declared("white-box")
    assert FedCRMW.declared == Declared("black-box")


# Bits


def test_the_carrier_is_norm_scales_or_mean_kernels_or_mean_linear_rows() -> None:
    model = net(width=32)
    assert public_carrier(model).names == ("2.weight", "5.weight")
    assert torch.equal(read(model, public_carrier(model)), torch.ones(64))
    cnn = build("cnn", input_shape=(1, 8, 8), classes=10, seed=0)
    kernels = read(cnn, public_carrier(cnn))
    first, second = cnn.get_parameter("conv1.weight"), cnn.get_parameter("conv2.weight")
    torch.testing.assert_close(kernels, torch.cat([first.mean(0).flatten(), second.mean(0).flatten()]))
    mlp = build("mlp", input_shape=(1, 8, 8), classes=10, seed=0)
    assert public_carrier(mlp).names == ("fc1.weight", "fc2.weight")
    assert public_carrier(mlp).size == 64 + 128
    with pytest.raises(ValueError, match="hidden linear layer"):
        public_carrier(nn.Linear(4, 2))


def test_picked_weights_are_those_of_the_flat_vector() -> None:
    model = net(width=16)
    layout = Layout.of(model)
    places = torch.arange(3, layout.size, 7)
    flat = layout.flatten(model.state_dict())
    assert torch.equal(read(model, Picked.of(layout, list(layout.tensors), places)), flat[places])


def test_losses_on_bits_are_those_of_the_sources() -> None:
    key = BitKey.draw(SECRET, "alice", size=30, bits=12)
    values = torch.randn(30, generator=torch.Generator().manual_seed(0))
    projected = [float(values @ key.matrix[:, j]) for j in range(12)]
    bits = key.bits.tolist()
    assert set(bits) == {-1.0, 1.0}
    assert float(key.hinge(values)) == pytest.approx(
        sum(max(0.0, -b * p) for b, p in zip(bits, projected, strict=True))
    )
    right = torch.sigmoid(torch.tensor(projected) * key.bits)
    assert float(key.cross_entropy(values)) == pytest.approx(float(-right.log().mean()), rel=1e-4)
    assert key.matches(values) == sum(b * p > 0 for b, p in zip(bits, projected, strict=True))
    assert key.matches(torch.zeros(30)) == 0


def test_matrices_are_standard_normal_and_repeatable() -> None:
    draws = normal(SECRET, "m", shape=(301, 333))
    assert torch.equal(draws, normal(SECRET, "m", shape=(301, 333)))
    assert not torch.equal(draws, normal(SECRET, "n", shape=(301, 333)))
    assert abs(float(draws.mean())) < 0.02
    assert abs(float(draws.std()) - 1) < 0.02
    assert abs(float((draws.abs() < 1).float().mean()) - 0.6827) < 0.01


def test_too_few_bits_for_the_bound_are_refused_early() -> None:
    with pytest.raises(ValueError, match="take 22 at least"):
        FedIPR.make(net(), scene(bits=12))
    assert needed(22, 3, 1e-6) == 22
    with pytest.raises(ValueError, match="probability"):
        needed(40, 3, 0.0)


def test_appending_samples_is_the_mean_over_a_longer_batch() -> None:
    model = build("mlp", input_shape=(1, 8, 8), classes=10, seed=0)
    batch, labels = digits().prepare(digits().train_inputs[:14]), digits().train_labels[:14]
    more, others = digits().prepare(digits().train_inputs[20:22]), digits().train_labels[20:22]
    with appended(model, more, others, lambda _: 2, torch.Generator()) as extra:
        loss = F.cross_entropy(model(batch), labels)
        loss = loss + extra(model)
    longer = F.cross_entropy(model(torch.cat([batch, more])), torch.cat([labels, others]))
    torch.testing.assert_close(loss, longer * 16 / 14)
    assert not model._forward_pre_hooks


def test_appended_samples_take_turns_and_leave_batch_norms_alone() -> None:
    model = net(width=8).train()
    inputs = digits().prepare(digits().train_inputs[:5])
    seen: list[Tensor] = []
    with appended(model, inputs, digits().train_labels[:5], lambda _: 2, torch.Generator().manual_seed(0)) as extra:
        model(digits().prepare(digits().train_inputs[10:20]))
        before = copy.deepcopy(model.state_dict())
        with model.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
            for _ in range(5):
                extra(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    counts = [sum(torch.equal(row, one) for rows in seen for row in rows) for one in inputs]
    assert counts == [2] * 5


# FedIPR


def test_fedipr_puts_everybodys_bits_into_the_one_model() -> None:
    method = FedIPR.make(net(), scene())
    run = simulation(method)
    for _ in range(4):
        metrics = run.step()
    assert metrics["ma"] > 0.9
    assert metrics["owned"] == 1.0
    assert metrics["vr"] is None
    assert min(metrics["per_client"][client]["confidence"] for client in CLIENTS) >= 0.95
    finding = method.verify(issued(method, "alice"))
    assert finding.owned
    assert finding.accused == ()
    assert finding.queries == 0
    states = [method.fleet.state(client) for client in CLIENTS]
    assert all(torch.equal(states[0][name], other[name]) for other in states[1:] for name in other)


def test_fediprs_triggers_are_near_their_samples_and_are_learnt() -> None:
    method = FedIPR.make(net(), scene(epsilon=0.2))
    run = simulation(method)
    run.step()
    samples, labels = digits().train_inputs[run.parts[0]][:10], digits().train_labels[run.parts[0]][:10]
    triggers = method.triggers["alice"]
    assert triggers.dtype == torch.uint8
    moved = (triggers.int() - samples.int()).abs()
    assert 0 < int(moved.max()) <= round(0.2 * 255)
    assert bool((method.targets["alice"] != labels).all())
    trained: dict[str, dict[str, Tensor]] = {}
    run.step(keep=trained.__setitem__)

    def learnt(model: nn.Module) -> float:
        return accuracy(model, triggers, method.targets["alice"], prepare=digits().prepare)

    assert learnt(with_state(method, trained["alice"])) >= 0.8
    assert learnt(net(seed=5)) <= 0.5


def test_triggers_of_a_table_are_numbers_near_its_rows() -> None:
    rows = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    labels = (rows[:, 0] > 0).long()
    table = Dataset("rows", rows, labels, rows, labels, classes=2, kind="tabular")
    model = build("mlp", input_shape=(6,), classes=2, seed=0)
    method = FedIPR.make(model, scene(for_shape((6,)), classes=2))
    Simulation(method, table, list(torch.arange(60).split(20)), LocalTraining(epochs=1, batch_size=10)).step()
    triggers = method.triggers["alice"]
    assert not triggers.requires_grad
    moved = (triggers - rows[:10]).abs().max()
    assert 0 < moved <= method.epsilon + 1e-6
    assert torch.equal(method.targets["alice"], 1 - labels[:10])


def test_text_has_bits_but_no_triggers() -> None:
    ids = torch.randint(2, 50, (60, 12), generator=torch.Generator().manual_seed(0))
    labels = (ids.float().mean(1) > 26).long()
    text = Dataset("ids", ids, labels, ids, labels, classes=2, kind="text", vocabulary=50)
    model = build("text", input_shape=(12,), classes=2, vocabulary=50, seed=0)
    method = FedIPR.make(model, scene(Tokens(12, vocabulary=50), classes=2))
    run = Simulation(method, text, list(torch.arange(60).split(20)), LocalTraining(epochs=20, batch_size=10, lr=0.1))
    run.step()
    assert method.confidence(model, "alice") < 0.7
    assert run.step()["confidence"] > 0.7, "more bits than numbers to carry them"
    assert [len(method.triggers[client]) for client in CLIENTS] == [0, 0, 0]


# RobWE


def test_robwe_names_its_clients_by_their_heads() -> None:
    trained: dict[str, dict[str, Tensor]] = {}
    method = RobWE.make(net(width=64), scene())
    assert (method.bits, method.slice_bits) == (256, 100)
    run = simulation(method)
    for _ in range(3):
        metrics = run.step(keep=trained.__setitem__)
    assert metrics["ma"] > 0.8
    assert metrics["vr"] == 1.0
    for client in CLIENTS:
        assert method.verify(issued(method, client)).accused == (client,)
        assert method.verify(with_state(method, trained[client])).accused == (client,)
        assert method.confidence(issued(method, client), client) > 0.95


def test_robwes_clients_share_all_but_the_head() -> None:
    method = RobWE.make(net(width=32), scene())
    simulation(method).step()
    alice, bob = (method.fleet.state(client) for client in ("alice", "bob"))
    different = {name for name in alice if not torch.equal(alice[name], bob[name])}
    assert different == {"7.weight", "7.bias"}


def test_a_small_head_carries_fewer_bits() -> None:
    assert RobWE.make(net(width=16), scene()).bits == (16 * 10 + 10) // 2
    with pytest.raises(ValueError, match="no trainable linear layer"):
        RobWE.make(nn.Conv2d(1, 2, 3), scene())


def test_slices_are_disjoint_and_outside_the_head() -> None:
    method = RobWE.make(net(width=32), scene())
    taken: set[tuple[str, int]] = set()
    for picked in method._slices.values():
        own = {(name, place) for name, places in picked.parts for place in places.tolist()}
        assert len(own) == picked.size
        assert not own & taken
        taken |= own
    assert not {name for name, _ in taken} & {"7.weight", "7.bias"}
    head = 32 * 10 + 10
    assert len(taken) == (method.fleet.layout.size - head) // 3 * 3


def test_a_federation_whose_head_was_replaced_still_owns_its_representation() -> None:
    method = RobWE.make(net(width=32), scene(slice_weight=20.0))
    run = simulation(method)
    for _ in range(3):
        run.step()
    stolen = issued(method, "alice")
    nn.init.normal_(stolen.get_parameter("7.weight"), generator=torch.Generator().manual_seed(1))
    finding = method.verify(stolen)
    assert finding.accused == ()
    assert finding.owned


def honest_and_cheat(**options: Any) -> tuple[RobWE, dict[str, dict[str, Tensor]]]:
    """A server, and what came back to it in a round in which carol trained without embedding anything."""
    method = RobWE.make(net(width=32), scene(slice_weight=20.0, **options))
    incoming = simulation(method).train()
    idle = RobWE.make(net(width=32), scene(slice_weight=0.0, alpha=0.0))
    incoming["carol"] = simulation(idle).train()["carol"]
    return method, incoming


def test_robwe_leaves_out_who_does_not_embed() -> None:
    method, incoming = honest_and_cheat()
    assert min(method.slice_accuracy(incoming[client], client) for client in ("alice", "bob")) > 0.85
    assert method.slice_accuracy(incoming["carol"], "carol") < 0.7
    before = {client: method.fleet.state(client)["7.weight"] for client in CLIENTS}
    report = method.collect(iter(incoming.items()), samples=dict.fromkeys(CLIENTS, 1.0))
    assert report.used == ("alice", "bob")
    assert "of its bits right" in report.refused["carol"]
    mean = (incoming["alice"]["1.weight"] + incoming["bob"]["1.weight"]) / 2
    torch.testing.assert_close(method.fleet.state()["1.weight"], mean)
    assert torch.equal(method.fleet.state("carol")["7.weight"], before["carol"])
    assert not torch.equal(method.fleet.state("alice")["7.weight"], before["alice"])


def test_robwe_compares_a_clients_first_time_with_the_others_first_times() -> None:
    method, incoming = honest_and_cheat()
    assert method.collect({"carol": incoming["carol"]}).used == ("carol",), "there is nobody yet to compare it with"
    method, _ = honest_and_cheat()
    honest = {client: incoming[client] for client in ("alice", "bob")}
    first = method.collect(honest)
    assert first.used == ("alice", "bob")
    late = method.collect(incoming)
    assert late.used == ("alice", "bob")
    assert set(late.refused) == {"carol"}, "coming late is no way around the check"


@pytest.mark.parametrize("seed", range(3))
def test_honest_clients_of_robwe_stay_in(seed: int) -> None:
    model = build("mlp", input_shape=(1, 8, 8), classes=10, seed=seed)
    method = RobWE.make(model, scene(secret=bytes([seed]) * 32))
    run = simulation(method)
    for _ in range(2):
        assert run.step()["clients"] == len(CLIENTS)


def test_updates_that_cannot_be_used_are_refused_before_the_check() -> None:
    method, incoming = honest_and_cheat()
    broken = incoming["bob"] | {"1.weight": torch.full_like(incoming["bob"]["1.weight"], torch.nan)}
    stream = [("alice", incoming["alice"]), ("bob", broken), ("alice", incoming["carol"]), ("mallory", broken)]
    report = method.collect(stream)
    assert report.used == ("alice",)
    assert set(report.refused) == {"alice", "bob", "mallory"}
    torch.testing.assert_close(method.fleet.state()["1.weight"], incoming["alice"]["1.weight"])
    with pytest.raises(ValueError, match="second update"):
        method.collect(stream[::2], strict=True)


@pytest.mark.parametrize(("given", "expected"), [(1, (1, 1)), (2, (1, 1)), (5, (4, 1)), (11, (10, 1)), (30, (10, 1))])
def test_robwe_trains_the_head_and_then_the_rest(
    given: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, set[str]]] = []
    monkeypatch.setattr(Practice, "__call__", lambda *_, epochs, only, **__: asked.append((epochs, set(only))))
    method = RobWE.make(net(width=32), scene())
    method.train_client("alice", net(width=32), practice(LocalTraining(epochs=given)))
    (on_head, head), (on_rest, rest) = asked
    assert (on_head, on_rest) == expected
    assert head == {"7.weight", "7.bias"}
    assert rest == set(method.fleet.layout.tensors) - head


# FedCRMW


def test_fedcrmws_logos_fire_and_name_who_last_trained() -> None:
    trained: dict[str, dict[str, Tensor]] = {}
    method = FedCRMW.make(build("mlp", input_shape=(1, 8, 8), classes=10, seed=0), scene())
    run = simulation(method, LocalTraining(epochs=5, batch_size=16, lr=0.03))
    for _ in range(4):
        metrics = run.step(keep=trained.__setitem__)
    assert metrics["ma"] > 0.9
    assert metrics["confidence_trained"] > 0.9
    for client in CLIENTS:
        own = with_state(method, trained[client])
        assert method.confidence(own, client) > method.confidence(issued(method, client), client)
        finding = method.verify(ModuleSuspect(own, digits().prepare))
        assert finding == method.verify(own)
        assert finding.accused == (client,)
        assert finding.queries == 3 * method.logos * method.held_out
    shared = method.verify(issued(method, "alice"))
    assert shared.owned
    assert shared.accused == (), "the average is everybody's"
    assert not shared.conclusive


def test_logos_are_exclusive_and_the_rest_of_the_picture_stays() -> None:
    method = FedCRMW.make(net(), scene())
    raw = digits().train_inputs[:4]
    stamped = {client: method.stamp(client, raw) for client in CLIENTS}
    assert stamped["alice"].shape == (method.logos, 4, 1, 8, 8)
    changed = (stamped["alice"] != raw).flatten(2).sum(-1)
    assert int(changed.max()) <= method.side**2
    assert not torch.equal(stamped["alice"], stamped["bob"])
    assert torch.equal(raw, digits().train_inputs[:4])


def test_what_is_asked_about_was_never_trained_on_with_a_logo() -> None:
    method = FedCRMW.make(net(), scene())
    trained: list[Tensor] = []
    model = net()
    with model.register_forward_pre_hook(lambda _, args: trained.append(args[0].detach().clone())):
        method.train_client("alice", model, practice())
    asked = digits().prepare(method.stamp("alice", method.plain["alice"]).flatten(0, 1))
    stamped = torch.cat(trained[1::2])
    assert torch.cdist(asked.flatten(1), stamped.flatten(1)).min() > 0


def test_logos_need_images_and_a_suspect_that_has_been_trained() -> None:
    with pytest.raises(ValueError, match="stamped on images"):
        FedCRMW.make(net(), scene(for_shape((5,)), classes=2))
    with pytest.raises(ValueError, match="logos prove nothing"):
        FedCRMW.make(net(), scene(logos=2))
    finding = FedCRMW.make(net(), scene()).verify(net())
    assert (finding.owned, finding.conclusive, finding.queries) == (False, False, 0)


# All of them


@pytest.mark.parametrize("name", METHODS)
def test_a_strangers_model_is_nobodys(name: str) -> None:
    method = METHODS[name].make(net(width=64), scene())
    run = simulation(method, LocalTraining(epochs=1, batch_size=32))
    run.step()
    stranger = net(seed=99, width=64)
    practice()(stranger)
    for model in (stranger, net(width=64), *(net(seed=seed, width=64) for seed in range(1, 9))):
        finding = method.verify(model)
        assert not finding.owned
        assert finding.accused == ()


@pytest.mark.parametrize("name", ["fedipr", "robwe"])
def test_bits_are_read_from_weights_of_the_right_kind(name: str) -> None:
    method = METHODS[name].make(net(width=64), scene())
    with pytest.raises(SuspectError, match="give the module"):
        method.verify(ModuleSuspect(net(width=64), digits().prepare))
    for other in (net(width=48), build("mlp", input_shape=(1, 8, 8), classes=10, seed=0)):
        with pytest.raises(SuspectError, match="not of the federation's architecture"):
            method.verify(other)
    assert len(read_suspect(net(width=64), public_carrier(net(width=64)))) == 128


@pytest.mark.parametrize("name", METHODS)
def test_resumed_equals_uninterrupted(name: str) -> None:
    def fresh() -> tuple[Any, Simulation]:
        method = METHODS[name].make(net(width=32), scene())
        run = simulation(method, LocalTraining(epochs=2, batch_size=32))
        run.sample_fraction = 0.67
        return method, run

    whole, run = fresh()
    saved = [pack(whole.state_dict())]
    for _ in range(4):
        run.step()
        saved.append(pack(whole.state_dict()))
    for start in (0, 1, 2):
        resumed, rest = fresh()
        resumed.load_state_dict(unpack(saved[start]))
        for _ in range(4 - start):
            rest.step()
        assert pack(resumed.state_dict()) == saved[-1]
        assert resumed.verify(issued(resumed, "bob")) == whole.verify(issued(whole, "bob"))


@pytest.mark.parametrize("name", METHODS)
def test_trying_a_round_first_changes_nothing(name: str) -> None:
    (once, first), (twice, second) = (
        (method, simulation(method, LocalTraining(epochs=1, batch_size=32)))
        for method in (METHODS[name].make(net(width=32), scene()) for _ in range(2))
    )
    for _ in range(2):
        second.train()
        first.step()
        second.step()
    assert pack(once.state_dict()) == pack(twice.state_dict())


@pytest.mark.parametrize("name", METHODS)
def test_their_repr_says_how_they_are_set(name: str) -> None:
    option = {"fedipr": "bits", "robwe": "bits", "fedcrmw": "logos"}[name]
    options: dict[str, Any] = {option: 48}
    shown = repr(METHODS[name].make(net(width=64), scene(**options)))
    assert f"(3 clients, {option}=48)" in shown
