"""Embeddings on their way from the ranks that encode visuals to the ranks that use them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.planning.routing import route_vision
from trimtab.schema.metadata import BatchMetadata
from trimtab.schema.plans import StepPlan


def embedding_bytes_sent(plan: StepPlan, batch: BatchMetadata, token_bytes: int) -> NDArray[np.int64]:
    """Bytes [M, R] of vision embeddings each rank sends to other ranks in the forward; the backward returns as many.

    Args:
        plan: the plan.
        batch: its samples.
        token_bytes: size of one token's embedding, deepstack features included.
    """
    sent = np.zeros((plan.micro_batches, plan.ranks), dtype=np.int64)
    for micro_batch in range(plan.micro_batches):
        route = route_vision(plan, batch, micro_batch)
        leaving = route.source_rank != route.destination_rank
        np.add.at(sent[micro_batch], route.source_rank[leaving], route.rows[leaving] * token_bytes)
    return sent
