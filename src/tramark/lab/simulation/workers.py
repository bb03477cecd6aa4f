"""Clients in worker processes with one thread each: n of these train more samples a second than one process with n
threads, which wait for each other in every layer.

The processes are spawned once and live until they are closed. They get the data when they start, in shared memory, and
models come and go through shared memory too. It has one place more than there are workers, so that the next client's
model lies ready when a worker is done.
"""

import io
import signal
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.lab.data.dataset import Dataset
from tramark.lab.simulation.client import LocalTraining
from tramark.lab.simulation.environment import single_threaded

Job = tuple[int, int, Mapping[str, Tensor]]
"""A client's number, its seed, and the model that it gets."""


ALIGNED = 64


class Workers:
    """Processes that train clients.

    Parameters
    ----------
    count : how many.
    model : the architecture, on the CPU and picklable.
    dataset, parts, training : what the clients have, and what they do with it.
    """

    def __init__(
        self, count: int, model: nn.Module, dataset: Dataset, parts: Sequence[Tensor], training: LocalTraining
    ) -> None:
        state = model.state_dict()
        memory = torch.empty(count + 1, sum(_room(t) for t in state.values()), dtype=torch.uint8).share_memory_()
        self._places = [_views(state, place) for place in memory]
        self._processes: dict[Connection, BaseProcess] = {}
        self._busy: dict[Connection, tuple[int, int, int]] = {}
        pickled = io.BytesIO()
        torch.save(model, pickled)
        # Whatever is shared costs a file descriptor, so that there is one tensor for all parts, and one for all models.
        bare = replace(
            dataset, test_inputs=dataset.test_inputs[:0].clone(), test_labels=dataset.test_labels[:0].clone()
        )
        given = (pickled.getvalue(), memory, bare, torch.cat(list(parts)), [len(part) for part in parts], training)
        context = torch.multiprocessing.get_context("spawn")
        try:
            with single_threaded():
                for _ in range(count):
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_work, args=(theirs, *given), daemon=True)
                    process.start()
                    theirs.close()
                    self._processes[ours] = process
            for connection in self._processes:
                self._receive(connection)
        except BaseException:
            self.close()
            raise

    def train(self, jobs: Iterable[Job]) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Clients and the models they trained, in the order of the jobs, whoever is done first: what a server learns
        may depend on it. A model is good until the next one is asked for."""
        coming, free = iter(jobs), list(range(len(self._places)))
        ready, order, done = deque[tuple[int, int, int]](), deque[tuple[int, int]](), set[int]()
        while True:
            while free and (job := next(coming, None)):
                client, seed, state = job
                place = free.pop()
                for name, tensor in self._places[place].items():
                    tensor.copy_(state[name])
                ready.append((place, client, seed))
                order.append((place, client))
            for connection in self._processes:
                if ready and connection not in self._busy:
                    self._busy[connection] = ready.popleft()
                    self._send(connection, self._busy[connection])
            if not order:
                return
            place, client = order[0]
            if place in done:
                yield client, self._places[place]
                order.popleft()
                done.remove(place)
                free.append(place)
                continue
            for connection in self._processes.keys() & set(wait(list(self._busy))):
                place, *_ = self._busy.pop(connection)
                self._receive(connection)
                done.add(place)

    @property
    def idle(self) -> bool:
        """Whether no client is still training, as one may be after a round that was broken off."""
        return not self._busy

    def close(self) -> None:
        """Stop the processes, whatever they are at: they have nothing to lose."""
        for connection, process in self._processes.items():
            process.terminate()
            process.join()
            connection.close()
        self._processes = {}

    def _send(self, connection: Connection, job: tuple[int, int, int]) -> None:
        try:
            connection.send(job)
        except OSError:
            raise self._ended(connection) from None

    def _receive(self, connection: Connection) -> None:
        try:
            problem = connection.recv()
        except (EOFError, OSError):
            raise self._ended(connection) from None
        if problem is not None:
            kind, message, where = problem
            error = kind(message)
            error.add_note(where)
            raise error

    def _ended(self, connection: Connection) -> RuntimeError:
        process = self._processes[connection]
        process.join()
        return RuntimeError(
            f"a worker process ended with code {process.exitcode}: if it ran out of memory, take fewer of them; if "
            'this is a script, let it start under `if __name__ == "__main__":`'
        )


def _work(
    connection: Connection,
    pickled: bytes,
    memory: Tensor,
    dataset: Dataset,
    samples: Tensor,
    sizes: list[int],
    training: LocalTraining,
) -> None:
    # An interrupt is for the parent, which then stops us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    problem: tuple[type[Exception], str, str] | None = None
    try:
        # What the parent has just written for us; nothing from outside comes this way.
        model: nn.Module = torch.load(io.BytesIO(pickled), weights_only=False)
        places, parts = [_views(model.state_dict(), place) for place in memory], samples.split(sizes)
        connection.send(None)
        while True:
            place, client, seed = connection.recv()
            try:
                model.load_state_dict(places[place])
                training(model, dataset, parts[client], generator=torch.Generator().manual_seed(seed))
                trained = model.state_dict()
                for name, tensor in places[place].items():
                    tensor.copy_(trained[name])
                problem = None
            except Exception as error:
                # Errors of other kinds may not survive the way.
                kind = SettingError if isinstance(error, SettingError) else RuntimeError
                problem = kind, str(error), traceback.format_exc()
            connection.send(problem)
    except (EOFError, OSError):
        return  # The parent is gone.


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNED) * ALIGNED


def _views(state: Mapping[str, Tensor], memory: Tensor) -> dict[str, Tensor]:
    """A model's tensors laid out in a piece of memory."""
    views, start = {}, 0
    for name, tensor in state.items():
        views[name] = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        start += _room(tensor)
    return views
