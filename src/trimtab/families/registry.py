"""Which families there are."""

from __future__ import annotations

from trimtab.errors import UnknownModelError
from trimtab.families.family import Family
from trimtab.families.qwen2_5_vl import QWEN2_5_VL
from trimtab.families.qwen2_vl import QWEN2_VL
from trimtab.families.qwen3_vl import QWEN3_VL

FAMILIES: tuple[Family, ...] = (QWEN2_VL, QWEN2_5_VL, QWEN3_VL)


def family_for(model_type: str) -> Family:
    """The family of a ``model_type`` as ``config.json`` names it.

    Raises:
        UnknownModelError: no family has this model type; the message lists those known.
    """
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.model_types)
    raise UnknownModelError(f"model type {model_type!r} is not supported; known: {known}")
