import numpy as np

from trimtab.demo.sizes import heavy_tailed


def spread(count: int, seed: int = 0) -> np.ndarray:
    return heavy_tailed(count, median=100.0, spread=1.0, limits=(20.0, 900.0), rng=np.random.default_rng(seed))


def test_sizes_keep_their_median_and_limits() -> None:
    sizes = spread(1001)
    assert np.isclose(np.median(sizes), 100.0)
    assert sizes.min() == 20.0
    assert sizes.max() == 900.0


def test_the_largest_tenth_holds_more_than_a_third_of_the_whole() -> None:
    sizes = np.sort(spread(1000))
    assert sizes[-100:].sum() > sizes.sum() / 3


def test_seeds_change_the_order_alone() -> None:
    assert not np.array_equal(spread(50), spread(50, seed=1))
    assert np.array_equal(np.sort(spread(50)), np.sort(spread(50, seed=1)))


def test_one_size_is_the_median() -> None:
    assert np.isclose(spread(1)[0], 100.0)
