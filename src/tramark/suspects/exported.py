"""Read a `torch.export` archive (.pt2) without trusting it.

This reader is our own because torch's is not safe: `torch.export.load` unpickles payloads, evaluates expressions
and looks operators up by any name in the archive, so it must not see a stranger's file. But the archive also
holds the model as plain data: a JSON list of operator calls, and weights as bytes. This module runs that list. It
knows the operators of inference (`operators`) and the arithmetic of sizes; anything else is refused.
"""

import json
import operator
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tramark.errors import SuspectError, one_line
from tramark.suspects.base import fixed_batch
from tramark.suspects.operators import ALLOWED

SCHEMA = 8
ATEN = re.compile(r"torch\.ops\.aten\.([A-Za-z]\w*|_\w+)\.([A-Za-z]\w*)")

ARITHMETIC: dict[str, Callable[..., Any]] = {
    f"_operator.{name}": getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "eq", "ne", "lt", "le", "gt", "ge", "getitem")
}

DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}

MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}


class ExportedModule(nn.Module):
    """The program of an archive: a list of operator calls over named tensors, with one input and output.

    `batch` is the batch size that it was exported for, or None if it takes any.
    """

    def __init__(self, program: dict[str, Any], weights: dict[str, Tensor], constants: dict[str, Tensor]) -> None:
        super().__init__()
        graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
        self._names: dict[str, str] = {}
        inputs = []
        for spec in signature["input_specs"]:
            ((kind, what),) = spec.items()
            if kind == "user_input":
                inputs.append(what["arg"]["as_tensor"]["name"])
                continue
            if kind not in ("parameter", "buffer", "tensor_constant"):
                raise SuspectError(
                    f"the archive's model wants a {one_line(kind)}: it can be fed one tensor and its weights"
                )
            name = what[f"{kind}_name"]
            self._names[what["arg"]["name"]] = buffer = f"tensor_{len(self._names)}"
            self.register_buffer(buffer, weights[name] if name in weights else constants[name])
        if len(inputs) != 1:
            raise SuspectError(f"the archive's model wants {len(inputs)} inputs: one can be given")
        (self._input,) = inputs
        said = [spec["user_output"]["arg"] for spec in signature["output_specs"] if "user_output" in spec]
        self._output: str = said[0]["as_tensor"]["name"]
        self._calls = [(_operator(node["target"]), node["inputs"], node["outputs"]) for node in graph["nodes"]]
        sizes = graph["tensor_values"][self._input]["sizes"]
        self.batch = fixed_batch([size.get("as_int") for size in sizes])

    def forward(self, inputs: Tensor) -> Tensor:
        """The program's output for these inputs."""
        values: dict[str, Any] = {name: self.get_buffer(buffer) for name, buffer in self._names.items()}
        values[self._input] = inputs
        for call, given, named in self._calls:
            arguments = [(g["name"], _argument(g["arg"], values, inputs.device), g.get("kind")) for g in given]
            result = call(
                *(value for _, value, kind in arguments if kind == 1),
                **{name: value for name, value, kind in arguments if kind != 1},
            )
            results = result if len(named) > 1 else (result,)[: len(named)]
            for output, value in zip(named, results, strict=True):
                _name(output, value, values)
        return values[self._output]  # type: ignore[no-any-return]


def load_exported(path: Path) -> ExportedModule:
    """The model in a .pt2 archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {name.partition("/")[2]: archive.getinfo(name) for name in archive.namelist()}
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
                raise SuspectError(f"{path} has compressed entries, which torch.export does not write: it is refused")
            if "models/model.json" not in entries:
                raise SuspectError(f"{path} has no exported program: compiled or older archives cannot be asked")
            program = json.loads(archive.read(entries["models/model.json"]))
            if program["schema_version"]["major"] != SCHEMA:
                raise SuspectError(
                    f"{path} was written by another version of torch: it can be read from {torch.__version__}"
                )
            weights, constants = (
                _tensors(archive, entries, f"data/{kind}/", f"data/{kind}/model_{kind}_config.json")
                for kind in ("weights", "constants")
            )
        return ExportedModule(program, weights, constants)
    except SuspectError:
        raise
    except Exception as error:
        raise SuspectError(f"{path} is not a sound torch.export archive ({one_line(error)})") from error


def _tensors(
    archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], folder: str, config: str
) -> dict[str, Tensor]:
    tensors = {}
    for name, payload in json.loads(archive.read(entries[config]))["config"].items():
        meta = payload["tensor_meta"]
        if payload["use_pickle"] or meta is None:
            raise SuspectError(f"{archive.filename} carries {one_line(repr(name))} as a pickle, which is never loaded")
        octets = bytearray(archive.read(entries[folder + payload["path_name"]]))
        flat = torch.frombuffer(octets, dtype=torch.uint8) if octets else torch.empty(0, dtype=torch.uint8)
        sizes, strides = ([size["as_int"] for size in meta[which]] for which in ("sizes", "strides"))
        tensors[name] = flat.view(DTYPES[meta["dtype"]]).as_strided(sizes, strides, meta["storage_offset"]["as_int"])
    return tensors


def _operator(target: str) -> Callable[..., Any]:
    if target in ARITHMETIC:
        return ARITHMETIC[target]
    found = ATEN.fullmatch(target)
    name, overload_name = found.groups() if found else ("", "")
    if name not in ALLOWED:
        raise SuspectError(f"the archive calls {one_line(target)}, which is no operator of inference: it is refused")
    overload = getattr(getattr(torch.ops.aten, name, None), overload_name, None)
    if not isinstance(overload, torch._ops.OpOverload):
        raise SuspectError(f"the archive calls {one_line(target)}, which this version of torch does not know")
    if any(argument.is_out for argument in overload._schema.arguments):
        raise SuspectError(f"the archive calls {one_line(target)}, which writes into a given tensor: it is refused")
    return overload


def _argument(argument: dict[str, Any], values: dict[str, Any], device: torch.device) -> Any:
    ((kind, value),) = argument.items()
    match kind:
        case "as_none":
            return None
        case "as_tensor":
            return values[value["name"]]
        case "as_tensors":
            return [values[one["name"]] for one in value]
        case "as_name":
            return values[value]
        case "as_int" | "as_ints" | "as_bool" | "as_bools" | "as_string":
            return value
        case "as_float":
            return float(value)
        case "as_floats":
            return [float(one) for one in value]
        case "as_sym_int" | "as_sym_float" | "as_sym_bool" | "as_optional_tensor":
            return _argument(value, values, device)
        case "as_sym_ints" | "as_sym_floats" | "as_sym_bools" | "as_optional_tensors":
            return [_argument(one, values, device) for one in value]
        case "as_scalar_type":
            return DTYPES[value]
        case "as_memory_format":
            return MEMORY_FORMATS[value]
        case "as_layout":
            return torch.strided
        case "as_device":
            return device
    raise SuspectError(f"the archive passes an argument {one_line(kind)}, which is not plain data: it is refused")


def _name(output: dict[str, Any], value: Any, values: dict[str, Any]) -> None:
    ((kind, what),) = output.items()
    match kind:
        case "as_tensor":
            values[what["name"]] = value
        case "as_sym_int" | "as_sym_float" | "as_sym_bool":
            values[what["as_name"]] = value
        case "as_tensors":
            values.update(zip((one["name"] for one in what), value, strict=True))
        case "as_optional_tensors":
            for one, part in zip(what, value, strict=True):
                if "as_tensor" in one:
                    _name(one, part, values)
        case "as_none":
            pass
        case _:
            raise SuspectError(f"the archive names a result {one_line(kind)}, which is not plain data: it is refused")
