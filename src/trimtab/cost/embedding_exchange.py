"""What sending embeddings from the ranks that encode visuals to the ranks that use them takes on a cluster."""

from __future__ import annotations

from trimtab.cost.architecture import Architecture
from trimtab.cost.cluster import Cluster
from trimtab.cost.communication import all_to_all_seconds
from trimtab.schema.costs import EmbeddingExchange

_EMBEDDING_BYTES = 2  # bf16
_NS = 1e9


def embedding_exchange(architecture: Architecture, cluster: Cluster, ranks: int) -> EmbeddingExchange:
    """The exchange among ``ranks``: nothing of it is taken to be hidden behind computing."""
    latency = all_to_all_seconds(cluster, ranks, 0)
    gigabyte = all_to_all_seconds(cluster, ranks, _NS) - latency
    to_others = max(1, ranks - 1) / ranks  # the model counts a rank's part for itself too
    return EmbeddingExchange(
        token_bytes=token_bytes(architecture),
        latency_ns=round(latency * _NS),
        gigabyte_ns=round(gigabyte / to_others * _NS),
    )


def token_bytes(architecture: Architecture) -> int:
    """Bytes of one merged token's embedding and its deepstack features."""
    tapped = 0 if architecture.vision is None else len(architecture.vision.deepstack)
    return architecture.language.hidden * _EMBEDDING_BYTES * (1 + tapped)
