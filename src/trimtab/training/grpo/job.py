"""Everything one rank of a GRPO run needs, built from its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.distributed.fsdp import register_fsdp_forward_method

from trimtab.cost.analytic import analytic_costs
from trimtab.cost.cluster import Cluster
from trimtab.cost.device import NOMINAL_DEVICE
from trimtab.cost.flops import FORWARD, TRAIN, Passes
from trimtab.cost.from_config import architecture_from_config
from trimtab.cost.measured import MeasuredCost
from trimtab.cost.schedule import CostModel
from trimtab.errors import SettingsError
from trimtab.families.checkpoint import Checkpoint, read_checkpoint
from trimtab.loader.executors.open import open_executor
from trimtab.loader.executors.protocol import MediaExecutor
from trimtab.loader.sample_reader import SampleReader
from trimtab.loader.sampler import StepSampler
from trimtab.loader.scanned_dataset import open_scanned
from trimtab.loader.tokenizer import load_tokenizer
from trimtab.planning.settings import PlanSettings
from trimtab.runtime.agreement import agree_on_value
from trimtab.runtime.fsdp import shard
from trimtab.runtime.groups import NodeGroups, Ranks
from trimtab.runtime.vlm import BalancedVLM
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata
from trimtab.training.export import export
from trimtab.training.grpo.phase_packs import PhasePacker
from trimtab.training.grpo.phases import PhaseStopwatch
from trimtab.training.grpo.prompts import PromptReader
from trimtab.training.grpo.reply_lengths import ReplyLengths
from trimtab.training.grpo.rewards import Rewarder
from trimtab.training.grpo.rollout import RolloutEngine
from trimtab.training.grpo.server_engine import ServerEngine
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.grpo.transformers_engine import TransformersEngine
from trimtab.training.lengths import check_prompt_lengths
from trimtab.training.model import build_model
from trimtab.training.optimizer import make_optimizer
from trimtab.training.readers import open_readers
from trimtab.training.sequence_parallel import degree_costs, links_of, sequence_nodes
from trimtab.training.together import agree_on_settings, together


@dataclass(eq=False, kw_only=True)
class GRPOJob:
    """One rank's part of a run.

    ``reference`` is None without KL or with adapters, ``rewarder`` on ranks but the first, ``executor`` on ranks
    that are shipped their packs.
    """

    settings: GRPOSettings
    ranks: Ranks
    checkpoint: Checkpoint
    tokenizer: Any
    model: BalancedVLM
    reference: BalancedVLM | None
    optimizer: torch.optim.Optimizer
    reader: SampleReader
    held_out: SampleReader | None
    prompts: PromptReader
    sampler: StepSampler
    cluster: Cluster
    executor: MediaExecutor | None
    packer: PhasePacker
    lengths: ReplyLengths
    rewarder: Rewarder | None
    engine: RolloutEngine
    watch: PhaseStopwatch
    measured: MeasuredCost | None = None

    @property
    def plan_settings(self) -> PlanSettings:
        """Of the plans that run."""
        return self.settings.balance.plan_settings(self.settings.max_tokens_per_micro_batch)[0]

    @property
    def suppressed(self) -> tuple[int, ...]:
        """Tokens that are never drawn and have no probability: placeholders of visuals."""
        return suppressed_tokens(self.model)

    def costs(self, batch: BatchMetadata, passes: Passes = TRAIN) -> Costs:
        """Predicted costs of a phase; measured ones are of training, whose ratios the other phases share."""
        architecture = architecture_from_config(self.checkpoint.config)
        whole: CostModel = self.measured or partial(
            analytic_costs,
            architecture=architecture,
            device=NOMINAL_DEVICE,
            language_passes=passes,
            vision_passes=FORWARD if self.settings.freeze_vision else passes,
        )
        add_degrees = degree_costs(
            architecture.language, self.cluster, ranks=self.ranks.size, max_degree=self.settings.balance.max_degree
        )
        return add_degrees(batch, whole(batch))

    def close(self) -> None:
        """End the processes of this rank."""
        if self.executor:
            self.executor.close()
        if self.rewarder:
            self.rewarder.close()


def reopen_grpo_job(job: GRPOJob, settings: GRPOSettings) -> GRPOJob:
    """The same model, optimizer, data and engine under other settings of balance and loader, decoding anew."""
    executor = open_executor(settings.loader, job.ranks)
    packer = PhasePacker(job.reader, executor, settings.loader, job.ranks.control)
    return replace(job, settings=settings, executor=executor, packer=packer)


def build_grpo_job(settings: GRPOSettings, ranks: Ranks) -> GRPOJob:
    """Open the data, build and shard the model.

    Raises:
        TrimtabError: the settings, data or model cannot be used, or ranks see different data.
    """
    checkpoint = read_checkpoint(settings.model)
    tokenizer = load_tokenizer(settings.model)
    language, max_degree = architecture_from_config(checkpoint.config).language, settings.balance.max_degree
    nodes = sequence_nodes(language, ranks, max_degree=max_degree, timeout_s=settings.timeout_s)
    model = BalancedVLM(build_model(settings), ranks.data, nodes=nodes).to(ranks.device)
    reader, held_out = together(
        ranks.control,
        "start",
        lambda: open_readers(settings, checkpoint, model, ranks=ranks.size, train_on="last_assistant"),
        blame_no_rank=True,
    )
    agree_on_value(ranks.control, "the dataset", reader.digest(), "give every rank the same table and dataset files")
    agree_on_settings(ranks.control, settings)
    compute_dtype = torch.bfloat16 if settings.dtype == "bfloat16" else None
    shard(model, ranks.mesh, compute_dtype=compute_dtype)
    register_fsdp_forward_method(model, "encode_visuals")
    prompts = _prompt_reader(settings, reader, checkpoint, tokenizer, model)
    together(
        ranks.control,
        "start",
        lambda: check_prompt_lengths(settings, language, ranks.size, reader.table, prompts.tokens),
        blame_no_rank=True,
    )
    rewarder = together(ranks.control, "start", lambda: Rewarder(settings.reward) if ranks.is_first else None)
    executor = open_executor(settings.loader, ranks)
    return GRPOJob(
        settings=settings,
        ranks=ranks,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        model=model,
        reference=_reference(settings, ranks, nodes),
        optimizer=make_optimizer(model, settings.optimizer),
        reader=reader,
        held_out=held_out,
        prompts=prompts,
        sampler=StepSampler(
            num_samples=len(reader.table), samples_per_step=settings.samples_per_step, seed=settings.seed
        ),
        cluster=links_of(nodes, ranks, settings.balance.costs),
        executor=executor,
        packer=PhasePacker(reader, executor, settings.loader, ranks.control),
        lengths=ReplyLengths(first_guess=max(1, settings.rollout.max_reply_tokens // 2)),
        rewarder=rewarder,
        engine=_engine(settings, ranks, model, tokenizer, prompts, reader.pad_token),
        watch=PhaseStopwatch(),
    )


def _prompt_reader(
    settings: GRPOSettings, reader: SampleReader, checkpoint: Checkpoint, tokenizer: Any, model: BalancedVLM
) -> PromptReader:
    return PromptReader(
        reader.table,
        open_scanned(reader.table, list(settings.data), settings.root, allowed_roots=settings.loader.allowed_roots),
        geometry=reader.geometry,
        family=checkpoint.family,
        tokenizer=tokenizer,
        model=model.base,
        max_tokens=settings.rollout.max_prompt_tokens,
    )


def suppressed_tokens(model: BalancedVLM) -> tuple[int, ...]:
    """Placeholder tokens: one in a reply would ask for a visual that is not there."""
    config = model.base.config
    return tuple(sorted({config.image_token_id, config.video_token_id}))


def end_tokens(tokenizer: Any, model: BalancedVLM) -> tuple[int, ...]:
    """Any of these ends a reply.

    Raises:
        SettingsError: neither tokenizer nor model names one.
    """
    named = getattr(model.base.generation_config, "eos_token_id", None)
    found = {*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id} - {None}
    if not found:
        raise SettingsError("neither tokenizer nor generation_config.json names an end token; add eos_token to it")
    return tuple(sorted(int(token) for token in found))


def _engine(
    settings: GRPOSettings, ranks: Ranks, model: BalancedVLM, tokenizer: Any, prompts: PromptReader, pad_token: int
) -> RolloutEngine:
    if settings.rollout.engine == "server":
        return ServerEngine(
            settings.rollout,
            ranks.control,
            seed=settings.seed,
            tokenizer=tokenizer,
            end_token=tokenizer.eos_token_id or end_tokens(tokenizer, model)[0],
            suppressed=suppressed_tokens(model),
            conversation=prompts.conversation,
            write_weights=lambda folder: export(model, settings.lora, settings.model, folder, ranks.control),
        )
    return TransformersEngine(
        model,
        settings.rollout,
        ranks,
        seed=settings.seed,
        end_tokens=end_tokens(tokenizer, model),
        suppressed=suppressed_tokens(model),
        pad_token=pad_token,
        timeout_s=settings.timeout_s,
    )


def _reference(settings: GRPOSettings, ranks: Ranks, nodes: NodeGroups | None) -> BalancedVLM | None:
    """The model the run starts from; with adapters the policy without them is just that."""
    if settings.objective.kl_coefficient == 0 or settings.lora.rank:
        return None
    model = BalancedVLM(build_model(settings), ranks.data, nodes=nodes).to(ranks.device)
    model.requires_grad_(False)
    model.eval()
    return shard(model, ranks.mesh, compute_dtype=torch.bfloat16 if settings.dtype == "bfloat16" else None)
