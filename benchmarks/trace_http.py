"""How many queries it takes to trace every client's model behind a real server that answers with labels alone.

Every model of a finished run is exported to ONNX, served by KServe in a process of its own (`examples/serve/serve.py`)
and traced over HTTP, all by the same commands that a user has.

    tramark run --data fashion-mnist --rounds 8 --warmup 5 --samples-per-client 200 --local-epochs 1 --out runs/small
    python benchmarks/trace_http.py runs/small --trained
    python benchmarks/trace_http.py runs/small --trained --randomise 0.2 --fail 0.1 --json
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from typer.testing import CliRunner

from tramark.cli import app

SERVER = Path(__file__).parents[1] / "examples" / "serve" / "serve.py"


@dataclass(frozen=True)
class Traced:
    """What a trace of one client's model came to."""

    client: str
    named: tuple[str, ...]
    verdict: str
    queries: int
    exit_code: int

    @property
    def right(self) -> bool:
        return self.named == (self.client,)


def export_all(run: Path, folder: Path, *, trained: bool = False) -> dict[str, Path]:
    """Every client's model as an ONNX file, as it was issued or as the client last trained it."""
    kind = "trained" if trained else "models"
    files = {path.stem: folder / f"{path.stem}.onnx" for path in sorted((run / kind).glob("*.safetensors"))}
    if not files:
        raise FileNotFoundError(f"there are no clients' models in {run / kind}")
    for client, file in files.items():
        export(run, client, file, trained=trained)
    return files


def export(run: Path, client: str, file: Path, *, trained: bool = False) -> None:
    """One client's model as an ONNX file."""
    how = ["--client", client, "--format", "onnx", *(["--trained"] if trained else [])]
    tramark("export", str(run), str(file), *how)


@contextmanager
def serving(files: Sequence[Path], *options: str) -> Iterator[list[str]]:
    """A server of ONNX files that answers with labels alone; gives the addresses of its models."""
    words = [sys.executable, str(SERVER), *map(str, files), "--labels-only", "--port", "0", *options]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            addresses = [process.stdout.readline().strip() for _ in files]
            if not all(addresses):
                process.wait()
                log.seek(0)
                raise RuntimeError(f"the server does not start:\n{log.read()[-4000:]}")
            yield addresses
        finally:
            process.terminate()


def trace_all(run: Path, files: Mapping[str, Path], *options: str) -> list[Traced]:
    """Serve the files and trace each; `options` are the server's."""
    with serving(list(files.values()), *options) as addresses:
        return [trace(run, client, address) for client, address in zip(files, addresses, strict=True)]


def trace(run: Path, client: str, address: str) -> Traced:
    """Trace what is served at an address."""
    code, said = tramark("trace", str(run), address, "--json")
    found = json.loads(said)
    return Traced(client, tuple(found["clients"]), found["finding"], found["queries"], code)


def tramark(*words: str) -> tuple[int, str]:
    """A tramark command in this process: its exit code, and what it printed."""
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code not in (0, 3, 4):
        raise RuntimeError(result.output)
    return result.exit_code, result.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--trained", action="store_true", help="models as the clients last trained them, not as issued")
    parser.add_argument("--randomise", default="0", metavar="SHARE", help="of the server's answers: a random label")
    parser.add_argument("--fail", default="0", metavar="SHARE", help="of the requests: HTTP 503")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = export_all(options.run, Path(folder), trained=options.trained)
        rows = trace_all(options.run, files, "--randomise", options.randomise, "--fail", options.fail)
    queries = [row.queries for row in rows]
    right, median, most = sum(row.right for row in rows), statistics.median(queries), max(queries)
    if options.json:
        summary = {"right": right, "median": median, "max": most, "traces": [asdict(row) for row in rows]}
        print(json.dumps(summary, indent=2))
        return
    width = max(len("client"), *(len(row.client) for row in rows)) + 2
    print(f"{'client':{width}}{'named':{width}}queries")
    for row in rows:
        print(f"{row.client:{width}}{', '.join(row.named) or row.verdict:{width}}{row.queries:7}")
    print(f"{right} of {len(rows)} named rightly; queries: median {median:g}, most {most}")


if __name__ == "__main__":
    main()
