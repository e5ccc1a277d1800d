"""A worker: the process that holds all stages of one device.

``python -m runtime.worker --fd N`` is started by the engine, ``slob worker --listen HOST:PORT`` by hand on another
machine. One thread computes steps in the order in which they come; messages leave without waiting for who gets them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from typing import Any

import torch

from runtime.emulation import Slowdown
from runtime.executor import Progress, SliceSpec
from runtime.held_slices import HeldSlices
from runtime.sampling import sample
from runtime.steps import StepOutput
from runtime.transport.frames import Frame
from runtime.transport.peer import ClosedError, Peer
from runtime.transport.ring import Ring
from runtime.transport.secret import check_token, send_token
from runtime.worker_messages import (
    Kind,
    emulation_of,
    folder_of,
    free_frame,
    output_frame,
    passed_on,
    slices_of,
    step_of,
    step_place,
)
from slob_opt.errors import EngineError, InputError, SlobError

LINK_TIMEOUT_S = 20.0
"""In which another worker must connect."""

_PR_SET_PDEATHSIG = 1

_log = logging.getLogger(__name__)


class Worker:
    """Holds slices and computes their steps until the engine says stop or is gone.

    Parameters
    ----------
    engine
        Connection to the engine.
    """

    def __init__(self, engine: Peer) -> None:
        self._engine = engine
        self._selector = selectors.DefaultSelector()
        self._selector.register(engine, selectors.EVENT_READ, engine)
        self._peers: dict[str, Peer] = {}
        self._slices: dict[tuple[int, int], SliceSpec] = {}
        self._next: dict[tuple[int, int], str] = {}
        self._local: deque[Frame] = deque()
        self._held: HeldSlices | None = None
        self._name = ""

    def run(self) -> None:
        """Serve; returns when the engine is done."""
        try:
            while True:
                while self._local:
                    self._answer(self._local.popleft(), self._engine)
                for key, _ in self._selector.select():
                    if not self._take(key.data):
                        return
        finally:
            for peer in self._peers.values():
                peer.close()
            self._engine.close()

    def _take(self, peer: Peer) -> bool:
        """Take one message from a peer; return whether to go on."""
        if peer.fileno() < 0:
            return True  # closed by a message that came just before
        try:
            frame = peer.take()
        except EngineError as error:
            if peer is self._engine:
                if not isinstance(error, ClosedError):
                    _log.error("the engine is left: %s", error)
                return False
            self._lose_peer(peer, error)
            return True
        if frame is None:
            return True  # the rest is on its way
        if frame.kind == Kind.STOP:
            return False
        self._answer(frame, peer)
        return True

    def _lose_peer(self, peer: Peer, error: EngineError) -> None:
        """Forget a neighbour. Between processes of one machine the engine finds out by itself that one died."""
        is_local = peer.connection.family == socket.AF_UNIX
        self._selector.unregister(peer)
        peer.close()
        if not (is_local and isinstance(error, ClosedError)):
            with contextlib.suppress(ClosedError):  # the next message from the engine tells that it's gone
                self._engine.send(Frame(Kind.BROKEN, {"with": peer.name, "message": str(error)}))

    def _answer(self, frame: Frame, peer: Peer) -> None:
        """Do what a message asks for; what goes wrong is told to the engine, and this worker lives on."""
        told = None
        try:
            self._on(frame, peer)
        except ClosedError:
            pass  # a neighbour is gone, see _lose_peer; or the engine
        except Exception as error:  # noqa: BLE001 - the process's edge: the engine is told, and the log
            if not isinstance(error, SlobError):
                _log.exception("%s failed", Kind(frame.kind).name)
            pipeline = None
            if frame.kind in (Kind.STEP, Kind.HIDDEN):
                with contextlib.suppress(EngineError):
                    pipeline = step_place(frame)[0]
            told = {
                "pipeline": pipeline,
                "message": str(error) if isinstance(error, SlobError) else f"{type(error).__name__}: {error}",
                "is_input": isinstance(error, InputError),
                "during": int(frame.kind),
            }
        if told is not None:
            if self._held is not None:
                self._held.recover()  # not above: there the error still holds on to the step's tensors
            with contextlib.suppress(ClosedError):
                self._engine.send(Frame(Kind.FAILED, told))

    # ------------------------------------------------------------------ messages

    def _on(self, frame: Frame, peer: Peer) -> None:
        kind = frame.kind
        if kind in (Kind.STEP, Kind.HIDDEN):
            self._on_step(frame)
        elif kind == Kind.PING:
            self._engine.send(Frame(Kind.PONG, frame.values))
        elif kind == Kind.SETUP:
            self._set_up(frame.values)
        elif kind == Kind.LOAD:
            self._load(frame)
        elif kind == Kind.CACHES:
            self._take_caches(frame)
        elif kind == Kind.DROP:
            self._drop(int(frame.values["pipeline"]))
        elif kind == Kind.PEER:
            descriptors = socket.recv_fds(self._engine.connection, 1, 3)[1]
            rings = [Ring(descriptor) for descriptor in descriptors[1:]]
            connection = socket.socket(fileno=descriptors[0])
            self._add_peer(frame.values["name"], connection, (rings[0], rings[1]) if rings else None)
        elif kind == Kind.EXPECT:
            self._expect(frame.values)
        elif kind == Kind.DIAL:
            self._dial(frame.values)
        elif kind == Kind.PROBE:
            self._probe(frame)
        elif kind == Kind.ECHO:
            self._echo(frame, peer)
        else:
            raise EngineError(f"a message of kind {kind} means nothing to a worker")

    def _set_up(self, values: Any) -> None:
        self._name = values["name"]
        if values["torch_device"] == "cpu":
            torch.set_num_threads(int(values["num_threads"]))
        elif not torch.cuda.is_available():
            raise EngineError(f"torch sees no GPU here, {self._name} is to run on {values['torch_device']}")
        self._held = HeldSlices(
            self._name, values["torch_device"], emulation_of(values["emulation"]), folder_of(values), values["dtype"],
            values["block_tokens"], values["max_step_tokens"],
        )  # fmt: skip
        self._engine.send(Frame(Kind.READY))

    def _load(self, frame: Frame) -> None:
        assert self._held is not None
        slices = slices_of(frame)
        self._held.load(slices, lambda line: self._engine.send(Frame(Kind.PROGRESS, {"line": line})))
        values = {
            "weights": [self._held.weight_bytes(piece) for piece in slices],
            "rooms": self._held.block_room(slices),
        }
        self._slices.update({(piece.pipeline, piece.stage): piece for piece in slices})
        self._engine.send(Frame(Kind.LOADED, values))

    def _take_caches(self, frame: Frame) -> None:
        assert self._held is not None
        slices, blocks = slices_of(frame), frame.values["blocks"]
        self._held.make_caches(list(zip(slices, blocks, strict=True)))
        for piece, name in zip(slices, frame.values["next"], strict=True):
            self._next[piece.pipeline, piece.stage] = name
        self._engine.send(Frame(Kind.READY))

    def _drop(self, pipeline: int) -> None:
        assert self._held is not None
        self._held.drop(pipeline)
        for key in [key for key in self._slices if key[0] == pipeline]:
            self._slices.pop(key)
            self._next.pop(key, None)
        self._local = deque(frame for frame in self._local if step_place(frame)[0] != pipeline)

    # ------------------------------------------------------------------ links to other workers

    def _add_peer(self, name: str, connection: socket.socket, rings: tuple[Ring, Ring] | None = None) -> None:
        old = self._peers.pop(name, None)
        if old is not None and old.fileno() >= 0:
            self._selector.unregister(old)
            old.close()
        peer = self._peers[name] = Peer(connection, name, rings)
        self._selector.register(peer, selectors.EVENT_READ, peer)
        self._engine.send(Frame(Kind.READY))

    def _expect(self, values: Any) -> None:
        """Listen for one worker of another machine, and take it if it knows the token."""
        with socket.create_server((values["host"], 0)) as listener:
            self._engine.send(Frame(Kind.PORT, {"port": listener.getsockname()[1]}))
            connection, _ = accept_known(listener, values["token"], _log.warning, LINK_TIMEOUT_S)
        if connection is None:
            raise EngineError(f"{values['name']} didn't connect within {LINK_TIMEOUT_S:g} s")
        self._add_peer(values["name"], connection)

    def _dial(self, values: Any) -> None:
        """Connect to a worker of another machine."""
        host = values["host"] or self._engine.connection.getpeername()[0]
        try:
            connection = socket.create_connection((host, values["port"]), LINK_TIMEOUT_S)
        except OSError as error:
            raise EngineError(f"can't reach {values['name']} at {host}:{values['port']}: {error}") from error
        connection.settimeout(None)
        send_token(connection, values["token"])
        self._add_peer(values["name"], connection)

    def _probe(self, frame: Frame) -> None:
        """Send bytes to a neighbour, which says to the engine that they came."""
        name = frame.values["to"]
        peer = self._peers.get(name)
        if peer is None:
            raise EngineError(f"{self._name} has no link to {name}")
        peer.send(Frame(Kind.ECHO, {"from": self._name, "sent_ns": time.monotonic_ns()}, frame.arrays))

    def _echo(self, frame: Frame, peer: Peer) -> None:
        taken_ns = time.monotonic_ns() - int(frame.values["sent_ns"])
        size = sum(array.nbytes for array in frame.arrays.values())
        values = {"probe_from": frame.values["from"], "to": self._name, "bytes": size, "ns": taken_ns}
        self._engine.send(Frame(Kind.PONG, values))

    # ------------------------------------------------------------------ steps

    def _on_step(self, frame: Frame) -> None:
        assert self._held is not None
        pipeline, _, stage = step_place(frame)
        key = (pipeline, stage)
        piece = self._slices.get(key)
        if piece is None:
            return  # the pipeline was dropped while the step was on its way
        is_last = stage == piece.num_stages - 1
        step, _, hidden, spans = step_of(frame, draws=is_last)
        with Slowdown(self._held.device, self._held.emulation) as timer:
            found = self._held.compute(pipeline, stage, step, hidden)
            if is_last:
                tokens, logprobs = sample(found, step.sampling)
        spans = (*spans, (timer.start_ns, timer.end_ns))
        if stage == 0:
            self._engine.send(free_frame(pipeline, step.step, timer.end_ns))
        if is_last:
            output = StepOutput(
                step.pipeline, step.lane, step.step, tokens, logprobs, tuple(start for start, _ in spans),
                tuple(end for _, end in spans),
            )  # fmt: skip
            self._engine.send(output_frame(output))
            return
        name = self._next[key]
        message = passed_on(frame, stage + 1, found, spans)
        if name == self._name:
            self._local.append(message)
            return
        self._peers[name].send(message)


def serve_one(host: str, port: int, token: str, progress: Progress) -> None:
    """Wait for an engine on another machine, serve it until it goes, and return.

    Raises
    ------
    InputError
        When the address can't be listened on.
    """
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise InputError(f"can't listen on {host}:{port}: {error.strerror or error}") from error
    with listener:
        progress(f"waiting for a server on {host}:{listener.getsockname()[1]}")
        connection, address = accept_known(listener, token, progress, None)
    assert connection is not None
    progress(f"serving {address}")
    Worker(Peer(connection, "the engine")).run()
    progress("the server is gone")


def accept_known(
    listener: socket.socket, token: str, progress: Progress, timeout_s: float | None
) -> tuple[socket.socket | None, str]:
    """Return the next connection whose other end shows the secret, and from where it is; others are turned away.

    Parameters
    ----------
    listener
        Listens.
    token
        The secret.
    progress
        Told who was turned away.
    timeout_s
        After so long there is no connection, ``None``; without a limit it waits for ever.
    """
    ends = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        listener.settimeout(None if ends is None else max(0.001, ends - time.monotonic()))
        try:
            connection, address = listener.accept()
        except TimeoutError:
            return None, ""
        try:
            check_token(connection, token, str(address[0]))
        except EngineError as error:
            progress(str(error))
        else:
            return connection, str(address[0])


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent dies; ends it when that has happened already."""
    if sys.platform == "linux":  # means the thread that started it, which lives as long as the executor
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def main(argv: list[str] | None = None) -> None:
    """Run a worker that the engine has started."""
    parser = argparse.ArgumentParser(prog="python -m runtime.worker")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--stack-fd", type=int)
    given = parser.parse_args(argv)
    die_with_parent(given.parent)
    if given.stack_fd is not None:
        faulthandler.register(signal.SIGUSR1, file=given.stack_fd, all_threads=False)  # where it hangs, if it does
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine lets running answers end first
    Worker(Peer(socket.socket(fileno=given.fd), "the engine")).run()


if __name__ == "__main__":
    main()
