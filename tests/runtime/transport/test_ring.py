"""A ring of shared memory: what is written is read, what doesn't fit is refused, and nothing is overwritten unread."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.transport.ring import Ring
from slob_opt.errors import EngineError

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")


@contextmanager
def ring_of(capacity: int) -> Iterator[tuple[Ring, Ring]]:
    """Make both ends of a ring."""
    descriptor = Ring.create(capacity)
    assert descriptor is not None
    writer, reader = Ring(os.dup(descriptor)), Ring(descriptor)
    try:
        yield writer, reader
    finally:
        writer.close()
        reader.close()


def num_open() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def put(ring: Ring, *parts: bytes) -> int | None:
    return ring.write([memoryview(part) for part in parts], sum(map(len, parts)))


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=60))
def test_messages_are_read_as_they_were_written(actions: list[bytes | None]) -> None:
    """A writer and a reader in any order: the ring of 64 bytes takes a message or says that it's full."""
    with ring_of(64) as (writer, reader):
        waiting: deque[tuple[int, bytes]] = deque()
        for action in actions:
            if action is None:
                if waiting:
                    at, expected = waiting.popleft()
                    assert reader.read(at, len(expected)).tobytes() == expected
                continue
            at = put(writer, action[:7], action[7:])
            if at is not None:
                waiting.append((at, action))
            else:
                assert waiting, "an empty ring takes everything that's at most as long as itself"
            assert sum(len(message) for _, message in waiting) <= 64
        for at, expected in waiting:
            assert reader.read(at, len(expected)).tobytes() == expected


def test_a_full_ring_takes_nothing_until_something_is_read() -> None:
    with ring_of(100) as (writer, reader):
        first, second = put(writer, b"a" * 60), put(writer, b"b" * 40)
        assert (first, second) == (0, 60)
        assert put(writer, b"c") is None
        assert reader.read(0, 60).tobytes() == b"a" * 60
        third = put(writer, b"c" * 60)
        assert third == 100  # the next lap begins where the first did
        assert put(writer, b"d") is None
        assert reader.read(60, 40).tobytes() == b"b" * 40
        assert reader.read(100, 60).tobytes() == b"c" * 60


def test_a_message_longer_than_the_ring_is_refused_and_the_ring_goes_on() -> None:
    with ring_of(100) as (writer, reader):
        for _ in range(3):
            assert put(writer, b"x" * 101) is None
            at = put(writer, b"y" * 100)
            assert at is not None
            assert reader.read(at, 100).tobytes() == b"y" * 100


@pytest.mark.parametrize(("at", "size"), [(0, 101), (90, 20), (2**62 + 95, 2)])
def test_a_place_where_no_message_can_be_is_refused(at: int, size: int) -> None:
    with ring_of(100) as (_, reader), pytest.raises(EngineError, match="of a ring of 100"):
        reader.read(at, size)


def test_the_memory_has_no_name_and_no_descriptor_stays_open() -> None:
    shared, open_before = set(Path("/dev/shm").iterdir()), num_open()
    with ring_of(1 << 20) as (writer, _):
        put(writer, bytes(1 << 20))
        assert set(Path("/dev/shm").iterdir()) == shared
        assert num_open() == open_before + 2  # mmap keeps one of its own for each end
    assert num_open() == open_before


def test_another_process_reads_what_was_written() -> None:
    descriptor = Ring.create(1 << 16)
    assert descriptor is not None
    reader, sent = Ring(os.dup(descriptor)), np.arange(1000, dtype=np.int64)
    child = os.fork()
    if child == 0:
        put(Ring(descriptor), sent.tobytes())
        os._exit(0)
    os.close(descriptor)
    assert os.waitpid(child, 0)[1] == 0
    assert reader.read(0, sent.nbytes).view(np.int64).tolist() == sent.tolist()
    reader.close()
