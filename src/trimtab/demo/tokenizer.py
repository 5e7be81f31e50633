"""Trains the demo's tokenizer: byte-level BPE with Qwen's special tokens and a ChatML template with visuals."""

from __future__ import annotations

import inspect
import string
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trimtab.demo.special_tokens import END_OF_TEXT, SPECIAL_TOKENS, TURN_END, VOCABULARY_SIZE
from trimtab.families.chat_template import CHATML_WITH_VISUALS

_OWN_TEXT_REPEATS = 20


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train on the demo's own texts, and on some of the standard library's so that other text stays short too.

    The special tokens take the last ids, as in Qwen's vocabularies; the vocabulary is exactly ``VOCABULARY_SIZE``.

    Raises:
        ValueError: the texts are too few to fill the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    learned = VOCABULARY_SIZE - len(SPECIAL_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=learned, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_corpus(texts), trainer)
    if tokenizer.get_vocab_size() != learned:
        raise ValueError(
            f"the texts gave {tokenizer.get_vocab_size()} tokens, {learned} are needed; give more varied texts"
        )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=END_OF_TEXT,
        eos_token=TURN_END,
        chat_template=CHATML_WITH_VISUALS,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write it so that ``AutoTokenizer.from_pretrained(folder)`` loads it."""
    tokenizer.save_pretrained(str(folder))


def _corpus(texts: Iterable[str]) -> Iterator[str]:
    """The demo's texts many times over, so that its words become single tokens, and some plain English."""
    for text in texts:
        yield from (text for _ in range(_OWN_TEXT_REPEATS))
    yield from (f"\n{role}\n" for role in ("system", "user", "assistant") for _ in range(_OWN_TEXT_REPEATS))
    yield from (inspect.getdoc(item) or "" for item in (string, inspect, Path, str, dict, list))
