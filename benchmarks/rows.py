"""What the benchmarks share: a parser with `--json`, and how rows of figures are printed."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any


def parser(about: str | None) -> argparse.ArgumentParser:
    """A parser that shows a module's docstring as it stands."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return made


def show(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print rows as a JSON list, or a line each."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
