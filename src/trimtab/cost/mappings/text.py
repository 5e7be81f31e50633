"""Text-only models whose config uses the common field names."""

from __future__ import annotations

from trimtab.cost.mappings.fields import ConfigFields

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "internlm2", "mimo")


def vision_from_config(config: ConfigFields) -> None:
    """No vision encoder."""
    return
