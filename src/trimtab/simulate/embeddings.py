"""What the exchange of vision embeddings takes, for many ranks at once.

``planning.routing`` says which rows go where; here only their numbers count, which need no lists.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.architecture import Architecture
from trimtab.cost.cluster import Cluster
from trimtab.cost.communication import all_to_all_seconds
from trimtab.cost.embedding_exchange import token_bytes
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan


def embedding_seconds(
    plan: StepPlan, batch: BatchMetadata, architecture: Architecture, cluster: Cluster
) -> list[float]:
    """Time [M] of each micro-batch's exchange in the forward, as the rank that sends most sets it.

    Args:
        plan: where frames are encoded and samples run.
        batch: its samples.
        architecture: for the size of an embedding.
        cluster: whose links are used.
    """
    if batch.num_visuals == 0:
        return [0.0] * plan.micro_batches
    fullest = sent_tokens(plan, batch).max(axis=1) * token_bytes(architecture)
    whole = fullest * plan.ranks / max(1, plan.ranks - 1)  # the model counts a rank's part for itself too
    return [all_to_all_seconds(cluster, plan.ranks, size) if size > 0 else 0.0 for size in whole.tolist()]


def sent_tokens(plan: StepPlan, batch: BatchMetadata) -> NDArray[np.float64]:
    """float64 [M, R], embeddings each rank sends to others: of its frames, to every sample that shows them.

    A sample shared by p ranks is taken to hold 1 / p of its embeddings on each of them; short ones that travel together
    often lie on fewer, so for shared samples this is an upper estimate.
    """
    units, most = plan.units, int(batch.visual_keys.max(initial=0)) + 1
    shown = plan.micro_batch[batch.sample_of_visual] * most + batch.visual_keys
    order = np.argsort(shown, kind="stable")
    wanted = units.micro_batch * most + batch.visual_keys[units.visual]
    first = np.searchsorted(shown[order], wanted, side="left")
    counts = np.searchsorted(shown[order], wanted, side="right") - first
    unit = np.repeat(np.arange(len(units)), counts)
    within = np.arange(len(unit)) - np.repeat(np.cumsum(counts) - counts, counts)
    sample = batch.sample_of_visual[order[first[unit] + within]]
    a_frame = batch.visual_tokens / batch.grid_thw[:, 0]
    tokens = (a_frame[units.visual] * (units.frame_stop - units.frame_start))[unit]
    place = units.rank[unit] - plan.rank[sample]
    inside = (place >= 0) & (place < plan.degree[sample])
    leaving = np.where(inside, 1 - 1 / plan.degree[sample], 1.0)
    sent = np.zeros((plan.micro_batches, plan.ranks))
    np.add.at(sent, (units.micro_batch[unit], units.rank[unit]), tokens * leaving)
    return sent
