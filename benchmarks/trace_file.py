"""What a process of its own costs when a file is traced, against loading the file in this process.

The file holds the weights of an unmarked model, so that all questions are asked, the same in both ways. The ways take
turns, and each figure is the median over the turns: seconds to open the file, to ask, and of processor time for both,
the other process included. `ratio` compares the asking alone, and `start` is what opening takes longer.

    python benchmarks/trace_file.py --model cnn --turns 5 --json
"""

import gc
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from rows import parser, show
from tramark import Keyring, open_suspect, trace
from tramark.suspects.weights import ModelName


def measure(name: str, turns: int) -> dict[str, Any]:
    """Seconds to open and to ask, in this process ("here") and in one of its own ("apart")."""
    shape = (1, 28, 28)
    model = ModelName("tramark.lab.models:build", {"name": name, "input_shape": list(shape), "classes": 10})
    keyring = Keyring.generate(clients=["a", "b"], classes=10, input_shape=shape, normalise=(0.5, 0.5))
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.safetensors"
        save_file(model.build().state_dict(), path)
        for _ in range(turns):
            for way, given in (("here", model.build), ("apart", model)):
                used, began = _processor(), time.perf_counter()
                suspect = open_suspect(path, conventions=keyring.source.prepare, model=given)
                opened = time.perf_counter()
                queries = trace(suspect, keyring, exhaustive=True).queries
                asked = time.perf_counter()
                # A process counts once it has ended, which it does with its suspect.
                del suspect
                gc.collect()
                seconds = {"open": opened - began, "ask": asked - opened, "processor": _processor() - used}
                for what, value in seconds.items():
                    taken.setdefault(f"{what}_{way}", []).append(value)
    median = {what: round(statistics.median(values), 3) for what, values in taken.items()}
    ratio, start = median["ask_apart"] / median["ask_here"], median["open_apart"] - median["open_here"]
    return {"model": name, "queries": queries, **median, "ratio": round(ratio, 2), "start": round(start, 2)}


def _processor() -> float:
    """Seconds of processor time of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    wanted = parser(__doc__)
    wanted.add_argument("--model", default="cnn", help="name of the model")
    wanted.add_argument("--turns", type=int, default=5, help="how often each way is measured")
    options = wanted.parse_args()
    show([measure(options.model, options.turns)], options.json)


if __name__ == "__main__":
    main()
