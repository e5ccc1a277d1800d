"""Writes a byte-level BPE tokenizer as the files that transformers reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """A vocabulary over bytes, with its merges and special tokens.

    Attributes
    ----------
    tokens
        By id, in the letters of :func:`runtime.token_pieces.byte_letters`; special tokens as they read.
    merges
        Pairs of tokens that become one, the first ones first.
    special
        Ids of tokens that aren't text.
    added
        Ids of tokens that are found in a text before it is cut into pieces, but are text.
    roles
        Tokens by role: ``bos_token``, ``eos_token``, ``unk_token``, ``pad_token``; a role may be missing.
    chat_template
        In Jinja; ``None`` without one.
    splits_digits
        Whether each digit is a piece of its own.
    max_position
        Longest sequence of the model, tokens.
    """

    tokens: Sequence[str]
    merges: Sequence[tuple[str, str]]
    special: Sequence[int]
    roles: Mapping[str, str]
    chat_template: str | None
    max_position: int
    splits_digits: bool = False
    added: Sequence[int] = ()

    def write(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json; the same bytes for the same tokenizer."""
        cut = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        digits = {"type": "Digits", "individual_digits": True}
        special = set(self.special)
        write_json(folder / "tokenizer.json", {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": token, "content": self.tokens[token], "single_word": False, "lstrip": False,
                    "rstrip": False, "normalized": False, "special": token in special,
                }
                for token in sorted({*special, *self.added})
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, cut]} if self.splits_digits else cut,
            "post_processor": None,
            "decoder": cut,
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": {token: index for index, token in enumerate(self.tokens)},
                "merges": [list(pair) for pair in self.merges],
            },
        })  # fmt: skip
        told: dict[str, Any] = {
            # Said outright: transformers would take another class for the model's type, and split text otherwise.
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self.roles,
            "model_max_length": self.max_position,
            "clean_up_tokenization_spaces": False,
        }
        if self.chat_template is not None:
            told["chat_template"] = self.chat_template
        write_json(folder / "tokenizer_config.json", told)


def write_json(path: Path, value: object) -> None:
    """Write JSON as people read it."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
