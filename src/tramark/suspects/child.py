"""The process in which a stranger's model runs: it has neither vault nor key, and gives up what it can.

It is told which file to load, makes the trusted model that the file's weights belong to, and locks itself in. Only
then does it read the file. After that it gets inputs and gives scores or labels, until its input ends. What is in
force is told before the file is read, so no file can have a say in it.
"""

import os
import sys
from pathlib import Path
from typing import Any

from tramark.suspects import confinement

LARGEST_INPUT = 1 << 40


def main() -> None:
    """Serves one suspect over the pipes that it got as its standard input and output."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    confinement.die_with_parent()
    # Importing torch starts threads where it may: namespaces come first.
    confined = ["own process", "empty environment", *confinement.leave_the_network()]

    from tramark.suspects import wire

    try:
        _serve(requests, replies, confined)
    except wire.WireError:
        sys.exit(0)


def _serve(requests: int, replies: int, confined: list[str]) -> None:
    import torch

    from tramark.errors import SettingError, one_line
    from tramark.suspects import wire
    from tramark.suspects.loading import WEIGHTS, load
    from tramark.suspects.seccomp import refuse_calls
    from tramark.suspects.weights import ModelName

    order, _ = wire.receive(requests, 0)
    try:
        path = Path(order["path"])
        model = ModelName(**order["model"]).build() if order["model"] and path.suffix.lower() in WEIGHTS else None
        _import_for(path)
        confined += confinement.limit_resources(order["memory"])
        confined += confinement.forgo_privileges()
        confined += confinement.read_only([path.parent if path.suffix.lower() == ".onnx" else path])
        confined += ["system calls filtered"] if refuse_calls() else []
        torch.set_num_threads(order["threads"])
        wire.send(replies, {"confined": confined})
        safe = any(one.startswith("Landlock") for one in confined) and "system calls filtered" in confined
        loaded = load(path, model=model, output=order["output"], programs=safe)
        wire.send(replies, {"about": _plain(loaded.about)})
    except Exception as error:
        kind = "setting" if isinstance(error, SettingError) else "suspect"
        wire.send(replies, {"error": one_line(_told(error), 1000), "kind": kind})
        return
    while True:
        _, inputs = wire.receive(requests, LARGEST_INPUT)
        try:
            assert inputs is not None
            said = loaded.run(inputs)
            if isinstance(said, torch.Tensor):
                # Half precision becomes single, and any kind of integer the longest.
                wide = said.float() if said.is_floating_point() and said.itemsize < 4 else said
                reply: dict[str, Any] = {}
                tensor = wide if wide.is_floating_point() else wide.long()
            else:
                reply, tensor = {"names": said}, None
        except Exception as error:
            reply, tensor = {"error": one_line(_told(error), 1000)}, None
        wire.send(replies, reply, tensor)


def _import_for(path: Path) -> None:
    """Imports what a kind of file needs, while there is still much that may be read."""
    import importlib
    import tempfile
    from contextlib import suppress

    # Attention in transformers imports torch's compiler when a model is made. That wants a folder for temporary files
    # and one for what it compiles. It compiles nothing here; any folder that exists satisfies it.
    tempfile.tempdir = os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/"
    with suppress(ImportError):
        if path.suffix.lower() == ".onnx":
            importlib.import_module("onnxruntime")
        elif path.is_dir():
            importlib.import_module("transformers")


def _plain(about: Any) -> dict[str, Any]:
    return {
        "dtype": about.dtype,
        "shape": list(about.shape),
        "batch": about.batch,
        "exact": about.exact,
        "names": {str(number): name for number, name in about.names.items()},
        "stated": dict(about.stated),
    }


def _told(error: Exception) -> str:
    from tramark.errors import TramarkError

    if isinstance(error, MemoryError):
        return "the suspect wants more memory than it may have"
    if isinstance(error, TramarkError):
        return str(error)
    return f"the suspect fails ({type(error).__name__}: {error})"
