"""From the events of a reply to HTTP responses, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from runtime.generation import EndEvent, Reason, TokenEvent
from runtime.server.client import Client, ClientGone, ClientTooSlow
from runtime.server.dialects import DONE, Dialect, Envelope, Usage, server_sent
from runtime.server.errors import ApiError, try_again
from runtime.server.replies import Event, Reply

HEAD_WAIT_S = 5.0
"""A stream's head is held back so long for the first event, since after it no error status can be sent."""

_WELL = (Reason.STOP, Reason.LENGTH)


@dataclass(frozen=True, slots=True)
class StreamStyle:
    """What a client wants of its stream.

    Attributes
    ----------
    has_usage
        A last piece with the usage.
    is_usage_continuous
        Usage in each piece, and a piece for each token even when it adds no text.
    keepalive_s, retry_after_s
        As in :class:`~runtime.server.options.ServerOptions`.
    """

    has_usage: bool
    is_usage_continuous: bool
    keepalive_s: float
    retry_after_s: int


def end_error(end: EndEvent, retry_after_s: int) -> ApiError:
    """Return what a client is told of an answer that didn't end well."""
    if end.reason is Reason.REJECTED:
        return try_again(429, end.message or "the server is full", retry_after_s)
    return try_again(503, end.message or "the answer was aborted", retry_after_s)


def is_shown(event: TokenEvent, eos_ids: frozenset[int], *, ignores_eos: bool) -> bool:
    """Return whether a token is part of the answer; the one that ends it isn't."""
    return ignores_eos or event.token not in eos_ids


async def collect(
    reply: Reply, dialect: Dialect, envelope: Envelope, eos_ids: frozenset[int], retry_after_s: int
) -> JSONResponse:
    """Return the whole answer once all parts are over; raises ApiError when one ends badly."""
    tokens: list[list[TokenEvent]] = [[] for _ in reply.parts]
    ends: list[EndEvent | None] = [None] * len(reply.parts)
    while not all(ends):
        for index, event in await reply.take():
            if isinstance(event, TokenEvent):
                tokens[index].append(event)
            elif event.reason in _WELL:
                ends[index] = event
            else:
                raise end_error(event, retry_after_s)
    choices = []
    for index, (part, end) in enumerate(zip(reply.parts, ends, strict=True)):
        assert end is not None
        text = "".join(event.text for event in tokens[index]) + end.text
        ignores = part.request.sampling.ignores_eos
        shown = [event for event in tokens[index] if is_shown(event, eos_ids, ignores_eos=ignores)]
        choices.append(dialect.whole(index, shown, text, end))
    return JSONResponse(envelope.whole(choices, usage_of(reply)))


def usage_of(reply: Reply) -> Usage:
    """Return the tokens of all parts so far."""
    prompt = sum(len(part.request.prompt) for part in reply.parts)
    return Usage(prompt, sum(len(part.token_ns) for part in reply.parts))


async def first_events(reply: Reply, keepalive_s: float, retry_after_s: int) -> list[Event]:
    """Return what comes first, nothing when that takes long; raises ApiError when a part ended badly at once."""
    events = await reply.take_within(min(HEAD_WAIT_S, keepalive_s))
    for _, event in events:
        if isinstance(event, EndEvent) and event.reason not in _WELL:
            raise end_error(event, retry_after_s)
    return events


class StreamedReply(Response):
    """Server-sent events, one for each token that adds text.

    Parameters
    ----------
    client, reply, first
        To whom, what, and what of it is there already.
    dialect, envelope, style
        How it is said.
    eos_ids
        Tokens that end an answer.
    on_slow
        Called when the client doesn't read.
    on_end
        Called at the end, however it came.
    headers
        Added to the response.
    """

    def __init__(
        self,
        client: Client,
        reply: Reply,
        first: list[Event],
        dialect: Dialect,
        envelope: Envelope,
        style: StreamStyle,
        eos_ids: frozenset[int],
        *,
        on_slow: Callable[[], None],
        on_end: Callable[[], None],
        headers: dict[str, str],
    ) -> None:
        # No body yet, so that the head gets no length.
        self.status_code, self.media_type, self.background = 200, "text/event-stream", None
        self.init_headers({**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._client, self._reply, self._first = client, reply, first
        self._dialect, self._envelope, self._style, self._eos_ids = dialect, envelope, style, eos_ids
        self._on_slow, self._on_end = on_slow, on_end
        self._offsets = [0] * len(reply.parts)
        self._num_told = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until it ends, fails, or its client is gone or too slow."""
        try:
            await self._client.attend(self._send_all(send), self._reply.overflowed)
        except ClientGone:
            pass
        except ClientTooSlow:
            self._on_slow()
            await self._client.cut()
        finally:
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for data in self._pieces():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self) -> AsyncIterator[bytes]:
        opening = [self._dialect.opening(index) for index in range(len(self._reply.parts))]
        data = b"".join(self._piece(choice) for choice in opening if choice is not None)
        events, left = self._first, len(self._reply.parts)
        while True:
            for index, event in events:
                if isinstance(event, TokenEvent):
                    data += self._token(index, event)
                    continue
                if event.reason not in _WELL:
                    yield data + server_sent(end_error(event, self._style.retry_after_s).body())
                    return
                data += self._rest(index, event)
                left -= 1
            if not left:
                break
            if data:
                yield data
            data = b""
            events = await self._reply.take_within(self._style.keepalive_s)
            if not events:
                data = b": waiting\n\n"
        if self._style.has_usage:
            data += self._envelope.piece([], has_usage=True, usage=usage_of(self._reply))
        yield data + DONE

    def _token(self, index: int, event: TokenEvent) -> bytes:
        self._num_told += 1
        ignores_eos = self._reply.parts[index].request.sampling.ignores_eos
        shown = [event] if is_shown(event, self._eos_ids, ignores_eos=ignores_eos) else []
        has_logprobs = bool(shown) and event.logprobs is not None
        if not (event.text or has_logprobs or self._style.is_usage_continuous):
            return b""
        choice = self._dialect.piece(index, shown, event.text, self._offsets[index])
        self._offsets[index] += len(event.text)
        return self._piece(choice)

    def _rest(self, index: int, end: EndEvent) -> bytes:
        held = self._piece(self._dialect.piece(index, (), end.text, self._offsets[index])) if end.text else b""
        return held + self._piece(self._dialect.closing(index, end))

    def _piece(self, choice: dict[str, object]) -> bytes:
        usage = Usage(usage_of(self._reply).prompt, self._num_told) if self._style.is_usage_continuous else None
        return self._envelope.piece([choice], has_usage=self._style.has_usage or usage is not None, usage=usage)
