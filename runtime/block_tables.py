"""Which KV blocks of a pipeline's pool each request has: the numbers behind the scheduler's counts."""

from __future__ import annotations

from collections.abc import Iterable

from slob_opt.errors import PolicyError


class BlockTables:
    """Blocks ``[0, num_blocks)`` of one pipeline, the same numbers on each of its stages.

    The scheduler counts blocks and decides who gets how many; this only says which.

    Parameters
    ----------
    num_blocks
        Size of the pool.

    Examples
    --------
    >>> tables = BlockTables(4)
    >>> tables.resize(7, 2), tables.resize(8, 1), tables.resize(7, 3)
    ([0, 1], [2], [0, 1, 3])
    >>> tables.release(8); tables.num_free
    1
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._held: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody has."""
        return len(self._free)

    def __contains__(self, request: int) -> bool:
        """Return whether a request has blocks."""
        return request in self._held

    def resize(self, request: int, count: int) -> list[int]:
        """Return a request's blocks after it got more, or gave its last ones back, to have `count`.

        Raises
        ------
        PolicyError
            When the pool has too few: the scheduler's counts and ours differ.
        """
        held = self._held.setdefault(request, [])
        if count > len(held) + len(self._free):
            raise PolicyError(f"request {request} is to have {count} KV blocks, {len(held) + len(self._free)} are left")
        while len(held) < count:
            held.append(self._free.pop())
        while len(held) > count:
            self._free.append(held.pop())
        return list(held)

    def release(self, request: int) -> None:
        """Give back what a request has, if anything."""
        self._free.extend(reversed(self._held.pop(request, [])))

    def keep_only(self, requests: Iterable[int]) -> None:
        """Give back what all others have."""
        kept = set(requests)
        for request in [request for request in self._held if request not in kept]:
            self.release(request)
