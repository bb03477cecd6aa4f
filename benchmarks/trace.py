"""What it takes to trace a suspect, against the paper's verification.

That asks a suspect all test triggers of every client (a thousand each) and takes the arg-max of the accuracies. Ours
stops as soon as somebody's answers have matched often enough. A short real federation makes the suspects: each client's
own model, after its own last training. Both ways trace each of them, taking turns, in batches of their choice.

    python benchmarks/trace.py --json
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tramark import Keyring, trace
from tramark.lab.simulation.run import Settings, prepare, run
from tramark.suspects.weights import load_into, read_weights
from tramark.vault.store import Vault

TEST_TRIGGERS = 1000


def measure(rounds: int, warmup: int, samples: int) -> dict[str, Any]:
    settings = Settings(data="fashion-mnist", rounds=rounds, warmup=warmup, samples_per_client=samples, local_epochs=2)
    with tempfile.TemporaryDirectory() as folder:
        run(settings, Path(folder) / "run")
        with Vault.open(Path(folder) / "run" / "vault", key_file=Path(folder) / "run" / "vault.key") as vault:
            keyring = vault.keyring
        # The paper's way: label answers, a thousand held-out triggers a client.
        labels = Keyring.generate(
            clients=keyring.clients,
            classes=10,
            source=keyring.source,
            assignment="label",
            held_out_variants=TEST_TRIGGERS,
            secret=b"benchmark" * 4,
        )
        model = prepare(settings).method.model
        rows = []
        for client in keyring.clients:
            leaked = Path(folder) / "run" / "trained" / f"{client}.safetensors"
            load_into(model, read_weights(leaked), leaked)
            began = time.perf_counter()
            verdict = trace(model, keyring)
            ours = time.perf_counter() - began
            began = time.perf_counter()
            paper = trace(model, labels, rule="paper", batch=1000)
            naive = time.perf_counter() - began
            rows.append((verdict.clients == (client,), verdict.queries, ours, paper.queries, naive))
    right, queries, seconds, all_queries, all_seconds = zip(*rows, strict=True)
    return {
        "suspects": len(rows),
        "right": sum(right),
        "queries_ours": statistics.median(queries),
        "queries_paper": statistics.median(all_queries),
        "seconds_ours": round(statistics.median(seconds), 4),
        "seconds_paper": round(statistics.median(all_seconds), 3),
        "fewer_queries": round(statistics.median(all_queries) / statistics.median(queries), 1),
        "speedup": round(statistics.median(all_seconds) / statistics.median(seconds), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=6)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    row = measure(options.rounds, options.warmup, options.samples)
    print(json.dumps(row) if options.json else "\n".join(f"{name:15} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
