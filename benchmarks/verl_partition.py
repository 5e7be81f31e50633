"""Runs in verl's own environment: its partition functions on costs given as JSON lines, timed.

Reads {"costs", "ranks", "equal_size", "repeat"} a line; writes {"parts", "milliseconds"} a line.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    from verl.utils.seqlen_balancing import karmarkar_karp  # type: ignore[import-not-found]

    for line in sys.stdin:
        asked = json.loads(line)
        milliseconds = []
        for _ in range(asked["repeat"]):
            started = time.process_time()
            parts = karmarkar_karp(
                seqlen_list=asked["costs"], k_partitions=asked["ranks"], equal_size=asked["equal_size"]
            )
            milliseconds.append((time.process_time() - started) * 1e3)
        print(json.dumps({"parts": [list(map(int, part)) for part in parts], "milliseconds": milliseconds}), flush=True)


if __name__ == "__main__":
    main()
