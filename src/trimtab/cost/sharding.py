"""What a sample costs when several ranks share it (Ulysses sequence parallelism, arXiv 2309.14509).

Each rank holds 1 / p of the sample's tokens, except in attention, where it holds all tokens of 1 / p of the heads. Two
all-to-all in every layer change from one to the other: queries, keys and values in, attention's output back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.cost.architecture import LanguageArchitecture
from trimtab.cost.cluster import Cluster
from trimtab.cost.communication import all_to_all_seconds
from trimtab.cost.flops import TRAIN, Passes
from trimtab.errors import SettingsError
from trimtab.schema.costs import Costs, ShardedCosts

_BF16 = 2
_CALLS = 2  # all-to-all a layer and pass
_NS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCost:
    """How the all-to-all of a sharded sample count.

    Attributes:
        overlap: share of their time that computing hides, in [0, 1).
        pack_below: samples of fewer tokens share their all-to-all with others of their node (the paper's h_pack).
        pack_tokens: tokens such a pack is filled to (the paper's H_pack).
        fixed_ns: time of a sample that every rank of its node pays in full, such as kernel launches.
    """

    overlap: float = 0.7
    pack_below: int = 4096
    pack_tokens: int = 16384
    fixed_ns: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: one is out of range.
        """
        if not 0 <= self.overlap < 1:
            raise SettingsError(f"overlap={self.overlap} must lie in [0, 1)")
        if self.pack_below < 0 or self.pack_tokens < 1 or self.fixed_ns < 0:
            raise SettingsError(
                f"pack_below={self.pack_below} and fixed_ns={self.fixed_ns} must not be negative, "
                f"pack_tokens={self.pack_tokens} must be at least 1"
            )


def with_degrees(
    costs: Costs,
    tokens: NDArray[np.int64],
    language: LanguageArchitecture,
    cluster: Cluster,
    ranks: int,
    *,
    max_degree: int,
    passes: Passes = TRAIN,
    exchange: ExchangeCost | None = None,
) -> Costs:
    """The costs, extended to every legal degree up to ``max_degree`` and ``ranks``.

    Args:
        costs: of N whole samples.
        tokens: int64 [N].
        language: the model that is sharded.
        cluster: for the time of all-to-all.
        ranks: R; within one host no node crosses a slow link.
        max_degree: largest degree wanted.
        passes: how often the forward's exchanges are paid.
        exchange: overlap and packing.

    Raises:
        SettingsError: ``max_degree`` or ``ranks`` is below 1.
    """
    if max_degree < 1 or ranks < 1:
        raise SettingsError(f"max_degree={max_degree} and ranks={ranks} must be at least 1")
    exchange = exchange or ExchangeCost()
    degrees = language.legal_degrees(min(max_degree, ranks))
    shared = np.maximum(costs.language_ns - exchange.fixed_ns, 0)
    columns = [
        costs.language_ns
        if degree == 1
        else -(-shared // degree)
        + (costs.language_ns - shared)
        + _exposed_ns(tokens, degree, language, cluster, ranks, passes, exchange)
        for degree in degrees
    ]
    sent = [sent_bytes(tokens, degree, language) * passes.exchanges for degree in degrees]
    sharded = ShardedCosts(degrees=degrees, language_ns=np.stack(columns, axis=1), sent_bytes=np.stack(sent, axis=1))
    return replace(costs, sharded=sharded, legal_degrees=language.legal_degrees(language.heads))


def sent_bytes(tokens: NDArray[np.int64], degree: int, language: LanguageArchitecture) -> NDArray[np.int64]:
    """int64 [N], bytes all ranks of a node send each other in one forward, bf16.

    Of each token's row all but 1 / p leaves its rank: queries, keys and values in, the output back; keys and values are
    repeated where there are fewer KV heads than ranks.

    Args:
        tokens: int64 [N].
        degree: p.
        language: the model.
    """
    return np.asarray(tokens * (degree - 1) * _row_bytes(degree, language) // degree, dtype=np.int64)


def _row_bytes(degree: int, language: LanguageArchitecture) -> int:
    """Bytes of one token's queries, keys, values and outputs in all layers."""
    heads = 2 * language.heads + 2 * max(language.kv_heads, degree)
    return heads * language.head_dim * _BF16 * language.layers


def _exposed_ns(
    tokens: NDArray[np.int64],
    degree: int,
    language: LanguageArchitecture,
    cluster: Cluster,
    ranks: int,
    passes: Passes,
    exchange: ExchangeCost,
) -> NDArray[np.int64]:
    """int64 [N], time of each sample's all-to-all that computing does not hide."""
    latency, per_byte = _link(cluster, degree, ranks)
    calls = np.where(tokens < exchange.pack_below, tokens / exchange.pack_tokens, 1.0) * _CALLS * language.layers
    forward = calls * latency + tokens / degree * _row_bytes(degree, language) * per_byte
    return np.rint(forward * passes.exchanges * (1 - exchange.overlap) * _NS).astype(np.int64)


def _link(cluster: Cluster, degree: int, ranks: int) -> tuple[float, float]:
    """Latency, and seconds for each byte a rank holds, of an all-to-all over a node of ``degree`` ranks.

    Nodes that neither divide a host nor are made of whole hosts straddle two; they are taken as all on the slow link.
    """
    near = cluster.ranks_per_node
    if ranks > near and near % degree and degree % near:
        return cluster.across.latency, (degree - 1) / degree / cluster.across.all_to_all
    latency = all_to_all_seconds(cluster, degree, 0)
    return latency, (all_to_all_seconds(cluster, degree, _NS) - latency) / _NS
