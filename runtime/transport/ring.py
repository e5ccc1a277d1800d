"""Bytes through memory that two processes of one machine share, one way: one end writes, the other one reads.

The ring carries bytes only. That and where they are is said by a message on the socket beside it, which also wakes who
waits, so that a process waits for many senders at once and none of them ever spins. A ring that is full takes nothing:
the bytes then go through the socket, slower, and nobody waits for anybody.
"""

from __future__ import annotations

import mmap
import os
import threading

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import EngineError

RING_BYTES = 16 << 20
"""Of one ring. Chosen: a few prompts' hidden states; pages that are never written take no memory."""

_COUNTER_BYTES = 64


class Ring:
    """One end of a ring.

    Positions are running numbers: position p is at byte ``p % capacity``. The reader tells up to where it has read by a
    counter in front of the bytes; what lies between it and the writer's own position is in use. A message is in one
    piece, so the end of a lap may stay unused.

    Parameters
    ----------
    descriptor
        Of the memory, as :meth:`create` makes it; becomes this object's own, and is closed at once.

    Attributes
    ----------
    capacity
        Bytes.
    """

    def __init__(self, descriptor: int) -> None:
        try:
            self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        self._counter = memoryview(self._map)[:8].cast("Q")
        self._bytes = memoryview(self._map)[_COUNTER_BYTES:]
        self.capacity = len(self._bytes)
        self._at = self._floor = 0
        self._fence = threading.Lock()

    @staticmethod
    def create(capacity: int = RING_BYTES) -> int | None:
        """Return a descriptor of new memory, which lives as long as a process has it; ``None`` where that can't be."""
        if not hasattr(os, "memfd_create"):
            return None
        descriptor = os.memfd_create("slob-ring", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _COUNTER_BYTES + capacity)
        return descriptor

    def write(self, parts: list[memoryview], size: int) -> int | None:
        """Put bytes into the ring and return their position, or ``None`` when there's no room for them now.

        Parameters
        ----------
        parts
            Bytes, `size` together.
        """
        if size > self.capacity:
            return None
        read, at = max(self._counter[0], self._floor), self._at
        if read == at or at % self.capacity + size > self.capacity:
            at += -at % self.capacity  # an empty ring begins anew: the same pages again
        if read == self._at:
            read = self._floor = at
        if at + size - read > self.capacity:
            return None
        place = at % self.capacity
        for part in parts:
            self._bytes[place : place + len(part)] = part
            place += len(part)
        self._at = at + size
        return at

    def read(self, at: int, size: int) -> NDArray[np.uint8]:
        """Return a copy of a message, and let its place be used again.

        Raises
        ------
        EngineError
            When no message can be there.
        """
        place = at % self.capacity
        if place + size > self.capacity or at < self._at:
            raise EngineError(f"a message announces {size:,} bytes at {at:,} of a ring of {self.capacity:,}")
        found = np.empty(size, np.uint8)
        found.data[:] = self._bytes[place : place + size]
        self._at = at + size
        with self._fence:  # where a processor reorders: the counter isn't to be seen before the bytes have been read
            self._counter[0] = self._at
        return found

    def close(self) -> None:
        """Let go of the memory; may be called twice."""
        self._counter.release()
        self._bytes.release()
        self._map.close()
