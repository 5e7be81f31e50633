"""Trains a Transformers vision-language model as a pipeline of stages, vision and language layers alike.

The schedule is torch.distributed.pipelining's. Each rank of a pipeline is given the step's micro-batches and reads what
its stages need of them; only activations and their gradients travel.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleaved1F1B

from trimtab.errors import RankDisagreementError, SettingsError
from trimtab.runtime.agreement import agree_on_value
from trimtab.runtime.attention import use_packed_attention
from trimtab.runtime.memory_meter import batch_tensors, memory_meter
from trimtab.runtime.model_layers import find_layers
from trimtab.runtime.packed_batch import PackedBatch, empty_batch
from trimtab.runtime.pipeline_checks import (
    check_denominator,
    check_mesh,
    check_micro_batches,
    check_model,
    check_plan,
    contents,
    legal_micro_batches,
)
from trimtab.runtime.pipeline_gradients import TiedWeights, sum_over_pipelines
from trimtab.runtime.pipeline_shapes import BatchShape, Boundaries, Traffic, largest_shape, shape_of, traffic
from trimtab.runtime.pipeline_stage import StageModule, StepInputs
from trimtab.runtime.pipeline_transfers import LeanStage, TimedAction
from trimtab.runtime.recompute import recompute_layers
from trimtab.runtime.shared_error import raise_on_every_rank
from trimtab.runtime.vlm import check_hooks
from trimtab.schema.setting_checks import check_whole
from trimtab.schema.stages import StagePlan

ROUNDING = 64
CACHED_SHAPES = 4


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """What one step did, equal on the ranks of a pipeline.

    Attributes:
        loss: of the step, over all pipelines.
        largest: the shape that what was sent was filled up to.
        traffic: bytes sent between stages, and how many of them only filled up.
        peak_bytes: this rank's most, weights and gradients included, micro-batches not; None unless asked for.
        actions: this rank's forwards and backwards with their times; empty unless asked for.
    """

    loss: float
    largest: BatchShape
    traffic: Traffic
    peak_bytes: int | None = None
    actions: tuple[TimedAction, ...] = ()


@dataclass(eq=False)
class _Run:
    """What a step's forwards and backwards leave behind."""

    losses: list[Tensor] = field(default_factory=list)
    actions: list[TimedAction] = field(default_factory=list)
    peak_bytes: int | None = None


class PipelinedVLM:
    """The stages of this rank; ``step`` runs forward and backward of a step and leaves gradients as one process would.

    Optimizers take ``parameters()``. Drop the whole model once it is built: stages share its weights, so those of other
    stages are freed with it.

    Example:
        mesh = init_device_mesh("cpu", (1, 4), mesh_dim_names=("data", "pipe"))
        pipeline = PipelinedVLM(model, plan, mesh)
        optimizer = torch.optim.AdamW(pipeline.parameters())
        loss = pipeline.step(micro_batches).loss
        optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        plan: StagePlan,
        mesh: DeviceMesh,
        *,
        rounding: int = ROUNDING,
        cached_shapes: int = CACHED_SHAPES,
    ) -> None:
        """Split a model; the same model, plan and settings on every rank. A collective of the mesh.

        Args:
            model: a Transformers VLM, or a PEFT model around one, on this rank's device, not sharded, in training mode
                where the plan recomputes. Its attention is set to packed attention.
            plan: which layers each stage runs and which of them recompute, by rows of ``find_layers(model)``.
            mesh: with dimensions "data" (pipelines that share a step) and "pipe" (ranks of a pipeline).
            rounding: what is sent is filled up to a multiple of so many rows, so that fewer shapes occur.
            cached_shapes: shapes whose buffers are kept for later steps; the one used longest ago goes first.

        Raises:
            UnknownModelError: the model's layers cannot be found, or it cannot take vision outputs from outside.
            SettingsError: model, plan and mesh do not go together, or the model is sharded or in evaluation mode.
            RankDisagreementError: ranks hold different plans.
        """
        check_whole("rounding", rounding, 1)
        check_whole("cached_shapes", cached_shapes, 1)
        layers = find_layers(model)
        check_hooks(layers.model)
        check_mesh(mesh)
        same = f"{plan.digest()}, filled up to multiples of {rounding} rows"
        for group in (mesh.get_group("pipe"), mesh.get_group("data")):
            agree_on_value(group, "the stage plan", same, "give every rank the same plan and settings")
        check_model(layers, plan)
        check_plan(plan, layers, mesh)
        use_packed_attention(layers.model)
        self.plan, self.device = plan, layers.model.device
        self._pipe, self._data = mesh.get_group("pipe"), mesh.get_group("data")
        self._boundaries = Boundaries.of(layers)
        self._rounding, self._most_cached = rounding, cached_shapes
        self._schedules: OrderedDict[tuple[BatchShape, int], Any] = OrderedDict()
        own = range(self._pipe.rank(), len(plan.bounds) - 1, self._pipe.size())
        self.stages = {stage: self._build(layers, stage) for stage in own}
        self._tied = TiedWeights(layers, plan, mesh, self.stages)

    def _build(self, layers: Any, stage: int) -> StageModule:
        first, stop = self.plan.bounds[stage : stage + 2]
        built = StageModule(layers, first, stop)
        recompute_layers(built.model, [layers.names[row] for row in self.plan.recompute[stage]])
        return built

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The weights of this rank's stages, by their names in the whole model."""
        for stage in self.stages.values():
            yield from stage.model.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights of this rank's stages, for an optimizer."""
        for _, parameter in self.named_parameters():
            yield parameter

    @property
    def cached_shapes(self) -> tuple[BatchShape, ...]:
        """Shapes whose stages are kept, the one used last at the end."""
        return tuple(shape for shape, _ in self._schedules)

    def step(
        self,
        batches: Sequence[PackedBatch],
        denominator: float | None = None,
        *,
        measure: Literal["memory", "time"] | None = None,
    ) -> PipelineStep:
        """Forward and backward of a step; gradients are summed over micro-batches and pipelines.

        Args:
            batches: this pipeline's micro-batches, the same on each of its ranks, on their device. ``pixel_values`` are
                read by the first stage alone. Empty ones are added where the schedule wants more.
            denominator: of the loss, over all pipelines; None: the sum of their loss weights.
            measure: the peak "memory" of this rank, or the "time" of its forwards and backwards; it slows the step.

        Raises:
            SettingsError: no micro-batches, one with sequences shared between ranks, or a denominator that is not
                positive; on every rank.
            RankDisagreementError: the ranks of a pipeline hold different micro-batches, or another pipeline failed.
        """
        if measure not in (None, "memory", "time"):
            raise SettingsError(f"measure={measure!r} is unknown; choose memory, time or None")
        shapes, weight = self._agree(batches, denominator)
        denominator = weight if denominator is None else denominator
        largest = largest_shape(shapes).rounded(self._rounding)
        missing = legal_micro_batches(self.plan, len(batches)) - len(batches)
        batches = [*batches, *[empty_batch(batches[0], self._boundaries.merge_size)] * missing]
        inputs = StepInputs(batches=batches, denominator=denominator, largest=largest)
        run = self._run(inputs, measure)
        self._tied.sum_gradients()
        sum_over_pipelines(list(self.parameters()), self._data)
        return PipelineStep(
            loss=self._loss(run.losses),
            largest=largest,
            traffic=traffic(self._boundaries, self.plan.bounds, [shape_of(batch) for batch in batches], largest),
            peak_bytes=run.peak_bytes,
            actions=tuple(run.actions),
        )

    def _run(self, inputs: StepInputs, measure: str | None) -> _Run:
        """Forward and backward of all micro-batches."""
        count = len(inputs.batches)
        numbers, run = torch.arange(count), _Run()
        schedule, made = self._schedule(inputs.largest, count)
        last = len(self.plan.bounds) - 2 in self.stages
        held = [*self.parameters(), *(weight.grad for weight in self.parameters() if weight.grad is not None)]
        given = [tensor for batch in inputs.batches for tensor in batch_tensors(batch)]
        meter = memory_meter(self.device, held, given) if measure == "memory" else None
        for stage in made:
            stage.actions = run.actions if measure == "time" else None
        for module in self.stages.values():
            module.begin(inputs)
        try:
            with meter or nullcontext():
                schedule.step(
                    micro_batch=numbers,
                    target=numbers if last else None,
                    losses=run.losses if last else None,
                    return_outputs=False,
                )
        finally:
            for module in self.stages.values():
                module.begin(None)
        run.peak_bytes = meter.peak_bytes if meter else None
        return run

    def _agree(self, batches: Sequence[PackedBatch], denominator: float | None) -> tuple[list[BatchShape], float]:
        """Shapes of this pipeline's micro-batches and the loss weight of all pipelines'.

        What is wrong with them on one rank is raised on all ranks, before any runs.
        """
        shapes: list[BatchShape] = []
        weight = 0.0
        error: Exception | None = None
        try:
            check_micro_batches(batches, self._data.rank())
            check_denominator(denominator)
            shapes = [shape_of(batch) for batch in batches]
            weight = sum(float(batch.loss_weights.sum()) for batch in batches)
        except Exception as caught:
            error = caught
        found: list[Any] = [None] * self._pipe.size()
        held = None if error else [(shape, contents(batch)) for shape, batch in zip(shapes, batches, strict=True)]
        dist.all_gather_object(found, held, group=self._pipe)
        wrong = any(other is None or other != found[0] for other in found)
        total, failed = self._sum_over_pipelines([weight, float(wrong)])
        if not failed:
            return shapes, total
        if any(other is None for other in found):
            raise_on_every_rank(self._pipe, "pipeline step", error)
        for rank, other in enumerate(found):
            if other != found[0]:
                mine, its = ([shape for shape, _ in each] for each in (found[0], other))
                told = f"of {_listed(mine)}, rank {rank} of {_listed(its)}"
                raise RankDisagreementError(
                    "pipeline step: rank 0 of the pipeline has micro-batches "
                    + (told if mine != its else f"with other tokens than rank {rank}")
                    + "; give every rank of a pipeline the same micro-batches"
                )
        raise RankDisagreementError("pipeline step: another pipeline that shares it failed; its ranks tell why")

    def _schedule(self, largest: BatchShape, micro_batches: int) -> tuple[Any, list[LeanStage]]:
        """Schedule and stages of a shape, from the cache or made; the shape used longest ago is dropped for them."""
        key = (largest, micro_batches)
        if key not in self._schedules:
            while len(self._schedules) >= self._most_cached:
                self._schedules.popitem(last=False)
            self._schedules[key] = self._made_schedule(largest, micro_batches)
        self._schedules.move_to_end(key)
        return self._schedules[key]

    def _made_schedule(self, largest: BatchShape, micro_batches: int) -> tuple[Any, list[LeanStage]]:
        made = [
            LeanStage(
                module,
                stage,
                len(self.plan.bounds) - 1,
                self.device,
                input_args=self._boundaries.empty(module.first, largest),
                output_args=self._sent(module, largest),
                group=self._pipe,
            )
            for stage, module in self.stages.items()
        ]
        settings: dict[str, Any] = {"loss_fn": _loss_itself, "scale_grads": False}
        if self.plan.schedule == "1f1b":
            return Schedule1F1B(made[0], micro_batches, **settings), made
        return ScheduleInterleaved1F1B(list(made), micro_batches, **settings), made

    def _sent(self, module: StageModule, largest: BatchShape) -> tuple[Tensor, ...]:
        if module.stop == self.plan.bounds[-1]:
            return (torch.empty((), device="meta", requires_grad=True),)
        return self._boundaries.empty(module.stop, largest)

    def _sum_over_pipelines(self, values: list[float]) -> list[float]:
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=self._data)
        found: list[float] = total.tolist()
        return found

    def _loss(self, losses: list[Tensor]) -> float:
        """The loss of the step, which the last stages know, on every rank."""
        total = torch.zeros(1, dtype=torch.float64, device=self.device)
        for loss in losses:
            total += loss.detach()
        dist.all_reduce(total, group=self._pipe)
        return self._sum_over_pipelines(total.tolist())[0]


def _loss_itself(loss: Tensor, _: Tensor) -> Tensor:
    """The last stage has computed the loss already, so that no logits outlive their micro-batch."""
    return loss


def _listed(shapes: Sequence[BatchShape]) -> str:
    return ", ".join(f"{shape.patches} patches and {shape.tokens} tokens" for shape in shapes)
