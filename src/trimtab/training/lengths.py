"""Samples of which no rank may run its share, found before the first step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.architecture import LanguageArchitecture
from trimtab.errors import InfeasibleError
from trimtab.planning.feasibility import exceeds, smallest_degree
from trimtab.planning.sequence_groups import usable_degrees
from trimtab.schema.number_of import number_of
from trimtab.schema.table import MetadataTable
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.settings import SFTSettings


def check_lengths(
    settings: SFTSettings,
    language: LanguageArchitecture,
    ranks: int,
    training: MetadataTable,
    held_out: MetadataTable | None,
) -> None:
    """Refuse a run one of whose samples the planner would refuse when its step comes.

    Args:
        settings: of the run; in a GRPO run a prompt must fit with the longest reply it may get.
        language: whose heads say how many ranks may share a sample.
        ranks: of the run.
        training: samples of the training data.
        held_out: samples that are scored, or None.

    Raises:
        InfeasibleError: says how many samples are too long, the longest, and what would do.
    """
    cap = settings.max_tokens_per_micro_batch
    if cap is None:
        return
    tokens, reply = training.batch().tokens, ""
    if isinstance(settings, GRPOSettings):
        tokens = _with_replies(settings, training)
        reply = f" with a reply of rollout.max_reply_tokens={settings.rollout.max_reply_tokens}"
    _check(settings, cap, language, ranks, _Samples(training, settings.table, tokens, reply))
    if held_out is not None and settings.evaluation.table is not None:
        samples = _Samples(held_out, settings.evaluation.table, held_out.batch().tokens)
        _check(settings, cap, language, ranks, samples)


class _Samples:
    """A table, where it lies, int64 [N] tokens of each of its samples, and what beside the sample these hold."""

    def __init__(self, table: MetadataTable, path: Path, tokens: NDArray[np.int64], reply: str = "") -> None:
        self.table, self.path, self.tokens, self.reply = table, path, tokens, reply


def _with_replies(settings: GRPOSettings, table: MetadataTable) -> NDArray[np.int64]:
    """Tokens of each prompt and its longest reply, or a few less: the scan counted the dataset's own answers."""
    prompts = table.batch().tokens - table.loss_tokens
    longest = settings.rollout.max_prompt_tokens
    return (prompts if longest is None else np.minimum(prompts, longest)) + settings.rollout.max_reply_tokens


def _check(settings: SFTSettings, cap: int, language: LanguageArchitecture, ranks: int, samples: _Samples) -> None:
    tokens = samples.tokens
    wanted = settings.balance.plan_settings(cap)[0].max_degree  # 1 where nothing is balanced
    widest = usable_degrees(ranks, language.legal_degrees(wanted), wanted)[-1]
    too_long = exceeds(tokens, widest, cap)
    if not too_long.any():
        return
    row = int(tokens.argmax())
    size = int(tokens[row])
    shared = "" if widest == 1 else f", even where {widest} ranks share one"
    shorter = ", lower rollout.max_reply_tokens" if samples.reply else ""
    raise InfeasibleError(
        f"{samples.path}: {number_of(int(too_long.sum()), 'sample')} of {len(tokens):,} cannot run within "
        f"max_tokens_per_micro_batch={cap}{shared}; the longest, {samples.table.sample(row).sample_id}, takes "
        f"{number_of(size, 'token')}{samples.reply}; set max_tokens_per_micro_batch={-(-size // widest)}"
        f"{shorter}{_sharing(settings, cap, language, ranks, size)}, or scan without what is longer"
    )


def _sharing(settings: SFTSettings, cap: int, language: LanguageArchitecture, ranks: int, size: int) -> str:
    """The settings under which enough ranks share a sample; "" where no degree is enough."""
    balance = settings.balance
    degree = smallest_degree(size, cap, language.legal_degrees(language.heads))
    if degree is None:
        return ""
    words = [f"balance.max_degree={degree}"] if degree > balance.max_degree else []
    words += ["balance.mode=on"] if balance.mode != "on" else []
    words += ["balance.sync=micro_batch"] if balance.sync == "step" else []
    words += [f"ranks={degree}"] if degree > ranks else []
    return f", set {' '.join(words)} for {degree} ranks to share it"
