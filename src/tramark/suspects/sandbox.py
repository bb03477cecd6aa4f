"""Run a suspect's file in a process of its own, and believe nothing that it says.

That process starts without our memory, environment and open files, and locks itself in (`child`, `confinement`). We
send inputs and get scores or labels back, as plain bytes (`wire`). A process that dies, is too slow, wants too much
memory or sends nonsense is ended, and every later question to it is an error: no verdict rests on a suspect that was
cut off.
"""

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tramark.errors import SettingError, SuspectError, TramarkError, one_line
from tramark.suspects import wire
from tramark.suspects.base import LARGEST_BATCH, About, Loaded
from tramark.suspects.schema import conventions_from
from tramark.suspects.weights import ModelName

START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tramark.suspects.child import main; main()"
# Where libraries and pretrained weights are found; nothing else of the environment is passed on.
KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "HOME", "HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME")
# One thread until the process has locked itself in, and few reserves of memory that would count against its limit.
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "HF_HUB_OFFLINE": "1",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
LARGEST_REPLY = 256 << 20


@dataclass(frozen=True)
class Limits:
    """What a suspect from a file may use.

    Parameters
    ----------
    seconds : the longest time to load the file, and to answer a batch of questions.
    memory : bytes of memory, beyond what torch itself takes. By default 4 GiB and four times the size of the file.
    """

    seconds: float = 300.0
    memory: int | None = None

    def __post_init__(self) -> None:
        if not self.seconds > 0 or (self.memory is not None and self.memory <= 0):
            raise SettingError(f"limits of {self.seconds} s and {self.memory} bytes: give positive numbers")


class Sandbox:
    """A process that holds the model of one file. `loaded` asks it; `confinement` tells what was in force."""

    def __init__(self, path: Path, *, model: ModelName | None, output: str | None, limits: Limits) -> None:
        self.path, self.limits = path.absolute(), limits
        self._ended: str | None = None
        environment = ENVIRONMENT | {name: os.environ[name] for name in KEPT if name in os.environ}
        command = [sys.executable, "-I", "-B", "-c", START, json.dumps(sys.path)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        self.close = weakref.finalize(self, _end, self._process)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        order = {
            "path": str(self.path),
            "model": asdict(model) if model else None,
            "output": output,
            # One is left to this process, whose threads wait busily between two questions.
            "threads": max(1, torch.get_num_threads() - 1),
            "memory": limits.memory or (4 << 30) + 4 * _size(self.path),
        }
        ready, _ = self._exchange(order)
        self.confinement = tuple(one_line(str(one)) for one in ready.get("confined", ()))
        described, _ = self._exchange(None)
        self.loaded = Loaded(self._run, self._about(described.get("about")))

    def _run(self, inputs: Tensor) -> Tensor | list[Any]:
        header, said = self._exchange({}, inputs)
        if said is not None:
            return said
        names = header.get("names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
        raise self._cut_off("sends an answer that is none")

    def _exchange(
        self, header: dict[str, Any] | None, tensor: Tensor | None = None
    ) -> tuple[dict[str, Any], Tensor | None]:
        """Sends a message, if any, and gives the reply. An error that the other side reports is raised."""
        if self._ended is not None:
            raise SuspectError(self._ended)
        until = time.monotonic() + self.limits.seconds
        try:
            if header is not None:
                wire.send(self._requests, header, tensor, until=until)
            reply, said = wire.receive(self._replies, LARGEST_REPLY, until=until)
        except TimeoutError:
            raise self._cut_off(f"did not answer within {self.limits.seconds:g} s") from None
        except wire.WireError as error:
            raise self._cut_off(str(error)) from None
        except BaseException:
            # A question without its answer, as when the user interrupts: the next reply would be taken for another's.
            self._cut_off("was interrupted")
            raise
        if "error" in reply:
            told = one_line(str(reply["error"]), 1000)
            raise SettingError(told) if reply.get("kind") == "setting" else SuspectError(told)
        return reply, said

    def _cut_off(self, what: str) -> SuspectError:
        """Ends the process, and gives the error that this and every later question ends in."""
        status = self._process.poll()
        if status is None and what == "is gone":
            # Its end of the pipe is closed, so it is about to end by itself.
            try:
                status = self._process.wait(2)
            except subprocess.TimeoutExpired:
                status = None
        self.close()
        if what == "is gone":
            how = f" ({signal.Signals(-status).name})" if status is not None and status < 0 else ""
            what = f"crashed{how} or ran out of memory"
        self._ended = f"{self.path}: the suspect's process {what}; it was cut off, and no verdict can rest on it"
        return SuspectError(self._ended)

    def _about(self, told: Any) -> About:
        """What the other side says about its model, with nothing believed."""
        try:
            about = About(
                told["dtype"],
                tuple(told["shape"]),
                told["batch"],
                told["exact"],
                {int(number): str(name) for number, name in told["names"].items()},
                told["stated"],
            )
            sound = (
                (about.dtype is None or about.dtype in wire.DTYPES)
                and all(size is None or type(size) is int for size in about.shape)
                and type(about.batch) is int
                and 1 <= about.batch <= LARGEST_BATCH
                and type(about.exact) is bool
            )
            conventions_from(about.stated, str(self.path))
        except (KeyError, TypeError, ValueError, AttributeError, TramarkError) as error:
            raise self._cut_off(f"says of its model what cannot be ({one_line(error)})") from None
        if not sound:
            raise self._cut_off("says of its model what cannot be")
        return about


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())
