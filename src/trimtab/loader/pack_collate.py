"""Joins the samples of a pack into one sequence for a stock Transformers model, attention staying within each sample.

For a plain ``DataLoader`` and for hosts that call the model themselves; trimtab's own trainer has ``collate.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.errors import LoaderError, SettingsError
from trimtab.loader.pack_batches import IGNORED_LABEL
from trimtab.runtime.attention import use_packed_attention
from trimtab.runtime.positions import rope_positions

Sample = Mapping[str, Any]

VISUALS = (("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw"))


class PackCollator:
    """``DataLoader(..., collate_fn=PackCollator(model))``: a pack's samples -> keyword arguments of ``model``.

    A sample is what the model's processor gives for one conversation (l tokens): ``input_ids`` and ``labels`` (int64
    [l], or [1, l]), and for its visuals ``pixel_values`` and ``image_grid_thw``, ``pixel_values_videos`` and
    ``video_grid_thw`` (and ``second_per_grid_ts``). Rotary positions are counted from each sample's own start.

    Every pack ends with one placeholder of a blank image, apart from the samples and without loss, so that all ranks
    run the vision tower whatever their packs hold; it adds exactly nothing to loss and gradients.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Collate for ``model``, whose language attention is set to stay within ``packed_lengths``.

        Raises:
            SettingsError: the model has no separate language configuration, or no vision tower.
        """
        if not hasattr(model.config, "vision_config") or not hasattr(getattr(model, "model", None), "visual"):
            raise SettingsError(f"{type(model).__name__} has no vision tower; packs of text alone need no PackCollator")
        use_packed_attention(model)
        core: Any = model.model
        config: Any = model.config
        self._image, self._video = config.image_token_id, config.video_token_id
        self._merge = config.vision_config.spatial_merge_size
        self._patch_values = core.visual.patch_embed.proj.weight[0].numel()
        with torch.device("meta"):  # knows positions, holds no weights that data loader processes would copy
            self._skeleton = type(model)(config)

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Join the samples of one pack (L tokens with the blank image's).

        Returns:
            ``input_ids`` and ``labels`` [1, L], ``position_ids`` [3, 1, L], ``packed_lengths``, pixels and grids.

        Raises:
            LoaderError: there is no sample; one lacks ids or labels, has not as many of both, or other visuals than
                placeholders.
        """
        if not samples:
            raise LoaderError("a pack has no samples; give at least one")
        samples = [_flat(sample) for sample in samples]
        for sample in samples:
            self._check_visuals(sample)
        ids = [*(sample["input_ids"] for sample in samples), torch.tensor([self._image])]
        labels = [*(_without_first(sample["labels"]) for sample in samples), torch.tensor([IGNORED_LABEL])]
        positions = [*(self._positions(sample) for sample in samples), torch.zeros(3, 1, dtype=torch.int64)]
        batch: dict[str, Any] = {
            "input_ids": torch.cat(ids)[None],
            "labels": torch.cat(labels)[None],
            "position_ids": torch.cat(positions, dim=1)[:, None],
            "packed_lengths": tuple(len(part) for part in ids),
            "use_cache": False,
        }
        for pixels, grid in VISUALS:
            own = [sample for sample in [*samples, self._blank()] if sample.get(pixels) is not None]
            if own:
                batch[pixels] = torch.cat([sample[pixels] for sample in own])
                batch[grid] = torch.cat([sample[grid] for sample in own])
        return batch

    def _check_visuals(self, sample: Sample) -> None:
        """Pixels, grids and placeholders of a sample belong together."""
        for (pixels, grid), token in zip(VISUALS, (self._image, self._video), strict=True):
            grids = sample.get(grid)
            found = 0 if sample.get(pixels) is None else len(sample[pixels])
            patches = 0 if grids is None else int(torch.as_tensor(grids).prod(dim=1).sum())
            if found != patches:
                raise LoaderError(f"a sample to pack has {found} patches in {pixels}, and {grid} says {patches}")
            placeholders = int((sample["input_ids"] == token).sum())
            if placeholders != patches // self._merge**2:
                raise LoaderError(
                    f"a sample to pack has {placeholders} placeholders of token {token}, and {grid} asks for "
                    f"{patches // self._merge**2}; check pixel_values, grids and input_ids"
                )

    def _positions(self, sample: Sample) -> Tensor:
        ids = sample["input_ids"]
        images, videos = (sample.get(grid) for _, grid in VISUALS)
        grids = [grid for grid in (images, videos) if grid is not None]
        counts = [0 if grid is None else len(grid) for grid in (images, videos)]
        seconds = torch.as_tensor(sample.get("second_per_grid_ts", [1.0] * counts[1]), dtype=torch.float32)
        return rope_positions(
            self._skeleton,
            ids,
            (ids == self._image).long() + 2 * (ids == self._video).long(),
            torch.cat(grids) if grids else torch.zeros(0, 3, dtype=torch.int64),
            torch.tensor([False] * counts[0] + [True] * counts[1]),
            torch.cat([torch.ones(counts[0]), seconds]),
        )

    def _blank(self) -> Sample:
        side = self._merge
        return {
            "pixel_values": torch.zeros(side * side, self._patch_values),
            "image_grid_thw": torch.tensor([[1, side, side]]),
        }


def _flat(sample: Sample) -> dict[str, Any]:
    if not isinstance(sample, Mapping):
        raise LoaderError(
            f"a sample to pack is a {type(sample).__name__}; give what the processor makes of one, by name"
        )
    missing = [name for name in ("input_ids", "labels") if sample.get(name) is None]
    if missing:
        raise LoaderError(
            f"a sample to pack has no {' and no '.join(missing)}; it has {', '.join(sample) or 'nothing'}"
        )
    flat = dict(sample)
    for name in ("input_ids", "labels"):
        flat[name] = torch.as_tensor(sample[name], dtype=torch.int64).flatten()
    if len(flat["input_ids"]) != len(flat["labels"]):
        raise LoaderError(
            f"a sample to pack has {len(flat['input_ids'])} input_ids but {len(flat['labels'])} labels; give one label "
            f"a token, {IGNORED_LABEL} where none is learned"
        )
    return flat


def _without_first(labels: Tensor) -> Tensor:
    """The first token of a sample is predicted by the sample before, which must not learn it."""
    kept = labels.clone()
    kept[:1] = IGNORED_LABEL
    return kept
