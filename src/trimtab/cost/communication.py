"""Time of each collective used here, on consecutive ranks of a cluster.

The usual linear model: latency plus bytes over achieved bandwidth, with the byte counts of NCCL's bus bandwidth
(nccl-tests, PERFORMANCE.md). Within a node one link applies; beyond it all-to-all is bound by each rank's own NIC,
and ring collectives by the slower of the two links.
"""

from __future__ import annotations

from trimtab.cost.cluster import Cluster, Link


def all_to_all_seconds(cluster: Cluster, ranks: int, bytes_per_rank: float) -> float:
    """Every rank sends ``bytes_per_rank`` in all, the same to each rank, itself included."""
    if ranks < 2:
        return 0.0
    near = min(ranks, cluster.ranks_per_node)
    within = bytes_per_rank * (near - 1) / ranks / cluster.node.all_to_all
    if cluster.nodes_of(ranks) == 1:
        return cluster.node.latency + within
    beyond = bytes_per_rank * (ranks - near) / ranks / cluster.across.all_to_all
    return cluster.across.latency + max(within, beyond)


def all_gather_seconds(cluster: Cluster, ranks: int, total_bytes: float) -> float:
    """Every rank ends with all ``total_bytes``, of which it had its share."""
    if ranks < 2:
        return 0.0
    link = _slowest(cluster, ranks)
    return link.latency + total_bytes * (ranks - 1) / ranks / link.all_gather


def reduce_scatter_seconds(cluster: Cluster, ranks: int, total_bytes: float) -> float:
    """Every rank starts with ``total_bytes`` and ends with its share of the sum: an all-gather run backwards."""
    return all_gather_seconds(cluster, ranks, total_bytes)


def all_reduce_seconds(cluster: Cluster, ranks: int, total_bytes: float) -> float:
    """Every rank starts with ``total_bytes`` and ends with their sum."""
    if ranks < 2:
        return 0.0
    link = _slowest(cluster, ranks)
    return link.latency + 2 * total_bytes * (ranks - 1) / ranks / link.all_reduce


def broadcast_seconds(cluster: Cluster, ranks: int, total_bytes: float) -> float:
    """One rank's ``total_bytes`` reach all others through a ring."""
    if ranks < 2:
        return 0.0
    link = _slowest(cluster, ranks)
    return link.latency + total_bytes / link.all_gather


def _slowest(cluster: Cluster, ranks: int) -> Link:
    return cluster.node if cluster.nodes_of(ranks) == 1 else cluster.across
