"""The whole demo: supervised training, then reinforcement, each balanced against a baseline; one summary of both."""

from __future__ import annotations

import json
from typing import Any

from trimtab.demo.run import NAME, DemoOptions, run_demo
from trimtab.demo.run_grpo import GRPODemoOptions, run_grpo_demo
from trimtab.report.run_comparison import SUMMARY


def run_whole_demo(supervised: DemoOptions, grpo: GRPODemoOptions, *, quiet: bool = False) -> dict[str, Any]:
    """Run both parts; ``<runs>/demo/summary.json`` has GRPO's figures at the top, the others under "supervised".

    Returns:
        What ``summary.json`` holds.

    Raises:
        TrimtabError: a step failed.
        KeyboardInterrupt: a signal stopped it.
    """
    first = run_demo(supervised, quiet=quiet)
    summary = {**run_grpo_demo(grpo, quiet=quiet), "supervised": first}
    (supervised.runs / NAME / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    return summary
