"""``trimtab demo`` from nothing, shortened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def demo(runs: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "trimtab", "demo", "--runs", str(runs), "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_both_parts_end_with_a_comparison_in_one_summary(tmp_path: Path) -> None:
    summary = demo(tmp_path, "--steps", "5", "--baseline-steps", "4", "--grpo-steps", "2")
    assert summary == json.loads((tmp_path / "demo" / "summary.json").read_text())
    supervised = summary["supervised"]
    assert supervised["steps"] == 2
    for figures in (summary, supervised):
        for run in ("balanced", "baseline"):
            assert {"step_ms", "exposed_data_ms", "step_ratio", "bound_ratio", "phases"} <= set(figures[run])
    assert set(supervised["accuracy"]) == {"samples", "with_pixels", "blanked", "commonest_answer", "by_kind"}
    assert set(summary["reward"]) == {"first10", "last10"}
    assert {"data", "rollout", "inference", "update"} <= set(summary["balanced"]["phases"])
    assert summary["float32_replies"]["replies"] > 0
    assert (tmp_path / "demo" / "report.html").exists()
    assert (tmp_path / "demo" / "balanced" / "model" / "model.safetensors").exists()
