"""Everything a supervised run needs, built from its settings: data, model, optimizer, loaders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from trimtab.cost.analytic import analytic_costs
from trimtab.cost.cluster import Cluster
from trimtab.cost.device import NOMINAL_DEVICE
from trimtab.cost.from_config import architecture_from_config
from trimtab.cost.schedule import CostModel, CostSchedule
from trimtab.errors import MetadataError, SettingsError
from trimtab.families.checkpoint import Checkpoint, read_checkpoint
from trimtab.loader.executors.open import open_executor
from trimtab.loader.executors.protocol import MediaExecutor
from trimtab.loader.pack_sampler import PackSampler
from trimtab.loader.pack_table import pack_table
from trimtab.loader.preparer import StepPreparer
from trimtab.loader.sample_reader import SampleReader
from trimtab.loader.sampler import StepSampler
from trimtab.loader.step_loader import LoadedStep, StepLoader
from trimtab.loader.step_planner import StepPlanner
from trimtab.loader.step_source import StepSource
from trimtab.runtime.agreement import agree_on_value
from trimtab.runtime.fsdp import shard
from trimtab.runtime.groups import Ranks
from trimtab.runtime.recorder import PhaseClock
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.number_of import number_of
from trimtab.schema.table import MetadataTable
from trimtab.training.left_out import list_left_out
from trimtab.training.model import build_model
from trimtab.training.optimizer import make_optimizer
from trimtab.training.readers import open_readers
from trimtab.training.sequence_parallel import degree_costs, links_of, sequence_nodes
from trimtab.training.settings import SFTSettings
from trimtab.training.together import agree_on_settings, together


@dataclass(eq=False, kw_only=True)
class Job:
    """One rank's part of a run."""

    settings: SFTSettings
    ranks: Ranks
    checkpoint: Checkpoint
    model: BalancedVLM
    optimizer: torch.optim.Optimizer
    clock: PhaseClock
    reader: SampleReader
    held_out: SampleReader | None
    costs: CostSchedule
    sampler: StepSource
    cluster: Cluster
    executor: MediaExecutor | None

    def open_loader(self, *, last_step: int | None = None) -> StepLoader:
        """Begin to prepare the training steps the sampler has not consumed, up to ``last_step``."""
        return self._loader(self.reader, self.sampler, last_step or self.settings.last_step, self.costs)

    def open_evaluation_loader(self) -> tuple[StepLoader, int]:
        """A loader over the held-out samples, once each, and its number of steps."""
        reader = self.held_out
        assert reader is not None
        size = min(self.settings.evaluation.samples_per_step, len(reader.table))
        sampler = StepSampler(num_samples=len(reader.table), samples_per_step=size, seed=self.settings.seed)
        loader = self._loader(reader, sampler, sampler.steps_per_epoch, self.costs.newest)
        return loader, sampler.steps_per_epoch

    def moved_bytes(self, loaded: LoadedStep) -> int:
        """Bytes of embeddings and their gradients this rank sends to others in a step."""
        rows = 0
        for pack in loaded.packs:
            if pack.visual_route is not None:
                sent = list(pack.visual_route.send_splits)
                rows += sum(sent) - sent[self.ranks.rank]
        config = self.model.base.config
        deepstack = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or [])
        width = config.get_text_config().hidden_size * (1 + deepstack)
        return 2 * rows * width * (2 if self.settings.dtype == "bfloat16" else self.model.base.dtype.itemsize)

    def close(self) -> None:
        """End the decode processes."""
        if self.executor:
            self.executor.close()

    def _loader(
        self, reader: SampleReader, sampler: StepSource, last_step: int, costs: CostModel | CostSchedule
    ) -> StepLoader:
        settings = self.settings.loader
        running, observed = self.settings.balance.plan_settings(self.settings.max_tokens_per_micro_batch)
        add_degrees = degree_costs(
            architecture_from_config(self.checkpoint.config).language,
            self.cluster,
            ranks=self.ranks.size,
            max_degree=self.settings.balance.max_degree,
        )
        planner = StepPlanner(
            reader.table,
            costs,
            ranks=self.ranks.size,
            settings=running,
            observed=observed,
            add_degrees=add_degrees,
        )
        preparer = None
        if self.executor:
            own = [self.ranks.rank] if settings.mode == "shadow" else range(self.ranks.size)
            skip = settings.on_bad_sample == "skip"
            preparer = StepPreparer(reader, self.executor, ranks=own, skip_bad=skip)
        return StepLoader(
            sampler=sampler,
            planner=planner,
            preparer=preparer,
            settings=settings,
            group=self.ranks.control,
            last_step=last_step,
        )


def build_job(settings: SFTSettings, ranks: Ranks) -> Job:
    """Open the data, build and shard the model.

    Raises:
        TrimtabError: the settings, data or model cannot be used, or ranks see different data.
    """
    checkpoint = read_checkpoint(settings.model)
    clock = PhaseClock(ranks.device)
    architecture = architecture_from_config(checkpoint.config)
    nodes = sequence_nodes(
        architecture.language, ranks, max_degree=settings.balance.max_degree, timeout_s=settings.timeout_s
    )
    model = BalancedVLM(build_model(settings), ranks.data, clock.mark, nodes=nodes).to(ranks.device)
    reader, held_out = together(
        ranks.control,
        "start",
        lambda: open_readers(settings, checkpoint, model, ranks=ranks.size, train_on=settings.train_on),
        blame_no_rank=True,
    )
    agree_on_value(ranks.control, "the dataset", reader.digest(), "give every rank the same table and dataset files")
    agree_on_settings(ranks.control, settings)
    _check_data(reader.table, settings.table, ranks.size)
    cost_model = partial(analytic_costs, architecture=architecture, device=NOMINAL_DEVICE)
    sampler = _sampler(settings, reader.table, cost_model, ranks)
    shard(model, ranks.mesh, compute_dtype=torch.bfloat16 if settings.dtype == "bfloat16" else None)
    return Job(
        settings=settings,
        ranks=ranks,
        checkpoint=checkpoint,
        model=model,
        optimizer=make_optimizer(model, settings.optimizer),
        clock=clock,
        reader=reader,
        held_out=held_out,
        costs=CostSchedule(cost_model),
        sampler=sampler,
        cluster=links_of(nodes, ranks, settings.balance.costs),
        executor=open_executor(settings.loader, ranks),
    )


def reopen_job(job: Job, settings: SFTSettings) -> Job:
    """The same model, optimizer and data under other settings of balance and loader, decoding in new processes."""
    return replace(job, settings=settings, executor=open_executor(settings.loader, job.ranks))


def _sampler(settings: SFTSettings, table: MetadataTable, cost_model: CostModel, ranks: Ranks) -> StepSource:
    if settings.packing.method == "off":
        return StepSampler(num_samples=len(table), samples_per_step=settings.samples_per_step, seed=settings.seed)
    packs: PackSampler = pack_table(
        table,
        settings.packing,
        cost_model=cost_model,
        ranks=ranks.size,
        samples_per_step=settings.samples_per_step,
        seed=settings.seed,
    )
    if ranks.is_first:
        list_left_out(packs.left_out(), settings.folder)
    return packs


def _check_data(table: MetadataTable, path: Path, ranks: int) -> None:
    if len(table) < ranks:
        raise SettingsError(
            f"{path}: {number_of(len(table), 'sample')} for {number_of(ranks, 'rank')}; "
            f"start at most {number_of(len(table), 'rank')}"
        )
    if not (table.loss_tokens * table.loss_weight).any():
        raise MetadataError(
            f"{path}: no sample has a token that enters the loss; the conversations need assistant turns"
        )
