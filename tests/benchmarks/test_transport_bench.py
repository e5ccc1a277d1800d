"""Time per hop between two workers: a decode step of 16 rows, and bytes, by socket, by shared memory and by TCP."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from runtime.steps import RowSampling, StepInput
from runtime.transport.frames import Frame
from runtime.transport.peer import ClosedError, Peer
from runtime.transport.ring import Ring
from runtime.worker_messages import Kind, passed_on, step_frame, step_of

pytestmark = pytest.mark.benchmark

ROWS, HIDDEN = 16, 576


def _ends(kind: str) -> tuple[socket.socket, socket.socket, list[int]]:
    if kind == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            return ours, listener.accept()[0], []
    ours, theirs = socket.socketpair()
    rings = [Ring.create(), Ring.create()] if kind == "shared memory" else []
    return ours, theirs, [ring for ring in rings if ring is not None]


def _answer(peer: Peer) -> None:
    """Do what a worker of a middle stage does, but compute."""
    try:
        while True:
            select.select([peer], [], [])
            frame = peer.take()
            if frame is None:
                continue
            if frame.kind == Kind.HIDDEN:
                _, stage, hidden, spans = step_of(frame, draws=False)
                assert hidden is not None
                frame = passed_on(frame, stage + 1, hidden, spans)
            peer.send(frame)
    except ClosedError:
        os._exit(0)


@pytest.fixture(params=["socket", "shared memory", "tcp"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """One end of a link; a process at the other one sends everything back."""
    ours, theirs, rings = _ends(request.param)
    child = os.fork()
    if child == 0:
        ours.close()
        _answer(Peer(theirs, "here", (Ring(rings[1]), Ring(rings[0])) if rings else None))
    theirs.close()
    end = Peer(ours, "there", (Ring(rings[0]), Ring(rings[1])) if rings else None)
    yield end
    end.close()
    os.waitpid(child, 0)


def _there_and_back(peer: Peer, frame: Frame) -> Frame:
    peer.send(frame)
    select.select([peer], [], [])
    return peer.receive()


@pytest.mark.benchmark(group="two hops of bytes")
@pytest.mark.parametrize("size", [1 << 10, 1 << 16, 1 << 20], ids=["1 KiB", "64 KiB", "1 MiB"])
def test_bytes(benchmark: Any, peer: Peer, size: int) -> None:
    frame = Frame(Kind.ECHO, {}, {"data": np.zeros(size, np.uint8)})
    assert benchmark(_there_and_back, peer, frame).arrays["data"].size == size
    benchmark.extra_info["hop_us"] = round(benchmark.stats.stats.median / 2 * 1e6, 1)


@pytest.mark.benchmark(group="two hops of a decode step")
def test_a_step(benchmark: Any, peer: Peer) -> None:
    ones = np.ones(ROWS, np.int64)
    step = StepInput(
        0, 0, 1, ones, ones, 100 * ones, 8 * ones, np.arange(8 * ROWS), ones.astype(np.bool_),
        tuple(RowSampling(position=row) for row in range(ROWS)),
    )  # fmt: skip
    hidden = torch.zeros(ROWS, HIDDEN)
    begun = step_frame(Kind.HIDDEN, step, 1, hidden)
    found = benchmark(lambda: step_of(_there_and_back(peer, passed_on(begun, 1, hidden, ((1, 2),))), draws=False))
    assert found[1] == 2
    benchmark.extra_info["hop_us"] = round(benchmark.stats.stats.median / 2 * 1e6, 1)
