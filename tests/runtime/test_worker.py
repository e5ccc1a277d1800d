"""A worker at its edges: who may speak to it, and what it does with what it can't use."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime.transport import secret
from runtime.transport.frames import Frame
from runtime.transport.peer import ClosedError, Peer
from runtime.transport.secret import send_token
from runtime.worker import Worker, accept_known, serve_one
from runtime.worker_messages import Kind
from slob_opt.errors import InputError


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def connected(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname())


@pytest.mark.parametrize(
    "shown", [b"\0\x05wrong", b"\0\x06secreT", b"\0\0", b"\xff\xff" + bytes(40), b"GET / HTTP/1.1\r\n\r\n"]
)
def test_strangers_are_turned_away_and_the_next_one_is_taken(listener: socket.socket, shown: bytes) -> None:
    stranger, friend = connected(listener), connected(listener)
    stranger.sendall(shown)
    stranger.shutdown(socket.SHUT_WR)
    send_token(friend, "secret")
    told: list[str] = []
    taken, address = accept_known(listener, "secret", told.append, 20.0)
    assert taken is not None
    assert address == "127.0.0.1"
    assert len(told) == 1
    assert "with a wrong token" in told[0] or "said nothing" in told[0]
    with contextlib.suppress(ConnectionResetError):
        assert stranger.recv(1) == b""
    for end in (stranger, friend, taken):
        end.close()


def test_who_says_nothing_is_not_waited_for(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret, "TOKEN_TIMEOUT_S", 0.05)
    silent = connected(listener)
    silent.sendall(b"\0\x06se")
    told: list[str] = []
    assert accept_known(listener, "secret", told.append, 0.2) == (None, "")
    assert told == ["127.0.0.1 connected and said nothing"]
    silent.close()


def test_an_address_that_cannot_be_listened_on_is_one_sentence(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    with pytest.raises(InputError, match=f"can't listen on {host}:{port}"):
        serve_one(host, port, "secret", lambda _: None)


@pytest.fixture
def engine() -> Iterator[Peer]:
    """The engine's end of a worker that runs in a thread."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=Worker(Peer(theirs, "the engine")).run)
    thread.start()
    peer = Peer(ours, "the worker")
    yield peer
    peer.close()
    thread.join(20)
    assert not thread.is_alive()


def test_a_worker_ends_when_its_engine_is_gone_or_speaks_garbage(engine: Peer) -> None:
    engine.connection.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    with pytest.raises(ClosedError):
        engine.receive(20)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(999),
        Frame(Kind.STEP),
        Frame(Kind.STEP, {}, {"ints": np.zeros(2, np.int64)}),
        Frame(Kind.SETUP, {"name": "x"}),
        Frame(Kind.DROP, {"pipeline": 3}),
        Frame(Kind.PROBE, {"to": "nobody"}),
    ],
    ids=["unknown kind", "bare step", "short step", "half a setup", "drop before setup", "probe to nobody"],
)
def test_a_message_that_makes_no_sense_is_answered(engine: Peer, frame: Frame) -> None:
    engine.send(frame)
    got = engine.receive(20)
    assert got.kind == Kind.FAILED
    assert got.values["message"]
    engine.send(Frame(Kind.PING, {"n": 1}))  # and it lives
    assert engine.receive(20).values == {"n": 1}


def linked(engine: Peer, listener_host: str = "127.0.0.1") -> socket.socket:
    """Join a worker over TCP as another worker would."""
    engine.send(Frame(Kind.EXPECT, {"name": "other", "host": listener_host, "token": "t"}))
    port = engine.receive(20).values["port"]
    end = socket.create_connection((listener_host, port))
    send_token(end, "t")
    assert engine.receive(20).kind == Kind.READY
    return end


@pytest.mark.parametrize("last_words", [b"", b"this is no frame of ours, is it?"], ids=["closed", "garbage"])
def test_a_link_to_another_machine_that_breaks_is_told(engine: Peer, last_words: bytes) -> None:
    other = linked(engine)
    other.sendall(last_words)
    other.close()
    got = engine.receive(20)
    assert got.kind == Kind.BROKEN
    assert got.values["with"] == "other"
    engine.send(Frame(Kind.PROBE, {"to": "other"}))
    engine.send(Frame(Kind.PING, {"n": 1}))
    assert engine.receive(20).values.get("n") == 1  # it lives


def test_a_worker_says_what_came_over_a_link(engine: Peer, tmp_path: Path) -> None:
    other = Peer(linked(engine), "the worker")
    other.send(Frame(Kind.ECHO, {"from": "other", "sent_ns": 0}, {"data": np.zeros(1 << 20, np.uint8)}))
    got = engine.receive(20)
    assert got.kind == Kind.PONG
    assert (got.values["probe_from"], got.values["bytes"]) == ("other", 1 << 20)
    other.close()
