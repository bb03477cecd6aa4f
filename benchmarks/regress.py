"""Run the benchmarks at a small size, and say what has become worse than the ratios in `ratios.json`.

Ratios are kept, not seconds: they are measured side by side, so they carry over to other machines. Each may be worse by
a part that may be noise (`SLACK`). The exit code is 1 if any is worse. A ratio that was never kept is only shown.

    python benchmarks/regress.py                 # compare
    python benchmarks/regress.py --only round    # some of them
    python benchmarks/regress.py --keep          # keep today's ratios from now on
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = HERE / "ratios.json"

SLACK = 0.25
"""By what part a ratio of times may be worse before it counts. A guess: it was not measured what noise alone does."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Ratio:
    """What a program's rows say; with `low`, less is better."""

    of: Callable[[Rows], float]
    low: bool = False
    slack: float = SLACK

    def worse(self, now: float, kept: float) -> bool:
        """Whether it has become worse by more than its slack."""
        return now > kept * (1 + self.slack) if self.low else now < kept * (1 - self.slack)


@dataclass(frozen=True)
class Program:
    """A benchmark's words for a small size, and the ratios in what it prints."""

    words: str
    ratios: Mapping[str, Ratio]


def _first(name: str) -> Callable[[Rows], float]:
    return lambda rows: float(rows[0][name])


def _growth(name: str) -> Callable[[Rows], float]:
    """The last row's figure beside the first's."""
    return lambda rows: float(rows[-1][name]) / float(rows[0][name])


PROGRAMS = {
    "round": Program(
        "round.py --models cnn --presets default --repeats 3 --warmup 2 --samples 100",
        {
            "a round, times faster than the naive loop": Ratio(_first("speedup")),
            "right answers of the models issued": Ratio(_first("confidence_ours"), slack=0.01),
        },
    ),
    "trace": Program(
        "trace.py --rounds 5 --warmup 3 --samples 100",
        {
            "a trace, times fewer queries than the paper's": Ratio(_first("fewer_queries"), slack=0.05),
            "a trace, times faster than the paper's": Ratio(_first("speedup")),
            "models traced to their clients": Ratio(_first("right"), slack=0.0),
        },
    ),
    "trace_file": Program(
        "trace_file.py --turns 3", {"asking a file, beside asking in this process": Ratio(_first("ratio"), low=True)}
    ),
    "flower": Program(
        "flower.py --repeats 2 --rounds 2", {"a Flower round, beside FedAvg's": Ratio(_first("ratio"), low=True)}
    ),
    "simulate": Program(
        "simulate.py --models cnn --repeats 2 --samples 200",
        {"training in the simulator, times faster than a loader": Ratio(_first("speedup"))},
    ),
    "scale": Program(
        "scale.py --registered 100 2000 --sampled 50 --rounds 2",
        {
            "a round with 2 000 registered, beside 100": Ratio(_growth("cpu_seconds"), low=True),
            "memory with 2 000 registered, beside 100": Ratio(_growth("peak_mib"), low=True, slack=0.1),
        },
    ),
}


def run(program: Program) -> dict[str, float]:
    """The ratios that a program finds today."""
    words = [sys.executable, str(HERE / program.words.split()[0]), *program.words.split()[1:], "--json"]
    printed = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, cwd=HERE).stdout)
    rows = [printed] if isinstance(printed, dict) else printed
    return {name: round(ratio.of(rows), 3) for name, ratio in program.ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="programs to run")
    parser.add_argument("--keep", action="store_true", help="write today's ratios to ratios.json")
    options = parser.parse_args()
    kept: dict[str, float] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    worse, begun = [], time.perf_counter()
    for name in options.only:
        for what, now in run(PROGRAMS[name]).items():
            before, ratio = kept.get(what), PROGRAMS[name].ratios[what]
            bad = before is not None and ratio.worse(now, before)
            worse += [what] * bad
            told = "new" if before is None else f"{'worse' if bad else 'ok'}, kept: {before:g}"
            print(f"{what}: {now:g} ({told})", flush=True)
            kept[what] = now
    if options.keep:
        KEPT.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
    print(f"{time.perf_counter() - begun:.0f} s")
    if worse and not options.keep:
        sys.exit(f"{len(worse)} worse than before: {'; '.join(worse)}")


if __name__ == "__main__":
    main()
