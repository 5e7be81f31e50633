"""Samples of which no rank may run its share, found before the first step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.architecture import LanguageArchitecture
from trimtab.errors import DatasetError, InfeasibleError
from trimtab.planning.feasibility import exceeds, smallest_degree
from trimtab.planning.sequence_groups import usable_degrees
from trimtab.schema.number_of import number_of
from trimtab.schema.table import MetadataTable
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.settings import SFTSettings

_HEADER = 32  # tokens of the header of the turn to be generated, and more; a record without an answer has none


def check_lengths(
    settings: SFTSettings,
    language: LanguageArchitecture,
    ranks: int,
    training: MetadataTable,
    held_out: MetadataTable | None,
) -> None:
    """Refuse a run one of whose samples the planner would refuse when its step comes.

    Args:
        settings: of the run; a GRPO run's prompts are for ``check_prompt_lengths``.
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
    if not isinstance(settings, GRPOSettings):
        _check(settings, cap, language, ranks, _Samples(training, settings.table, training.batch().tokens))
    if held_out is not None and settings.evaluation.table is not None:
        samples = _Samples(held_out, settings.evaluation.table, held_out.batch().tokens)
        _check(settings, cap, language, ranks, samples)


def check_prompt_lengths(
    settings: GRPOSettings,
    language: LanguageArchitecture,
    ranks: int,
    table: MetadataTable,
    prompt_tokens: Callable[[int], int],
) -> None:
    """Refuse a GRPO run one of whose prompts might not fit with the longest reply it may get.

    The table counts the dataset's own answers, and does not say which turn is the last. So the records of those that
    might be too long are read.

    Args:
        settings: of the run.
        language: whose heads say how many ranks may share a sample.
        ranks: of the run.
        table: of the training data.
        prompt_tokens: tokens of a row's prompt; a DatasetError where it cannot be used, which its step will tell.

    Raises:
        InfeasibleError: says how many samples are too long, the longest, and what would do.
    """
    cap = settings.max_tokens_per_micro_batch
    if cap is None:
        return
    reply = settings.rollout.max_reply_tokens
    most = table.batch().tokens + reply + _HEADER
    tokens = np.zeros(len(table), dtype=np.int64)
    for row in np.flatnonzero(exceeds(most, _widest(settings, cap, language, ranks), cap)):
        with suppress(DatasetError):
            tokens[row] = prompt_tokens(int(row)) + reply
    said = f" with a reply of rollout.max_reply_tokens={reply}"
    _check(settings, cap, language, ranks, _Samples(table, settings.table, tokens, said))


def _widest(settings: SFTSettings, cap: int, language: LanguageArchitecture, ranks: int) -> int:
    """Most ranks that share a sample."""
    wanted = settings.balance.plan_settings(cap)[0].max_degree  # 1 where nothing is balanced
    return usable_degrees(ranks, language.legal_degrees(wanted), wanted)[-1]


class _Samples:
    """A table, where it lies, int64 [N] tokens of each of its samples, and what beside the sample these hold."""

    def __init__(self, table: MetadataTable, path: Path, tokens: NDArray[np.int64], reply: str = "") -> None:
        self.table, self.path, self.tokens, self.reply = table, path, tokens, reply


def _check(settings: SFTSettings, cap: int, language: LanguageArchitecture, ranks: int, samples: _Samples) -> None:
    tokens = samples.tokens
    widest = _widest(settings, cap, language, ranks)
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
