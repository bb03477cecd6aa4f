"""What this machine can do at most: the rate of a large matrix product, and how fast memory is read and copied.

python benchmarks/limits.py --json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch


def median_seconds(job: Callable[[], object], repeats: int = 7) -> float:
    job()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        job()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    size, length = 2048, 2**26
    left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    one, other = torch.ones(length), torch.empty(length)
    row = {
        "threads": torch.get_num_threads(),
        "gemm_gflops": round(2 * size**3 / median_seconds(lambda: torch.mm(left, right, out=out)) / 1e9, 1),
        "read_gb_per_s": round(4 * length / median_seconds(one.sum) / 1e9, 1),
        "copy_gb_per_s": round(8 * length / median_seconds(lambda: other.copy_(one)) / 1e9, 1),
    }
    print(json.dumps(row) if options.json else "\n".join(f"{name:15} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
