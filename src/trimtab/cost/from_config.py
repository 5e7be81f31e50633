"""An architecture from a Hub-style config dictionary, without Transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trimtab.cost.architecture import Architecture, VisionArchitecture
from trimtab.cost.mappings import internvl, llava_onevision, qwen2_5_vl, qwen2_vl, qwen3_vl, text
from trimtab.cost.mappings.fields import ConfigFields
from trimtab.cost.mappings.language import language_from_config
from trimtab.errors import UnknownModelError

_VISION_MAPPINGS: dict[str, Callable[[ConfigFields], VisionArchitecture | None]] = {
    model_type: family.vision_from_config
    for family in (qwen2_vl, qwen2_5_vl, qwen3_vl, internvl, llava_onevision, text)
    for model_type in family.MODEL_TYPES
}


def architecture_from_config(config: Mapping[str, Any], name: str | None = None) -> Architecture:
    """Build an architecture from a model's ``config.json``.

    Flat Hub configs and the nested ones Transformers 5 writes (``text_config``, ``vision_config``) are both read;
    vision fields a file omits take the family's defaults.

    Args:
        config: the parsed file; its ``model_type`` selects the mapping.
        name: how reports call the model; default: the model type.

    Raises:
        UnknownModelError: the model type is not supported, or a size is missing.
    """
    model_type = config.get("model_type")
    if model_type not in _VISION_MAPPINGS:
        known = ", ".join(sorted(_VISION_MAPPINGS))
        raise UnknownModelError(f"model type {model_type!r} has no cost mapping; supported: {known}")
    fields = ConfigFields(config)
    return Architecture(
        name=name or str(model_type),
        family=str(model_type),
        language=language_from_config(fields),
        vision=_VISION_MAPPINGS[model_type](fields),
    )
