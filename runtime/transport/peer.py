"""One end of a connection: frames out without waiting, frames in when there are some."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time

from runtime.transport.frames import HEAD, Frame, head_of, pack, unpack
from slob_opt.errors import EngineError

BUFFER_BYTES = 4 << 20
"""Asked of the system for each direction, so that most messages leave at once."""


class ClosedError(EngineError):
    """The other end is gone."""


class Peer:
    """A connected stream socket that carries frames.

    Sending never waits for the other end: what the system doesn't take at once goes out from a thread, in order, so
    that two ends that send to each other can't block for ever. Receiving waits for the rest of a frame once it began.

    Parameters
    ----------
    connection
        Connected; becomes this object's own.
    name
        Of the other end, for messages.
    """

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.name = name
        self._socket = connection
        connection.setblocking(True)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = bytearray(HEAD.size)
        self._lock = threading.Lock()
        self._rest: queue.SimpleQueue[list[memoryview] | None] = queue.SimpleQueue()
        self._pending = 0
        self._sender: threading.Thread | None = None

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._socket.fileno()

    @property
    def connection(self) -> socket.socket:
        """The socket."""
        return self._socket

    def send(self, frame: Frame) -> None:
        """Send a frame; raises ClosedError when the other end is known to be gone."""
        parts = [memoryview(part) for part in pack(frame)]
        with self._lock:
            if not self._pending:
                parts = self._send_now(parts)
            if parts:
                self._pending += 1
                if self._sender is None:
                    self._sender = threading.Thread(target=self._send_rest, name=f"to {self.name}", daemon=True)
                    self._sender.start()
                self._rest.put(parts)

    def _send_now(self, parts: list[memoryview]) -> list[memoryview]:
        """Send what the system takes without waiting, and return the rest."""
        while parts:
            try:
                sent = self._socket.sendmsg(parts, [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return parts
            except OSError as error:
                raise ClosedError(f"{self.name} is gone: {error.strerror or error}") from error
            while parts and sent >= len(parts[0]):
                sent -= len(parts[0])
                parts = parts[1:]
            if sent:
                parts = [parts[0][sent:], *parts[1:]]
        return parts

    def _send_rest(self) -> None:
        while True:
            parts = self._rest.get()
            if parts is None:
                return
            try:
                for part in parts:
                    self._socket.sendall(part)
            except OSError:
                return  # the receiving side of this end tells that the other one is gone
            with self._lock:
                self._pending -= 1

    def flush(self) -> None:
        """Return when the system has taken all that was sent, or the other end is gone."""
        while self._pending and self._sender is not None and self._sender.is_alive():
            time.sleep(0.001)

    def receive(self) -> Frame:
        """Return the next frame, waiting for it.

        Raises
        ------
        ClosedError
            When the other end is gone.
        EngineError
            When it sends what isn't a frame.
        """
        self._fill(memoryview(self._head))
        kind, text_size, array_size = head_of(self._head)
        text, data = bytearray(text_size), bytearray(array_size)
        self._fill(memoryview(text))
        self._fill(memoryview(data))
        return unpack(kind, text, data)

    def _fill(self, view: memoryview) -> None:
        while view:
            try:
                count = self._socket.recv_into(view)
            except TimeoutError as error:
                raise EngineError(f"{self.name} doesn't answer") from error
            except OSError as error:
                raise ClosedError(f"{self.name} is gone: {error.strerror or error}") from error
            if not count:
                raise ClosedError(f"{self.name} is gone")
            view = view[count:]

    def close(self) -> None:
        """Close this end; may be called twice."""
        self._rest.put(None)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
