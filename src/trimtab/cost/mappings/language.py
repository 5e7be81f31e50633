"""The language model's part of a config; its field names are the same in every supported family."""

from __future__ import annotations

from trimtab.cost.architecture import LanguageArchitecture
from trimtab.cost.mappings.fields import ConfigFields


def language_from_config(config: ConfigFields, *, tied_default: bool = False) -> LanguageArchitecture:
    """Map a text config (nested, or the flat top level of a Hub config), dense or mixture of experts.

    Raises:
        UnknownModelError: a size is missing.
    """
    text = config.section("text_config", "llm_config")
    hidden = text.integer("hidden_size")
    heads = text.integer("num_attention_heads")
    layers = text.integer("num_hidden_layers")
    experts = text.integer("num_experts", text.integer("num_local_experts", 0))  # Hub files and Transformers 5
    return LanguageArchitecture(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=text.integer("num_key_value_heads", heads),
        head_dim=text.integer("head_dim", hidden // heads),
        ffn=text.integer("intermediate_size"),
        vocab=text.integer("vocab_size"),
        tied=config.flag("tie_word_embeddings", text.flag("tie_word_embeddings", tied_default)),
        experts=experts,
        experts_per_token=text.integer("num_experts_per_tok") if experts else 0,
        expert_ffn=text.integer("moe_intermediate_size") if experts else 0,
        shared_expert_ffn=text.integer("shared_expert_intermediate_size", 0),
        dense_layers=_dense_layers(text, layers) if experts else 0,
    )


def _dense_layers(text: ConfigFields, layers: int) -> int:
    """Layers of an MoE model without experts: those listed, and those between sparse steps (Qwen's rule)."""
    listed = set(text.integers("mlp_only_layers", ()) if text.values.get("mlp_only_layers") else ())
    step = text.integer("decoder_sparse_step", 1)
    return sum(1 for layer in range(layers) if layer in listed or (layer + 1) % step)
