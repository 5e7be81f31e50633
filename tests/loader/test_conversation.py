"""A conversation's tokens equal the Transformers processor's; the loss covers the assistant's turns alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
from PIL import Image
from transformers import PreTrainedTokenizerFast, Qwen2VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from chat_tokenizer import chat_tokenizer
from trimtab.errors import DatasetError
from trimtab.families import family_for, vision_geometry
from trimtab.loader.conversation import EncodedSample, encode
from trimtab.loader.sources import Conversation, Message, Part, VisualSource, open_dataset
from trimtab.media import describe
from trimtab.schema.metadata import Visual

PHOTOS = Path(skimage.__file__).parent / "data"
LIMITS = {"size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 60 * 28 * 28}}
QWEN2 = vision_geometry({"model_type": "qwen2_vl"}, LIMITS)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return chat_tokenizer()


def talk(*turns: tuple[str, list[str]], visuals: tuple[VisualSource, ...] = ()) -> Conversation:
    kinds = {"<image>": Part("image"), "<video>": Part("video")}
    messages = [Message(role, tuple(kinds.get(text, Part("text", text)) for text in parts)) for role, parts in turns]
    return Conversation(sample_id="s", messages=tuple(messages), visuals=visuals, extras={})


def encode_text(conversation: Conversation, tokenizer: Any, **options: Any) -> EncodedSample:
    return encode(conversation, [], tokenizer, family_for("qwen2_vl"), QWEN2, **options)


class ImageProcessor(Qwen2VLProcessor):
    """The stock processor; its class check alone needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> None:
        return None


def test_images_give_the_processors_tokens_and_types(tokenizer: PreTrainedTokenizerFast) -> None:
    photos = [str(PHOTOS / "coffee.png"), str(PHOTOS / "chelsea.png")]
    conversation = talk(
        ("system", ["You see."]),
        ("user", ["<image>", "\nWhat differs from ", "<image>", "?"]),
        ("assistant", ["The cup.\n\n"]),
        ("user", ["\nHow many?"]),
        ("assistant", ["Three shapes."]),
        visuals=tuple(VisualSource("image", photo) for photo in photos),
    )
    family = family_for("qwen2_vl")
    visuals = [describe("image", photo, QWEN2) for photo in photos]
    encoded = encode(conversation, visuals, tokenizer, family, QWEN2)

    processor = ImageProcessor(
        image_processor=Qwen2VLImageProcessorPil(**LIMITS), tokenizer=tokenizer, video_processor=None
    )
    text = processor.tokenizer.apply_chat_template(
        [
            {"role": message.role, "content": [{"type": part.kind, "text": part.text} for part in message.parts]}
            for message in conversation.messages
        ],
        chat_template=family.chat_template,
        tokenize=False,
    )
    expected = processor(images=[Image.open(photo) for photo in photos], text=[text])
    assert encoded.input_ids.tolist() == expected["input_ids"][0]
    assert encoded.token_types.tolist() == expected["mm_token_type_ids"][0]
    for offset, visual in zip(encoded.visual_offsets.tolist(), visuals, strict=True):
        tokens = visual.patches // 4
        assert encoded.token_types[offset - 1 : offset + tokens + 1].tolist() == [0, *[1] * tokens, 0]


def weighted(encoded: EncodedSample, tokenizer: Any) -> str:
    return str(tokenizer.decode(encoded.input_ids[encoded.loss_weights > 0]))


def test_the_loss_covers_assistant_turns_with_their_end_token(tokenizer: PreTrainedTokenizerFast) -> None:
    conversation = talk(
        ("user", ["How many?"]), ("assistant", ["\nThree."]), ("user", ["And now?"]), ("assistant", ["Two.", " Yes."])
    )
    encoded = encode_text(conversation, tokenizer)
    assert weighted(encoded, tokenizer) == "\nThree.<|im_end|>Two. Yes.<|im_end|>"
    assert weighted(encode_text(conversation, tokenizer, train_on="last_assistant"), tokenizer) == "Two. Yes.<|im_end|>"
    assert set(encoded.loss_weights.tolist()) == {0.0, 1.0}
    assert encoded.loss_weights.dtype == np.float32
    assert (encoded.loss_tokens, encoded.text_tokens) == (int(encoded.loss_weights.sum()), len(encoded))


def test_an_assistants_turn_of_weight_0_has_no_loss(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    turns: list[dict[str, Any]] = [
        {"role": role, "content": content}
        for role, content in [("user", "How many?"), ("assistant", "Three."), ("user", "Yes?"), ("assistant", "Two.")]
    ]

    def trained(first: float | None, second: float | None, **options: Any) -> str:
        weighed = [turns[0], {**turns[1], "weight": first}, turns[2], {**turns[3], "weight": second}]
        (tmp_path / "d.jsonl").write_text(json.dumps({"messages": weighed}) + "\n")
        return weighted(encode_text(open_dataset(tmp_path / "d.jsonl")[0], tokenizer, **options), tokenizer)

    assert trained(None, 1) == "Three.<|im_end|>Two.<|im_end|>"
    assert trained(0, 1) == "Two.<|im_end|>"
    assert trained(1.0, 0.0) == "Three.<|im_end|>"
    assert trained(1, 0, train_on="last_assistant") == trained(0, 0) == ""


def test_an_empty_answer_still_trains_its_end_token(tokenizer: PreTrainedTokenizerFast) -> None:
    encoded = encode_text(talk(("user", ["Hm?"]), ("assistant", [""])), tokenizer)
    assert weighted(encoded, tokenizer) == "<|im_end|>"


def test_a_prompt_ends_with_the_assistants_header_and_has_no_loss(tokenizer: PreTrainedTokenizerFast) -> None:
    encoded = encode_text(talk(("user", ["How many?"])), tokenizer)
    assert str(tokenizer.decode(encoded.input_ids)).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert encoded.loss_tokens == 0
    closed = encode_text(talk(("user", ["How many?"])), tokenizer, generation_prompt=False)
    assert str(tokenizer.decode(closed.input_ids)).endswith("How many?<|im_end|>\n")


def video(frames: int, fps: float, grid: tuple[int, int, int]) -> Visual:
    return Visual(
        kind="video", grid_t=grid[0], grid_h=grid[1], grid_w=grid[2], source="v", frames=frames, seconds=frames / fps
    )


def test_qwen2_videos_are_one_run_of_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    conversation = talk(("user", ["<video>", "?"]), visuals=(VisualSource("video", "v"),))
    encoded = encode(conversation, [video(100, 25.0, (4, 4, 6))], tokenizer, family_for("qwen2_vl"), QWEN2)
    start = int(encoded.visual_offsets[0])
    assert encoded.token_types[start : start + 24].tolist() == [2] * 24
    assert encoded.token_types.sum() == 48
    assert "<|vision_start|><|video_pad|>" in str(tokenizer.decode(encoded.input_ids))


def test_qwen3_videos_have_timestamps_between_their_patches(tokenizer: PreTrainedTokenizerFast) -> None:
    family = family_for("qwen3_vl")
    conversation = talk(("user", ["<video>", "?"]), ("assistant", ["Left."]), visuals=(VisualSource("video", "v"),))
    encoded = encode(conversation, [video(50, 25.0, (2, 4, 4))], tokenizer, family, family.defaults)
    run = "<|video_pad|>" * 4
    expected = (
        f"<|im_start|>user\n<|vision_start|><0.3 seconds><|vision_start|>{run}<|vision_end|>"
        f"<1.6 seconds><|vision_start|>{run}<|vision_end|><|vision_end|>?<|im_end|>\n"
        "<|im_start|>assistant\nLeft.<|im_end|>\n"
    )
    assert encoded.input_ids.tolist() == tokenizer(expected)["input_ids"]
    assert encoded.token_types[encoded.visual_offsets[0]] == 2
    assert encoded.token_types[: encoded.visual_offsets[0]].sum() == 0


@pytest.mark.parametrize("text", ["What is <|image_pad|>?", "<|video_pad|>"])
def test_a_placeholder_smuggled_into_the_text_is_refused(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    with pytest.raises(DatasetError, match=r"sample s: its rendered text places . images? and . videos? for 0 visuals"):
        encode_text(talk(("user", [text]), ("assistant", ["x"])), tokenizer)


def test_a_template_that_drops_visuals_is_refused() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    conversation = talk(("user", ["<video>"]), visuals=(VisualSource("video", "v"),))
    with pytest.raises(DatasetError, match="places 0 images and 0 videos for 1 visual;"):
        encode(conversation, [video(50, 25.0, (2, 4, 4))], tokenizer, family_for("qwen2_vl"), QWEN2)


def test_a_template_that_rewrites_earlier_turns_is_refused_unless_only_the_last_is_trained() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content if loop.last or m.role == 'user' else '…' }}<|im_end|>{% endfor %}"
    )
    conversation = talk(("user", ["a"]), ("assistant", ["b"]), ("user", ["c"]), ("assistant", ["d"]))
    with pytest.raises(DatasetError, match="renders turn 1 otherwise once more turns follow"):
        encode_text(conversation, tokenizer)
    assert weighted(encode_text(conversation, tokenizer, train_on="last_assistant"), tokenizer) == "d<|im_end|>"


def test_a_template_that_refuses_a_conversation_names_the_sample() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DatasetError, match=r"sample s: the chat template cannot render it \(roles must alternate\)"):
        encode_text(talk(("user", ["a"])), tokenizer)


def test_an_assistant_who_speaks_first_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(DatasetError, match="sample s: the assistant speaks first"):
        encode_text(talk(("assistant", ["a"])), tokenizer)
