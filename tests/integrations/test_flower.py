"""The Flower strategy, with Flower's own grid and message types; and in its simulation engine."""

import json
import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
pytest.importorskip("flwr", reason="Flower is not installed: pip install tramark[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    Strategy,
)
from flwr.simulation import run_simulation
from nets import headed
from wires import (
    SITES,
    Answer,
    Site,
    Wire,
    all_of_them,
    honest,
    in_a_server_app,
    net,
    reply,
    sites,
    small,
    start,
    trained,
    wrapped,
)

from tramark import SettingError, TraMark
from tramark.fleet.travels import travelling
from tramark.integrations.flower.nodes import NAME, NODES
from tramark.lab.simulation.metrics import traceability
from tramark.marks.closed_form import ClosedForm
from tramark.vault.store import Vault

__all__ = ["in_a_server_app"]


def learnt() -> ArrayRecord:
    """A net that answers different inputs differently, as after some training."""
    state = net().state_dict()
    return ArrayRecord({name: 10 * tensor if name.startswith("6.") else tensor for name, tensor in state.items()})


def base_after(strategy: Strategy, wire: Grid, round: int, initial: ArrayRecord | None = None) -> ArrayRecord:
    """The base after a round of warm-up, which is followed by a marked one."""
    seen: dict[int, ArrayRecord] = {}

    def look(number: int, arrays: ArrayRecord) -> None:
        seen[number] = arrays

    initial = initial or ArrayRecord(dict(net().state_dict()))
    strategy.start(wire, initial, num_rounds=round + 1, timeout=1, evaluate_fn=look)
    return seen[round]


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name].double(), other[name].double(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "inner",
    [
        FedAvg,
        FedProx,
        FedAvgM,
        FedAdam,
        FedMedian,
    ],
)
def test_an_inner_strategy_keeps_its_meaning(inner: type[FedAvg], tmp_path: Path) -> None:
    """In warm-up, when nothing is marked, wrapped and plain are the same."""
    options = {"proximal_mu": 0.1} if inner is FedProx else {"server_momentum": 0.9} if inner is FedAvgM else {}
    plain = start(all_of_them(inner, **options), Wire(sites()), 3)
    strategy = wrapped(all_of_them(inner, **options), small(tmp_path / "vault"), warmup_rounds=3)
    close(base_after(strategy, Wire(sites()), 3).to_torch_state_dict(), plain)


def test_six_rounds_are_marked_without_a_word_about_warm_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    strategy = wrapped(all_of_them(fraction_evaluate=0.0), small(tmp_path / "vault"), warmup_rounds="auto")
    strategy.start(Wire(sites()), learnt(), num_rounds=6, timeout=1)
    assert strategy.server is not None
    assert traceability(strategy.server, strategy.server.keyring).vr == 1.0
    assert [report["marked"] for report in strategy.vault.reports()] == [False, False, True, True, True, True]
    assert "marks begin after round 3" in caplog.text
    assert "no round was marked" not in caplog.text
    strategy.vault.close()
    with Vault.open(tmp_path / "vault", readonly=True) as vault:
        assert (vault.premise().issued, vault.premise().measured) == (True, True)


def test_a_training_that_would_not_be_marked_does_not_begin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire(sites())
    for vault in (small(tmp_path / "vault"), tmp_path / "new"):
        with pytest.raises(SettingError, match="25 warm-up rounds of 6"):
            start(wrapped(FedAvg(), vault, warmup_rounds=25), wire, 6)
    assert not any(site.seen for site in wire.sites)
    assert not (tmp_path / "new").exists()
    wrapped(FedAvg(), tmp_path / "new").start(wire, ArrayRecord(dict(net().state_dict())), num_rounds=0)
    assert "no round was marked" in caplog.text


def test_an_unmarked_training_is_marked_when_it_goes_on(tmp_path: Path) -> None:
    """As when a wrapper around the strategy began it, or an earlier version with a long warm-up."""
    place, initial = small(tmp_path / "vault"), learnt()
    first = wrapped(all_of_them(fraction_evaluate=0.0), place, warmup_rounds="auto")
    Strategy.start(first, Wire(sites()), first.resume(initial), num_rounds=2, timeout=1)
    assert first.server is not None
    assert not first.server.marked
    first.vault.close()
    again, wire = wrapped(all_of_them(fraction_evaluate=0.0), place, warmup_rounds="auto"), Wire(sites())
    start(again, wire, 3)
    assert wire.sites[0].rounds == [3]
    issued = [entry for entry in again.vault.log() if entry["event"] == "issued"]
    assert {entry["round"]: entry["marked"] for entry in issued} == {0: False, 1: False, 2: True}


def heads_only(site: Site, message: Message) -> Message:
    """A client that has the frozen backbone itself, and returns the trained head alone."""
    state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
    site.seen.append(message.content)
    if message.metadata.message_type == "evaluate":
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "loss": 1.0})}), reply_to=message)
    names = travelling(headed(), "trainable")
    moved = {name: tensor * 1.01 if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    return reply(site, message, {name: moved[name] for name in moved if name in names}, loss=1.0)


@pytest.mark.parametrize("inner", [FedAvg, FedMedian, FedAdam])
@pytest.mark.parametrize("said", ["by travels", "by the initial arrays", "by the replies"])
@pytest.mark.filterwarnings("ignore:.*trainable part of the model alone")
def test_clients_may_hold_the_frozen_part_themselves(said: str, inner: type[FedAvg], tmp_path: Path) -> None:
    whole = headed().state_dict()
    head = {name: tensor for name, tensor in whole.items() if name in travelling(headed(), "trainable")}
    strategy = wrapped(
        all_of_them(inner),
        small(tmp_path / "vault"),
        model=headed(),
        travels="trainable" if said == "by travels" else None,
        warmup_rounds=1,
    )
    wire = Wire([Site(number, name, answer=heads_only) for number, name in enumerate(SITES)])
    sent = whole if said == "by the replies" else head
    result = strategy.start(wire, ArrayRecord(sent), num_rounds=2, timeout=1)
    assert list(result.arrays) == list(sent)
    for site in wire.sites:
        assert list(site.seen[-1]["arrays"]) == list(sent)
    assert strategy.server is not None
    assert strategy.server.fleet.constant.keys() == whole.keys() - head.keys()
    model = strategy.server.client_model("site-0").state_dict()
    assert all(torch.equal(model[name], tensor) for name, tensor in whole.items() if name not in head)
    assert traceability(strategy.server, strategy.server.keyring).vr == 1.0


def test_arrays_that_are_not_what_travels_are_refused(tmp_path: Path) -> None:
    strategy = wrapped(all_of_them(), small(tmp_path / "vault"), model=headed(), travels="trainable")
    with pytest.raises(SettingError, match="16 initial arrays do not fit travels, which means 9 tensors"):
        strategy.start(Wire(sites()), ArrayRecord(headed().state_dict()), num_rounds=1, timeout=1)


@pytest.mark.parametrize("inner", [FedAvg, FedMedian, FedAdam])
def test_every_site_is_traced_and_the_marks_do_not_reach_the_base(inner: type[FedAvg], tmp_path: Path) -> None:
    wire = Wire(sites())
    strategy = wrapped(all_of_them(inner), small(tmp_path / "vault"))
    start(strategy, wire, 4)
    assert strategy.server is not None
    assert traceability(strategy.server, strategy.server.keyring).vr == 1.0
    assert strategy.server.fleet.clients == SITES
    for site in wire.sites:
        last = site.seen[-1]["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        close(last, dict(strategy.server.fleet.state(site.info.name)))
    log = [entry for entry in strategy.vault.log() if entry["event"] == "issued"]
    assert {(entry["round"], entry["client"]) for entry in log} == {(r, name) for r in range(5) for name in SITES}
    assert strategy.vault.audit() == []


def test_clients_learn_nothing_from_what_they_get(tmp_path: Path) -> None:
    """Keys, shapes, dtypes, sizes and other records are as without tramark."""
    with_marks, plain = Wire(sites()), Wire(sites())
    start(wrapped(all_of_them(), small(tmp_path / "vault"), model=net(norm=True)), with_marks, norm=True)
    start(all_of_them(), plain, norm=True)
    for ours, theirs in zip(with_marks.sites, plain.sites, strict=True):
        assert len(ours.seen) == len(theirs.seen) == 8
        for one, other in zip(ours.seen, theirs.seen, strict=True):
            assert list(one) == list(other)
            assert one["config"] == other["config"]
            shapes = [
                [(k, a.dtype, a.shape, a.stype, len(a.data)) for k, a in record["arrays"].items()]  # type: ignore[union-attr]
                for record in (one, other)
            ]
            # Averaging turns a counter of Flower's own into a float; ours stays what it was.
            assert [s for s in shapes[0] if "num_batches" not in s[0]] == [
                s for s in shapes[1] if "num_batches" not in s[0]
            ]


def test_a_round_loses_a_bad_client_and_nothing_else(tmp_path: Path) -> None:
    def dies(site: Site, message: Message) -> None:
        site.seen.append(message.content)

    def fails(site: Site, message: Message) -> Message:
        failed = Message(Error(code=2, reason="out of memory"), reply_to=message)
        # A dead node's error comes from the SuperLink.
        failed.metadata.__dict__["_src_node_id"] = 1
        return failed

    def poisoned(site: Site, message: Message) -> Message:
        state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        return reply(site, message, {name: t * float("nan") for name, t in state.items()})

    def misshapen(site: Site, message: Message) -> Message:
        state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        return reply(site, message, {name: t[:1] if t.dim() else t for name, t in state.items()})

    def unreadable(site: Site, message: Message) -> Message:
        array = Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=b"no array")
        records = {"arrays": ArrayRecord({"1.weight": array}), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(records), reply_to=message)  # type: ignore[arg-type]

    def weightless(site: Site, message: Message) -> Message:
        state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        records = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"loss": 1})}
        return Message(RecordDict(records), reply_to=message)  # type: ignore[arg-type]

    def only(answer: Any) -> Answer:
        return lambda site, message: (answer if message.metadata.message_type == "train" else honest)(site, message)

    bad: list[Any] = [dies, fails, poisoned, misshapen, unreadable, weightless]
    wire = Wire([Site(number, name) for number, name in enumerate([*SITES, *(f.__name__ for f in bad)])])
    for site, answer in zip(wire.sites[len(SITES) :], bad, strict=True):
        site.answer = only(answer)
    # In warm-up the result is what the good clients alone would have made.
    first = base_after(wrapped(FedAvg(fraction_evaluate=0.0), small(tmp_path / "first"), warmup_rounds=1), wire, 1)
    close(first.to_torch_state_dict(), start(FedAvg(fraction_evaluate=0.0), Wire(sites()), 1))
    strategy = wrapped(FedAvg(fraction_evaluate=0.0), small(tmp_path / "vault"))
    start(strategy, wire, 3)
    assert strategy.server is not None
    assert strategy.server.round == 3
    assert set(strategy.server.fleet.clients) == {*SITES, *(f.__name__ for f in bad)}
    assert torch.isfinite(strategy.server.fleet.base).all()
    assert {*strategy.vault.reports()[0]["refused"]} == {"poisoned", "misshapen", "unreadable", "weightless"}
    assert traceability(strategy.server, strategy.server.keyring).vr == 1.0


@pytest.mark.parametrize("inner", [FedAvg, FedAdam, FedAvgM])
def test_a_server_that_was_stopped_goes_on_as_if_it_had_not_been(inner: type[FedAvg], tmp_path: Path) -> None:
    options = {"server_momentum": 0.9} if inner is FedAvgM else {}

    class Killed(BaseException):
        pass

    def kills(site: Site, message: Message) -> Message:
        if message.metadata.message_type == "train" and message.content["config"]["server-round"] == 4:
            raise Killed
        return honest(site, message)

    ends = []
    small(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    shutil.copyfile(tmp_path / "whole.key", tmp_path / "broken.key")
    (tmp_path / "broken.key").chmod(0o600)
    for name in ("whole", "broken"):
        if name == "broken":
            wire = Wire(sites(), in_order=True)
            wire.sites[2].answer = kills
            first = wrapped(all_of_them(inner, **options), tmp_path / name)
            with pytest.raises(Killed):
                start(first, wire, 5)
            first.vault.close()
        wire = Wire(sites(), in_order=True)
        strategy = wrapped(all_of_them(inner, **options), tmp_path / name)
        ends.append(start(strategy, wire, 5))
        assert wire.sites[0].rounds[0] == (1 if name == "whole" else 4)
        assert strategy.server is not None
        assert traceability(strategy.server, strategy.server.keyring).vr == 1.0
        # Started once more, there is nothing left to do.
        assert start(strategy, wire, 5).keys() == ends[-1].keys()
        strategy.vault.close()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_newcomers_returners_and_impostors(tmp_path: Path) -> None:
    wire = Wire(sites())
    strategy = wrapped(FedAvg(), tmp_path / "vault")
    start(strategy, wire, 3)
    assert strategy.server is not None
    keys = {name: strategy.server.keyring.key(name) for name in SITES}
    strategy.vault.close()
    # Site 1 restarts under another node id; site 5 is new; two impostors claim names, one with its owner present.
    back = Site(11, "site-1", b"site-1")
    new, thief, late_thief = Site(5, "site-5"), Site(12, "site-2", b"another"), Site(13, "site-3", b"another 2")
    wire = Wire([wire.sites[0], back, wire.sites[2], wire.sites[4], new, thief, late_thief])
    again = wrapped(FedAvg(), tmp_path / "vault")
    start(again, wire, 5)
    assert again.server is not None
    assert again.server.fleet.clients == [*SITES, "site-5"]
    assert all(again.server.keyring.key(name) == key for name, key in keys.items())
    assert back.seen
    assert new.seen
    assert not thief.seen
    assert not late_thief.seen
    close(back.seen[-1]["arrays"].to_torch_state_dict(), dict(again.server.fleet.state("site-1")))  # type: ignore[union-attr]
    assert json.loads(again.vault.get(NODES)).keys() == {*SITES, "site-5"}


def test_nodes_without_authentication_are_asked_for_their_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def declares(site: Site, message: Message) -> Message:
        if message.metadata.message_type != "query":
            return honest(site, message)
        name = SITES[min(site.number, 3)]
        return Message(RecordDict({"who": ConfigRecord({NAME: name})}), reply_to=message)

    wire = Wire([Site(number, "", b"%d" % number, declares) for number in range(5)])
    strategy = wrapped(FedAvg(), tmp_path / "vault")
    start(strategy, wire, 3)
    assert strategy.server is not None
    # The fifth node claims the fourth one's name.
    assert strategy.server.fleet.clients == SITES[:4]
    assert not wire.sites[4].seen
    with pytest.raises(ValueError, match="no name to mark"):
        start(wrapped(FedAvg(), tmp_path / "other"), Wire([Site(i, "", b"%d" % i, silent) for i in range(3)]), 3)


def silent(site: Site, message: Message) -> Message:
    return Message(Error(code=2, reason="no such function"), reply_to=message)


def test_flower_and_a_loop_of_ones_own_agree(tmp_path: Path) -> None:
    """The same clients, data and keys: the same base, whatever carries the models."""
    place = small(tmp_path / "vault")
    with Vault.open(place) as vault:
        # Steps on pictures would make something of how the two round.
        as_drawn = ClosedForm(retouch=0)
        server = TraMark(net(), vault.keyring, warmup_rounds=2, injection=as_drawn)
    for _ in range(4):
        sizes = {name: 10.0 + number for number, name in enumerate(SITES)}
        states = {name: trained(server.dispatch()[name], number) for number, name in enumerate(SITES)}
        server.collect(states, sizes)
    close(start(wrapped(all_of_them(), place, injection=as_drawn), Wire(sites()), 4), server.fleet.state())


def test_arrays_in_another_order_and_a_model_left_alone(tmp_path: Path) -> None:
    model, state = net(), {name: tensor + 1 for name, tensor in reversed(net().state_dict().items())}
    strategy = wrapped(FedAvg(fraction_evaluate=0.0), small(tmp_path / "vault"), model=model)
    strategy.start(Wire(sites()), ArrayRecord(state), num_rounds=0)
    assert strategy.server is not None
    close(strategy.server.fleet.state(), {name: state[name] for name in net().state_dict()})
    assert torch.equal(model.state_dict()["1.weight"], net().state_dict()["1.weight"])


def test_a_strategy_that_sends_something_else_is_refused(tmp_path: Path) -> None:
    """Better no round at all than one in which everybody gets an unmarked model."""

    class Copies(FedAvg):
        def configure_train(self, server_round: int, arrays: ArrayRecord, *rest: Any) -> Iterable[Message]:
            return super().configure_train(server_round, arrays.copy(), *rest)

    with pytest.raises(ValueError, match="cannot be marked"):
        start(wrapped(Copies(), small(tmp_path / "vault")), Wire(sites()), 3)


def private(inner: Strategy) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(inner, 0.01, 5.0, len(SITES))


def test_differential_privacy_around_it(tmp_path: Path) -> None:
    """Noise is added to the base outside of us, and the marks follow it; a vault in use is not begun anew."""
    place, initial = small(tmp_path / "vault"), ArrayRecord(dict(net().state_dict()))
    ours = wrapped(all_of_them(fraction_evaluate=0.0), place, warmup_rounds=1)
    private(ours).start(Wire(sites()), ours.resume(initial), num_rounds=3, timeout=1)
    ours.vault.close()
    careless = wrapped(all_of_them(fraction_evaluate=0.0), place, warmup_rounds=1)
    with pytest.raises(ValueError, match="already"):
        private(careless).start(Wire(sites()), initial, num_rounds=3, timeout=1)
    careless.vault.close()
    again, wire = wrapped(all_of_them(fraction_evaluate=0.0), place, warmup_rounds=1), Wire(sites())
    private(again).start(wire, again.resume(initial), num_rounds=2, timeout=1)
    assert again.server is not None
    assert wire.sites[0].rounds == [4, 5]
    # The noise differs each time; by chance one answer in ten would be right.
    assert traceability(again.server, again.server.keyring).confidence > 0.6


def test_differential_privacy_inside_of_it(tmp_path: Path) -> None:
    place = small(tmp_path / "vault")
    ours = wrapped(private(all_of_them(fraction_evaluate=0.0)), place, warmup_rounds=1)
    ended = start(ours, Wire(sites()), 3)
    ours.vault.close()
    again = wrapped(private(all_of_them(fraction_evaluate=0.0)), place, warmup_rounds=1)
    close(again.resume(ArrayRecord(dict(net().state_dict()))).to_torch_state_dict(), ended)
    start(again, Wire(sites()), 4)
    assert again.server is not None
    assert traceability(again.server, again.server.keyring).vr == 1.0


def test_memory_holds_a_few_models_and_not_all(tmp_path: Path) -> None:
    wire = Wire([Site(number, f"site-{number:02d}") for number in range(20)])
    start(wrapped(FedAvg(fraction_evaluate=0.0), small(tmp_path / "vault")), wire, 3)
    assert wire.most == 8


def test_arrays_without_names_go_by_their_order(tmp_path: Path) -> None:
    def by_order(site: Site, message: Message) -> Message:
        arrays = message.content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
        records = {"arrays": ArrayRecord([np.asarray(a + np.ones_like(a)) for a in arrays])}
        return Message(RecordDict({**records, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    wire = Wire([Site(number, name, answer=by_order) for number, name in enumerate(SITES)])
    strategy = wrapped(FedAvg(fraction_evaluate=0.0), small(tmp_path / "vault"), warmup_rounds=1)
    initial = [tensor.numpy() for tensor in net().state_dict().values()]
    arrays = base_after(strategy, wire, 1, ArrayRecord(initial))
    for before, after in zip(initial, arrays.to_numpy_ndarrays(), strict=True):
        np.testing.assert_allclose(after, before + 1, atol=1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        wrapped(FedAvg(), small(tmp_path / "other")).start(wire, ArrayRecord(initial[:2]), num_rounds=1)


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    return tmp_path


@pytest.mark.slow
def test_twenty_clients_in_the_simulation_engine(in_a_folder: Path) -> None:
    """A fifth of them train in a round, all of them are traced; a node's name is its partition."""
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        round = int(message.content["config"]["server-round"])  # type: ignore[arg-type]
        (in_a_folder / f"seen-{number:02d}-{round}").touch()
        records = {"arrays": ArrayRecord(trained(state, number)), "metrics": MetricRecord({"num-examples": 32})}
        return Message(RecordDict(records), reply_to=message)  # type: ignore[arg-type]

    found: dict[str, Any] = {}

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        random.seed(0)
        inner = FedAvg(fraction_train=0.2, fraction_evaluate=0.0, min_available_nodes=20)
        strategy = wrapped(inner, in_a_folder / "vault", warmup_rounds=1)
        strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=3)
        assert strategy.server is not None
        found["vr"] = traceability(strategy.server, strategy.server.keyring).vr
        found["clients"] = strategy.server.fleet.clients
        found["issued"] = [(e["round"], e["client"]) for e in strategy.vault.log() if e["event"] == "issued"]

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=20, backend_config=resources)  # type: ignore[arg-type]
    assert found["vr"] == 1.0
    assert found["clients"] == [f"partition-{number:02d}" for number in range(20)]
    # What the vault says was sent to a partition is what that partition got.
    seen = {tuple(path.name.split("-")[1:]) for path in in_a_folder.glob("seen-*")}
    assert seen == {(client[-2:], str(round + 1)) for round, client in found["issued"] if round < 3}
