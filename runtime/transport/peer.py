"""One end of a connection: frames out without waiting, frames in when there are some."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time

import numpy as np

from runtime.transport.frames import HEAD_BYTES, Frame, Head, head_of, pack, unpack
from runtime.transport.ring import Ring
from slob_opt.errors import EngineError

BUFFER_BYTES = 4 << 20
"""Asked of the system for each direction, so that most messages leave at once."""

RING_FROM_BYTES = 16 << 10
"""Arrays of a message from so many bytes go through the ring, where there is one; less is as fast by the socket."""

MAX_WAITING_BYTES = 1 << 30
"""That the other end hasn't taken; more means that it takes nothing any more."""

_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""A machine that vanished is noticed after some 25 s without traffic."""


class ClosedError(EngineError):
    """The other end is gone."""


class Peer:
    """A connected stream socket that carries frames, with rings of shared memory for large arrays where there are some.

    Sending never waits for the other end: what the system doesn't take at once goes out from a thread, in order, so
    that two ends that send to each other can't block for ever. Receiving keeps what has come of a frame, so that an end
    that stops in the middle of one holds nobody up.

    Parameters
    ----------
    connection
        Connected; becomes this object's own.
    name
        Of the other end, for messages.
    rings
        For what this end sends and for what it receives; ``None`` sends all through the socket. They become this
        object's own.
    """

    def __init__(self, connection: socket.socket, name: str, rings: tuple[Ring, Ring] | None = None) -> None:
        self.name = name
        self._socket, self._rings = connection, rings
        connection.setblocking(True)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE:
                if hasattr(socket, option):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._first = bytearray(HEAD_BYTES)
        self._left = memoryview(self._first)
        self._head: Head | None = None
        self._body = np.empty(0, np.uint8)
        self._lock = threading.Lock()
        self._rest: queue.SimpleQueue[list[memoryview] | None] = queue.SimpleQueue()
        self._waiting = self._waiting_bytes = 0
        self._is_broken = self._is_closed = False
        self._sender: threading.Thread | None = None

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._socket.fileno()

    @property
    def connection(self) -> socket.socket:
        """The socket."""
        return self._socket

    # ------------------------------------------------------------------ out

    def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises
        ------
        ClosedError
            When the other end is known to be gone.
        EngineError
            When the frame can't be sent, or the other end has taken nothing for long.
        """
        info, parts, size = pack(frame)
        with self._lock:
            if self._is_broken or self._is_closed:
                raise ClosedError(f"{self.name} is gone")
            at = None
            if self._rings is not None and size >= RING_FROM_BYTES:
                at = self._rings[0].write(parts, size)
            first = memoryview(Head(frame.kind, len(info), size, at).pack() + info)
            left = [first] if at is not None else [first, *parts]
            if not self._waiting:
                left = self._send_now(left)
            if left:
                self._send_later(left)

    def _send_now(self, parts: list[memoryview]) -> list[memoryview]:
        """Send what the system takes without waiting, and return the rest."""
        while parts:
            try:
                sent = self._socket.sendmsg(parts, [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return parts
            except OSError as error:
                self._is_broken = True
                raise ClosedError(f"{self.name} is gone: {error.strerror or error}") from error
            while parts and sent >= len(parts[0]):
                sent -= len(parts[0])
                parts = parts[1:]
            if sent:
                parts = [parts[0][sent:], *parts[1:]]
        return parts

    def _send_later(self, parts: list[memoryview]) -> None:
        """Leave the rest of a frame to the thread; the lock is held."""
        size = sum(len(part) for part in parts)
        if self._waiting and self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise EngineError(f"{self.name} takes nothing any more: {self._waiting_bytes:,} bytes wait for it")
        self._waiting += 1
        self._waiting_bytes += size
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_rest, name=f"to {self.name}", daemon=True)
            self._sender.start()
        self._rest.put(parts)

    def _send_rest(self) -> None:
        while True:
            parts = self._rest.get()
            if parts is None:
                return
            try:
                for part in parts:
                    self._socket.sendall(part)
            except OSError:
                self._is_broken = True  # the receiving side of this end tells it first, mostly
                return
            with self._lock:
                self._waiting -= 1
                self._waiting_bytes -= sum(len(part) for part in parts)

    def flush(self) -> None:
        """Return when the system has taken all that was sent, or the other end is gone."""
        while self._waiting and self._sender is not None and self._sender.is_alive():
            time.sleep(0.001)

    # ------------------------------------------------------------------ in

    def take(self) -> Frame | None:
        """Return the next frame when all of it is here, without waiting.

        Raises
        ------
        ClosedError
            When the other end is gone.
        EngineError
            When it sends what isn't a frame; nothing more can be received then.
        """
        return self._read(socket.MSG_DONTWAIT)

    def receive(self, timeout_s: float | None = None) -> Frame:
        """Return the next frame, waiting for it; for messages that were announced.

        Parameters
        ----------
        timeout_s
            After so long without a byte it's an error; ``None`` leaves the socket's own limit.

        Raises
        ------
        ClosedError
            When the other end is gone.
        EngineError
            When it sends what isn't a frame, or nothing in time.
        """
        while True:
            if timeout_s is not None:
                waits = select.poll()
                waits.register(self._socket, select.POLLIN)
                if not waits.poll(timeout_s * 1e3):
                    raise EngineError(f"{self.name} doesn't answer within {timeout_s:g} s")
            frame = self._read(0 if timeout_s is None else socket.MSG_DONTWAIT)
            if frame is not None:
                return frame

    def _read(self, flags: int) -> Frame | None:
        """Receive until a frame is whole, or with MSG_DONTWAIT until there's nothing more."""
        while True:
            while self._left:
                try:
                    count = self._socket.recv_into(self._left, 0, flags)
                except BlockingIOError:
                    return None
                except TimeoutError as error:
                    raise EngineError(f"{self.name} doesn't answer") from error
                except OSError as error:
                    raise ClosedError(f"{self.name} is gone: {error.strerror or error}") from error
                if not count:
                    raise ClosedError(f"{self.name} is gone")
                self._left = self._left[count:]
            head = self._head
            if head is None:
                head = self._head = head_of(self._first)
                inline = head.array_bytes if head.ring_at is None else 0
                self._body = np.empty(head.info_bytes + inline, np.uint8)
                self._left = self._body.data
                continue
            info, data = self._body.data[: head.info_bytes], self._body[head.info_bytes :]
            if head.ring_at is not None:
                if self._rings is None:
                    raise EngineError(f"{self.name} announces bytes in shared memory, but there is none")
                data = self._rings[1].read(head.ring_at, head.array_bytes)
            self._head, self._left = None, memoryview(self._first)
            return unpack(head.kind, info, data)

    def close(self) -> None:
        """Close this end; may be called twice."""
        self._is_closed = True
        self._rest.put(None)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._rings is not None:
            for ring in self._rings:
                ring.close()
            self._rings = None
