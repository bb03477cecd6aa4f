"""One full server round for a hundred clients of a ViT-B/16 with a thousand classes: aggregate, inject, issue.

Copies of that model for everybody would take 34 GB. The round runs in a process of its own, so that its peak memory can
be read; clients return what they were sent, moved a little.

    python benchmarks/vit.py --json
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    words = [
        "--model",
        "vit-b16",
        "--rounds",
        "1",
        "--clients",
        str(options.clients),
        "--classes",
        str(options.classes),
    ]
    command = [sys.executable, str(Path(__file__).with_name("scale.py")), "--json", *words]
    [row] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    row |= {"copies_mib": round(4 * row["weights"] * row["clients"] / 2**20), "allowed_mib": 4096}
    print(json.dumps(row) if options.json else "\n".join(f"{name:20} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
