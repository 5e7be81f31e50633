"""Nested groups: every degree's nodes are disjoint, and of two nodes one holds the other or they share nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import SettingsError
from trimtab.planning.sequence_groups import GroupFamily, group_family


@given(ranks=st.integers(1, 40), legal=st.sets(st.integers(1, 16)), wanted=st.integers(1, 16), near=st.integers(1, 8))
def test_nodes_nest_and_never_overlap(ranks: int, legal: set[int], wanted: int, near: int) -> None:
    family = group_family(ranks, legal, wanted, ranks_per_node=near)
    nodes = [set(node) for degree in family.degrees for node in family.nodes(degree)]
    for one in nodes:
        for other in nodes:
            assert not one & other or one <= other or other <= one
    for degree in family.degrees:
        assert len(family.nodes(degree)) == ranks // degree
        for rank in range(ranks):
            holds = [node for node in family.nodes(degree) if rank in node]
            assert holds == ([] if (node := family.node_of(rank, degree)) is None else [node])


def test_ranks_left_over_belong_to_smaller_nodes() -> None:
    family = GroupFamily(ranks=7, degrees=(1, 2, 4))
    assert family.nodes(4) == ((0, 1, 2, 3),)
    assert family.nodes(2) == ((0, 1), (2, 3), (4, 5))
    assert family.node_of(5, 4) is None
    assert family.node_of(5, 2) == (4, 5)
    assert family.node_of(6, 1) == (6,)


@pytest.mark.parametrize(
    ("ranks", "legal", "wanted", "near", "chain"),
    [
        (16, (1, 2, 4, 8, 16, 32), 8, 8, (1, 2, 4, 8)),
        (16, (1, 2, 4, 28), 8, 8, (1, 2, 4)),
        (12, (1, 2, 3, 4, 6, 12), 12, 8, (1, 2, 4, 12)),  # 3 and 6 would straddle hosts of 8
        (12, (1, 3, 6), 6, 6, (1, 3, 6)),
        (6, (1, 2, 4, 8), 8, 8, (1, 2, 4)),
        (6, (1, 2, 3, 4, 6), 6, 8, (1, 2, 6)),  # 4 would leave two ranks over
        (32, (1, 2, 4, 8, 16, 24), 24, 8, (1, 2, 4, 8, 16)),  # 24 would leave eight over
        (48, (1, 2, 4, 8, 16, 24), 24, 8, (1, 2, 4, 8, 24)),
        (1, (1, 2, 4), 8, 8, (1,)),
    ],
)
def test_chains_follow_heads_and_hosts(
    ranks: int, legal: tuple[int, ...], wanted: int, near: int, chain: tuple[int, ...]
) -> None:
    assert group_family(ranks, legal, wanted, ranks_per_node=near).degrees == chain


@pytest.mark.parametrize(("needed", "chain"), [(16, (1, 2, 4, 8, 16)), (17, (1, 2, 4, 8, 24)), (99, (1, 2, 4, 8, 24))])
def test_a_chain_reaches_the_degree_a_sample_needs(needed: int, chain: tuple[int, ...]) -> None:
    assert group_family(32, (1, 2, 4, 8, 16, 24), 24, needed=needed).degrees == chain


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ((2, 4), r"\[2, 4\] must start at 1"),
        ((1, 2, 3), r"each dividing the next"),
        ((1, 8), r"degree 8 needs as many ranks, there are 6"),
    ],
)
def test_what_is_no_chain_is_refused(degrees: tuple[int, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        GroupFamily(ranks=6, degrees=degrees)


def test_unknown_degrees_and_ranks_are_named() -> None:
    family = GroupFamily(ranks=4, degrees=(1, 4))
    with pytest.raises(SettingsError, match=r"degree 2 is not of .*\[1, 4\]"):
        family.nodes(2)
    with pytest.raises(SettingsError, match=r"rank 4 is not below 4"):
        family.node_of(4, 4)
    with pytest.raises(SettingsError, match=r"max_degree=0"):
        group_family(4, (1,), 0)
