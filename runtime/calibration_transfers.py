"""Measuring how long a step's hidden states take from one worker to the next, as the workers send them."""

from __future__ import annotations

import multiprocessing
import socket
import time

import numpy as np
import torch

from runtime.calibration_links import LinkFit, Transfer, fit_link
from runtime.calibration_shapes import step_of
from runtime.transport.frames import Frame
from runtime.transport.peer import ClosedError, Peer
from runtime.worker_messages import Kind, step_frame
from runtime.worker_messages import step_of as step_of_frame
from slob_opt.cost.batch import BatchShape
from slob_opt.errors import EngineError, InputError

KINDS = ("local", "tcp")
"""Links that can be measured: sockets inside this machine, and TCP through its loopback."""

TOKENS = (1, 4, 16, 64, 256, 1024)
"""Tokens of the steps that are sent. Chosen: one decode to the longest prompts of a step."""

ANSWER_TIMEOUT_S = 60.0
"""The other end has to start python and torch first."""


def measure_link(kind: str, hidden_size: int, dtype: str, *, runs: int = 40) -> LinkFit:
    """Return the link between two workers of this machine, measured now with a process at the other end.

    A transfer begins when one worker has computed its layers and ends when the next one could begin: packing, sending,
    receiving and unpacking are in it.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    hidden_size, dtype
        Of the model.
    runs
        Of each size, of which the median counts.

    Raises
    ------
    InputError
        When the kind is unknown.
    EngineError
        When the other end dies or doesn't answer.
    """
    if kind not in KINDS:
        raise InputError(f"found link {kind!r}, expected one of {', '.join(KINDS)}")
    ours, theirs = _connected(kind)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=answer, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    peer = Peer(ours, "the measured process")
    ours.settimeout(ANSWER_TIMEOUT_S)
    try:
        return fit_link(_transfers(peer, hidden_size, getattr(torch, dtype), runs))
    except ClosedError as error:
        raise EngineError(f"the process at the other end of the measured link ended: {error}") from error
    finally:
        peer.close()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def _connected(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "local":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


def _transfers(peer: Peer, hidden_size: int, dtype: torch.dtype, runs: int) -> list[Transfer]:
    peer.send(Frame(Kind.PING))
    peer.receive()  # the other end is up
    steps = [step_of(BatchShape.ragged((), ((0, tokens),)), 16, 1000) for tokens in TOKENS]
    hidden = [torch.zeros(tokens, hidden_size, dtype=dtype) for tokens in TOKENS]
    taken: list[list[float]] = [[] for _ in TOKENS]
    for number in range(runs + 2):
        for at, (step, states) in enumerate(zip(steps, hidden, strict=True)):
            began_ns = time.monotonic_ns()
            peer.send(step_frame(Kind.HIDDEN, step, 1, states))
            answered = peer.receive()
            if number >= 2:  # the first ones warm up
                taken[at].append((int(answered.values["at_ns"]) - began_ns) / 1e9)
    sizes = [states.numel() * states.element_size() for states in hidden]
    return [Transfer(size, float(np.median(one))) for size, one in zip(sizes, taken, strict=True)]


def answer(connection: socket.socket) -> None:
    """Take steps until the other end is gone, and tell when each of them could have been computed."""
    peer = Peer(connection, "the measuring process")
    try:
        while True:
            frame = peer.receive()
            if frame.kind == Kind.HIDDEN:
                step_of_frame(frame)
            peer.send(Frame(Kind.PONG, {"at_ns": time.monotonic_ns()}))
    except ClosedError:
        pass
    finally:
        peer.close()
