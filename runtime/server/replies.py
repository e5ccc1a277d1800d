"""Replies: what the engine says about the requests of one client, on its way from the engine's thread to the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

from runtime.generation import EndEvent, GenerationRequest, Reason, Sink, TokenEvent


class Observer(Protocol):
    """Takes what happens to requests, for the metrics."""

    def token(self, part: Part, event: TokenEvent) -> None:
        """Take a new token of a request."""
        ...

    def ended(self, part: Part, event: EndEvent) -> None:
        """Take the end of a request."""
        ...


class Part:
    """One engine request of a reply.

    Attributes
    ----------
    request
        As the engine got it.
    arrival_ns
        ``time.monotonic_ns`` when the server had the client's request.
    number
        The engine's; ``None`` until it took the request.
    token_ns
        When the engine had each token.
    is_over
        Whether the engine is through with it.
    """

    def __init__(self, request: GenerationRequest, arrival_ns: int) -> None:
        self.request, self.arrival_ns = request, arrival_ns
        self.number: int | None = None
        self.token_ns: list[int] = []
        self.is_over = False


Event = tuple[int, TokenEvent | EndEvent]
"""What came for which part of a reply."""


class Reply:
    """The requests of one client's call and what has come of them. For the loop's thread only.

    Parameters
    ----------
    parts
        Its engine requests.
    max_buffered
        Tokens that may wait for the client; beyond, :attr:`overflowed` is set and nothing more is kept. ``None`` keeps
        all, for an answer that is told as a whole.

    Attributes
    ----------
    overflowed
        Set when the client reads too slowly.
    is_closed
        Whether nobody wants events any more.
    """

    def __init__(self, parts: tuple[Part, ...], max_buffered: int | None) -> None:
        self.parts, self._max_buffered = parts, max_buffered
        self._events: deque[Event] = deque()
        self._is_ready = asyncio.Event()
        self._ended: set[int] = set()
        self.overflowed = asyncio.Event()
        self.is_closed = False

    def put(self, index: int, event: TokenEvent | EndEvent) -> None:
        """Keep an event for the client, unless the client was told of an end before."""
        if self.is_closed or index in self._ended:
            return
        if isinstance(event, EndEvent):
            self._ended.add(index)
        elif self._max_buffered is not None and len(self._events) >= self._max_buffered:
            self.overflowed.set()
            self.close()
            return
        self._events.append((index, event))
        self._is_ready.set()

    async def take(self) -> list[Event]:
        """Return all events that have come since, waiting for one."""
        if not self._events:
            await self._is_ready.wait()
        return self._taken()

    async def take_within(self, timeout_s: float) -> list[Event]:
        """Return all events that have come since, waiting for one; none when the time is over."""
        if not self._events:
            # A bare timer: for every token of every stream, asyncio.timeout would cost as much as writing it out.
            timer = asyncio.get_running_loop().call_later(timeout_s, self._is_ready.set)
            try:
                await self._is_ready.wait()
            finally:
                timer.cancel()
        return self._taken()

    def _taken(self) -> list[Event]:
        self._is_ready.clear()
        events = list(self._events)
        self._events.clear()
        return events

    def fail(self, message: str) -> None:
        """Tell the client that what isn't over won't be."""
        for index, part in enumerate(self.parts):
            generated = len(part.token_ns)
            self.put(index, EndEvent(Reason.ERROR, "", message, len(part.request.prompt), generated, 0))

    def close(self) -> None:
        """Keep no more events."""
        self.is_closed = True
        self._events.clear()


class Exchange:
    """Carries events from the engine's thread into the loop, all that have come in one go, and knows who is live.

    But for what :meth:`sink` returns, it's for one loop's thread only.

    Parameters
    ----------
    observer
        Gets every event, in the loop's thread.
    abort
        Called in the loop's thread to drop an engine request by its number; must not wait.

    Attributes
    ----------
    num_waiting
        Engine requests that haven't got their first token.
    """

    def __init__(self, observer: Observer, abort: Callable[[int], None]) -> None:
        self._observer, self._abort = observer, abort
        self._incoming: deque[tuple[Reply, int, TokenEvent | EndEvent]] = deque()
        self._is_woken = False
        self._live: dict[Reply, int] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.num_waiting = 0

    @property
    def num_live(self) -> int:
        """Engine requests that aren't over."""
        return sum(self._live.values())

    def open(self, reply: Reply) -> None:
        """Count a reply's parts as live, before they are handed to the engine."""
        self._live[reply] = len(reply.parts)
        self.num_waiting += len(reply.parts)
        self._is_idle.clear()

    def sink(self, reply: Reply, index: int) -> Sink:
        """Return what the engine calls with the events of one part."""
        loop = asyncio.get_running_loop()

        def push(event: TokenEvent | EndEvent) -> None:
            self._incoming.append((reply, index, event))
            if not self._is_woken:
                self._is_woken = True
                # The loop may have been closed while the engine still runs; then nobody listens any more.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._deliver)

        return push

    def _deliver(self) -> None:
        self._is_woken = False
        while self._incoming:
            reply, index, event = self._incoming.popleft()
            part = reply.parts[index]
            if isinstance(event, TokenEvent):
                self.num_waiting -= not part.token_ns
                part.token_ns.append(event.at_ns)
                self._observer.token(part, event)
            else:
                self.over(reply, index)
                self._observer.ended(part, event)
            reply.put(index, event)
            if reply.overflowed.is_set():
                self.drop(reply)

    def over(self, reply: Reply, index: int) -> None:
        """Count a part as through: the engine said so, or never took it."""
        part = reply.parts[index]
        if part.is_over:
            return
        part.is_over = True
        self.num_waiting -= not part.token_ns
        self._live[reply] -= 1
        if not self._live[reply]:
            del self._live[reply]
        if not self._live:
            self._is_idle.set()

    def drop(self, reply: Reply) -> None:
        """Let the engine give up what isn't over of a reply; does nothing when all is."""
        reply.close()
        self._give_up(reply)

    def _give_up(self, reply: Reply) -> None:
        for part in reply.parts:
            if not part.is_over and part.number is not None:
                self._abort(part.number)

    def fail_all(self, message: str) -> None:
        """Tell all clients that wait that nothing more comes, and let the engine give up their requests."""
        for reply in list(self._live):
            reply.fail(message)
            self._give_up(reply)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Return whether nothing is live, after waiting for that at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()
        return self._is_idle.is_set()
