"""Settings of supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from trimtab.errors import SettingsError
from trimtab.loader.pack_settings import PackingSettings
from trimtab.loader.settings import LoaderSettings
from trimtab.planning.settings import PlanSettings
from trimtab.schema.plans import Sync
from trimtab.schema.setting_checks import check_least


@dataclass(frozen=True, kw_only=True)
class BalanceSettings:
    """Whether and how ranks are balanced.

    Attributes:
        mode: "on"; "off" runs samples where they come; "observe" does the same and reports what balance would gain.
        sync: where ranks meet: "layer" (FSDP2), "micro_batch" (pipelines) or "step" (DDP).
        costs: "measured" times packs of the dataset's sizes before the first step and keeps what it found in the
            checkpoint; "analytic" counts the architecture's FLOPs.
        refit_every: steps after which a supervised run fits measured costs again to its own steps; 0 keeps what was
            measured before the first step. New coefficients plan only where they foretell the newest steps better.
        max_degree: most ranks that share one sample (sequence parallelism); 1 keeps samples whole. It says nothing
            where ``mode`` is off: samples then stay whole.
        check_order: play every rank's collectives of a plan through before it runs; for debugging.
    """

    SHORT_FORM: ClassVar[str] = "mode"  # balance=off means balance.mode=off

    mode: Literal["off", "observe", "on"] = "on"
    sync: Sync = "layer"
    costs: Literal["measured", "analytic"] = "measured"
    refit_every: int = 20
    max_degree: int = 1
    check_order: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a number is out of range, or ranks meet too seldom to share samples.
        """
        check_least("balance.refit_every", self.refit_every, 0)
        check_least("balance.max_degree", self.max_degree, 1)
        if self.max_degree > 1 and self.sync == "step":
            raise SettingsError(
                f"balance.max_degree={self.max_degree} needs balance.sync=layer or micro_batch: ranks that share a "
                "sample meet in each"
            )

    @property
    def variant(self) -> str:
        """Name of the folder under ``runs/<name>/``."""
        return {"on": "balanced", "off": "baseline", "observe": "observed"}[self.mode]

    def plan_settings(self, max_tokens_per_micro_batch: int | None) -> tuple[PlanSettings, PlanSettings | None]:
        """Settings of the plan that runs, and of a plan that is only reported."""
        balanced = PlanSettings(
            strategy="whole-sample" if self.max_degree == 1 else "adaptive",
            sync=self.sync,
            max_tokens_per_micro_batch=max_tokens_per_micro_batch,
            max_degree=self.max_degree,
            check_order=self.check_order,
        )
        as_is = PlanSettings(
            strategy="as-is", sync=self.sync, max_tokens_per_micro_batch=max_tokens_per_micro_batch, max_degree=1
        )
        if self.mode == "on":
            return balanced, None
        return as_is, balanced if self.mode == "observe" else None


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW with linear warm-up and cosine decay.

    Attributes:
        learning_rate: peak.
        warmup_steps: steps from 0 to the peak.
        final_share: share of the peak left at the last step.
        weight_decay: on weight matrices; norms and biases have none.
        beta1, beta2: AdamW's.
        max_grad_norm: gradients are scaled down to this norm.
        max_skipped_steps: most steps in a row with a non-finite gradient, or without one sample that could be loaded;
            one more ends the run.
    """

    learning_rate: float = 1e-5
    warmup_steps: int = 10
    final_share: float = 0.1
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    max_grad_norm: float = 1.0
    max_skipped_steps: int = 10

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a number is out of range.
        """
        for name in ("learning_rate", "warmup_steps", "weight_decay", "max_skipped_steps"):
            check_least(f"optimizer.{name}", getattr(self, name), 0)
        for name in ("final_share", "beta1", "beta2"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"optimizer.{name}={getattr(self, name)} must lie in [0, 1]")
        if not self.max_grad_norm > 0:
            raise SettingsError(f"optimizer.max_grad_norm={self.max_grad_norm} must be positive")


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Low-rank adapters on the language model's projections; rank 0 trains all weights instead.

    Attributes:
        rank: of the adapters; 0 switches them off.
        alpha: scale is alpha / rank.
        targets: names of the linear layers adapted.
    """

    rank: int = 0
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: the rank is negative, or no layer is named.
        """
        check_least("lora.rank", self.rank, 0)
        if self.rank and not self.targets:
            raise SettingsError("lora.targets=[] adapts nothing; name layers, or set lora.rank=0")


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """Held-out accuracy after training: an answer counts when every token of it is the likeliest (greedy decoding).

    Attributes:
        data: dataset files of the held-out samples; none evaluates nothing.
        table: their metadata table.
        root: folder their relative media paths start from, as ``root`` is for the training data.
        samples_per_step: samples evaluated at a time.
    """

    data: tuple[str | Path, ...] = ()
    table: Path | None = None
    root: str | Path | None = None
    samples_per_step: int = 32

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: only one of data and table is given.
        """
        check_least("evaluation.samples_per_step", self.samples_per_step, 1)
        if bool(self.data) != (self.table is not None):
            raise SettingsError("evaluation.data and evaluation.table go together; give both or neither")
        if self.root is not None and not self.data:
            raise SettingsError(
                f"evaluation.root={self.root} goes with evaluation.data and evaluation.table; give those"
            )


@dataclass(frozen=True, kw_only=True)
class SFTSettings:
    """One supervised run.

    Attributes:
        model: folder of a Transformers vision-language model with its tokenizer.
        data: dataset files or URLs, in the order they were scanned.
        table: metadata table written by ``trimtab scan``.
        root: folder relative media paths of ``data`` start from; by default what the scan was given, else each dataset
            file's own.
        train_on: which assistant turns enter the loss; as in the scan.
        name: results go to ``<runs>/<name>/<balanced|baseline|observed>/``.
        runs: folder of all runs.
        steps: optimizer steps.
        stop_after: end after this many of them, for a stretch of a longer run; nothing is exported or evaluated then.
        samples_per_step: samples of one optimizer step, over all ranks; under packing, as near as whole packs come.
        max_tokens_per_micro_batch: language-model tokens one rank runs at once; None runs a step in one micro-batch.
            Under packing a pack is a micro-batch, and ``packing.tokens`` caps it.
        dtype: "float32"; "bfloat16" computes in it and keeps weights in float32; "float64" for checks.
        recompute: recompute every block in the backward pass to save memory.
        freeze_vision: leave the vision tower as it is.
        seed: of sampling and initialisation.
        checkpoint_every: steps between checkpoints; 0 writes one only at the end or when stopped.
        resume: go on from the run's last checkpoint.
        ranks: processes ``trimtab train`` starts when torchrun did not; None: one a GPU, else 2.
        timeout_s: longest wait for another rank.
        optimizer, balance, packing, loader, lora, evaluation: see there.
    """

    model: Path
    data: tuple[str | Path, ...]
    table: Path
    root: str | Path | None = None
    train_on: Literal["assistant", "last_assistant"] = "assistant"
    name: str = "sft"
    runs: Path = Path("runs")
    steps: int = 100
    stop_after: int | None = None
    samples_per_step: int = 16
    max_tokens_per_micro_batch: int | None = None
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    recompute: bool = False
    freeze_vision: bool = False
    seed: int = 0
    checkpoint_every: int = 0
    resume: bool = False
    ranks: int | None = None
    timeout_s: float = 600.0
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    packing: PackingSettings = field(default_factory=PackingSettings)
    loader: LoaderSettings = field(default_factory=LoaderSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    evaluation: EvalSettings = field(default_factory=EvalSettings)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a number is out of range.
        """
        for name, least in (("steps", 1), ("samples_per_step", 1), ("checkpoint_every", 0), ("seed", 0)):
            check_least(name, getattr(self, name), least)
        if not self.data:
            raise SettingsError("data=[] names no dataset file; name those the table was scanned from")
        if not self.timeout_s > 0:
            raise SettingsError(f"timeout_s={self.timeout_s} must be positive")
        if self.name in ("", ".", "..") or Path(self.name).name != self.name:
            raise SettingsError(f"name={self.name!r} must be one folder's name under runs={self.runs}")
        if self.max_tokens_per_micro_batch is not None and self.max_tokens_per_micro_batch < 1:
            raise SettingsError(
                f"max_tokens_per_micro_batch={self.max_tokens_per_micro_batch} must be at least 1, or null for no limit"
            )
        if self.packing.method != "off" and self.max_tokens_per_micro_batch is not None:
            raise SettingsError(
                f"max_tokens_per_micro_batch={self.max_tokens_per_micro_batch} does not apply to packs; "
                "set packing.tokens instead"
            )
        if self.packing.method != "off" and self.balance.max_degree > 1:
            raise SettingsError(
                f"balance.max_degree={self.balance.max_degree} does not apply to packs, which run whole; set "
                "packing.method=off"
            )
        for name in ("ranks", "stop_after"):
            if getattr(self, name) is not None:
                check_least(name, getattr(self, name), 1)

    @property
    def last_step(self) -> int:
        """Steps before this one are trained."""
        return min(self.steps, self.stop_after or self.steps)

    @property
    def folder(self) -> Path:
        """Where this run's files go."""
        return self.runs / self.name / self.balance.variant
