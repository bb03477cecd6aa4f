"""Suspects behind servers that speak the Open Inference Protocol v2: KServe, Triton, MLServer and others.

A response counts as an answer only if it is a tensor of the announced type and shape, with one row per question and
no NaN.
"""

import json
import math
from typing import Any, TypedDict
from urllib.parse import quote

import torch
from torch import Tensor

from tramark.errors import SuspectError, one_line
from tramark.suspects.base import Answers, ask_in_batches, check_shape, fixed_batch
from tramark.suspects.conventions import Conventions, Prepare, Said
from tramark.suspects.http import Client, HttpOptions, HttpSuspect, as_tensor, split_url

V2_DTYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}


class Wanted(TypedDict):
    """The one input that a model takes."""

    name: str
    datatype: str
    shape: list[int]


class V2Suspect(HttpSuspect):
    """A model behind the Open Inference Protocol v2.

    >>> suspect = V2Suspect("http://127.0.0.1:8080", served="fashion", conventions=Conventions())
    >>> suspect.preview(torch.zeros(16, 1, 2, 2, dtype=torch.uint8)).splitlines()[0]
    '16 questions in 16 requests'

    Before the first question, the model's metadata is read to learn which input it wants.

    Parameters
    ----------
    url : of the model (…/v2/models/NAME), or of the server.
    conventions : how the model wants its inputs and names its labels, or just the `prepare` of a keyring's source.
    served : name of the model, if `url` is the server's.
    input_name : name of the input, if the metadata lists none. It is then sent as FP32.
    output : which of several outputs is the answer; by default the first.
    batch : how many questions are sent in one request, unless the metadata says how many the model takes.
    options : timeouts, retries, rate, budget and token.
    """

    def __init__(
        self,
        url: str,
        *,
        conventions: Conventions | Prepare,
        served: str | None = None,
        input_name: str = "input-0",
        output: str | None = None,
        batch: int = 1,
        options: HttpOptions | None = None,
    ) -> None:
        if (parts := split_url(url)).query:
            raise SuspectError(f"the protocol knows no queries: leave out the ? in the URL of {one_line(parts.netloc)}")
        url = url.rstrip("/").removesuffix("/infer")
        if "/v2/models/" not in parts.path:
            if served is None:
                raise SuspectError(f"say which model to ask (served), or give its URL: {one_line(url)}/v2/models/…")
            url = f"{url.removesuffix('/v2')}/v2/models/{quote(served, safe='')}"
        super().__init__(Client(url, options), conventions)
        self.output, self.batch = output, batch
        self._input: Wanted | None = None
        self._assumed: Wanted = {"name": input_name, "datatype": "FP32", "shape": []}

    @property
    def declared(self) -> tuple[int, ...]:
        """The shape of inputs that the model declares, once it was asked; empty if it declares none."""
        return tuple(self._input["shape"]) if self._input else ()

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        if self._input is None:
            self._input = self._described(self.client.send("GET", self.client.url, None, "", questions=0))
        fixed = fixed_batch(self._input["shape"])
        return ask_in_batches(self._ask, raw, fixed or self.batch, exact=fixed is not None)

    def preview(self, raw: Tensor) -> str:
        """The requests that would be sent."""
        first = f"GET {self.client.shown()}, once, to learn what the model wants\n" if self._input is None else ""
        url, body = f"{self.client.url}/infer", self._body(raw[: self.batch])
        request = self.client.preview("POST", url, body, "application/json")
        return f"{len(raw)} questions in {-(-len(raw) // self.batch)} requests\n{first}{request}"

    def _described(self, metadata: Any) -> Wanted:
        inputs = metadata.get("inputs") if isinstance(metadata, dict) else None
        if not inputs:
            return self._assumed
        match inputs:
            case [{"name": str(name), "datatype": str(datatype), "shape": list(shape)}]:
                if datatype in V2_DTYPES and all(type(size) is int for size in shape):
                    return {"name": name, "datatype": datatype, "shape": shape}
        raise SuspectError(f"{self.client.shown()} does not take one tensor of numbers: {self.client.excerpt(inputs)}")

    def _body(self, raw: Tensor) -> bytes:
        wanted = self._input or self._assumed
        inputs = self.conventions.inputs(raw, V2_DTYPES[wanted["datatype"]])
        datatype = next((name for name, dtype in V2_DTYPES.items() if dtype == inputs.dtype), None)
        if datatype is None:
            raise SuspectError(f"inputs of {inputs.dtype} cannot be sent: say another dtype")
        check_shape(inputs, wanted["shape"])
        tensor = {"name": wanted["name"], "shape": list(inputs.shape), "datatype": datatype}
        body: dict[str, Any] = {"inputs": [tensor | {"data": inputs.flatten().tolist()}]}
        if self.output is not None:
            body["outputs"] = [{"name": self.output}]
        return json.dumps(body, allow_nan=False).encode()

    def _ask(self, raw: Tensor) -> Answers:
        url = f"{self.client.url}/infer"
        response = self.client.send("POST", url, self._body(raw), "application/json", questions=len(raw))
        outputs = response.get("outputs") if isinstance(response, dict) else None
        outputs = [o for o in outputs if isinstance(o, dict)] if isinstance(outputs, list) else []
        found = next((o for o in outputs if self.output in (None, o.get("name"))), None)
        if found is None:
            what = one_line(self.output or "outputs")
            raise SuspectError(f"{self.client.shown()} answers without {what}: {self.client.excerpt(response)}")
        return self.conventions.answers(self._said(found, len(raw)), len(raw))

    def _said(self, output: dict[str, Any], count: int) -> Tensor | list[Said]:
        shape, datatype = output.get("shape"), str(output.get("datatype"))
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise SuspectError(f"{self.client.shown()} answers with a tensor without a shape")
        values = _flat(output.get("data"))
        if math.prod(shape) != len(values) or shape[:1] != [count]:
            told = f"{len(values)} values of shape {one_line(str(shape))}"
            raise SuspectError(f"{self.client.shown()} answers {count} questions with {told}")
        if datatype == "BYTES" and values and all(isinstance(value, str) for value in values):
            return list(values[:: len(values) // count])
        dtype = V2_DTYPES.get(datatype)
        kinds = (int, float) if dtype is not None and dtype.is_floating_point else (int, bool)
        if dtype is None or not all(type(value) in kinds for value in values):
            raise SuspectError(f"{self.client.shown()} answers with values that are not {one_line(datatype)}")
        return as_tensor(values, dtype).reshape(shape)


def _flat(data: Any, depth: int = 8) -> list[Any]:
    if not isinstance(data, list):
        raise SuspectError("the server answers with a tensor whose data are not a list")
    if not any(isinstance(one, list) for one in data):
        return data
    if depth == 0:
        raise SuspectError("the server answers with a tensor nested too deeply")
    return [value for part in data for value in _flat(part, depth - 1)]
