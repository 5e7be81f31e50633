"""What one step did and cost, and the one glossary of metrics.

GLOSSARY is used for the names in JSON, logs, reports and documentation alike.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

GLOSSARY: dict[str, str] = {
    "step_ratio": "predicted (or measured) step time / (unsharded total time / ranks), so communication counts",
    "bound_ratio": "step time / the proven lower bound over plans of the same kind",
    "attention_ratio": "attention work of the busiest rank / mean over ranks",
    "attention_floor": "least attention ratio of any plan at the degrees allowed: max(1, R h_max^2 / (p_max sum h^2))",
    "vision_ratio": "vision-encoder time of the busiest rank / mean over ranks",
    "token_ratio": "language-model tokens of the fullest rank / mean over ranks",
    "step_ms": "time of one optimizer step, milliseconds",
    "exposed_data_ms": "time the slowest rank waited for data in a step, milliseconds",
    "peak_memory_bytes": "most memory each rank used: on its device in a step, or on a CPU of its process so far",
    "rank_ms": "processor time each rank spent computing in a step, milliseconds",
    "rank_ratio": "`rank_ms` of the busiest rank / mean over ranks: how uneven the work measured was",
    "rank_error": "how far the ranks' predicted shares of a step's time lie from those measured; median over steps",
    "tokens_per_gpu_s": "tokens trained on a second and device",
}


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One row of ``steps.jsonl``; lists have one entry a rank.

    Attributes:
        step: optimizer step, counted from 0.
        loss: loss over the global batch.
        loss_tokens, tokens, samples: global counts, as planned; no loss tokens where none could be loaded.
        step_ms: wall time between the ends of consecutive steps, slowest rank.
        exposed_data_ms: longest wait for data on a rank.
        phases_ms: wall time of each phase ("data", "vision", "exchange", "language", "optimizer"), one entry a rank.
        rank_ms: processor time spent computing, one entry a rank.
        predicted_rank_ms: predicted compute time, one entry a rank.
        step_ratio_before: predicted step ratio of the order the samples came in.
        step_ratio, bound_ratio, vision_ratio, token_ratio: of the plan that ran; see GLOSSARY.
        observed_step_ratio: step ratio balance would have had, where it was only observed.
        planning_ms: time to plan the step.
        moved_bytes: bytes that crossed ranks to run the plan.
        degrees: samples at each sequence-parallel degree; its keys are the degrees.
        all_to_all_bytes: bytes the ranks of shared samples sent each other, by the plan.
        decoded: visuals decoded, one entry a rank.
        rank_work: sums over each rank's sequences that costs are fitted to; see ``cost.rank_work.RankWork``.
        vision_work: the same of the frames each rank encoded: patches of a frame in place of tokens, frames of samples.
        compute_ms: time computing in each compute phase ("vision", "language", "optimizer"), one entry a rank; adds up
            to ``rank_ms``.
        compute_includes_waiting: these times count waiting for other ranks (several CPU threads, or a CUDA device).
        peak_memory_bytes: see GLOSSARY, one entry a rank.
        learning_rate, grad_norm: of the optimizer step; ``grad_norm`` is None where it was skipped: not finite, or no
            token in the loss.
        bad_samples: ids of samples replaced in this step.
    """

    step: int
    loss: float
    loss_tokens: int
    tokens: int
    samples: int
    step_ms: float
    exposed_data_ms: float
    phases_ms: dict[str, list[float]]
    rank_ms: list[float]
    predicted_rank_ms: list[float]
    step_ratio_before: float
    step_ratio: float
    bound_ratio: float
    vision_ratio: float
    token_ratio: float
    observed_step_ratio: float | None
    planning_ms: float
    moved_bytes: int
    decoded: list[int]
    learning_rate: float
    grad_norm: float | None
    bad_samples: list[str] = field(default_factory=list)
    rank_work: dict[str, list[int]] = field(default_factory=dict)
    vision_work: dict[str, list[int]] = field(default_factory=dict)
    compute_ms: dict[str, list[float]] = field(default_factory=dict)
    compute_includes_waiting: bool = False
    peak_memory_bytes: list[int] = field(default_factory=list)
    degrees: dict[str, int] = field(default_factory=dict)
    all_to_all_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self)
