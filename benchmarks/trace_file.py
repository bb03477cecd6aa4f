"""What a process of its own costs when a file is traced, against loading the file in this process.

The file holds the weights of an unmarked model, so that all questions are asked. Both ways ask the same.

    python benchmarks/trace_file.py --json
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tramark import Keyring, open_suspect, trace
from tramark.suspects.weights import ModelName


def measure(name: str) -> dict[str, Any]:
    """Seconds to open and to ask, in this process and in one of its own."""
    shape = (1, 28, 28)
    model = ModelName("tramark.lab.models:build", {"name": name, "input_shape": list(shape), "classes": 10})
    keyring = Keyring.generate(clients=["a", "b"], classes=10, input_shape=shape, normalise=(0.5, 0.5))
    row: dict[str, Any] = {"model": name}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.safetensors"
        save_file(model.build().state_dict(), path)
        for way, given in (("here", model.build), ("apart", model)):
            began = time.perf_counter()
            suspect = open_suspect(path, conventions=keyring.source.prepare, model=given)
            opened = time.perf_counter()
            queries = trace(suspect, keyring, exhaustive=True).queries
            asked = time.perf_counter()
            row |= {"queries": queries, f"open_{way}": round(opened - began, 3), f"ask_{way}": round(asked - opened, 3)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    row = measure(options.model)
    print(json.dumps(row) if options.json else "\n".join(f"{name:12} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
