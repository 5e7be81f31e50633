from itertools import product

import numpy as np
import pytest
import seen

from trimtab.demo.shapes import COLOURS, DIRECTIONS, NUMBERS, moving_scene, still_scene


@pytest.mark.parametrize(("colour", "count"), list(product(COLOURS, (1, 2, 3, 4))))
def test_a_drawn_picture_shows_its_colour_and_count(colour: str, count: int) -> None:
    for seed in range(3):
        scene = still_scene(np.random.default_rng(seed), 120, 90, colour=colour, count=count)
        pixels = np.asarray(scene.draw())
        assert pixels.shape == (90, 120, 3)
        assert (seen.colour(pixels), seen.count(pixels)) == (colour, NUMBERS[count])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_clip_moves_where_it_says_and_stays_in_the_picture(direction: str) -> None:
    clip = moving_scene(np.random.default_rng(0), 96, frames=12, fps=8, colour="red", direction=direction)  # type: ignore[arg-type]
    drawn = [np.asarray(clip.at(index).draw()) for index in range(clip.frames)]
    assert clip.seconds == 1.5
    assert seen.direction(drawn) == direction
    areas = [seen.shape_mask(frame).sum() for frame in drawn]
    assert min(areas) > 0.9 * max(areas)


def test_the_ground_is_grey_and_says_nothing_of_the_answer() -> None:
    scene = still_scene(np.random.default_rng(0), 64, 64, colour="blue", count=1)
    ground = np.asarray(scene.draw())[0, 0]
    assert len(set(ground.tolist())) == 1
