"""Runs on disk for the report's tests: two variants, and one of reinforcement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PHASES = ("data", "vision", "exchange", "language", "optimizer")


def row(step: int, rank_ms: tuple[float, ...] = (20.0, 20.0), /, **changes: Any) -> dict[str, Any]:
    """One line of ``steps.jsonl``."""
    ranks = len(rank_ms)
    slowest = max(rank_ms)
    plain = {
        "step": step, "loss": 2.0 / (step + 1), "loss_tokens": 4, "tokens": 100, "samples": 2,
        "step_ms": slowest + 10.0, "exposed_data_ms": 1.5,
        "phases_ms": {phase: [slowest / 4] * ranks for phase in PHASES},
        "rank_ms": list(rank_ms), "predicted_rank_ms": [0.9 * one for one in rank_ms],
        "step_ratio_before": 1.5, "step_ratio": 1.2, "bound_ratio": 1.1, "vision_ratio": 1.2, "token_ratio": 1.3,
        "observed_step_ratio": None, "planning_ms": 0.4, "moved_bytes": 10, "decoded": [1] * ranks,
        "learning_rate": 0.1, "grad_norm": 1.0, "bad_samples": [],
        "compute_ms": {phase: [one / 5 for one in rank_ms] for phase in ("vision", "language", "optimizer")},
        "peak_memory_bytes": [2**30 + 2**20 * rank for rank in range(ranks)],
    }  # fmt: skip
    return {**plain, **changes}


def write_run(folder: Path, rows: list[dict[str, Any]], settings: str = "name: mine\nseed: 0\n") -> Path:
    """Write a run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "steps.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (folder / "config.yaml").write_text(settings)
    return folder


def write_pair(folder: Path, steps: int = 8) -> Path:
    """A baseline, uneven, and a balanced run with more steps."""
    write_run(
        folder / "baseline",
        [row(step, (10.0, 30.0)) for step in range(steps)],
        "name: mine\nbalance:\n  mode: 'off'\nseed: 0\n",
    )
    write_run(
        folder / "balanced",
        [row(step) for step in range(steps + 4)],
        "name: mine\nbalance:\n  mode: 'on'\nseed: 0\n",
    )
    return folder


def write_grpo(folder: Path, steps: int = 6) -> Path:
    """A run of reinforcement."""
    phases = ("data", "rollout", "reward", "inference", "update")
    rows = [
        row(
            step,
            phases_ms={phase: [5.0, 6.0] for phase in phases},
            phase_rank_ms={phase: [4.0, 6.0] for phase in phases},
            compute_ms={},
            reward_mean=0.1 * step,
            reward_std=0.2,
            replies=8,
            kl=0.001,
            clip_fraction=0.0,
            logprob_difference_max=1e-6,
            equal_groups=1,
            cut_replies=0,
            empty_replies=0,
        )
        for step in range(steps)
    ]
    return write_run(folder, rows)
