"""Generated mixes have the shape they claim."""

import numpy as np
import pytest

from trimtab.errors import SettingsError
from trimtab.planning.workloads import MIXES, generated_batch


@pytest.mark.parametrize("mix", list(MIXES))
def test_shares_of_the_mix_and_ranges_of_length(mix: str) -> None:
    batch = generated_batch(mix, 4000, seed=0)
    weights = np.array(MIXES[mix])
    assert batch.is_video.mean() == pytest.approx(weights[1:].sum() / weights.sum(), abs=0.03)
    images = batch.tokens[~batch.is_video]
    assert batch.tokens.max() < 66_000
    assert len(images) == 0 or images.max() < 2_300


def test_a_seed_fixes_the_batch() -> None:
    first, again, other = (generated_batch("image-heavy", 50, seed) for seed in (3, 3, 4))
    assert (first.grid_thw == again.grid_thw).all()
    assert (first.tokens != other.tokens).any()


def test_unknown_mix() -> None:
    with pytest.raises(SettingsError, match="image-heavy"):
        generated_batch("text", 1, 0)
