"""What is simulated: a job on a described cluster, and what is assumed where nothing is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trimtab.errors import SettingsError
from trimtab.schema.plans import Sync
from trimtab.schema.setting_checks import check_least
from trimtab.simulate.strategies import PIPELINE_STRATEGIES, strategy_named

Task = Literal["sft", "grpo"]
_LARGEST = 1e18
_MOST_TOKENS = 2**20  # of a reply
_MOST_RANKS = 65_536
_MOST_PREFETCH = 256  # each batch ahead is a step that warms up
_MOST_OF_PIPELINES = {"stages": 1024, "pack_tokens": 10**8, "pack_tiles": 10**6}
_MOST_A_STEP = 2**18
_MOST_IN_ALL = 2**22
"""Sequences and ranks, of a step and of all steps, that are simulated within minutes."""
SHORT_SAMPLE = 1024
"""Tokens of the samples that packs filled beforehand are taken to hold."""


def check_numbers(
    settings: Any, least: Mapping[str, float], prefix: str = "", most: Mapping[str, float] | None = None
) -> None:
    """Refuse numbers below their least value, above their largest, not a number or endless.

    Raises:
        SettingsError: names the setting, its value and the limit.
    """
    for name, limit in least.items():
        value = getattr(settings, name)
        if value is not None:
            check_least(f"{prefix}{name}", value, limit)
            if value > _LARGEST:
                raise SettingsError(f"{prefix}{name}={value} must be a finite number below {_LARGEST:g}")
    for name, limit in (most or {}).items():
        value = getattr(settings, name)
        if value is not None and value > limit:
            raise SettingsError(f"{prefix}{name}={value:,} must be at most {limit:,}; lower it")


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """How replies are generated.

    Attributes:
        tensor_parallel: devices of one engine.
        replies: to one prompt (verl's and EasyR1's Geo3K examples use 5).
        mean_tokens: mean length of a reply (Qwen2.5-VL-7B on Geo3K: 311 to 383; EasyR1's published curves).
        spread: sigma of its log-normal length, at most 2, where half of the replies are shorter than 14 % of the mean;
            an assumption. The cap is applied after it, and lowers the mean.
        max_tokens: cap on a reply (FlexRL: 1,024).
        reference: log-probabilities of a reference model are computed too.
        bandwidth_share: share of the memory bandwidth that generation reaches (aiconfigurator's default).
        memory_share: share of a device's memory an engine may fill (vLLM's gpu_memory_utilization).
    """

    tensor_parallel: int = 4
    replies: int = 5
    mean_tokens: float = 350.0
    spread: float = 0.5
    max_tokens: int = 1024
    reference: bool = True
    bandwidth_share: float = 0.8
    memory_share: float = 0.6

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: one is out of range.
        """
        least = {"tensor_parallel": 1, "replies": 1, "mean_tokens": 1, "spread": 0, "max_tokens": 1}
        check_numbers(self, least, "rollout.", {"mean_tokens": _MOST_TOKENS, "max_tokens": _MOST_TOKENS, "spread": 2})
        if self.mean_tokens > self.max_tokens:
            raise SettingsError(
                f"rollout.mean_tokens={self.mean_tokens} is above rollout.max_tokens={self.max_tokens}, at which "
                "replies are cut; change either"
            )
        for name in ("bandwidth_share", "memory_share"):
            if not 0 < getattr(self, name) <= 1:
                raise SettingsError(f"rollout.{name}={getattr(self, name)} must lie above 0 and up to 1")


@dataclass(frozen=True, kw_only=True)
class LoadingSettings:
    """How images and videos become tensors.

    Attributes:
        workers_per_rank: processor cores a rank may decode on.
        controller_workers: decode processes where one controller loads everything (verl's default of 8).
        prefetch: batches decoded ahead (PyTorch's default).
        preprocess_pixels: pixels a second one core resizes and cuts to patches (0.2 s for an image of 1,000 x 1,000,
            reported of the stock processors; QwenLM/Qwen3-VL issue 491).
        ship_bandwidth: bytes a second the controller serialises and hands out; an assumption.
        value_bytes: size of one pixel value (the stock processors give float32).
    """

    workers_per_rank: int = 8
    controller_workers: int = 8
    prefetch: int = 2
    preprocess_pixels: float = 5e6
    ship_bandwidth: float = 1e9
    value_bytes: int = 4

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: one is out of range.
        """
        least = {"workers_per_rank": 1, "controller_workers": 1, "prefetch": 0, "value_bytes": 1}
        check_numbers(
            self, {**least, "preprocess_pixels": 1, "ship_bandwidth": 1}, "loading.", {"prefetch": _MOST_PREFETCH}
        )


@dataclass(frozen=True, kw_only=True)
class MediaSettings:
    """Sizes of the media of named data sets, where their sources leave them open.

    Attributes:
        video_fps: frames taken a second (the Qwen processors' default).
        video_frame_pixels: most pixels of a frame after resizing; 128 tokens of 28 x 28 for two frames, near the 60
            tokens a frame of Long-RL's runs.
        video_max_frames: most frames taken of a video.
        long_seconds_least, long_seconds_most, long_tail: bounds and exponent of the bounded Pareto durations of long
            videos; no source gives durations of LongVideo-Reason.
        image_min_pixels: least pixels of an image after resizing; None: the processor's default.
    """

    video_fps: float = 2.0
    video_frame_pixels: int = 100_352
    video_max_frames: int = 1024
    long_seconds_least: float = 60.0
    long_seconds_most: float = 540.0
    long_tail: float = 1.1
    image_min_pixels: int | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: one is out of range.
        """
        least = {"video_fps": 0.01, "video_frame_pixels": 784, "video_max_frames": 4, "long_seconds_least": 1}
        least |= {"long_seconds_most": 1, "long_tail": 0.01, "image_min_pixels": 1}
        most = {"video_fps": 1000, "video_frame_pixels": 10**8, "video_max_frames": 10**5, "image_min_pixels": 10**8}
        check_numbers(self, least, "media.", {**most, "long_seconds_most": 86_400, "long_tail": 100})
        if self.long_seconds_most < self.long_seconds_least:
            raise SettingsError(
                f"media.long_seconds_most={self.long_seconds_most} is below "
                f"long_seconds_least={self.long_seconds_least}"
            )


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Stages of layers, for the strategies that cut the model (OmniBal).

    Attributes:
        stages: devices that hold one copy of the model's layers, a run each; 0: no pipeline.
        batch: samples of a plain batch ("random").
        pack_tokens, pack_tiles: caps of a pack, Q_t and Q_v of ISF; the paper's tool has 4,096 tokens, and as many
            tiles as 4,096 tokens have on average.
    """

    stages: int = 0
    batch: int = 4
    pack_tokens: int = 4096
    pack_tiles: int = 10

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: one is out of range.
        """
        check_numbers(
            self, {"stages": 0, "batch": 1, "pack_tokens": 1, "pack_tiles": 1}, "pipeline.", _MOST_OF_PIPELINES
        )


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job to simulate.

    Attributes:
        name: how reports call it.
        task: "sft", or "grpo" (rollout, inference, update).
        data: a metadata table's path, a named data set (geo3k, nextqa, longvila, internvl, heavy-tail), a mix of them
            ("geo3k:5+nextqa:2+longvila:1"), or a named mix (image-heavy, video-heavy, only-video).
        model: a bundled model, a checkpoint's folder or its config.json.
        cluster: a bundled cluster or a YAML file.
        ranks: devices.
        batch_size: samples of a step, over all ranks; prompts where the task is grpo.
        strategies: what to compare; none named: those that fit the task.
        steps: steps that count; ``loading.prefetch`` + 1 before them warm up (1 in pipelines).
        seed: of everything drawn.
        tensor_parallel: devices that share one data-parallel rank's layers in training.
        shards: devices that share weights and optimizer state; None: all.
        sync: where ranks meet ("layer": FSDP; "step": plain data parallelism).
        recompute: whole layers are recomputed in the backward.
        micro_batch_tokens: most tokens of a rank's micro-batch; None: what device memory holds.
        micro_batch_ms: what a micro-batch's forward and backward take whatever it holds (kernel launches, Python); a
            forward alone takes a third. 0: nothing, or what the intercept of ``trimtab fit`` says.
        reserve: share of device memory left to the allocator and communication buffers.
        pack_length: supervised training takes packs of at most so many tokens, samples joined as they come, and
            ``batch_size`` counts packs; None: samples.
        balance_vision: strategies that spread the encoder's work do; False: visuals are encoded with their samples.
            The exchange makes ranks meet in each micro-batch, for which ranks that meet once a step pay.
        max_degree: largest sequence-parallel degree of adaptive plans (p_max).
        overlap: share of a sharded sample's all-to-all that computing hides.
        pack_below, pack_tokens: sharded samples below the first share an exchange up to the second (h_pack, H_pack).
        rollout, loading, media, pipeline: see there. With ``pipeline.stages`` strategies are random, isf, isf+stages
            and isf+stages+recompute, ``batch_size`` counts packs or plain batches, and each replica runs its share of
            them one after the other.
    """

    name: str = "mine"
    task: Task = "sft"
    data: str = "video-heavy"
    model: str = "mimo-vl-7b"
    cluster: str = "h800"
    ranks: int = 32
    batch_size: int = 256
    strategies: tuple[str, ...] = ()
    steps: int = 4
    seed: int = 0
    tensor_parallel: int = 1
    shards: int | None = None
    sync: Sync = "layer"
    recompute: bool = True
    micro_batch_tokens: int | None = None
    micro_batch_ms: float = 0.0
    reserve: float = 0.1
    pack_length: int | None = None
    balance_vision: bool = True
    max_degree: int = 8
    overlap: float = 0.7
    pack_below: int = 4096
    pack_tokens: int = 16384
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    loading: LoadingSettings = field(default_factory=LoadingSettings)
    media: MediaSettings = field(default_factory=MediaSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)

    def __post_init__(self) -> None:
        """Check the values and how they fit together.

        Raises:
            SettingsError: one is out of range or unknown, or two contradict each other.
        """
        counts = ("ranks", "batch_size", "steps", "tensor_parallel", "shards", "micro_batch_tokens", "pack_length")
        least = dict.fromkeys(("seed", "micro_batch_ms", "pack_below"), 0)
        least |= dict.fromkeys((*counts, "max_degree", "pack_tokens"), 1)
        check_numbers(self, least, most={"ranks": _MOST_RANKS, "micro_batch_ms": 1e6})
        for name, known in (("task", get_args(Task)), ("sync", get_args(Sync))):
            if getattr(self, name) not in known:
                raise SettingsError(f"{name}={getattr(self, name)!r} is unknown; choose one of {', '.join(known)}")
        for name in ("reserve", "overlap"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)} must lie in [0, 1)")
        self._check_division()
        for strategy in self.compared:
            if (strategy_named(strategy).packing is not None) != (self.pipeline.stages > 0):
                needs = "no pipeline" if self.pipeline.stages else "pipeline.stages, of at least 1"
                raise SettingsError(f"strategy {strategy!r} needs {needs}; change either")
        self._check_pipeline()
        self._check_work()
        if self.pack_length is not None and self.task != "sft":
            raise SettingsError(f"pack_length={self.pack_length} needs task=sft: replies are not packed beforehand")

    def _check_division(self) -> None:
        for name, divisor in (
            ("tensor_parallel", self.tensor_parallel),
            ("shards", self.shards or 1),
            ("rollout.tensor_parallel", self.rollout.tensor_parallel if self.task == "grpo" else 1),
        ):
            if self.ranks % divisor:
                raise SettingsError(f"ranks={self.ranks} is not a multiple of {name}={divisor}; change either")

    def _check_pipeline(self) -> None:
        if self.pipeline.stages == 0:
            return
        if self.task != "sft" or self.pack_length is not None or self.tensor_parallel > 1:
            raise SettingsError("pipeline.stages needs task=sft, tensor_parallel=1 and no pack_length of its own")
        if self.micro_batch_ms:
            raise SettingsError(f"micro_batch_ms={self.micro_batch_ms} is not simulated in pipelines; set it to 0")
        if self.ranks % self.pipeline.stages or self.batch_size % self.data_ranks:
            raise SettingsError(
                f"ranks={self.ranks} must be a multiple of pipeline.stages={self.pipeline.stages}, and batch_size="
                f"{self.batch_size} of the replicas that makes"
            )

    def _check_work(self) -> None:
        """Refuse what would take hours."""
        each, of_each = 1, ""
        if self.task == "grpo":
            each, of_each = self.rollout.replies, f" x rollout.replies={self.rollout.replies:,}"
        elif self.pipeline.stages:
            each, of_each = self.pipeline.batch, f" x pipeline.batch={self.pipeline.batch:,}"
        elif self.pack_length is not None:
            each, of_each = max(1, self.pack_length // SHORT_SAMPLE), f" packs of pack_length={self.pack_length:,}"
        sequences = self.batch_size * each
        if sequences > _MOST_A_STEP:
            raise SettingsError(
                f"batch_size={self.batch_size:,}{of_each} makes {sequences:,} sequences a step, more than the "
                f"{_MOST_A_STEP:,} that are simulated; lower it"
            )
        warm_up, a_step = self.loading.prefetch + 1, sequences + self.ranks
        if (work := (self.steps + warm_up) * a_step) > _MOST_IN_ALL:
            raise SettingsError(
                f"steps={self.steps:,}, after {warm_up} to warm up, of {sequences:,} sequences on ranks={self.ranks:,} "
                f"are {work:,} sequences and ranks, more than the {_MOST_IN_ALL:,} that are simulated; "
                f"set steps={max(1, _MOST_IN_ALL // a_step - warm_up)} or lower batch_size"
            )

    @property
    def compared(self) -> tuple[str, ...]:
        """Names of the strategies to compare."""
        return self.strategies or (PIPELINE_STRATEGIES if self.pipeline.stages else _DEFAULT[self.task])

    @property
    def data_ranks(self) -> int:
        """Data-parallel ranks, of one or several devices."""
        return self.ranks // self.tensor_parallel // max(1, self.pipeline.stages)


_OTHERS: tuple[str, ...] = ("uniform-2", "uniform-4", "uniform-8", "loongforge", "loader-only", "adaptive-only")
_DEFAULT: dict[str, tuple[str, ...]] = {
    "grpo": ("verl-bucketing", *_OTHERS, "all"),
    "sft": ("as-is", *_OTHERS, "whole-sample", "all"),
}
