"""What the person watching a GRPO run sees: a live line and a row a step."""

from __future__ import annotations

from trimtab.schema.reports import StepReport
from trimtab.training.grpo.report import GRPOReport
from trimtab.training.progress import RunProgress, skipped_because

_HEADER = (
    "  step   reward  equal   tokens  cut  |dlogp|   step ms     data  rollout   reward  infer  update"
    "   ratio rollout, update"
)


class GRPOProgress(RunProgress):
    """Prints on standard error; silent on every rank but the first."""

    def step(self, report: StepReport) -> None:
        """One row for a step, with a header every twenty."""
        assert isinstance(report, GRPOReport)
        if self._rows % 20 == 0:
            self.say(f"{self._title}\n{_HEADER}")
        self._rows += 1
        self.say(step_row(report))
        self._done = report.step + 1
        if self._live:
            live, task = self._live
            live.update(task, completed=self._done, state=f"reward {report.reward_mean:.3f}")


def step_row(report: GRPOReport) -> str:
    """One fixed-width line: mean reward, groups of equal rewards, mean reply tokens; slowest rank's times in ms."""
    phases = {name: max(times) for name, times in report.phases_ms.items()}
    difference = report.logprob_difference_max
    why = skipped_because(report)
    skipped = f"  {why}" if why else ""
    bad = f"  bad: {', '.join(report.bad_samples)}" if report.bad_samples else ""
    return (
        f"{report.step:6d} {report.reward_mean:8.3f} {report.equal_groups:6d}"
        f" {report.loss_tokens / max(1, report.replies):8.1f} {report.cut_replies:4d}"
        f" {'-' if difference is None else f'{difference:.0e}':>8}"
        f" {report.step_ms:9.0f} {phases['data']:8.0f} {phases['rollout']:8.0f} {phases['reward']:8.0f}"
        f" {phases['inference']:6.0f} {phases['update']:7.0f}"
        f" {report.rollout_ratio:15.3f}, {report.step_ratio:.3f}{skipped}{bad}"
    )
