"""Batches and costs for the planner's tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from trimtab.cost.architecture import LanguageArchitecture
from trimtab.cost.cluster import load_cluster
from trimtab.cost.sharding import with_degrees
from trimtab.planning.problem import PartitionProblem
from trimtab.schema.costs import Costs
from trimtab.schema.metadata import BatchMetadata, SampleMetadata, Visual


def batch_of(tokens: list[int], grids: list[list[tuple[int, int, int]]] | None = None) -> BatchMetadata:
    """Samples of the given text tokens, each with visuals of the given (t, h, w) grids."""
    grids = grids or [[] for _ in tokens]
    samples = [
        SampleMetadata(
            sample_id=f"sample-{row}",
            text_tokens=length,
            loss_tokens=length // 2,
            visuals=tuple(
                Visual(kind="video" if t > 1 else "image", grid_t=t, grid_h=h, grid_w=w, source="none")
                for t, h, w in visuals
            ),
        )
        for row, (length, visuals) in enumerate(zip(tokens, grids, strict=True))
    ]
    return BatchMetadata.from_samples(samples, merge_size=2)


def costs_of(batch: BatchMetadata, patch_ns: int = 200) -> Costs:
    """A quadratic language cost and a vision cost per patch."""
    tokens = batch.tokens
    frame = batch.grid_thw[:, 1] * batch.grid_thw[:, 2]
    return Costs(language_ns=tokens * tokens + 1000 * tokens, vision_frame_ns=patch_ns * frame)


LANGUAGE = LanguageArchitecture(
    hidden=512, layers=4, heads=8, kv_heads=2, head_dim=64, ffn=1024, vocab=1000
)  # legal degrees 1, 2, 4, 8


def sharded_costs_of(
    batch: BatchMetadata, ranks: int, max_degree: int = 8, language: LanguageArchitecture = LANGUAGE
) -> Costs:
    """The costs above at every legal degree."""
    cluster = load_cluster("h800")
    return with_degrees(costs_of(batch), batch.tokens, language, cluster, ranks, max_degree=max_degree)


def problem_of(costs: list[int], ranks: int, **limits: object) -> PartitionProblem:
    """Samples of the given costs, with as many tokens as cost unless given."""
    values = np.array(costs, dtype=np.int64)
    tokens = limits.pop("tokens", values)
    return PartitionProblem(cost_ns=values, tokens=np.asarray(tokens, dtype=np.int64), ranks=ranks, **limits)  # type: ignore[arg-type]


def costs_strategy(max_items: int = 60, max_cost: int = 10**12) -> st.SearchStrategy[list[int]]:
    """Cost lists with zeros, ties and heavy tails."""
    small = st.integers(0, 50)
    large = st.integers(0, max_cost)
    return st.lists(st.one_of(small, large), min_size=0, max_size=max_items)


@st.composite
def batches(draw: st.DrawFn, max_samples: int = 24) -> BatchMetadata:
    """Samples with zero to three visuals, some of them shared between samples."""
    count = draw(st.integers(1, max_samples))
    tokens = draw(st.lists(st.integers(0, 131_072), min_size=count, max_size=count))
    grid = st.tuples(
        st.integers(1, 40), st.integers(1, 20).map(lambda n: 2 * n), st.integers(1, 20).map(lambda n: 2 * n)
    )
    grids = draw(st.lists(st.lists(grid, max_size=3), min_size=count, max_size=count))
    batch = batch_of(tokens, grids)
    replies = draw(st.lists(st.integers(0, count - 1), max_size=6))
    return batch.take([*range(count), *replies])
