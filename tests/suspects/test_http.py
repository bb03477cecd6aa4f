"""What must be true of suspects behind HTTP, friendly and hostile, on real sockets of this machine."""

import base64
import email.parser
import io
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import torch
from torch import Tensor, nn

from tramark.errors import BudgetSpent, SettingError, SuspectError, SuspectUnavailable
from tramark.evidence.statistics import NO_ANSWER
from tramark.keys import sources
from tramark.lab.models import build
from tramark.suspects.conventions import Conventions
from tramark.suspects.files import open_suspect
from tramark.suspects.http import HttpOptions, from_environment
from tramark.suspects.inference import V2Suspect
from tramark.suspects.json_api import JsonSuspect, JsonTemplate
from tramark.suspects.png import png

SHAPE = (1, 28, 28)
PREPARE = sources.for_shape(SHAPE).prepare
QUICK = HttpOptions(timeout=2, deadline=5, retries=2, backoff=0.01)

Responder = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Reads a request and lets the test answer it."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def setup(self) -> None:
        self.request.settimeout(10)
        super().setup()

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, dict(self.headers), self.body))
        try:
            self.server.respond(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_PUT = do_POST  # noqa: N815

    def json(self, value: Any, status: int = 200, **headers: str) -> None:
        self.send(json.dumps(value).encode(), status, **headers)

    def send(self, octets: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(octets)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(octets)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients that go away, or refuse our certificate, are what these tests are about."""

    def __init__(self, respond: Responder) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.respond = respond
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(respond: Responder, certificate: Path | None = None) -> Iterator[Server]:
    server = Server(respond)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.url = server.url.replace("http", "https")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def questions(count: int = 4, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


METADATA = {
    "name": "m",
    "platform": "",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, *SHAPE]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 10]}],
}


def v2(output: Callable[[int], dict[str, Any]], metadata: Any = METADATA) -> Responder:
    """A v2 server that answers n questions with `output(n)`."""

    def respond(request: Handler) -> None:
        if request.command == "GET":
            request.json(metadata)
        else:
            count = json.loads(request.body)["inputs"][0]["shape"][0]
            request.json({"model_name": "m", "outputs": [output(count)]})

    return respond


def ask_v2(server: Server, options: HttpOptions = QUICK, count: int = 1, **how: Any) -> list[int]:
    how = {"conventions": PREPARE, "served": "m", **how}
    labels: list[int] = V2Suspect(server.url, options=options, **how).ask(questions(count)).labels.tolist()
    return labels


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Any]:
    """A model, and its ONNX export in onnxruntime."""
    runtime: Any = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, path = (
        build("small-cnn", input_shape=SHAPE, classes=10, seed=2).eval(),
        tmp_path_factory.mktemp("onnx") / "m",
    )
    dynamic = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(model, (torch.zeros(2, *SHAPE),), path, dynamic_shapes=dynamic, verbose=False)
    return model, runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


class TestV2:
    @pytest.mark.parametrize("kind", ["logits", "labels", "column", "names", "top"])
    @pytest.mark.parametrize("batch", [1, 3])
    def test_a_real_model_behind_a_real_server(self, served: tuple[nn.Module, Any], kind: str, batch: int) -> None:
        model, session = served

        def respond(request: Handler) -> None:
            if request.path == "/v2/models/m" and request.command == "GET":
                return request.json(METADATA)
            assert request.path == "/v2/models/m/infer"
            (given,) = json.loads(request.body)["inputs"]
            assert given["name"] == "x"
            inputs = torch.tensor(given["data"], dtype=torch.float32).view(given["shape"])
            (logits,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
            best = logits.argmax(1)
            data, shape, datatype = {
                "logits": (logits.ravel().tolist(), logits.shape, "FP32"),
                "labels": (best.tolist(), best.shape, "INT64"),
                "column": ([[label] for label in best.tolist()], (len(best), 1), "INT64"),
                "names": ([f"class {label}" for label in best.tolist()], best.shape, "BYTES"),
                "top": ((-logits).argsort(1)[:, :3].ravel().tolist(), (len(best), 3), "INT64"),
            }[kind]
            output = {"name": "y", "shape": list(shape), "datatype": datatype, "data": data}
            return request.json({"model_name": "m", "outputs": [output]})

        raw = questions(7)
        names = {f"class {label}": label for label in range(10)} if kind == "names" else None
        with serving(respond) as server, torch.no_grad():
            conventions = Conventions(prepare=PREPARE, labels=names)
            suspect = V2Suspect(server.url, served="m", conventions=conventions, options=QUICK, batch=batch)
            answers = suspect.ask(raw)
            wanted = model(PREPARE(raw))
        assert torch.equal(answers.labels, wanted.argmax(1))
        assert (answers.scores is not None) == (kind == "logits")
        assert suspect.asked == 7
        assert len(server.requests) == 1 + -(-7 // batch)

    def test_addresses(self) -> None:
        for url, served in [
            ("http://h:1", "m"),
            ("http://h:1/", "m"),
            ("http://h:1/v2", "m"),
            ("http://h:1/v2/models/m", None),
            ("http://h:1/v2/models/m/infer", None),
        ]:
            assert V2Suspect(url, served=served, conventions=PREPARE).client.url == "http://h:1/v2/models/m"
        assert V2Suspect("http://h", served="a/b", conventions=PREPARE).client.url == "http://h/v2/models/a%2Fb"
        for url, says in [
            ("http://h:1", "which model"),
            ("ftp://h/v2/models/m", "not an http"),
            ("http:///v2/models/m", "not an http"),
            ("http://h/v2/models/m\r\nX: y", "not an http"),
            ("http://me:secret@h/v2/models/m", "password"),
            ("http://h/v2/models/m?key=secret", "leave out"),
            ("http://[h/v2/models/m", "not an http"),
            ("http://h:99999/v2/models/m", "not an http"),
        ]:
            with pytest.raises(SuspectError, match=says) as caught:
                open_suspect(url, conventions=PREPARE)
            assert "secret" not in str(caught.value)

    def test_a_server_that_tells_nothing_about_its_input(self) -> None:
        output = {"name": "y", "shape": [1], "datatype": "INT64", "data": [3]}
        with serving(v2(lambda n: output, {"name": "m", "inputs": [], "outputs": []})) as server:
            assert ask_v2(server, input_name="image") == [3]
            assert json.loads(server.requests[-1][3])["inputs"][0]["name"] == "image"

    def test_a_batch_of_one_size_only(self) -> None:
        metadata = METADATA | {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4, *SHAPE]}]}

        def output(count: int) -> dict[str, Any]:
            assert count == 4
            return {"name": "y", "shape": [4], "datatype": "INT64", "data": [5, 6, 7, 8]}

        with serving(v2(output, metadata)) as server:
            assert ask_v2(server, count=6) == [5, 6, 7, 8, 5, 6]

    def test_a_fixed_batch_and_a_chosen_output(self) -> None:
        metadata = METADATA | {"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 28, 28, 1]}]}

        def respond(request: Handler) -> None:
            if request.command == "GET":
                return request.json(metadata)
            body = json.loads(request.body)
            assert body["outputs"] == [{"name": "label"}]
            assert body["inputs"][0]["datatype"] == "UINT8"
            outputs = [
                {"name": "other", "shape": [1], "datatype": "INT64", "data": [1]},
                {"name": "label", "shape": [1], "datatype": "INT64", "data": [6]},
            ]
            return request.json({"outputs": outputs})

        with serving(respond) as server:
            want = Conventions(layout="NHWC", value_range=(0, 255))
            assert ask_v2(server, count=3, batch=8, conventions=want, output="label") == [6, 6, 6]

    @pytest.mark.parametrize(
        ("output", "says"),
        [
            ({"shape": [1, 10], "datatype": "FP32", "data": [0.0] * 9}, "9 values of shape"),
            ({"shape": [2, 5], "datatype": "FP32", "data": [0.0] * 10}, "1 questions with 10 values"),
            ({"shape": [1, 10**30], "datatype": "FP32", "data": [0.0]}, "values of shape"),
            ({"shape": [-1, -10], "datatype": "FP32", "data": [0.0] * 10}, "without a shape"),
            ({"shape": [1, 10], "datatype": "FP32", "data": ["a"] * 10}, "values that are not"),
            ({"shape": [1, 10], "datatype": "FP32", "data": [None] * 10}, "values that are not"),
            ({"shape": [1, 10], "datatype": "FP33", "data": [0.0] * 10}, "not FP33"),
            ({"shape": [1, 2], "datatype": "FP32", "data": [1e300, 0]}, "not numbers"),
            ({"shape": [1], "datatype": "INT64", "data": [10**40]}, "out of range"),
            ({"shape": [1, 2], "datatype": "FP32", "data": [10**400, 0]}, "out of range"),
            ({"shape": [1, 2], "datatype": "FP16", "data": [10**400, 0.5]}, "out of range"),
            ({"shape": [1], "datatype": "UINT8", "data": [10**400]}, "out of range"),
            ({"shape": [1], "datatype": "BYTES", "data": [7]}, "values that are not"),
            ({"shape": [1], "datatype": "BYTES", "data": ["boot"]}, "names, such as 'boot'"),
            ({"shape": [1, 1], "datatype": "FP32", "data": [0.3]}, "threshold"),
            ({"shape": "big", "datatype": "FP32", "data": [0.3]}, "without a shape"),
            ({"shape": [1], "datatype": "FP32", "data": {"a": 1}}, "not a list"),
            ({"shape": [1], "datatype": "FP32", "data": [[[[[[[[[[[1]]]]]]]]]]]}, "too deeply"),
            ({"datatype": "FP32"}, "without a shape"),
            ({"shape": [1, -1, -10], "datatype": "FP32", "data": [0.0] * 10}, "without a shape"),
            ({"shape": [1], "datatype": "INT64", "data": [3.7]}, "not INT64"),
            ({"shape": [1], "datatype": [], "data": [3]}, "values that are not"),
            ({}, "without a shape"),
        ],
    )
    def test_unsound_outputs(self, output: dict[str, Any], says: str) -> None:
        with serving(v2(lambda n: output)) as server, pytest.raises(SuspectError, match=says):
            ask_v2(server)

    @pytest.mark.parametrize(
        "metadata",
        [
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 224, 224]}]},
            {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [-1]}]},
            {"inputs": [{"name": "x"}]},
            {"inputs": [1]},
            {"inputs": METADATA["inputs"] * 2},  # type: ignore[operator]
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, "a"]}]},
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [10**12, *SHAPE]}]},
        ],
    )
    def test_unsound_metadata(self, metadata: Any) -> None:
        with serving(v2(lambda n: {}, metadata)) as server, pytest.raises(SuspectError):
            ask_v2(server)
        assert [method for method, *_ in server.requests] == ["GET"]

    @pytest.mark.parametrize("response", [[], {}, {"outputs": []}, {"outputs": {}}, {"outputs": [7]}, "hello", 3, None])
    def test_unsound_responses(self, response: Any) -> None:
        def respond(request: Handler) -> None:
            request.json(METADATA if request.command == "GET" else response)

        with serving(respond) as server, pytest.raises(SuspectError, match="without outputs"):
            ask_v2(server)


LABEL = JsonTemplate(body={"x": "{list}"}, label="label")


def ask_json(server: Server, template: JsonTemplate = LABEL, options: HttpOptions = QUICK, **how: Any) -> list[int]:
    how = {"conventions": Conventions(), **how}
    labels: list[int] = JsonSuspect(server.url, template, options=options, **how).ask(questions(1)).labels.tolist()
    return labels


class TestJson:
    def test_the_input_as_a_nested_list(self) -> None:
        template = JsonTemplate(
            body={"instances": [{"image": "{list}", "id": 7}]},
            label="predictions.0.label",
            method="PUT",
            headers={"X-Version": "2"},
        )
        with serving(lambda r: r.json({"predictions": [{"label": 4}]})) as server:
            suspect = JsonSuspect(server.url + "/predict?v=1", template, conventions=Conventions(layout="NHWC"))
            assert suspect.ask(questions(2)).labels.tolist() == [4, 4]
        method, path, headers, body = server.requests[1]
        assert (method, path, headers["X-Version"]) == ("PUT", "/predict?v=1", "2")
        (instance,) = json.loads(body)["instances"]
        assert torch.allclose(torch.tensor(instance["image"]), questions(2)[1].movedim(0, -1) / 255)
        assert instance["id"] == 7

    @pytest.mark.parametrize("shape", [(1, 28, 28), (3, 5, 9)])
    @pytest.mark.parametrize("how", ["base64", "upload"])
    def test_the_input_as_a_picture(self, shape: tuple[int, int, int], how: str) -> None:
        image: Any = pytest.importorskip("PIL.Image")
        if how == "base64":
            template = JsonTemplate(body={"image": "data:image/png;base64,{png}", "k": 1}, label="label")
        else:
            template = JsonTemplate(body={"k": "1"}, upload="file", label="label")
        raw = questions(1, shape)
        with serving(lambda r: r.json({"label": 4})) as server:
            assert JsonSuspect(server.url, template, conventions=Conventions()).ask(raw).labels.tolist() == [4]
        _, _, headers, body = server.requests[0]
        if how == "base64":
            octets = base64.b64decode(json.loads(body)["image"].removeprefix("data:image/png;base64,"))
        else:
            whole = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode() + body
            parts: Any = email.parser.BytesParser().parsebytes(whole).get_payload()
            field, file = parts
            assert field.get_payload() == "1"
            assert file.get_filename() == "image.png"
            assert file.get_param("name", header="content-disposition") == "file"
            octets = file.get_payload(decode=True)
        with image.open(io.BytesIO(octets)) as picture:
            assert picture.mode == ("L" if shape[0] == 1 else "RGB")
            seen = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        assert torch.equal(seen.view(*shape[1:], shape[0]).movedim(-1, 0), raw[0])

    @pytest.mark.parametrize(
        ("response", "template", "wanted"),
        [
            ({"label": 3}, {"label": "label"}, 3),
            ({"label": "3"}, {"label": "label"}, 3),
            ({"label": 3.0}, {"label": "label"}, 3),
            ({"label": [3, 1]}, {"label": "label"}, 3),
            ({"label": None}, {"label": "label"}, NO_ANSWER),
            ({"label": []}, {"label": "label"}, NO_ANSWER),
            ({"found": []}, {"label": "found.0.label"}, NO_ANSWER),
            ([{"label": 3, "score": 0.4}], {"label": "0.label"}, 3),
            ({"p": [0.1, 0.7, 0.2]}, {"scores": "p"}, 1),
            ({"p": [0, 0, 1]}, {"scores": "p"}, 2),
            ({"p": {"2": 0.1, "0": 0.7}}, {"scores": "p"}, 0),
            ({"p": {"2": 10**400, "0": 1}}, {"scores": "p"}, 2),
            ({"p": None}, {"scores": "p"}, NO_ANSWER),
        ],
    )
    def test_answers_of_many_kinds(self, response: Any, template: dict[str, str], wanted: int) -> None:
        with serving(lambda r: r.json(response)) as server:
            assert ask_json(server, JsonTemplate(body="{list}", **template)) == [wanted]  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("respond", "template"),
        [
            (lambda r: r.json(3), {"label": ""}),
            (lambda r: r.json([3]), {"label": ""}),
            (lambda r: r.json([0.1, 0.2, 0.3, 0.9]), {"scores": ""}),
            (lambda r: r.json({"3": 0.9, "1": 0.1}), {"scores": ""}),
            (lambda r: r.send(b"3", kind="text/plain; charset=utf-8"), {"label": ""}),
        ],
    )
    def test_the_whole_response_is_the_answer(self, respond: Responder, template: dict[str, Any]) -> None:
        with serving(respond) as server:
            assert ask_json(server, JsonTemplate(body="{list}", **template)) == [3]

    def test_the_image_itself_is_the_body(self) -> None:
        with serving(lambda r: r.json({"label": 3})) as server:
            assert ask_json(server, JsonTemplate(send="png", label="label")) == [3]
        _, _, headers, body = server.requests[0]
        assert headers["Content-Type"] == "image/png"
        assert body == png(questions(1)[0])

    @pytest.mark.parametrize("send", ["form", "multipart"])
    def test_the_image_in_a_field_of_a_form(self, send: Any) -> None:
        template = JsonTemplate(send=send, body={"image": "{png}", "k": 1}, label="label")
        with serving(lambda r: r.json({"label": 3})) as server:
            assert ask_json(server, template) == [3]
        _, _, headers, body = server.requests[0]
        image = base64.b64encode(png(questions(1)[0])).decode()
        if send == "form":
            assert headers["Content-Type"] == "application/x-www-form-urlencoded"
            assert parse_qs(body.decode()) == {"image": [image], "k": ["1"]}
        else:
            assert headers["Content-Type"].startswith("multipart/form-data")
            assert image.encode() in body

    @pytest.mark.parametrize("ready", [{}, {"job.state": "done"}])
    def test_an_answer_that_comes_later(self, ready: dict[str, str]) -> None:
        def respond(request: Handler) -> None:
            if request.command == "POST":
                return request.json({"job": {"id": "a/b 7"}}, 202)
            looks = sum(method == "GET" for method, *_ in request.server.requests)
            if looks < 3:
                return request.json({"job": {}}, 200 if ready else 202)
            return request.json({"job": {"state": "done"}, "label": 3})

        template = JsonTemplate(body="{list}", label="label", then="/jobs/{job.id}", ready=ready)
        with serving(respond) as server:
            assert ask_json(server, template) == [3]
            assert [path for method, path, *_ in server.requests if method == "GET"] == ["/jobs/a%2Fb%207"] * 3
            with pytest.raises(SuspectError, match=r"answers later \(202\): say where"):
                ask_json(server, JsonTemplate(body="{list}", label="label"))

    def test_an_answer_that_never_comes(self) -> None:
        options = HttpOptions(longest_wait=0.3)
        template = JsonTemplate(body="{list}", label="label", then="later")
        with serving(lambda r: r.json({}, 202)) as server, pytest.raises(SuspectUnavailable, match="no answer after"):
            ask_json(server, template, options)

    @pytest.mark.parametrize("then", ["http://elsewhere.invalid/{id}", "//elsewhere.invalid/", "{missing}", "{deep}"])
    def test_a_later_answer_is_fetched_from_the_same_server_only(self, then: str) -> None:
        template = JsonTemplate(body="{list}", label="label", then=then)
        with serving(lambda r: r.json({"id": 7, "deep": {}})) as server:
            with pytest.raises(SuspectError, match=r"at the server that was asked|answers without"):
                ask_json(server, template)
            assert len(server.requests) == 1

    def test_gradios_two_steps(self) -> None:
        def respond(request: Handler) -> None:
            if request.command == "POST":
                return request.json({"event_id": "e1"})
            stream = b'event: heartbeat\ndata: null\n\nevent: complete\ndata: [{"label": "3", "confidences": []}]\n\n'
            return request.send(stream, kind="text/event-stream")

        body = {"data": [{"url": "data:image/png;base64,{png}"}]}
        with serving(respond) as server:
            suspect = JsonSuspect(
                server.url + "/gradio_api/call/predict",
                JsonTemplate(body=body, label="0.label", then="{event_id}"),
                conventions=Conventions(),
            )
            assert suspect.ask(questions(1)).labels.tolist() == [3]
            assert "until the answer is there" in suspect.preview(questions(1))
        assert server.requests[1][1] == "/gradio_api/call/predict/e1"

    def test_flat_inputs(self) -> None:
        with serving(lambda r: r.json({"label": 3})) as server:
            assert ask_json(server, conventions=Conventions(flat=True)) == [3]
        assert len(json.loads(server.requests[0][3])["x"]) == 784

    def test_names(self) -> None:
        with serving(lambda r: r.json({"label": "boot"})) as server:
            assert ask_json(server, conventions=Conventions(labels={"boot": 9})) == [9]
            assert ask_json(server, conventions=Conventions(labels={"shoe": 9})) == [NO_ANSWER]
            with pytest.raises(SuspectError, match="names"):
                ask_json(server)

    @pytest.mark.parametrize(
        ("response", "template"),
        [
            ({"labels": 3}, {"label": "label"}),
            ({"label": {"a": 1}}, {"label": "label"}),
            ({"label": True}, {"label": "label"}),
            ({"label": 3.5}, {"label": "label"}),
            ({"label": [[3]]}, {"label": "label"}),
            ([3], {"label": "label"}),
            ([3], {"label": "1"}),
            (3, {"label": "label"}),
            ({"p": [0.1, "x"]}, {"scores": "p"}),
            ({"p": [True, False]}, {"scores": "p"}),
            ({"p": {}}, {"scores": "p"}),
            ({"p": {"a": "b"}}, {"scores": "p"}),
            ({"p": 0.3}, {"scores": "p"}),
            ({"p": [0.3]}, {"scores": "p"}),
            ({"p": [10**400, 1]}, {"scores": "p"}),
        ],
    )
    def test_unsound_answers(self, response: Any, template: dict[str, str]) -> None:
        with serving(lambda r: r.json(response)) as server, pytest.raises(SuspectError):
            ask_json(server, JsonTemplate(body="{list}", **template))  # type: ignore[arg-type]

    def test_templates_that_cannot_work(self) -> None:
        for how in (
            {"body": "{list}"},
            {"body": "{list}", "label": "a", "scores": "b"},
            {"body": {"x": 1}, "label": "a"},
            {"body": ["x"], "upload": "file", "label": "a"},
        ):
            with pytest.raises(SuspectError):
                JsonTemplate(**how)
        table = JsonSuspect("http://h", JsonTemplate(body="{png}", label="a"), conventions=Conventions())
        with pytest.raises(SuspectError, match="not images"):
            table.preview(torch.zeros(1, 5))
        with pytest.raises(SuspectError, match="2 channels"):
            png(torch.zeros(2, 3, 3, dtype=torch.uint8))


def drip(request: Handler) -> None:
    """Sends a byte of a body now and then, forever."""
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.end_headers()
    until = time.monotonic() + 8
    while time.monotonic() < until:
        request.wfile.write(b" ")
        time.sleep(0.05)


def drip_headers(request: Handler) -> None:
    """Never comes to the end of its headers."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    until = time.monotonic() + 8
    while time.monotonic() < until:
        request.wfile.write(b"x")
        time.sleep(0.05)


def flood(request: Handler) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.end_headers()
    for _ in range(10_000):
        request.wfile.write(b"[" * 10_000)


def flood_in_chunks(request: Handler) -> None:
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    for _ in range(10_000):
        request.wfile.write(b"2710\r\n" + b"[" * 10_000 + b"\r\n")


def announce(request: Handler) -> None:
    """Announces more than it sends."""
    request.send_response(200)
    request.send_header("Content-Length", "100")
    request.end_headers()
    request.wfile.write(b'{"label": 3}')
    request.close_connection = True


def cut_chunks(request: Handler) -> None:
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    request.wfile.write(b'c\r\n{"label": 3}\r\n')
    request.close_connection = True


def hang_up(request: Handler) -> None:
    request.close_connection = True


def silence(request: Handler) -> None:
    time.sleep(3)


def nonsense(request: Handler) -> None:
    request.wfile.write(b"\x00\xff\x00 this is not HTTP\r\n\r\n")
    request.close_connection = True


HOSTILE: dict[str, tuple[Responder, type[SuspectError], str]] = {
    "drip": (drip, SuspectUnavailable, "did not finish within 0.5 s"),
    "drip in headers": (drip_headers, SuspectUnavailable, "did not finish within 0.5 s"),
    "silence": (silence, SuspectUnavailable, "does not answer|did not finish"),
    "flood": (flood, SuspectError, "more than 65536 bytes"),
    "flood in chunks": (flood_in_chunks, SuspectError, "more than 65536 bytes"),
    "cut short": (announce, SuspectUnavailable, "in the middle of a response"),
    "cut chunks": (cut_chunks, SuspectUnavailable, "in the middle of a response"),
    "hang up": (hang_up, SuspectUnavailable, "does not answer"),
    "no HTTP": (nonsense, SuspectUnavailable, "does not answer"),
    "HTML": (
        lambda r: r.send(b"<html>Log in</html>", kind="text/html"),
        SuspectError,
        "text/html that is not sound",
    ),
    "text": (lambda r: r.send(b"3 apples"), SuspectError, "not sound JSON"),
    "nothing": (lambda r: r.send(b""), SuspectError, "not sound JSON"),
    "half": (lambda r: r.send(b'{"label": '), SuspectError, "not sound JSON"),
    "NaN": (lambda r: r.send(b'{"label": NaN}'), SuspectError, "not sound JSON"),
    "infinity": (lambda r: r.send(b'{"label": 1e999}'), SuspectError, "no answer at 'label'"),
    "deep": (lambda r: r.send(b"[" * 30_000 + b"]" * 30_000), SuspectError, "not sound JSON"),
    "long number": (lambda r: r.send(b'{"label": ' + b"9" * 9999 + b"}"), SuspectError, "not sound JSON"),
    "not text": (lambda r: r.send(b'{"label": "\xff\xfe"}'), SuspectError, "not sound JSON"),
    "events without an end": (
        lambda r: r.send(b"event: generating\ndata: [3]\n\n", kind="text/event-stream"),
        SuspectError,
        "not sound JSON",
    ),
    "later": (lambda r: r.json({"label": 3}, 202), SuspectError, "answers later"),
    "gzip": (lambda r: r.send(b"\x1f\x8b", Content_Encoding="gzip"), SuspectError, "compressed"),
    "not found": (
        lambda r: r.json({"error": "no such model"}, 404),
        SuspectError,
        "404 Not Found.*no such model",
    ),
    "odd status": (lambda r: r.json({"label": 3}, 499), SuspectError, "answers 499"),
    "always busy": (lambda r: r.json({}, 503), SuspectUnavailable, "503 Service Unavailable, 2 times"),
    "wait an hour": (
        lambda r: r.json({}, 429, Retry_After="3600"),
        SuspectUnavailable,
        "asks to wait 3600 s",
    ),
}


class TestHostileServers:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_no_answer_and_a_clear_error(self, name: str) -> None:
        respond, kind, says = HOSTILE[name]
        options = HttpOptions(timeout=1, deadline=0.5, retries=1, backoff=0.01, response_bytes=65536)
        start = time.monotonic()
        with serving(respond) as server:
            with pytest.raises(kind, match=says) as caught:
                ask_json(server, options=options)
            taken = time.monotonic() - start
            assert type(caught.value) is kind
            expected = 2 if kind is SuspectUnavailable and "hour" not in name else 1
            # A busy machine may read a request after the client has given it up.
            patience = time.monotonic() + 20
            while len(server.requests) < expected and time.monotonic() < patience:
                time.sleep(0.05)
            assert len(server.requests) == expected
        assert taken < 7  # a server that drips goes on for eight seconds
        assert "\n" not in str(caught.value)
        assert caught.value.answers is not None
        assert len(caught.value.answers.labels) == 0

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_no_redirect_is_followed(self, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_TOKEN", "s3cr3t-value")
        with serving(lambda r: r.json({"label": 3})) as elsewhere:
            target = elsewhere.url + "/steal?key=1"
            with serving(lambda r: r.json({"label": 3}, status, Location=target)) as server:
                options = HttpOptions(token_env="SOME_TOKEN")
                with pytest.raises(SuspectError, match=f"redirects to {elsewhere.url}/steal"):
                    ask_json(server, options=options)
            assert elsewhere.requests == []

    def test_nobody_there(self) -> None:
        with serving(lambda r: None) as server:
            pass
        with pytest.raises(SuspectUnavailable, match="refused"):
            ask_json(server, options=HttpOptions(retries=0))


class TestManners:
    @pytest.mark.parametrize("how", ["seconds", "date", "none"])
    def test_what_passes_is_tried_again(self, how: str) -> None:
        times: list[float] = []

        def respond(request: Handler) -> None:
            times.append(time.monotonic())
            if len(times) > 1:
                return request.json({"label": 3})
            soon = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
            after = {"seconds": {"Retry_After": "1"}, "date": {"Retry_After": soon}, "none": {}}[how]
            return request.json({}, 429, **after)

        with serving(respond) as server:
            assert ask_json(server) == [3]
        assert times[1] - times[0] > (0.9 if how != "none" else 0)

    @pytest.mark.parametrize("after", ["soon", "9" * 5000, "Fri, 31 Dec 99999 23:59:59 GMT", "-3", ""])
    def test_a_wait_that_cannot_be_read_is_ignored(self, after: str) -> None:
        def respond(request: Handler) -> None:
            request.json({"label": 3}) if len(request.server.requests) > 1 else request.json({}, 503, Retry_After=after)

        with serving(respond) as server:
            assert ask_json(server) == [3]

    def test_waits_grow_up_to_the_longest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[float] = []
        monkeypatch.setattr("tramark.suspects.http.time.sleep", waits.append)
        options = HttpOptions(retries=5, backoff=1, longest_wait=9)
        with serving(lambda r: r.json({}, 503)) as server, pytest.raises(SuspectUnavailable, match="6 times"):
            ask_json(server, options=options)
        assert waits[0] == 0
        assert 2 <= waits[1] <= 3
        assert 4 <= waits[2] <= 5
        assert 8 <= waits[3] <= waits[4] == 9

    @pytest.mark.parametrize(
        "wrong",
        [{"timeout": 0}, {"deadline": -1}, {"deadline": float("inf")}, {"rate": 0}, {"retries": -1}, {"budget": -3}],
    )
    def test_options_that_cannot_work(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(SettingError, match=f"{next(iter(wrong))} is"):
            HttpOptions(**wrong)

    def test_one_in_three_requests_fails(self) -> None:
        def respond(request: Handler) -> None:
            number = len(request.server.requests)
            if number % 3 == 0:
                request.close_connection = True
            else:
                request.json({"label": number})

        with serving(respond) as server:
            suspect = JsonSuspect(server.url, LABEL, conventions=Conventions(), options=QUICK)
            assert suspect.ask(questions(6)).labels.tolist() == [1, 2, 4, 5, 7, 8]
        assert suspect.asked == 8

    def test_answers_before_a_failure_are_kept(self) -> None:
        def respond(request: Handler) -> None:
            number = len(request.server.requests)
            request.json({"label": number} if number < 3 else {}, 200 if number < 3 else 500)

        with serving(respond) as server:
            suspect = JsonSuspect(server.url, LABEL, conventions=Conventions(), options=QUICK)
            with pytest.raises(SuspectUnavailable) as caught:
                suspect.ask(questions(6))
        assert caught.value.answers is not None
        assert caught.value.answers.labels.tolist() == [1, 2]

    def test_the_budget(self) -> None:
        with serving(lambda r: r.json({"label": 3})) as server:
            suspect = JsonSuspect(server.url, LABEL, conventions=Conventions(), options=HttpOptions(budget=3))
            with pytest.raises(BudgetSpent, match="3 queries") as caught:
                suspect.ask(questions(5))
            assert caught.value.answers is not None
            assert caught.value.answers.labels.tolist() == [3, 3, 3]
            with pytest.raises(BudgetSpent):
                suspect.ask(questions(1))
            assert len(server.requests) == 3

    def test_retries_count_against_the_budget(self) -> None:
        with serving(lambda r: r.json({}, 500)) as server:
            with pytest.raises(BudgetSpent):
                ask_json(server, options=HttpOptions(budget=2, backoff=0.01))
            assert len(server.requests) == 2

    def test_the_rate(self) -> None:
        with serving(lambda r: r.json({"label": 3})) as server:
            suspect = JsonSuspect(server.url, LABEL, conventions=Conventions(), options=HttpOptions(rate=10))
            start = time.monotonic()
            suspect.ask(questions(5))
            assert time.monotonic() - start >= 0.4


class TestSecrets:
    OPTIONS = HttpOptions(token_env="SOME_TOKEN", headers={"X-Api-Key": "${OTHER_KEY}"}, retries=0)

    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_TOKEN", "s3cr3t-value")
        monkeypatch.setenv("OTHER_KEY", "an0ther")

    def test_they_are_sent(self) -> None:
        with serving(lambda r: r.json({"label": 3})) as server:
            assert ask_json(server, options=self.OPTIONS) == [3]
        headers = server.requests[0][2]
        assert headers["Authorization"] == "Bearer s3cr3t-value"
        assert headers["X-Api-Key"] == "an0ther"
        assert "tramark" not in str(headers).lower()

    @pytest.mark.parametrize(("status", "sound"), [(200, True), (200, False), (401, True), (500, True)])
    def test_they_are_never_shown(self, status: int, sound: bool) -> None:
        def echo(request: Handler) -> None:
            told = dict(request.headers)
            request.json({"label": told} if sound else told, status) if status == 200 else request.json(told, status)

        with serving(echo) as server:
            suspect = JsonSuspect(server.url + "?key=hush", LABEL, conventions=Conventions(), options=self.OPTIONS)
            with pytest.raises(SuspectError) as caught:
                suspect.ask(questions(1))
        chain: BaseException | None = caught.value
        told = repr(suspect) + repr(suspect.client.headers) + suspect.preview(questions(2))
        while chain is not None:
            told += str(chain) + repr(chain)
            chain = chain.__cause__
        assert not {word for word in ("s3cr3t", "an0ther", "hush") if word in told}
        assert "Authorization: Bearer ${SOME_TOKEN}" in told

    def test_a_secret_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for wrong in ("", "two\r\nlines"):
            monkeypatch.setenv("SOME_TOKEN", wrong)
            with serving(lambda r: r.json({"label": 3})) as server:
                with pytest.raises(SuspectError, match="SOME_TOKEN"):
                    ask_json(server, options=self.OPTIONS)
                assert server.requests == []

    def test_a_key_for_a_v2_server(self) -> None:
        with serving(v2(lambda n: {"shape": [n], "datatype": "INT64", "data": [5] * n})) as server:
            assert ask_v2(server, HttpOptions(headers=from_environment(["X-API-Key=OTHER_KEY"]))) == [5]
        assert [headers["X-API-Key"] for _, _, headers, _ in server.requests] == ["an0ther"] * 2
        for wrong in ("X-API-Key", "X-API-Key=s3cr3t-value", "=A", "X Y=A"):
            with pytest.raises(SettingError, match="NAME=ENVVAR") as caught:
                from_environment([wrong])
            assert "s3cr3t" not in str(caught.value)


class TestPreview:
    def test_nothing_is_sent(self) -> None:
        with serving(v2(lambda n: {})) as server:
            suspect = V2Suspect(server.url, served="m", conventions=PREPARE, batch=3)
            told = suspect.preview(questions(7))
            assert "7 questions in 3 requests" in told
            assert f"GET {server.url}/v2/models/m" in told
            assert f"POST {server.url}/v2/models/m/infer" in told
            assert "bytes)" in told
            assert len(told) < 1000
            assert "Content-Type: multipart/form-data" in JsonSuspect(
                server.url, JsonTemplate(upload="file", label="a"), conventions=Conventions()
            ).preview(questions(2))
            assert server.requests == []


def test_open_suspect_knows_servers() -> None:
    with serving(v2(lambda n: {"shape": [n], "datatype": "INT64", "data": [5] * n})) as server:
        suspect = open_suspect(server.url + "/v2/models/m", conventions=PREPARE, http=QUICK)
        assert suspect.ask(questions(2)).labels.tolist() == [5, 5]
    with serving(lambda r: r.json({"label": 3})) as server:
        assert open_suspect(server.url, conventions=PREPARE, template=LABEL).ask(questions(2)).labels.tolist() == [3, 3]


def test_a_certificate_must_prove_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    with serving(lambda r: r.json({"label": 3}), certificate) as server:
        with pytest.raises(SuspectError, match="cannot prove who it is"):
            ask_json(server)
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert ask_json(server) == [3]
    for respond in (drip, drip_headers):
        with (
            serving(respond, certificate) as server,
            pytest.raises(SuspectUnavailable, match="did not finish"),
        ):
            ask_json(server, options=HttpOptions(timeout=1, deadline=0.5, retries=0))


def self_signed(folder: Path) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]),
    )
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(1)
    )
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "certificate.pem"
    path.write_bytes(private + certificate.public_bytes(pem))
    return path
