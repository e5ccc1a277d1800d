"""A connection: frames in order whatever the other end does, by socket, by ring and by TCP."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from runtime.transport import peer as peer_module
from runtime.transport.frames import Frame, Head, pack
from runtime.transport.peer import ClosedError, Peer
from runtime.transport.ring import Ring
from slob_opt.errors import EngineError


def local() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


def rings(capacity: int) -> tuple[tuple[Ring, Ring], tuple[Ring, Ring]]:
    """Return the rings of both ends."""
    made = [Ring.create(capacity), Ring.create(capacity)]
    if made[0] is None or made[1] is None:
        pytest.skip("this system has no memory without a name")
    there, back = made
    return (Ring(os.dup(there)), Ring(os.dup(back))), (Ring(back), Ring(there))


@pytest.fixture(params=["local", "ring", "small ring", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Peer, Peer]]:
    if request.param == "tcp":
        a, b = (Peer(end, "the other") for end in tcp())
    elif request.param == "local":
        a, b = (Peer(end, "the other") for end in local())
    else:
        ours, theirs = rings(1 << 24 if request.param == "ring" else 100_000)
        first, second = local()
        a, b = Peer(first, "the other", ours), Peer(second, "the other", theirs)
    yield a, b
    a.close()
    b.close()


def numbered(number: int, size: int) -> Frame:
    return Frame(number, {"n": number}, {"data": np.full(size, number % 251, np.uint8)})


SIZES = (0, 1, 1000, 16_384, 70_000, 1 << 20)


def test_frames_arrive_in_order_while_nobody_reads(ends: tuple[Peer, Peer]) -> None:
    """20 MB wait here: the sender is never held up, and rings and buffers that are full lose nothing."""
    a, b = ends
    sizes = [SIZES[number % len(SIZES)] for number in range(120)]
    for number, size in enumerate(sizes):
        a.send(numbered(number, size))
    for number, size in enumerate(sizes):
        got = b.receive(20)
        assert (got.kind, got.values["n"], got.arrays["data"].size) == (number, number, size)
        assert (got.arrays["data"] == number % 251).all()
    assert b.take() is None


def test_two_ends_that_send_to_each_other_do_not_block(ends: tuple[Peer, Peer]) -> None:
    for _ in range(20):
        for end in ends:
            end.send(numbered(7, 1 << 20))
    for end in ends:
        for _ in range(20):
            assert end.receive(20).arrays["data"].size == 1 << 20


def test_frames_from_several_threads_are_not_mixed(ends: tuple[Peer, Peer]) -> None:
    a, b = ends
    threads = [
        threading.Thread(target=lambda number=number: [a.send(numbered(number, 50_000)) for _ in range(30)])
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    counts = [0] * 4
    for _ in range(120):
        got = b.receive(20)
        assert (got.arrays["data"] == got.kind).all()
        counts[got.kind] += 1
    assert counts == [30] * 4
    for thread in threads:
        thread.join()


def test_half_a_frame_holds_nobody_up() -> None:
    ours, theirs = local()
    peer = Peer(theirs, "the other")
    info, parts, size = pack(numbered(3, 100))
    whole = Head(3, len(info), size).pack() + info + b"".join(parts)
    for place in range(0, len(whole) - 1, 10):
        ours.sendall(whole[place : min(place + 10, len(whole) - 1)])
        assert peer.take() is None
    ours.sendall(whole[-1:])
    got = peer.take()
    assert got is not None
    assert got.arrays["data"].tolist() == [3] * 100
    ours.close()
    with pytest.raises(ClosedError, match="the other is gone"):
        peer.take()
    peer.close()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(64), bytes(range(64, 128))])
def test_what_is_not_a_frame_is_refused(garbage: bytes) -> None:
    ours, theirs = local()
    peer = Peer(theirs, "the other")
    ours.sendall(garbage)
    with pytest.raises(EngineError, match="doesn't speak our protocol"):
        peer.take()
    peer.close()
    ours.close()


def test_a_ring_that_is_not_there_is_refused() -> None:
    ours, theirs = tcp()
    peer = Peer(theirs, "the other")
    info, _, _ = pack(Frame(3))
    ours.sendall(Head(3, len(info), 1 << 20, 0).pack() + info)
    with pytest.raises(EngineError, match="there is none"):
        peer.receive(20)
    peer.close()
    ours.close()


def test_silence_is_an_error_after_its_time() -> None:
    ours, theirs = local()
    peer = Peer(theirs, "the other")
    with pytest.raises(EngineError, match=r"the other doesn't answer within 0\.01 s"):
        peer.receive(0.01)
    peer.close()
    ours.close()


def test_an_end_that_is_gone_is_told_to_who_sends_and_who_receives() -> None:
    ours, theirs = local()
    peer = Peer(ours, "the other")
    theirs.close()
    with pytest.raises(ClosedError, match="the other is gone"):
        peer.receive()
    with pytest.raises(ClosedError, match="the other is gone"):
        peer.send(numbered(1, 10))
    with pytest.raises(ClosedError, match="the other is gone"):
        peer.send(numbered(1, 10))
    peer.close()
    peer.close()


def test_who_takes_nothing_is_given_up_on_before_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "MAX_WAITING_BYTES", 10 << 20)
    ours, theirs = local()
    peer = Peer(ours, "the other")

    def flood() -> None:
        for _ in range(100):
            peer.send(numbered(1, 1 << 20))

    with pytest.raises(EngineError, match="the other takes nothing any more"):
        flood()
    peer.close()
    theirs.close()
