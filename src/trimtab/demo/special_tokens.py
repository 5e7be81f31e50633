"""The special tokens of the demo's vocabulary: Qwen's, at its end."""

from __future__ import annotations

VOCABULARY_SIZE = 640

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
IMAGE = "<|image_pad|>"
VIDEO = "<|video_pad|>"

SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END, VISION_START, VISION_END, IMAGE, VIDEO)
"""In the order of their ids, the last ones of the vocabulary."""


def special_token_id(token: str) -> int:
    """Id of a special token.

    Raises:
        ValueError: it is no special token.
    """
    return VOCABULARY_SIZE - len(SPECIAL_TOKENS) + SPECIAL_TOKENS.index(token)
