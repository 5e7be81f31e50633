from typing import Any

import pytest
from transformers import AutoTokenizer

from trimtab.demo.questions import answers, texts
from trimtab.demo.special_tokens import SPECIAL_TOKENS, VOCABULARY_SIZE, special_token_id
from trimtab.demo.tokenizer import save_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(texts()), folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", ["Which colour?", "héllo ✓\n\t  x=1;", "可以", "", " two  spaces "])
def test_any_text_comes_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("word", answers())
def test_an_answer_is_one_token(tokenizer: Any, word: str) -> None:
    assert len(tokenizer.tokenize(word)) == 1


def test_the_vocabulary_is_full_and_ends_with_the_special_tokens(tokenizer: Any) -> None:
    assert len(tokenizer) == VOCABULARY_SIZE
    ids = tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS))
    assert ids == list(range(VOCABULARY_SIZE - len(SPECIAL_TOKENS), VOCABULARY_SIZE))
    assert ids == [special_token_id(token) for token in SPECIAL_TOKENS]


def test_special_tokens_are_never_split(tokenizer: Any) -> None:
    assert tokenizer.tokenize("a<|image_pad|><|im_end|>") == ["a", "<|image_pad|>", "<|im_end|>"]


def test_the_turn_end_ends_a_reply(tokenizer: Any) -> None:
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_the_template_writes_chatml_with_visuals_in_place(tokenizer: Any) -> None:
    content = [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "How many?"}]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "two"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|><|vision_start|><|video_pad|><|vision_end|>"
        "How many?<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
    )
    assert tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True).endswith(
        "<|im_start|>assistant\n"
    )


def test_equal_texts_train_equal_tokenizers(tokenizer: Any) -> None:
    assert train_tokenizer(texts()).get_vocab() == tokenizer.get_vocab()
