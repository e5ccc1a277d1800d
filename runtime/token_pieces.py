"""The bytes that each token of a vocabulary stands for, so that an answer can be read token by token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
"""How SentencePiece vocabularies name single bytes."""


def byte_letters() -> dict[int, str]:
    """Return the printable letter that byte-level BPE writes for each byte.

    Bytes that are printable in Latin-1 stand for themselves; the others, in order, take the letters from U+0100 on.

    References
    ----------
    Radford et al. (2019), Language Models are Unsupervised Multitask Learners, the vocabulary of GPT-2.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {byte: chr(byte if byte in printable else next(others)) for byte in range(256)}


class TokenPieces:
    """Bytes of tokens, looked up once each.

    The bytes of an answer's tokens in a row, read as UTF-8, are its text. Byte-level BPE and SentencePiece with byte
    fallback, which is what the served architectures use, keep to that; other decoders do as far as a token's text
    depends on nothing but whether it is the first.

    Parameters
    ----------
    backend
        A ``tokenizers.Tokenizer``; it is not changed.
    special
        Ids of tokens that aren't text, as the end of a sequence.
    """

    def __init__(self, backend: Any, special: frozenset[int]) -> None:
        self._backend, self._special = backend, special
        kinds = set(_decoder_kinds(backend))
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_tokens = "ByteFallback" in kinds
        self._bytes = {letter: byte for byte, letter in byte_letters().items()}
        self._first: dict[int, bytes] = {}
        self._later: dict[int, bytes] = {}

    def of(self, token: int, *, is_first: bool = False) -> bytes:
        """Return the bytes of a token; empty for special tokens and ids that the vocabulary doesn't have.

        Parameters
        ----------
        token
            Its id.
        is_first
            Whether text begins with it: some vocabularies drop the space in front of it then.
        """
        if token in self._special:
            return b""
        known = self._first if is_first else self._later
        found = known.get(token)
        if found is None:
            found = known[token] = self._look_up(token, is_first)
        return found

    def is_text(self, token: int) -> bool:
        """Return whether a token is one that text is made of."""
        return token not in self._special and bool(self.name(token))

    def name(self, token: int) -> str:
        """Return how the vocabulary writes a token; empty when it doesn't have it."""
        return self._backend.id_to_token(token) or ""

    def _look_up(self, token: int, is_first: bool) -> bytes:
        name = self.name(token)
        if not name:
            return b""
        if self._is_byte_level:
            letters = [self._bytes.get(letter) for letter in name]
            # An added token may hold any character; then it is written as it reads.
            return name.encode() if None in letters else bytes(letter for letter in letters if letter is not None)
        byte = _BYTE_TOKEN.match(name) if self._has_byte_tokens else None
        if byte and int(byte[1], 16) >= 0x80:
            return bytes.fromhex(byte[1])
        first: str = self._backend.decode([token], skip_special_tokens=False)
        if is_first:
            return first.encode()
        twice: str = self._backend.decode([token, token], skip_special_tokens=False)
        return twice[len(first) :].encode()


def _decoder_kinds(backend: Any) -> Iterator[str]:
    """Names of the steps of a tokenizer's decoder."""
    if backend.decoder is None:
        return
    open_steps = [json.loads(backend.decoder.__getstate__())]
    while open_steps:
        step = open_steps.pop()
        yield step["type"]
        open_steps += step.get("decoders", ())
