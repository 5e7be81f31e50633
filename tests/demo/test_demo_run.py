"""``trimtab demo`` from nothing, shortened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_demo_ends_with_a_comparison(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "trimtab",
        "demo",
        "--runs",
        str(tmp_path),
        "--steps",
        "5",
        "--baseline-steps",
        "4",
    ]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=115, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert summary["steps"] == 2
    for run in ("balanced", "baseline"):
        assert {"step_ms", "exposed_data_ms", "step_ratio", "bound_ratio", "phases"} <= set(summary[run])
    assert set(summary["accuracy"]) == {"samples", "with_pixels", "blanked", "commonest_answer", "by_kind"}
    assert (tmp_path / "demo" / "rank_time.html").exists()
    assert (tmp_path / "demo" / "balanced" / "model" / "model.safetensors").exists()
