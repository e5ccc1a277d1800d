"""The answers of OpenAI's two endpoints: whole ones and the pieces of streamed ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.generation import EndEvent, TokenEvent
from runtime.live_request import Codec
from runtime.server.logprobs import CompletionLogprobs, chat_entry


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a reply took, prompts and answers."""

    prompt: int
    generated: int

    def shape(self) -> dict[str, int]:
        """Return what the client gets."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
        }


class Dialect(Protocol):
    """How one endpoint says things.

    Attributes
    ----------
    id_prefix, whole_object, piece_object
        Of ids and of the field ``object``.
    """

    id_prefix: str
    whole_object: str
    piece_object: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice that begins a streamed answer, ``None`` where there is none."""
        ...

    def piece(self, index: int, events: Sequence[TokenEvent], text: str, offset: int) -> dict[str, Any]:
        """Return the choice for new tokens and their text, which begins at a character of the answer."""
        ...

    def closing(self, index: int, end: EndEvent) -> dict[str, Any]:
        """Return the choice that ends a streamed answer."""
        ...

    def whole(self, index: int, events: Sequence[TokenEvent], text: str, end: EndEvent) -> dict[str, Any]:
        """Return the choice of an answer that is given at once."""
        ...


class ChatDialect:
    """Chat completions.

    Parameters
    ----------
    codec
        Knows the texts of tokens.
    """

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice that begins a streamed answer."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, events: Sequence[TokenEvent], text: str, offset: int) -> dict[str, Any]:
        """Return the choice for new tokens; chat doesn't tell where their text begins."""
        delta = {"content": text}
        return {"index": index, "delta": delta, "logprobs": self._logprobs(events), "finish_reason": None}

    def closing(self, index: int, end: EndEvent) -> dict[str, Any]:
        """Return the choice that ends a streamed answer."""
        return {"index": index, "delta": {}, "logprobs": None, **_ending(end)}

    def whole(self, index: int, events: Sequence[TokenEvent], text: str, end: EndEvent) -> dict[str, Any]:
        """Return the choice of an answer that is given at once."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self._logprobs(events), **_ending(end)}

    def _logprobs(self, events: Sequence[TokenEvent]) -> dict[str, Any] | None:
        told = [chat_entry(self._codec, one.token, one.logprobs) for one in events if one.logprobs is not None]
        return {"content": told, "refusal": None} if told else None


class CompletionDialect:
    """Text completions.

    Parameters
    ----------
    codec
        Knows the texts of tokens.
    """

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    piece_object = "text_completion"

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return nothing: completions begin with their text."""
        return None

    def piece(self, index: int, events: Sequence[TokenEvent], text: str, offset: int) -> dict[str, Any]:
        """Return the choice for new tokens."""
        return {"index": index, "text": text, "logprobs": self._logprobs(events, offset), "finish_reason": None}

    def closing(self, index: int, end: EndEvent) -> dict[str, Any]:
        """Return the choice that ends a streamed answer."""
        return {"index": index, "text": "", "logprobs": None, **_ending(end)}

    def whole(self, index: int, events: Sequence[TokenEvent], text: str, end: EndEvent) -> dict[str, Any]:
        """Return the choice of an answer that is given at once."""
        return {"index": index, "text": text, "logprobs": self._logprobs(events, 0), **_ending(end)}

    def _logprobs(self, events: Sequence[TokenEvent], offset: int) -> dict[str, Any] | None:
        told, place = CompletionLogprobs(), offset
        for event in events:
            if event.logprobs is not None:
                told.add(self._codec, event.token, event.logprobs, place)
            place += len(event.text)
        return told.shape() if any(event.logprobs is not None for event in events) else None


def _ending(end: EndEvent) -> dict[str, Any]:
    return {"finish_reason": end.reason.value, "stop_reason": end.stop}


class Envelope:
    """What is the same in all pieces of a reply.

    Parameters
    ----------
    dialect
        Of the endpoint.
    number
        Makes the id.
    model_name, created
        Of the model; Unix time, seconds.
    """

    def __init__(self, dialect: Dialect, number: str, model_name: str, created: int) -> None:
        self._id, self._dialect = dialect.id_prefix + number, dialect
        self._model_name, self._created = model_name, created

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """Return the body of an answer that is given at once."""
        return {**self._head(self._dialect.whole_object), "choices": choices, "usage": usage.shape()}

    def piece(self, choices: list[dict[str, Any]], *, has_usage: bool, usage: Usage | None = None) -> bytes:
        """Return one server-sent event; with `has_usage` it has the field, empty where none is told."""
        body = {**self._head(self._dialect.piece_object), "choices": choices}
        if has_usage:
            body["usage"] = None if usage is None else usage.shape()
        return server_sent(body)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model_name,
            "system_fingerprint": None,
        }


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


def server_sent(body: dict[str, Any]) -> bytes:
    r"""Return a server-sent event; pure ASCII, so that no client takes a character of the text for a line's end.

    Examples
    --------
    >>> server_sent({"text": "\u2028"})
    b'data: {"text":"\\u2028"}\n\n'
    """
    return b"data: " + _encode(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
"""Ends a stream that went well."""
