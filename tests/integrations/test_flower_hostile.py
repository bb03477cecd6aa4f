"""Hostile nodes on Flower: with FedAvg, FedMedian and Krum; and messages of every kind."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Krum
from torch import Tensor
from wires import SITES, Answer, Site, Wire, all_of_them, honest, in_a_server_app, net, small, trained, wrapped

from tramark.integrations.flower import TraMarkStrategy, registered_names
from tramark.integrations.flower.nodes import NAME

__all__ = ["in_a_server_app"]

RULES = [FedAvg, FedMedian, Krum]


def run(strategy: TraMarkStrategy, wire: Wire, rounds: int) -> dict[str, Tensor]:
    result = strategy.start(wire, ArrayRecord(net().state_dict()), num_rounds=rounds, timeout=1)
    assert result.arrays is not None
    return result.arrays.to_torch_state_dict()


def finite(strategy: TraMarkStrategy) -> bool:
    assert strategy.server is not None
    saved = strategy.vault.saved()
    assert saved is not None
    tensors = [t for part in ("fleet", "drift", "strategy") for t in saved.get(part, {}).values()]
    return all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())


def sends(state: dict[str, Any], weight: Any = 10, **more: Any) -> Any:
    """A node that trains, and then replaces some arrays by others."""

    def answer(site: Site, message: Message) -> Message:
        if message.metadata.message_type != "train":
            return honest(site, message)
        sent = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        arrays = {name: tensor.numpy() for name, tensor in trained(sent, site.number).items()}
        arrays |= {name: change(arrays[name]) for name, change in state.items()}
        records = {
            "arrays": ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()}),
            "metrics": MetricRecord({"num-examples": weight, "loss": 1.0, **more}),
        }
        return Message(RecordDict(records), reply_to=message)  # type: ignore[arg-type]

    return answer


ATTACKS = {
    "overflow": sends({"1.weight": lambda w: np.full(w.shape, 1e300)}),
    "complex": sends({"1.weight": lambda w: w + 1j * np.float32("nan")}),
    "huge": sends({"1.weight": lambda w: w + np.float32(1e30)}),
    "weight": sends({"1.weight": lambda w: w + np.float32(0.5)}, weight=10**15),
    "metrics": sends({}, surprise=1.0),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.filterwarnings("ignore:round")
def test_one_hostile_node_does_not_spoil_the_others_training(rule: type[FedAvg], attack: str, tmp_path: Path) -> None:
    """It gets its models and takes part; base, drift and vault stay finite, and the base near what others make."""
    ends = []
    for hostile in (honest, ATTACKS[attack]):
        wire = Wire([Site(n, name, answer=hostile if n == 4 else None) for n, name in enumerate(SITES)], in_order=True)
        options = {"num_malicious_nodes": 1} if rule is Krum else {}
        strategy = wrapped(all_of_them(rule, fraction_evaluate=0.0, **options), small(tmp_path / hostile.__name__))
        ends.append(run(strategy, wire, 3))
        assert strategy.server is not None
        assert strategy.server.round == 3
        assert finite(strategy)
        strategy.vault.close()
    # A hostile weight counts ten times at most: with five nodes, 10/14 of its update.
    away = max(float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0])
    assert away < (1.2 if (rule, attack) == (FedAvg, "weight") else 0.2)


@pytest.mark.filterwarnings("ignore:round")
def test_what_an_optimiser_remembers_of_an_undone_round_is_forgotten(tmp_path: Path) -> None:
    class Breaks(FedAdam):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            if server_round == 2 and arrays is not None:
                self.m_t = {name: value * np.nan for name, value in (self.m_t or {}).items()}
                arrays = ArrayRecord({k: Array(np.asarray(a.numpy() * np.nan)) for k, a in arrays.items()})
            return arrays, metrics

    strategy = wrapped(all_of_them(Breaks, fraction_evaluate=0.0), small(tmp_path / "vault"))
    run(strategy, Wire([Site(number, name) for number, name in enumerate(SITES)]), 4)
    assert [bool(report["discarded"]) for report in strategy.vault.reports()] == [False, True, False, False]
    assert finite(strategy)


def claims(name: str) -> Answer:
    def answer(site: Site, message: Message) -> Message:
        if message.metadata.message_type != "query":
            return honest(site, message)
        return Message(RecordDict({"who": ConfigRecord({NAME: name})}), reply_to=message)

    return answer


def test_where_nodes_are_authenticated_no_name_is_taken_from_a_query(tmp_path: Path) -> None:
    """A node that was registered without a name makes nobody's name self-declared, and gets no model."""
    nameless = Site(7, "", b"key 7", claims("site-0"))
    liar = Site(1, "site-1", b"site-1", claims("site-2"))
    wire = Wire([Site(0, "site-0"), liar, Site(2, "site-2"), nameless])
    strategy = wrapped(FedAvg(fraction_evaluate=0.0), small(tmp_path / "vault", SITES[:3]), warmup_rounds=1)
    run(strategy, wire, 2)
    assert strategy.server is not None
    assert strategy.server.fleet.clients == SITES[:3]
    assert not nameless.seen
    seen = liar.seen[-1]["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
    issued = {e["client"] for e in strategy.vault.log() if e["event"] == "issued"}
    assert issued == set(SITES[:3])
    assert seen.keys() == net().state_dict().keys()
    strategy.vault.close()
    # Only nameless nodes are left: the vault still knows that names belong to keys.
    again = wrapped(FedAvg(fraction_evaluate=0.0), tmp_path / "vault", warmup_rounds=1)
    others = [Site(8, "", b"key 8", claims("site-1")), Site(9, "", b"key 9", claims("site-2"))]
    run_all = Wire([*others, nameless])
    again.start(run_all, ArrayRecord(net().state_dict()), num_rounds=3, timeout=1)
    assert not any(site.seen for site in run_all.sites)
    assert registered_names(wire, [1000, 1007]) == {1000: "site-0"}


def anything(source: random.Random, arrays: dict[str, np.ndarray]) -> RecordDict:
    """Records of any kind, mostly near what a client would send."""
    name = source.choice(list(arrays))
    array = arrays[name]
    kind = source.randrange(14)
    changed: Any = array
    if kind == 0:
        changed = array.astype(source.choice(["float64", "float16", "int64", "complex64", "bool", "uint8", "uint16"]))
    elif kind == 1:
        changed = array * np.float32(source.choice([1e10, 1e20, 1e30, -1e38, np.nan, np.inf]))
    elif kind == 2:
        changed = array.reshape(-1)[: source.randrange(array.size + 1)]
    elif kind == 3:
        changed = array.astype("float64") * 1e300
    elif kind == 4:
        changed = np.array(source.choice([[], 0, "text", [[[1.0]]], 2**63]))
    elif kind == 5:
        changed = array + np.float32(source.choice([0.01, 1, 50])) * np.random.default_rng(0).normal(size=array.shape)
        changed = changed.astype(array.dtype)
    odd = {name: Array(np.asarray(changed))} if kind < 6 else {}
    if kind == 6:
        odd = {name: Array(dtype="float32", shape=array.shape, stype="numpy.ndarray", data=source.randbytes(40))}
    if kind == 7:
        odd = {source.choice(["", "more\nlines", "x" * 5000]): Array(array)}
    kept = {key: Array(value) for key, value in arrays.items() if kind != 8 or key != name}
    weight = source.choice([1, 10, 0, -1, 1e15, float("nan"), float("inf"), 2**62, [1, 2]]) if kind == 9 else 10
    metrics: dict[str, Any] = {"num-examples": weight} | ({"odd": 1.0} if kind == 10 else {})
    records: dict[str, Any] = {"arrays": ArrayRecord(kept | odd), "metrics": MetricRecord(metrics)}
    if kind == 11:
        records |= {"again": ArrayRecord(kept)}
    elif kind == 12:
        del records[source.choice(list(records))]
    return RecordDict(records)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_a_thousand_messages_of_any_kind(rule: type[FedAvg], tmp_path: Path) -> None:
    """A third of them for each rule: no crash, nothing that is not finite, and every round goes on."""
    source, sites, rounds = random.Random(0), 20, 17
    names = [f"site-{number:03d}" for number in range(sites)]
    count = 0

    def answers(site: Site, message: Message) -> Message:
        nonlocal count
        count += 1
        state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        arrays = {name: tensor.numpy() for name, tensor in state.items()}
        return Message(anything(source, arrays), reply_to=message)

    wire = Wire([Site(number, name, answer=answers) for number, name in enumerate(names)])
    options: dict[str, Any] = {"num_malicious_nodes": 5} if rule is Krum else {}
    strategy = wrapped(
        rule(fraction_evaluate=0.0, min_available_nodes=sites, **options),
        small(tmp_path / "vault", names),
        warmup_rounds=15,
    )
    run(strategy, wire, rounds)
    assert count == sites * rounds
    assert strategy.server is not None
    assert strategy.server.round == rounds
    assert finite(strategy)
    used = [len(report["used"]) for report in strategy.vault.reports()]
    assert len(used) == rounds
    assert sum(used) > 0.2 * count
