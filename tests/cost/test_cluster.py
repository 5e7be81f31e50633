"""Clusters described in YAML, and the time of collectives on them."""

from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.cost.cluster import cluster_presets, load_cluster
from trimtab.cost.communication import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    reduce_scatter_seconds,
)
from trimtab.cost.memory import language_bytes_per_token, largest_micro_batch, state_bytes
from trimtab.cost.models import model_preset
from trimtab.errors import SettingsError

H100 = load_cluster("h100")
PRESET = Path(__file__).parents[2] / "src/trimtab/cost/presets/clusters/h100.yaml"


@pytest.mark.parametrize("name", cluster_presets())
def test_presets_are_nodes_of_eight(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.ranks_per_node == 8
    assert cluster.ranks is None
    assert cluster.across.all_to_all < cluster.node.all_to_all


def test_all_to_all_in_a_node_matches_the_measured_fit() -> None:
    """NCCL tests on 8 H100: 14 us + moved bytes / 292 GB/s; 512 MiB a rank measured at 315 GB/s, 32 MiB at 235."""
    for size, bus_bandwidth in ((512, 315e9), (32, 235e9)):
        moved = size * 2**20 * 7 / 8
        assert all_to_all_seconds(H100, 8, size * 2**20) == pytest.approx(moved / bus_bandwidth, rel=0.2)


def test_beyond_a_node_the_nic_decides() -> None:
    share_beyond = 8 / 16
    expected = H100.across.latency + 1e9 * share_beyond / H100.across.all_to_all
    assert all_to_all_seconds(H100, 16, 1e9) == pytest.approx(expected)
    assert all_to_all_seconds(H100, 16, 1e9) > 3 * all_to_all_seconds(H100, 8, 1e9)


def test_one_rank_communicates_nothing() -> None:
    every = (all_to_all_seconds, all_gather_seconds, reduce_scatter_seconds, all_reduce_seconds, broadcast_seconds)
    assert [collective(H100, 1, 1e9) for collective in every] == [0.0] * 5


def test_an_all_reduce_moves_twice_a_gather() -> None:
    alike = replace(H100, node=replace(H100.node, all_reduce=H100.node.all_gather, latency=1e-9))
    assert all_reduce_seconds(alike, 8, 1e9) == pytest.approx(2 * all_gather_seconds(alike, 8, 1e9), rel=1e-5)


def test_a_cluster_of_two_nodes_ends_there(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(PRESET.read_text() + "nodes: 2\n")
    cluster = load_cluster(str(path))
    assert cluster.ranks == 16
    with pytest.raises(SettingsError, match=r"17 ranks do not fit cluster 'h100' with 16"):
        all_gather_seconds(cluster, 17, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("gemm_share: 0.80", "gemm_share: 1.8"), r"shares must lie above 0"),
        (("latency: 14.0e-6", "latency: -1"), r"node: latency=-1 must be a positive, finite number"),
        (("  all_to_all: 292.0e+9\n", ""), r"all_to_all"),
        (("flops: 989.0e+12", "flops: 9e14"), r"flops='9e14' must be a number"),
        (("cores: 104", "cpu: 104"), r"unknown cpu; known: cores"),
        (("[[256, 0.128], [512", "[[512, 0.128], [256"), r"must be given and rise"),
        (("name: h100", "- h100"), r"is no YAML"),
        (("name: h100", "name: h100\nnodes: 2\nnodes: 4"), r"nodes stands in line \d+ and again in line \d+"),
        (("flops: 989.0e+12", "flops: .inf"), r"device: flops=inf must be a positive, finite number"),
        (("[[256, 0.128], ", "[[256], "), r"must list pairs \[length, share\]"),
        (("device_memory: 80.0e+9\n", ""), r"device_memory is missing"),
    ],
)
def test_a_bad_description_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    text = PRESET.read_text()
    assert change[0] in text
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace(*change))
    with pytest.raises(SettingsError, match=message):
        load_cluster(str(path))


def test_an_unknown_cluster_lists_the_bundled() -> None:
    with pytest.raises(SettingsError, match=r"'b300': neither a file nor a bundled cluster; there are: a100, h100"):
        load_cluster("b300")


def test_a_micro_batch_shrinks_with_the_model_and_grows_with_ranks() -> None:
    small, large = model_preset("qwen2.5-vl-7b"), model_preset("qwen2.5-vl-72b")
    assert largest_micro_batch(large, 80e9, 8, recompute=True) == 0  # 1.2 TB of state on 8 x 80 GB
    few, many = (largest_micro_batch(small, 80e9, ranks, recompute=True) for ranks in (8, 64))
    assert 0 < few < many
    assert largest_micro_batch(small, 80e9, 64, recompute=False) < many


def test_state_is_sixteen_bytes_a_weight() -> None:
    assert state_bytes(model_preset("qwen2.5-vl-7b"), 1) == pytest.approx(16 * 8.29e9, rel=0.001)


def test_activations_of_a_7b_token_match_the_published_size() -> None:
    """About 34 h bytes a layer without scores (Korthikanti et al., arXiv 2205.05198), more for a wide gated MLP."""
    language = model_preset("qwen2.5-vl-7b").language
    per_layer = language_bytes_per_token(language, recompute=False) / language.layers / language.hidden
    assert 34 < per_layer < 70
