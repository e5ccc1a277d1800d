"""Slots that wait for their KV, in order, as an array that policies read without a copy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


class WaitingQueue:
    """An ordered queue: append, put in front, take any out.

    Examples
    --------
    >>> queue = WaitingQueue()
    >>> queue.append(7); queue.append(8); queue.push_front(3)
    >>> queue.remove(np.array([7])); queue.slots.tolist()
    [3, 8]
    """

    def __init__(self) -> None:
        self._array = np.zeros(64, np.int64)
        self._first = 32
        self._end = 32
        self._view: IntArray | None = None

    def __len__(self) -> int:
        """Return the number of slots."""
        return self._end - self._first

    @property
    def slots(self) -> IntArray:
        """Slots in order, a read-only view that holds until the queue changes."""
        view = self._view
        if view is None:
            view = self._view = self._array[self._first : self._end]
            view.setflags(write=False)
        return view

    def append(self, slot: int) -> None:
        """Put a slot at the end."""
        self._view = None
        if self._end == self._array.size:
            self._move()
        self._array[self._end] = slot
        self._end += 1

    def push_front(self, slot: int) -> None:
        """Put a slot in front."""
        self._view = None
        if self._first == 0:
            self._move()
        self._first -= 1
        self._array[self._first] = slot

    def insert(self, position: int, slot: int) -> None:
        """Put a slot before the one at a position."""
        if position == 0:
            self.push_front(slot)
            return
        self.append(slot)
        at = self._first + position
        self._array[at + 1 : self._end] = self._array[at : self._end - 1].copy()
        self._array[at] = slot

    def remove(self, slots: IntArray) -> None:
        """Take slots out; those that aren't there are ignored."""
        size, first = slots.size, self._first
        if size and size <= len(self) and self._array[first : first + size].tolist() == slots.tolist():
            self._first = first + size
            self._view = None
            return
        kept = self.slots[~np.isin(self.slots, slots)]
        self._view = None
        self._end = self._first + kept.size
        self._array[self._first : self._end] = kept

    def _move(self) -> None:
        """Move to the middle of an array with as much room on either side."""
        size = len(self)
        array = np.zeros(max(64, 4 * size), np.int64)
        first = (array.size - size) // 2
        array[first : first + size] = self._array[self._first : self._end]
        self._array, self._first, self._end = array, first, first + size
