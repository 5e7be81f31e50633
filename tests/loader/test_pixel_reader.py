"""What placeholders are loaded as equals the plain pipeline's batch, however they were taken, repeated and sliced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.loader.media_cases import GEOMETRY, scanned

from trimtab.errors import MediaError, MetadataError
from trimtab.loader.executors.node_pool import NodePool
from trimtab.loader.media_reader import MediaReader
from trimtab.loader.pixel_reader import PixelReader
from trimtab.loader.placeholder import concatenate
from trimtab.loader.proxy_batch import PIXELS, TOKENS
from trimtab.loader.proxy_loader import ProxyDataLoader
from trimtab.media.patches import read_patches


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> MediaReader:
    return scanned(tmp_path_factory.mktemp("pixels"))


@pytest.fixture(scope="module")
def pool() -> Iterator[NodePool]:
    pool = NodePool(2, budget_bytes=64 << 20, item_timeout_s=30)
    yield pool
    pool.close()


def plain(media: MediaReader, rows: list[int]) -> torch.Tensor:
    """The batch's pixels as one process reads them."""
    visuals = [visual for row in rows for visual in media.table.sample(row).visuals]
    parts = [read_patches(visual, GEOMETRY) for visual in visuals]
    return torch.from_numpy(np.concatenate([np.zeros((0, GEOMETRY.patch_values), dtype=np.float32), *parts]))


def test_a_whole_epoch_equals_the_plain_pipeline_and_decodes_each_file_once(media: MediaReader, pool: NodePool) -> None:
    reader, before = PixelReader(media, pool), pool.decodes
    loader = ProxyDataLoader(media.table, batch_size=2, seed=1)
    asked = [(batch, reader.request(batch.repeat(3).tensors[PIXELS], step=batch.step)) for batch in loader]
    for batch, pending in asked:
        expected = plain(media, np.repeat(batch.rows, 3).tolist())
        torch.testing.assert_close(reader.get(pending), expected, rtol=0, atol=0)
    assert pool.decodes - before == len(set(media.table.sources.to_pylist()))


@pytest.mark.parametrize("bounds", [(0, 5), (47, 49), (50, 2000), (-30, -1), (96, 96)])
def test_slices_equal_the_plain_pipelines_and_need_only_their_frames(
    media: MediaReader, pool: NodePool, bounds: tuple[int, int]
) -> None:
    reader = PixelReader(media, pool)
    batch = next(iter(ProxyDataLoader(media.table, batch_size=5)))
    spec = batch.tensors[PIXELS]
    before = pool.transport().moved_bytes
    sliced = spec.slice(*bounds)
    mixed = concatenate([sliced, spec.take([1, 0])])
    expected = plain(media, batch.rows.tolist())
    got = reader.get(reader.request(sliced, step=0))
    torch.testing.assert_close(got, expected[slice(*bounds)], rtol=0, atol=0)
    per_frame = int((media.table.grid_thw[:, 1] * media.table.grid_thw[:, 2]).max())
    frames = 2 * per_frame * GEOMETRY.patch_values * 4  # a piece may begin and end within a frame
    if bounds != (50, 2000):
        assert pool.transport().moved_bytes - before <= got.nbytes + frames
    torch.testing.assert_close(
        reader.get(reader.request(mixed, step=0)),
        torch.cat([expected[slice(*bounds)], plain(media, batch.rows[[1, 0]].tolist())]),
        rtol=0,
        atol=0,
    )


def test_another_tables_placeholder_and_rows_that_no_sample_has_are_refused(
    media: MediaReader, pool: NodePool, tmp_path: Path
) -> None:
    reader = PixelReader(media, pool)
    theirs = next(iter(ProxyDataLoader(scanned(tmp_path).table, batch_size=5))).tensors[PIXELS]
    with pytest.raises(MetadataError, match="another metadata table"):
        reader.request(theirs, step=0)
    own = next(iter(ProxyDataLoader(media.table, batch_size=5))).tensors[PIXELS]
    beyond = replace(own.take([0]), start=np.array([0]), stop=np.array([10**6]))
    with pytest.raises(MetadataError, match="the placeholder describes"):
        reader.get(reader.request(beyond, step=0))


def test_other_tensors_and_files_that_are_gone_are_named(media: MediaReader, pool: NodePool) -> None:
    reader = PixelReader(media, pool)
    batch = next(iter(ProxyDataLoader(media.table, batch_size=5)))
    with pytest.raises(MetadataError, match="input_ids is no tensor of pixels"):
        reader.request(batch.tensors[TOKENS], step=0)
    gone = Path(str(media.table.sources[-1].as_py()))
    kept = gone.rename(gone.with_suffix(".kept"))
    fresh = NodePool(1, budget_bytes=0, item_timeout_s=30)
    try:
        with pytest.raises(MediaError, match=gone.name):
            PixelReader(media, fresh).get(PixelReader(media, fresh).request(batch.tensors[PIXELS], step=0))
    finally:
        kept.rename(gone)
        fresh.close()
