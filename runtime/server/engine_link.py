"""Calls to the engine that can't hold up the loop: the engine may be busy for seconds while it plans anew."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

from runtime.engine import Engine
from runtime.generation import EngineStatus, GenerationRequest, Sink

STATUS_TIMEOUT_S = 1.0
"""After so long without an answer the engine counts as busy."""


class EngineLink:
    """Calls an engine from a coroutine, each kind of call in a thread of its own, in order.

    Parameters
    ----------
    engine
        Started.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._requests = ThreadPoolExecutor(1, "slob-requests")
        self._status = ThreadPoolExecutor(1, "slob-status")
        self._asked: asyncio.Future[EngineStatus] | None = None
        self._last: EngineStatus | None = None

    async def submit(self, request: GenerationRequest, sink: Sink) -> int:
        """Hand a request in and return its number; raises RequestRefused as the engine does."""
        return await asyncio.get_running_loop().run_in_executor(self._requests, self.engine.submit, request, sink)

    def abort(self, number: int) -> None:
        """Drop a request, soon; after :meth:`close` the engine drops it when it's closed itself."""
        with contextlib.suppress(RuntimeError):
            self._requests.submit(self.engine.abort, number)

    def begin_drain(self) -> None:
        """Let the engine take no more requests, soon."""
        self._requests.submit(self.engine.begin_drain)

    async def status(self) -> tuple[EngineStatus | None, bool]:
        """Return what the engine does and whether that is of now; a busy engine's last word, ``None`` before any."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.get_running_loop().run_in_executor(self._status, self.engine.status)
        try:
            self._last = await asyncio.wait_for(asyncio.shield(self._asked), STATUS_TIMEOUT_S)
        except TimeoutError:
            return self._last, False
        return self._last, True

    def close(self) -> None:
        """Make no more calls; doesn't wait for those that are under way."""
        self._requests.shutdown(wait=False)
        self._status.shutdown(wait=False)
