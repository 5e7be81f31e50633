"""The shape of a vision-language model, as far as its cost depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageArchitecture:
    """A decoder-only language model, dense or mixture of experts.

    Attributes:
        hidden, layers, heads, kv_heads, head_dim, vocab: as named in the model's config.
        ffn: width of the dense feed-forward (three matrices: gate, up, down).
        tied: input and output embeddings share their weight.
        experts: routed experts of an MoE layer; 0 for a dense model.
        experts_per_token: experts each token visits.
        expert_ffn: width of one routed expert.
        shared_expert_ffn: width of the expert every token visits, 0 where there is none.
        dense_layers: layers of an MoE model that keep the dense feed-forward.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_expert_ffn: int = 0
    dense_layers: int = 0

    def __post_init__(self) -> None:
        """Refuse shapes no model has.

        Raises:
            SettingsError: a size is not positive, or heads are not a multiple of the KV heads.
        """
        for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, name) < 1:
                raise SettingsError(f"language model: {name}={getattr(self, name)} must be at least 1")
        if self.heads % self.kv_heads:
            raise SettingsError(f"language model: {self.heads} heads are not a multiple of {self.kv_heads} KV heads")

    def legal_degrees(self, max_degree: int) -> tuple[int, ...]:
        """Sequence-parallel degrees up to ``max_degree`` that split heads evenly (Ulysses).

        A degree p is legal if it divides the heads, and divides or is a multiple of the KV heads
        (fewer KV heads than ranks are repeated).
        """
        return tuple(
            p
            for p in range(1, max_degree + 1)
            if self.heads % p == 0 and (self.kv_heads % p == 0 or p % self.kv_heads == 0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionArchitecture:
    """A vision transformer and the projector into the language model.

    Attributes:
        width, depth, heads: hidden size, layers that run, attention heads.
        mlp: width of the feed-forward.
        gated: the feed-forward has a gate (three matrices instead of two).
        patch: side of a square patch, pixels.
        temporal_patch: video frames in one temporal patch.
        merge: patches merged into one token along each spatial axis.
        window: side of an attention window in patches; 0 where every layer attends to the whole frame.
        full_layers: layers that attend to the whole frame although ``window`` is set.
        extra_tokens: tokens beside the patches of each frame (class token).
        projector: (in, out) of every matrix applied to a merged token, deepstack projectors included.
        projector_patches: patches that share one application of the projector (``merge**2``, or 1).
        deepstack: encoder layers whose features are also handed to the language model.
    """

    width: int
    depth: int
    heads: int
    mlp: int
    patch: int
    merge: int
    projector: tuple[tuple[int, int], ...]
    projector_patches: int
    gated: bool = False
    temporal_patch: int = 1
    window: int = 0
    full_layers: tuple[int, ...] = ()
    extra_tokens: int = 0
    deepstack: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A vision-language model.

    Attributes:
        name: how reports call it.
        family: key of the mapping it was built by ("qwen2_5_vl", ...).
        language, vision: its two towers; ``vision`` is None for a text model.
    """

    name: str
    family: str
    language: LanguageArchitecture
    vision: VisionArchitecture | None
