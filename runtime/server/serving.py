"""Serving for real: the listening socket, signals, and going down without losing an answer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from runtime.engine import Engine
from runtime.executor import Progress
from runtime.server.app import make_app
from runtime.server.client import TRANSPORT_KEY
from runtime.server.frontend import Frontend
from runtime.server.options import ServerOptions
from slob_opt.errors import InputError

_log = logging.getLogger(__name__)

_IDLE_S = 65
"""Connections without a request are kept so long, longer than clients keep them in their pools."""

_STALL_MS = 60_000
"""A client that takes nothing for so long, or is gone without a word, loses its connection."""

_LAST_BYTES_S = 5
"""For sending what is left when the server goes down."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound and listens.

    Raises
    ------
    InputError
        When the port is taken, reserved, or the host isn't one of this machine.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except (OSError, UnicodeError) as error:
        raise InputError(f"found host {host!r}, expected a name or address of this machine ({error})") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_USER_TIMEOUT", _STALL_MS)):
            if hasattr(socket, name):  # connections inherit them from the listening socket
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        sock.bind(address)
        sock.listen(1024)
    except OSError as error:
        sock.close()
        raise InputError(_why_not(host, port, error)) from None
    return sock


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use, expected a free one (or 0 to take any)"
    if error.errno == errno.EACCES:
        return f"port {port} is reserved for the system, expected one from 1024"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"found host {host!r}, expected an address of this machine"
    return f"port {port} on {host} can't be opened: {os.strerror(error.errno) if error.errno else error}"


def check_port(host: str, port: int) -> None:
    """Raise InputError when the server couldn't listen there; for asking before a model is loaded."""
    listen(host, port).close()


class _Connection(H11Protocol):
    """Lets requests reach their transport, since ASGI has no way to break a connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.app_state = {**self.app_state, TRANSPORT_KEY: transport}


class HttpServer(uvicorn.Server):
    """An HTTP server that drains: at the first signal it takes no more requests, at the second it stops at once.

    Parameters
    ----------
    app
        Of :func:`~runtime.server.app.make_app`.
    on_ready
        Called once it listens.
    """

    def __init__(self, app: FastAPI, on_ready: Callable[[], None] = lambda: None) -> None:
        config = uvicorn.Config(
            app, http=_Connection, ws="none", lifespan="on", log_config=None, access_log=False,
            timeout_keep_alive=_IDLE_S, timeout_graceful_shutdown=_LAST_BYTES_S, server_header=False,
        )  # fmt: skip
        super().__init__(config)
        self._frontend: Frontend = app.state.frontend
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._is_told = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, stop at the next."""
        if self._is_told:
            self.should_exit = self.force_exit = True
            return
        _log.warning("%s: no more requests are taken; once more stops at once", signal.Signals(sig).name)
        self.begin_drain()

    def begin_drain(self) -> None:
        """Take no more requests, let the live ones end, then stop; from any thread, may be called twice."""
        self._is_told = True
        if self._loop is None:
            self.should_exit = True
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: all is over
            self._loop.call_soon_threadsafe(self._drain_soon)

    def _drain_soon(self) -> None:
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        self._frontend.begin_drain()
        await self._frontend.finish()
        self.should_exit = True


def serve(
    engine: Engine,
    options: ServerOptions,
    *,
    sock: socket.socket | None = None,
    progress: Progress = lambda _: None,
) -> None:
    """Serve an engine until a signal says stop and the live requests have ended; doesn't close the engine.

    Call from the main thread, which gets the signals.

    Parameters
    ----------
    engine, options
        As for :func:`~runtime.server.app.make_app`.
    sock
        From :func:`listen`, held while the model was loaded; ``None`` opens the port of the options.
    progress
        Is told where the server is, once it listens.

    Raises
    ------
    InputError
        When the port can't be opened.
    """
    held = listen(options.host, options.port) if sock is None else sock
    with contextlib.closing(held):
        url = address_of(held)
        ready = f"serving {options.model_name} at {url}/v1, status page at {url}/"
        run_server(HttpServer(make_app(engine, options), lambda: progress(ready)), held)


def address_of(sock: socket.socket) -> str:
    """Return the URL of a listening socket; of one that listens everywhere, by this machine's name."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(server: HttpServer, sock: socket.socket) -> Any:
    """Run a server on a socket in this thread until it has stopped."""
    return asyncio.run(server.serve([sock]))
