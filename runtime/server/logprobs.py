"""Log-probabilities in the shapes of OpenAI's two endpoints."""

from __future__ import annotations

from typing import Any

from runtime.live_request import Codec
from runtime.steps import RowLogprobs

_LEAST = -9999.0
"""In place of minus infinity, which JSON can't say."""


def _entry(codec: Codec, token: int, logprob: float) -> dict[str, Any]:
    told = max(logprob, _LEAST)
    return {"token": codec.token_text(token), "logprob": told, "bytes": list(codec.token_bytes(token))}


def chat_entry(codec: Codec, token: int, found: RowLogprobs) -> dict[str, Any]:
    """Return what a chat answer tells of one token."""
    best = [_entry(codec, other, value) for other, value in zip(found.top_ids, found.top, strict=True)]
    return {**_entry(codec, token, found.chosen), "top_logprobs": best}


class CompletionLogprobs:
    """The log-probabilities of a piece of a completion, field by field."""

    def __init__(self) -> None:
        self._tokens: list[str] = []
        self._values: list[float] = []
        self._best: list[dict[str, float]] = []
        self._offsets: list[int] = []

    def add(self, codec: Codec, token: int, found: RowLogprobs, offset: int) -> None:
        """Add a token that begins at this character of the answer."""
        text = codec.token_text(token)
        best = {text: max(found.chosen, _LEAST)}
        for other, value in zip(found.top_ids, found.top, strict=True):
            best.setdefault(codec.token_text(other), max(value, _LEAST))  # of two that read alike, the better one
        self._tokens.append(text)
        self._values.append(max(found.chosen, _LEAST))
        self._best.append(best)
        self._offsets.append(offset)

    def shape(self) -> dict[str, Any]:
        """Return what the client gets."""
        return {
            "tokens": self._tokens,
            "token_logprobs": self._values,
            "top_logprobs": self._best,
            "text_offset": self._offsets,
        }
