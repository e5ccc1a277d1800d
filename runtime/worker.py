"""A worker: the process that holds all stages of one device.

``python -m runtime.worker --fd N`` is started by the engine, ``slob worker --listen HOST:PORT`` by hand on another
machine. One thread computes steps in the order in which they come; messages leave without waiting for who gets them.
"""

from __future__ import annotations

import argparse
import ctypes
import hmac
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
from runtime.worker_messages import (
    Kind,
    emulation_of,
    folder_of,
    output_frame,
    slices_of,
    step_frame,
    step_of,
)
from slob_opt.errors import EngineError, InputError, SlobError

LINK_TIMEOUT_S = 20.0
"""In which another worker must connect."""

_PR_SET_PDEATHSIG = 1


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
        self._echoes: dict[str, bytes] = {}

    def run(self) -> None:
        """Serve; returns when the engine is done."""
        try:
            while True:
                while self._local:
                    self._on_step(self._local.popleft())
                for key, _ in self._selector.select():
                    if not self._take(key.data):
                        return
        finally:
            for peer in self._peers.values():
                peer.close()
            self._engine.close()

    def _take(self, peer: Peer) -> bool:
        """Take one message from a peer; return whether to go on."""
        try:
            frame = peer.receive()
        except ClosedError:
            if peer is self._engine:
                return False
            self._selector.unregister(peer)  # the engine tells what that means
            peer.close()
            return True
        if frame.kind == Kind.STOP:
            return False
        try:
            self._on(frame, peer)
        except ClosedError:
            pass  # a neighbour is gone: the engine finds out by itself
        except (SlobError, torch.OutOfMemoryError, MemoryError, RuntimeError, ValueError) as error:
            self._fail(frame, error)
        return True

    def _fail(self, frame: Frame, error: BaseException) -> None:
        if isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_available():
            torch.cuda.empty_cache()
        values = {
            "pipeline": frame.values.get("pipeline"),
            "message": str(error) or type(error).__name__,
            "is_input": isinstance(error, ValueError) and isinstance(error, SlobError),
            "during": int(frame.kind),
        }
        self._engine.send(Frame(Kind.FAILED, values))

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
            descriptor = socket.recv_fds(self._engine.connection, 1, 1)[1][0]
            self._add_peer(frame.values["name"], socket.socket(fileno=descriptor))
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
        self._local = deque(frame for frame in self._local if frame.values["pipeline"] != pipeline)

    # ------------------------------------------------------------------ links to other workers

    def _add_peer(self, name: str, connection: socket.socket) -> None:
        old = self._peers.pop(name, None)
        if old is not None and old.fileno() >= 0:
            self._selector.unregister(old)
            old.close()
        peer = self._peers[name] = Peer(connection, name)
        self._selector.register(peer, selectors.EVENT_READ, peer)
        self._engine.send(Frame(Kind.READY))

    def _expect(self, values: Any) -> None:
        """Listen for one worker of another machine, and take it if it knows the token."""
        with socket.create_server((values["host"], 0)) as listener:
            listener.settimeout(LINK_TIMEOUT_S)
            self._engine.send(Frame(Kind.PORT, {"port": listener.getsockname()[1]}))
            try:
                connection, address = listener.accept()
            except TimeoutError as error:
                raise EngineError(f"{values['name']} didn't connect within {LINK_TIMEOUT_S:g} s") from error
        check_token(connection, values["token"], str(address[0]))
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
        step, stage, hidden, spans = step_of(frame)
        key = (step.pipeline, stage)
        piece = self._slices.get(key)
        if piece is None:
            return  # the pipeline was dropped while the step was on its way
        is_last = stage == piece.num_stages - 1
        with Slowdown(self._held.device, self._held.emulation) as timer:
            found = self._held.compute(step.pipeline, stage, step, hidden)
            if is_last:
                tokens, logprobs = sample(found, step.sampling)
        spans = (*spans, (timer.start_ns, timer.end_ns))
        if stage == 0:
            values = {"pipeline": step.pipeline, "step": step.step, "at_ns": timer.end_ns}
            self._engine.send(Frame(Kind.FREE, values))
        if is_last:
            output = StepOutput(
                step.pipeline, step.lane, step.step, tokens, logprobs, tuple(start for start, _ in spans),
                tuple(end for _, end in spans),
            )  # fmt: skip
            self._engine.send(output_frame(output))
            return
        name = self._next[key]
        message = step_frame(Kind.HIDDEN, step, stage + 1, found, spans)
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
        while True:
            connection, address = listener.accept()
            try:
                check_token(connection, token, str(address[0]))
                break
            except EngineError as error:
                progress(str(error))
    progress(f"serving {address[0]}")
    Worker(Peer(connection, "the engine")).run()
    progress("the server is gone")


def send_token(connection: socket.socket, token: str) -> None:
    """Show a secret to the other end, once, before anything else."""
    data = token.encode()
    connection.sendall(len(data).to_bytes(2, "big") + data)


def check_token(connection: socket.socket, token: str, who: str) -> None:
    """Close a connection and raise EngineError unless the other end shows the secret."""
    connection.settimeout(LINK_TIMEOUT_S)
    try:
        size = int.from_bytes(_exactly(connection, 2), "big")
        shown = _exactly(connection, size) if size <= 1024 else b""
    except OSError as error:
        connection.close()
        raise EngineError(f"{who} connected and said nothing") from error
    if not hmac.compare_digest(shown, token.encode()):
        connection.close()
        raise EngineError(f"{who} connected with a wrong token")
    connection.settimeout(None)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent dies; ends it when that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def main(argv: list[str] | None = None) -> None:
    """Run a worker that the engine has started."""
    parser = argparse.ArgumentParser(prog="python -m runtime.worker")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    given = parser.parse_args(argv)
    die_with_parent(given.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine lets running answers end first
    Worker(Peer(socket.socket(fileno=given.fd), "the engine")).run()


if __name__ == "__main__":
    main()
