"""Clients in worker processes: what they return does not depend on how many there are, and what goes wrong there is not
lost."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import digits
from nets import cnn
from safetensors.torch import load_file
from torch import nn

from tramark.lab.methods import FedAvg
from tramark.lab.simulation.client import LocalTraining
from tramark.lab.simulation.run import WORTH_WORKERS, Settings, prepare, run
from tramark.lab.simulation.simulator import Simulation

SMALL: dict[str, Any] = {"data": "digits", "model": "cnn", "clients": 4, "samples_per_client": 80, "local_epochs": 1}


def normed() -> nn.Module:
    """A model with buffers, one of them a counter, and with dropout."""
    return cnn(normed=True, dropout=0.5)


def simulation(workers: int, sizes: tuple[int, ...] = (100, 20, 60, 64, 8)) -> Simulation:
    parts = torch.arange(sum(sizes)).split(list(sizes))
    method = FedAvg(normed(), [f"client-{i}" for i in range(len(sizes))])
    training = LocalTraining(epochs=1, batch_size=8)
    return Simulation(method, digits(), parts, training, sample_fraction=0.8, workers=workers)


@pytest.mark.slow
def test_workers_change_nothing() -> None:
    with simulation(1) as alone, simulation(2) as together:
        for _ in range(2):
            alone.step(), together.step()
        mine, theirs = alone.train(), together.train()
        assert list(mine) == list(theirs)
        for client, state in mine.items():
            torch.testing.assert_close(theirs[client], state)
            assert int(state["1.num_batches_tracked"]) > 0
        # A round that is broken off leaves others at work, whose answers are not the next round's.
        assert next(together._train([4, 1, 0], together.method.dispatch()))[0] == "client-4"
        torch.testing.assert_close(together.train(), mine)
        processes = list(together.start()._processes.values())
        processes[0].kill()
        processes[0].join()
        with pytest.raises(RuntimeError, match="a worker process ended with code -9"):
            together.step()
        assert together.method.round == 2
    assert not any(process.is_alive() for process in processes)


def test_an_error_in_a_worker_surfaces() -> None:
    with simulation(2, sizes=(30, 0)) as broken:
        broken.sample_fraction = 1.0
        with pytest.raises(ValueError, match="no samples to train on") as caught:
            broken.step()
        assert "in __call__" in caught.value.__notes__[0]


@pytest.mark.slow
def test_a_run_is_resumed_with_workers(tmp_path: Path) -> None:
    settings = Settings(**SMALL, rounds=3, warmup=1)
    run(settings, tmp_path / "alone")
    run(replace(settings, rounds=2), tmp_path / "resumed")
    run(settings, tmp_path / "resumed", workers=2, resume=True)
    for folder in ("models", "trained"):
        for path in sorted((tmp_path / "alone" / folder).iterdir()):
            resumed = load_file(tmp_path / "resumed" / folder / path.name)
            torch.testing.assert_close(resumed, load_file(path), atol=1e-4, rtol=1e-3)


def test_workers_are_taken_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Settings(**SMALL, rounds=2, warmup=1)
    weights = sum(weight.numel() for weight in prepare(small).method.model.parameters())
    long = replace(small, rounds=int(WORTH_WORKERS / weights / (4 * 80)) + 1)
    for threads, settings, workers in ((3, small, 1), (3, long, 3), (8, long, 4), (1, long, 1)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert prepare(settings, workers=None).workers == workers
    assert prepare(long).workers == 1


def test_workers_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="0 workers"):
        simulation(0)
    method = FedAvg(normed(), ["a", "b"])
    method.model.to("meta")
    with pytest.raises(ValueError, match="the model is on meta"):
        Simulation(method, digits(), [torch.arange(4)] * 2, workers=2)
