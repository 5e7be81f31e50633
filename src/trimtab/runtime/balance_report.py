"""What balance did: a record a step, a line to print, scalars to log, and a summary at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Logger = Callable[[str, float], None]
"""Takes a name such as "balance/step_ratio" and a value."""


@dataclass(frozen=True, kw_only=True)
class BalanceRecord:
    """One step of a balancer, or one call of a balanced encoder.

    Attributes:
        what: "batch" or "encoder".
        step: counted from 0.
        mode: "observe" or "on".
        applied, considered: micro-batches (calls) whose samples moved, and all.
        reason: why some did not.
        samples, moved_samples: samples or visuals, and how many changed rank.
        moved_bytes: bytes that crossed ranks.
        step_ratio_before, step_ratio, best_ratio: predicted slowest rank / mean rank: as it came, as it runs, as the
            best plan found would.
        bound_ratio: predicted time / the bound.
        gain: share of the predicted time that is saved, or would be where it is only observed.
        planning_ms, exchange_ms, total_ms: of this rank; the total includes taking batches apart and together.
    """

    what: str
    step: int
    mode: str
    applied: int
    considered: int
    reason: str
    samples: int
    moved_samples: int
    moved_bytes: int
    step_ratio_before: float
    step_ratio: float
    best_ratio: float
    bound_ratio: float
    gain: float
    planning_ms: float
    exchange_ms: float
    total_ms: float

    def line(self) -> str:
        """One line to print."""
        did = f"applied {self.applied} of {self.considered}"
        did += f" ({self.reason})" if self.reason else ""
        return (
            f"balance {self.what} step {self.step}: {did}; step ratio {self.step_ratio_before:.3f} -> "
            f"{self.step_ratio:.3f}, {self.bound_ratio:.3f} times the bound, gain {self.gain:.1%}; "
            f"moved {self.moved_samples} of {self.samples}, "
            f"{self.moved_bytes / 1e6:.2f} MB; {self.total_ms:.1f} ms in all, {self.planning_ms:.1f} planning, "
            f"{self.exchange_ms:.1f} exchanging"
        )

    def scalars(self) -> dict[str, float]:
        """Names and values for a logger."""
        prefix = "balance" if self.what == "batch" else f"balance/{self.what}"
        names = [*("applied", "moved_samples", "moved_bytes", "step_ratio_before", "step_ratio", "bound_ratio", "gain")]
        names += ["planning_ms", "exchange_ms", "total_ms"]
        return {f"{prefix}/{name}": float(getattr(self, name)) for name in names}


@dataclass(kw_only=True)
class BalanceTotals:
    """Running totals of records."""

    what: str
    steps: int = 0
    applied: int = 0
    considered: int = 0
    moved_bytes: int = 0
    total_ms: float = 0.0
    before: float = 0.0
    after: float = 0.0
    best: float = 0.0

    def add(self, record: BalanceRecord) -> None:
        """Count a record in."""
        self.steps += 1
        self.applied += record.applied
        self.considered += record.considered
        self.moved_bytes += record.moved_bytes
        self.total_ms += record.total_ms
        self.before += record.step_ratio_before
        self.after += record.step_ratio
        self.best += record.best_ratio

    def line(self, mode: str) -> str:
        """The summary in one line."""
        if not self.steps:
            return f"balance {self.what}: no step"
        before, after, best = (value / self.steps for value in (self.before, self.after, self.best))
        if not before:
            found = "found nothing to balance"
        elif mode == "observe":
            found = f"would bring the mean step ratio from {before:.3f} to {best:.3f}"
            found += f", {1 - best / before:.1%} less predicted time"
        else:
            found = f"brought the mean step ratio from {before:.3f} to {after:.3f}"
        return (
            f"balance {self.what}, {self.steps} steps: {found}; applied {self.applied} of {self.considered}, "
            f"{self.moved_bytes / 1e6:.1f} MB moved, {self.total_ms / self.steps:.1f} ms a step"
        )


class ScalarWriter(Protocol):
    """What TensorBoard's ``SummaryWriter`` offers."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write a value."""
        ...


class TensorBoardLogger:
    """A logger that writes to a TensorBoard ``SummaryWriter`` (or anything with ``add_scalar``).

    A name seen again begins the next step.
    """

    def __init__(self, writer: ScalarWriter, *, first_step: int = 0) -> None:
        self._writer = writer
        self._next: dict[str, int] = {}
        self._first = first_step

    def __call__(self, name: str, value: float) -> None:
        """Write a value at the name's next step."""
        step = self._next.get(name, self._first)
        self._next[name] = step + 1
        self._writer.add_scalar(name, value, step)


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def emit(record: BalanceRecord, *, first: bool, verbose: bool, logger: Logger | None) -> None:
    """Print and log a record, on the first rank."""
    if not first:
        return
    if verbose:
        say(record.line())
    if logger is not None:
        for name, value in record.scalars().items():
            logger(name, value)
