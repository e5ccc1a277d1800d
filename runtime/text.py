"""Text to tokens and back, with the tokenizer and the chat template in a model's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from runtime.answer_text import AnswerText
from runtime.token_pieces import TokenPieces
from slob_opt.errors import InputError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
"""One of these holds the vocabulary; the first one is usual."""

__all__ = ["AnswerText", "TextCodec"]


class TextCodec:
    """Text and tokens of a model. May be used from several threads.

    Parameters
    ----------
    folder
        Model in Hugging Face format, with its tokenizer.

    Raises
    ------
    InputError
        When the folder has no tokenizer, or one that can't be read.

    Examples
    --------
    >>> import tempfile
    >>> from runtime.tiny_model import write_tiny_model
    >>> folder = Path(tempfile.mkdtemp()) / "tiny"
    >>> codec = TextCodec(write_tiny_model(folder))
    >>> codec.decode(codec.encode("naïve 🙂"))
    'naïve 🙂'
    >>> answer = codec.answer(stop=("END",))
    >>> [answer.add(token) for token in codec.encode("AEND")], answer.stop
    (['A', '', '', ''], 'END')
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tokenizer = _load(folder)
        self._backend: Any = self._tokenizer.backend_tokenizer
        # A tokenizer.json may ask for both; prompts are never cut or filled up unseen.
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._tokenizer.added_tokens_decoder
        special = {token for token, entry in added.items() if entry.special} | set(self._tokenizer.all_special_ids)
        self._pieces = TokenPieces(self._backend, frozenset(special))
        config = _json(folder / "config.json")
        self._vocab_size = int(_text_part(config).get("vocab_size") or len(self._tokenizer))
        self._eos_ids = _eos_ids(_json(folder / "generation_config.json"), config, self._tokenizer.eos_token_id)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer: those of generation_config.json, or else config.json, and the tokenizer's."""
        return self._eos_ids

    @property
    def vocab_size(self) -> int:
        """Ids that the model knows; it may know more than the tokenizer does."""
        return self._vocab_size

    @property
    def has_chat_template(self) -> bool:
        """Whether the model says how a conversation is written."""
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with those that the model wants in front of any text, as a begin token.

        Special tokens that are written out in the text become these tokens, as transformers does it.

        Raises
        ------
        InputError
            When the text holds half a surrogate pair, which isn't a character.
        """
        return self._encode(text, adds_special=True)

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the tokens of a conversation, up to where the model's answer begins.

        Parameters
        ----------
        messages
            Each with a ``role`` and a ``content``, which is a text or a list of parts ``{"type": "text", "text": …}``.

        Raises
        ------
        InputError
            When the model has no chat template (a guessed one would give bad answers without saying why), or its
            template refuses the messages.
        """
        if not self.has_chat_template:
            raise InputError(
                "the model has no chat template, so it can't chat; ask for a completion of plain text instead, or put"
                " the template of its makers there as chat_template.jinja",
                file=str(self._folder),
            )
        plain = [{**message, "content": _plain(message.get("content"))} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise InputError(f"the model's chat template refuses these messages: {error}") from error
        return self._encode(text, adds_special=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones left out: what the tokens of an answer add up to."""
        answer = AnswerText(self._pieces)
        return "".join([*(answer.add(token) for token in ids), answer.flush()])

    def token_text(self, token: int) -> str:
        """Return the text of one token inside a text, its space in front included; of a special token, its name.

        Bytes that aren't whole characters are told as U+FFFD; see :meth:`token_bytes`.
        """
        return self.token_bytes(token).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token inside a text; of a special token, its name in UTF-8."""
        return self._pieces.of(token) or self._pieces.name(token).encode()

    def answer(self, stop: tuple[str, ...] = ()) -> AnswerText:
        """Return what makes the text of one answer, which the stop texts end.

        Raises
        ------
        InputError
            When a stop text is empty.
        """
        return AnswerText(self._pieces, stop)

    def _encode(self, text: str, *, adds_special: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"character {error.start} of the text is half a surrogate pair (U+{ord(text[error.start]):04X}),"
                " expected Unicode characters"
            ) from error
        # Not by way of transformers: it changes settings of the tokenizer at each call, which threads would share.
        found: list[int] = self._backend.encode(text, add_special_tokens=adds_special).ids
        return found


def _load(folder: Path) -> Any:
    """Return transformers' fast tokenizer of a folder."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise InputError("the file is missing, expected the model's tokenizer", file=str(folder / _TOKENIZER_FILES[0]))
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True)
    except Exception as error:  # the tokenizer library raises bare exceptions for damaged files
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"the tokenizer can't be read: {told[0]}", file=str(folder)) from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise InputError(
            f"{type(tokenizer).__name__} is a slow tokenizer, expected one that tokenizer.json describes",
            file=str(folder / _TOKENIZER_FILES[0]),
        )
    return tokenizer


def _json(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty when there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InputError(f"the file isn't JSON: {error}", file=str(path)) from error
    if not isinstance(found, dict):
        raise InputError(f"found {type(found).__name__}, expected an object", file=str(path))
    return found


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that describes the language model."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def _eos_ids(generation: dict[str, Any], config: dict[str, Any], own: int | None) -> frozenset[int]:
    named = generation.get("eos_token_id")
    if named is None:
        named = config.get("eos_token_id", _text_part(config).get("eos_token_id"))
    found = set(named) if isinstance(named, list) else {named}
    return frozenset(token for token in (*found, own) if isinstance(token, int))


def _plain(content: Any) -> Any:
    """Return the text of a message; parts are joined, nothing is an empty text."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            raise InputError("found a part that isn't text, expected text: this model reads nothing else")
        texts.append(part["text"])
    return "".join(texts)
