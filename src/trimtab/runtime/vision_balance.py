"""Puts encoder balance into a model through PyTorch's module hooks: nothing is replaced, and ``remove()`` undoes it.

Two ways in:

- `balance_model_vision` for Transformers vision-language models: one encoder call a forward for images and videos
  together, on every rank, handed to the model through ``mm_encoder_outputs``. For hosts that call ``model(**batch)``.
- `balance_encoder` for any encoder called with ``(pixel_values, grid_thw)``. The host calls it on every rank in every
  micro-batch (with [0, D] pixels where it has none) and wraps its loss in ``link``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trimtab.cost.analytic import vision_frame_ns
from trimtab.cost.device import NOMINAL_DEVICE
from trimtab.cost.from_config import architecture_from_config
from trimtab.errors import MetadataError, SettingsError
from trimtab.runtime.balance_report import Logger
from trimtab.runtime.balancer_settings import EncoderBalanceSettings
from trimtab.runtime.encoder_exchange import EncoderExchange, FrameCost, patch_cost
from trimtab.runtime.exchange import link
from trimtab.runtime.vlm import check_hooks

_PIXELS, _VIDEO_PIXELS = "pixel_values", "pixel_values_videos"


class EncoderHooks:
    """Encoder balance as hooks of an encoder module."""

    def __init__(self, encoder: nn.Module, exchange: EncoderExchange) -> None:
        """Install the hooks."""
        self.exchange = exchange
        self._handles = [
            encoder.register_forward_pre_hook(self._before, with_kwargs=True),
            encoder.register_forward_hook(self._after),
        ]

    def link(self, loss: Tensor) -> Tensor:
        """``loss`` with this rank's encoder outputs part of its graph; see ``EncoderExchange.link``."""
        return self.exchange.link(loss)

    def summary(self) -> str:
        """What balance did or would have done so far, in one line."""
        return self.exchange.totals.line(self.exchange.settings.mode)

    def remove(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()

    def _before(
        self, encoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self.exchange.settings.mode == "off":
            return None
        rest = list(args[1:])
        try:
            pixels, grids = _called_with(args, kwargs)
        except MetadataError as error:
            self.exchange.refuse(error)
        pixels, grids = self.exchange.begin(pixels, grids)
        if rest:
            rest[0] = grids
        else:
            kwargs = {**kwargs, "grid_thw": grids}
        return (pixels, *rest), kwargs

    def _after(self, encoder: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return output if self.exchange.settings.mode == "off" else self.exchange.finish(output)


class ModelVisionHooks:
    """Encoder balance as hooks of a Transformers model."""

    def __init__(self, model: nn.Module, exchange: EncoderExchange) -> None:
        """Install the hooks on the model whose forward takes ``pixel_values``."""
        self.exchange = exchange
        self._received: list[Tensor] = []
        self._handles = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after),
        ]

    def summary(self) -> str:
        """What balance did or would have done so far, in one line."""
        return self.exchange.totals.line(self.exchange.settings.mode)

    def remove(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()

    def _before(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self.exchange.settings.mode == "off" or kwargs.get("mm_encoder_outputs") is not None:
            return None
        visual = model.model.visual
        try:
            pixels, grids, videos = _all_visuals(visual, kwargs)
        except Exception as error:
            self.exchange.refuse(error)
        unit_pixels, unit_grids = self.exchange.begin(pixels, grids, videos)
        if self.exchange.settings.mode == "observe":
            self.exchange.cancel()
            return None
        output = self.exchange.finish(visual(unit_pixels, grid_thw=unit_grids))
        self._received = self.exchange.take_unused()
        tokens = grids.prod(dim=-1) // visual.spatial_merge_size**2
        images = int(tokens[: len(videos) - sum(videos)].sum())
        kept = {key: value for key, value in kwargs.items() if key not in (_PIXELS, _VIDEO_PIXELS)}
        kept["mm_encoder_outputs"] = _encoder_outputs(output, images, int(tokens.sum())) or None
        return args, kept

    def _after(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Make what was received part of every output's graph, whether the model used it or not."""
        received, self._received = self._received, []
        if received and isinstance(output, Mapping):
            for key in ("loss", "logits"):
                value = output.get(key)
                if isinstance(value, Tensor) and value.requires_grad:
                    output[key] = link(value, *received)  # type: ignore[index]
        return output


def balance_encoder(
    encoder: nn.Module,
    group: dist.ProcessGroup,
    settings: EncoderBalanceSettings | None = None,
    *,
    merge_size: int | None = None,
    frame_cost: FrameCost | None = None,
    logger: Logger | None = None,
) -> EncoderHooks:
    """Balance an encoder called with ``(pixel_values, grid_thw)``; its parameter names stay as they are. Collective.

    Args:
        encoder: attends within frames, and gives one row for every ``merge_size`` squared patches.
        group: the ranks that share work.
        settings: of the balance; "off" and "observe" behave as in ``balance_model_vision``.
        merge_size: None: the encoder's ``spatial_merge_size``.
        frame_cost: None: ``patch_cost`` of its configured width.
        logger: takes names and values.

    Raises:
        SettingsError: the merge size is neither given nor known.
        RankDisagreementError: ranks differ in settings.
    """
    merge = merge_size if merge_size is not None else getattr(encoder, "spatial_merge_size", None)
    if merge is None:
        raise SettingsError(f"{type(encoder).__name__} has no spatial_merge_size; give merge_size")
    if frame_cost is None:
        config = getattr(encoder, "config", None)
        frame_cost = patch_cost(int(getattr(config, "embed_dim", None) or getattr(config, "hidden_size", None) or 1280))
    exchange = EncoderExchange(
        merge_size=int(merge), frame_cost=frame_cost, group=group, settings=settings, logger=logger
    )
    exchange.agree()
    return EncoderHooks(encoder, exchange)


def balance_model_vision(
    model: Any,
    group: dist.ProcessGroup,
    settings: EncoderBalanceSettings | None = None,
    *,
    frame_cost: FrameCost | None = None,
    logger: Logger | None = None,
) -> ModelVisionHooks:
    """Balance the encoder of a Transformers model; call before or after ``fully_shard``, before DDP. Collective.

    Every rank then runs the encoder once in every forward, with a blank image where it has none, so ranks without
    visuals do not hang and DDP needs no ``find_unused_parameters`` for the encoder.

    Args:
        model: a Qwen-family vision-language model; call it with keyword arguments.
        group: the ranks that share work; best a group used for nothing else.
        settings: of the balance.
        frame_cost: None: from the model's architecture.
        logger: takes names and values.

    Raises:
        UnknownModelError: the model takes no vision outputs from outside, or its type is unknown.
        SettingsError: the model has no vision tower of the Qwen kind.
        RankDisagreementError: ranks differ in settings.
    """
    check_hooks(model)
    visual = getattr(model.model, "visual", None)
    if visual is None or not hasattr(visual, "spatial_merge_size"):
        raise SettingsError(
            f"{type(model).__name__} has no encoder called with (pixel_values, grid_thw); balance samples instead, "
            "with BatchBalancer"
        )
    if frame_cost is None:
        vision = architecture_from_config(model.config.to_dict()).vision
        assert vision is not None
        frame_cost = partial(vision_frame_ns, vision=vision, device=NOMINAL_DEVICE)
    exchange = EncoderExchange(
        merge_size=int(visual.spatial_merge_size),
        frame_cost=frame_cost,
        group=group,
        settings=settings,
        logger=logger,
    )
    exchange.agree()
    return ModelVisionHooks(model, exchange)


def _called_with(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Pixels and grids of an encoder's call.

    Raises:
        MetadataError: names what is not given as it must be.
    """
    grids = args[1] if len(args) > 1 else kwargs.get("grid_thw")
    if not args or not isinstance(args[0], Tensor) or args[0].dim() != 2:
        raise MetadataError("the encoder's first argument must be its pixels, [patches, values], given by position")
    if not isinstance(grids, Tensor) or grids.dim() != 2 or grids.shape[1] != 3 or grids.is_floating_point():
        found = f"{grids.dtype} of shape {list(grids.shape)}" if isinstance(grids, Tensor) else repr(grids)
        raise MetadataError(f"grid_thw is {found}; give whole numbers, [visuals, 3]")
    return args[0], grids


def _all_visuals(visual: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor, list[bool]]:
    """Patches and grids of images, then of videos.

    Raises:
        MetadataError: names the input that is missing or of another shape.
    """
    tokens = next((inputs[key] for key in ("input_ids", "inputs_embeds") if inputs.get(key) is not None), None)
    if tokens is None:
        raise MetadataError("the model is called without input_ids; give them by keyword")
    dtype, device = visual.dtype, tokens.device
    config = visual.config
    channels = getattr(config, "in_channels", None) or getattr(config, "in_chans", None) or 3
    width = channels * config.temporal_patch_size * config.patch_size**2
    empty = torch.zeros(0, width, dtype=dtype, device=device)
    no_grid = torch.zeros(0, 3, dtype=torch.int64, device=device)
    pixels, grids = [empty], [no_grid]
    videos: list[bool] = []
    for key, grid_key, video in ((_PIXELS, "image_grid_thw", False), (_VIDEO_PIXELS, "video_grid_thw", True)):
        if inputs.get(key) is None:
            continue
        grid = _rows(inputs, grid_key, 3)
        if grid.is_floating_point():
            raise MetadataError(f"{grid_key} is {grid.dtype}; give whole numbers")
        pixels.append(_rows(inputs, key, width).to(dtype))
        grids.append(grid)
        videos += [video] * len(grid)
    return torch.cat(pixels), torch.cat(grids), videos


def _rows(inputs: Mapping[str, Any], key: str, columns: int) -> Tensor:
    value = inputs.get(key)
    if not isinstance(value, Tensor) or value.dim() != 2 or value.shape[1] != columns:
        found = f"of shape {list(value.shape)}" if isinstance(value, Tensor) else "missing"
        raise MetadataError(f"{key} is {found}; the processor gives it as [rows, {columns}]")
    return value


def _encoder_outputs(output: Any, images: int, tokens: int) -> dict[str, Any]:
    """What the model takes: tuples of embeddings for images and for videos."""
    parts = {"image": slice(0, images), "video": slice(images, tokens)}
    result = {}
    for kind, rows in parts.items():
        if rows.stop > rows.start:
            own: dict[str, Any] = {"pooler_output": (output.pooler_output[rows],)}
            if getattr(output, "deepstack_features", None):
                own["deepstack_features"] = [(layer[rows],) for layer in output.deepstack_features]
            result[kind] = type(output)(**own)
    return result
