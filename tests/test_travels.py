"""A server of which only a part of the model travels: a head on a frozen backbone, adapters and a head."""

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import adapted, headed, mlp
from torch import Tensor, nn

from tramark import CheckpointError, Keyring, SettingError, TraMark, trace
from tramark.fleet.travels import Travels, travelling
from tramark.vault.commit import state_digest
from tramark.vault.lock import make_key_file
from tramark.vault.store import Vault

CLIENTS = ["a", "b", "c"]
HEAD = [f"head.{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias")] + [
    *(f"head.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")),
    *("head.3.weight", "head.3.bias"),
]
NETS = [headed, adapted]


def keyring() -> Keyring:
    return Keyring.generate(
        clients=CLIENTS,
        classes=10,
        input_shape=(1, 8, 8),
        questions=16,
        pool=128,
        secret=b"s" * 32,
        normalise=(0.5, 0.5),
    )


def server(net: Callable[[], nn.Module] = headed, *, travels: Travels | None = "trainable", **more: Any) -> TraMark:
    options: dict[str, Any] = {"warmup_rounds": 1} | more
    return TraMark(net(), None if "vault" in options else keyring(), travels=travels, **options)


def trained(net: Callable[[], nn.Module], state: dict[str, Tensor], seed: int) -> nn.Module:
    """A client's model after a few steps on its data. The client has the frozen part itself."""
    model = net()
    kept = {name: tensor for name, tensor in model.state_dict().items() if name not in state}
    model.load_state_dict(kept | state)
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = torch.randn(32, 1, 8, 8, generator=generator), torch.randint(10, (32,), generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02)
    model.train()
    if backbone := getattr(model, "backbone", None):
        backbone.eval()
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return model.eval()


def part(model: nn.Module, names: Any = None) -> dict[str, Tensor]:
    chosen = travelling(model, "trainable") if names is None else names
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if name in chosen}


def play(federation: TraMark, net: Callable[[], nn.Module], rounds: int) -> dict[str, nn.Module]:
    """Rounds in which clients return the trainable part alone; returns their models after the last."""
    models: dict[str, nn.Module] = {}
    for _ in range(rounds):
        sent = federation.dispatch()
        models = {c: trained(net, sent[c], federation.round * 10 + i) for i, c in enumerate(CLIENTS)}
        federation.collect({c: part(model) for c, model in models.items()}, strict=True)
    return models


def rest(model: nn.Module) -> dict[str, Tensor]:
    return {n: t for n, t in model.state_dict().items() if n not in travelling(model, "trainable")}


def test_trainable_part() -> None:
    assert sorted(travelling(headed(), "trainable")) == sorted(HEAD)
    assert travelling(headed(), lambda name: name.startswith("head.")) == frozenset(HEAD)
    assert {"1.down.weight", "1.up.weight"} < travelling(adapted(), "trainable")
    assert "1.frozen.weight" not in travelling(adapted(), "trainable")


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("net", NETS)
def test_only_the_part_travels_and_the_rest_stays(net: Callable[[], nn.Module], preset: str) -> None:
    federation, constant = server(net, preset=preset), rest(net())
    play(federation, net, 3)
    assert federation.marked
    assert federation.dispatch()["a"].keys() == travelling(net(), "trainable")
    for model in (federation.client_model("a"), federation.base_model(), federation.model):
        assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in constant.items())
    if net is headed:
        assert int(federation.dispatch()["a"]["head.1.num_batches_tracked"]) == 9


@pytest.mark.parametrize("travels", ["trainable", None])
@pytest.mark.parametrize("net", NETS)
def test_the_leaker_of_a_trained_model_is_named(net: Callable[[], nn.Module], travels: Travels | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        federation = server(net, travels=travels, warmup_rounds=2)
        models = play(federation, net, 4)
    for client in CLIENTS:
        assert trace(models[client], federation.keyring, false_accusation=1e-3).clients == (client,)
    assert trace(federation.base_model(), federation.keyring, false_accusation=1e-3).clients == ()


def test_a_layer_that_does_not_travel_is_not_marked() -> None:
    federation = TraMark(mlp(64, 64), keyring(), warmup_rounds=0, travels=lambda name: name.startswith(("3.", "5.")))
    assert set(federation.dispatch()["a"]) == {"3.weight", "3.bias", "5.weight", "5.bias"}
    assert federation.fleet.shared == {"3.bias", "5.weight", "5.bias"}
    last = TraMark(mlp(64, 64), keyring(), warmup_rounds=0, travels=["5.weight"])
    assert set(last.dispatch()["a"]) == {"5.weight"}
    assert last.fleet.shared == set()


def test_a_frozen_part_of_another_precision_is_given_back_as_it_was() -> None:
    class Mixed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for module in self:
                x = module(x.to(next(module.parameters()).dtype))
            return x

    model = Mixed(OrderedDict(headed().named_children()))
    model.get_submodule("backbone").double()
    model.get_parameter("backbone.0.weight").data += 1e-12
    ours = TraMark(model, keyring(), warmup_rounds=0, travels="trainable").client_model("a").state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in rest(model).items())


@pytest.mark.parametrize(
    ("travels", "message"),
    [
        (["head.0.weight", "nose.weight"], "nose.weight, but the model has no such tensors"),
        ("head", "give 'trainable', a collection"),
        ([], "nothing of the model travels"),
        (["backbone.0.weight"], "nothing to mark"),
    ],
)
def test_what_cannot_travel_is_refused(travels: Travels, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        server(travels=travels)


def test_one_tensor_with_two_names_travels_whole() -> None:
    model = mlp(64, 64)
    model[3].weight = model[1].weight  # type: ignore[index]
    with pytest.raises(SettingError, match=r"1.weight and 3.weight are one tensor"):
        travelling(model, ["1.weight"])
    assert travelling(model, ["1.weight", "3.weight"]) == {"1.weight", "3.weight"}


def test_what_does_not_travel_may_come_back_only_as_it_was() -> None:
    federation = server()
    models = {c: trained(headed, state, i) for i, (c, state) in enumerate(federation.dispatch().items())}
    incoming = {c: dict(model.state_dict()) for c, model in models.items()}
    incoming["b"]["backbone.1.running_mean"] = incoming["b"]["backbone.1.running_mean"] + 1
    incoming["c"]["ear"] = torch.zeros(1)
    report = federation.collect(incoming)
    assert report.used == ("a",)
    assert report.refused == {
        "b": "backbone.1.running_mean does not travel, but was changed",
        "c": "unexpected ear",
    }


def test_clients_may_show_by_themselves_that_the_trainable_part_travels() -> None:
    stated, shown = server(), server(travels=None)
    play(stated, headed, 1)
    with pytest.warns(UserWarning, match="trainable part of the model alone"):
        play(shown, headed, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(shown, headed, 2)
    play(stated, headed, 2)
    assert list(shown.dispatch()["a"]) == list(headed().state_dict()), "clients load what they loaded before"
    for client in CLIENTS:
        one, other = stated.client_model(client).state_dict(), shown.client_model(client).state_dict()
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_one_client_alone_shows_nothing() -> None:
    federation = server(travels=None)
    models = {c: trained(headed, state, i) for i, (c, state) in enumerate(federation.dispatch().items())}
    moved = {c: dict(model.state_dict()) for c, model in models.items()}
    for c in ("b", "c"):
        moved[c]["backbone.1.running_mean"] = moved[c]["backbone.1.running_mean"] + 2
    report = federation.collect(moved | {"a": part(models["a"])})
    assert report.used == tuple(CLIENTS)
    assert not federation.fleet.constant
    assert torch.equal(federation.fleet.buffers["backbone.1.running_mean"], torch.full((8,), 2.0))
    mean = torch.stack([models[c].state_dict()["head.0.weight"] for c in CLIENTS]).double().mean(0).float()
    torch.testing.assert_close(federation.fleet.whole()["head.0.weight"], mean, atol=1e-6, rtol=1e-6)
    with pytest.warns(UserWarning, match="round 2: no update could be used: they all lack the same 7 of 16"):
        assert federation.collect({"a": part(models["a"])}).used == ()


def test_a_first_round_without_a_usable_update_says_what_to_state() -> None:
    federation = server(travels=None)
    some = {"head.0.weight", "head.0.bias", "head.3.weight", "head.3.bias"}
    incoming = {c: part(headed(), some) for c in CLIENTS}
    with pytest.raises(SettingError, match=r"lack the same 12 of 16 tensors \(backbone.0.weight.*travels=.*trainable"):
        federation.collect(incoming)
    assert federation.round == 0
    assert server(travels=some).collect(incoming).used == tuple(CLIENTS)


def test_a_round_whose_every_update_is_refused_is_loud() -> None:
    federation = server()
    with pytest.warns(UserWarning, match="round 1: no update could be used: unexpected ear"):
        report = federation.collect({c: part(headed()) | {"ear": torch.zeros(1)} for c in CLIENTS})
    assert report.refused == dict.fromkeys(CLIENTS, "unexpected ear")


@pytest.mark.parametrize("travels", ["trainable", None])
@pytest.mark.filterwarnings("ignore:.*trainable part of the model alone")
def test_a_server_goes_on_from_its_vault(travels: Travels | None, tmp_path: Path) -> None:
    whole = server(travels=travels)
    play(whole, headed, 3)
    with Vault.create(tmp_path / "vault", keyring(), key_file=make_key_file(tmp_path / "vault.key")) as vault:
        play(server(travels=travels, vault=vault), headed, 2)
        again = server(travels=travels, vault=vault)
        assert again.resume()
        play(again, headed, 1)
        sent = again.dispatch(["b"])["b"]
        assert all(torch.equal(tensor, whole.dispatch()["b"][name]) for name, tensor in sent.items())
        log = [entry for entry in vault.log() if entry["event"] == "issued"]
        assert log[-1]["model"] == state_digest(sent)
        saved = vault.saved()
        assert saved is not None
        assert not any("backbone" in name for name in saved["fleet"])
        with pytest.raises(CheckpointError, match="not what it was"):
            server(lambda: headed(seed=1), travels=travels, vault=vault).resume()
        with pytest.raises(CheckpointError, match="another part of the model travels"):
            server(travels=[*HEAD, "backbone.1.running_mean"], vault=vault).resume()


def test_the_model_that_was_given_is_left_as_it_is() -> None:
    model = mlp(64, 64)
    before = copy.deepcopy(model.state_dict())
    TraMark(model, keyring(), warmup_rounds=0, travels=["3.weight"])
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
