"""What a simulated step took."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.simulate.device_memory import Overflow

PHASES = ("data", "rollout", "inference", "update")


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """What one step took.

    Attributes:
        phases: seconds of each of ``PHASES``; they follow each other and add up to the step.
        tokens: language-model tokens of the batch, replies included.
        attention_ratio: of the update's plan; see the glossary.
        overflows: memory that did not suffice; times are as if it had.
        planning_seconds: what the planner took on this machine, not part of the phases.
        shared_by: most ranks that share a sample in the update.
    """

    phases: dict[str, float]
    tokens: int
    attention_ratio: float
    overflows: list[Overflow]
    planning_seconds: float
    shared_by: int = 1

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return sum(self.phases.values())


def seconds_of(milliseconds: float) -> str:
    """Seconds as they are printed: three digits, or all before the point."""
    seconds = milliseconds / 1e3
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"
