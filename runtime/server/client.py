"""The client at the other end: whether it's still there, and how to be rid of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import Receive

T = TypeVar("T")

TRANSPORT_KEY = "slob_transport"
"""Under which the server's connections put their transport into the state of a request."""

_CUT_S = 1.0


class ClientGone(Exception):
    """The client has closed its connection."""


class ClientTooSlow(Exception):
    """The client doesn't read what it asked for."""


class Client:
    """Watches the connection of one request, whose body was read, until :meth:`close`.

    Parameters
    ----------
    request
        Of the web framework.
    """

    def __init__(self, request: Request) -> None:
        self._gone = asyncio.create_task(_wait_gone(request.receive))
        transport = request.scope.get("state", {}).get(TRANSPORT_KEY)
        self._transport: asyncio.Transport | None = transport

    async def attend(self, work: Coroutine[Any, Any, T], too_slow: asyncio.Event | None = None) -> T:
        """Return what the work returns.

        Raises
        ------
        ClientGone, ClientTooSlow
            When that happens first; the work is cancelled.
        """
        doing = asyncio.ensure_future(work)
        waiting: set[asyncio.Future[Any]] = {doing, self._gone}
        if too_slow is not None:
            waiting.add(asyncio.ensure_future(too_slow.wait()))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if too_slow is not None and too_slow.is_set():
                raise ClientTooSlow
            if not doing.done():
                raise ClientGone
            return doing.result()
        finally:
            for one in waiting - {self._gone}:
                one.cancel()

    async def cut(self) -> None:
        """Break the connection at once, whatever is still unsent; where the server gives no way, do nothing."""
        if self._transport is not None:
            self._transport.abort()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._gone), _CUT_S)

    def close(self) -> None:
        """Watch no more."""
        self._gone.cancel()


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
