"""The engine's side of one worker: its process, its connection, and whether it still lives."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from runtime.executor import Progress, WorkerSpec
from runtime.transport.frames import Frame
from runtime.transport.peer import ClosedError, Peer
from runtime.transport.secret import send_token
from runtime.worker_messages import Kind
from slob_opt.errors import EngineError, InputError

STOP_S = 5.0
"""In which a worker that was told to stop ends; then it's killed."""

STACK_S = 0.5
"""In which a worker that hangs begins to tell where."""

STACK_PAUSE_S = 0.05
"""After so long without more it has told all."""

_TOLD_CALLS = 3
"""So many innermost calls of a worker that hangs are told."""

_STEPS = (Kind.STEP, Kind.HIDDEN)
_OF_STEPS = (Kind.OUTPUT, Kind.FREE, Kind.BROKEN)


class WorkerLink:
    """A worker as the engine sees it.

    Attributes
    ----------
    spec
        What it was started with; its slices may have become more since.
    peer
        Connection.
    pipelines
        Numbers of the pipelines that have a stage on it.
    is_lost
        Whether it's gone.
    early
        Messages that came while something else was waited for; the executor takes them.
    """

    def __init__(
        self, spec: WorkerSpec, peer: Peer, process: subprocess.Popen[bytes] | None, stack: int | None = None
    ) -> None:
        self.spec, self.peer, self._process, self._stack = spec, peer, process, stack
        self._numbers = count()
        self.pipelines: set[int] = {piece.pipeline for piece in spec.slices}
        self.is_lost = False
        self.early: list[Frame] = []

    @classmethod
    def start(cls, spec: WorkerSpec, token: str | None) -> WorkerLink:
        """Return a worker that runs: a process of its own, or one that listens on another machine."""
        if spec.host is not None:
            return cls(spec, _connected(spec, token), None)
        own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with others:
            root = str(Path(__file__).resolve().parent.parent)
            known = os.environ.get("PYTHONPATH")
            environment = {**os.environ, "PYTHONPATH": root if not known else f"{root}{os.pathsep}{known}"}
            if spec.torch_device == "cpu":
                environment.setdefault("OMP_NUM_THREADS", "1")
            stack, stack_end = os.pipe()
            arguments = ["--fd", str(others.fileno()), "--parent", str(os.getpid()), "--stack-fd", str(stack_end)]
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "runtime.worker", *arguments], pass_fds=[others.fileno(), stack_end],
                    env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                own.close()
                os.close(stack)
                raise EngineError(f"the worker of {spec.name} can't be started: {error}") from error
            finally:
                os.close(stack_end)
        return cls(spec, Peer(own, spec.name), process, stack)

    @property
    def is_remote(self) -> bool:
        """Whether it's on another machine."""
        return self._process is None

    @property
    def pid(self) -> int | None:
        """Of its process; ``None`` on another machine."""
        return None if self._process is None else self._process.pid

    def ask(self, frame: Frame, answer: Kind, timeout_s: float, progress: Progress) -> Frame:
        """Send a message and return the answer; lines of progress that come before are handed on.

        Raises
        ------
        InputError
            When the worker says that what it was given is wrong.
        EngineError
            When it can't, doesn't answer, or dies.
        """
        self.peer.send(frame)
        return self.wait_for(answer, timeout_s, progress)

    def wait_for(
        self, answer: Kind, timeout_s: float, progress: Progress, fits: Callable[[Any], bool] = lambda _: True
    ) -> Frame:
        """Return the next answer of a kind whose values fit; raises as :meth:`ask`.

        What comes of steps meanwhile is kept in `early`. A line of progress begins the time anew.
        """
        try:
            while True:
                got = self.peer.receive(timeout_s)
                if got.kind == answer and fits(got.values):
                    return got
                if got.kind == Kind.PROGRESS:
                    progress(str(got.values["line"]))
                elif got.kind == Kind.FAILED and got.values["during"] not in _STEPS:
                    kind = InputError if got.values["is_input"] else EngineError
                    name = "" if got.values["is_input"] else f"{self.spec.name}: "
                    raise kind(f"{name}{got.values['message']}")
                else:
                    self.early.append(got)
        except ClosedError as error:
            raise EngineError(f"worker {self.spec.name} {self.death()}") from error

    def settle(self, timeout_s: float) -> None:
        """Return when the worker has answered everything that it was asked before; answers that nobody waits for go.

        Raises
        ------
        EngineError
            When it dies or doesn't answer.
        """
        number = next(self._numbers)
        try:
            self.peer.send(Frame(Kind.PING, {"settle": number}))
            while True:
                got = self.peer.receive(timeout_s)
                if got.kind == Kind.PONG and got.values.get("settle") == number:
                    return
                if got.kind in _OF_STEPS or (got.kind == Kind.FAILED and got.values["during"] in _STEPS):
                    self.early.append(got)
        except ClosedError as error:
            raise EngineError(f"worker {self.spec.name} {self.death()}") from error

    def send_descriptors(self, frame: Frame, descriptors: list[int]) -> None:
        """Send a message with open file descriptors, after everything that was sent before."""
        self.peer.flush()
        self.peer.send(frame)
        self.peer.flush()
        try:
            socket.send_fds(self.peer.connection, [b"F"], descriptors)
        except OSError as error:
            raise EngineError(f"worker {self.spec.name} {self.death()}") from error

    def death(self) -> str:
        """Return how it ended, in words."""
        if self._process is None:
            return "closed the connection"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        code = self._process.returncode
        if code is None:
            return "closed the connection"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def whereabouts(self) -> str:
        """Return where a worker that doesn't answer is, in words that go on a sentence; empty when it can't be told."""
        if self._process is None or self._stack is None:
            return ""
        with contextlib.suppress(psutil.Error):
            if psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED:
                return "; its process is stopped"
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)  # see worker.main
        waits = select.poll()
        waits.register(self._stack, select.POLLIN)
        text, wait_s = "", STACK_S
        while waits.poll(wait_s * 1e3) and (piece := os.read(self._stack, 1 << 16)):
            text, wait_s = text + piece.decode(errors="replace"), STACK_PAUSE_S  # it comes in small pieces
        calls = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', text)
        told = ", ".join(f"{name} ({Path(file).name}:{line})" for file, line, name in calls[:_TOLD_CALLS])
        return f"; it is in {told}" if told else ""

    def kill(self) -> None:
        """End it at once."""
        self.is_lost = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
        self._close()

    def stop(self, by: float) -> None:
        """End it: it was told to stop already, and has until `by` on the monotonic clock."""
        if self._process is not None:
            try:
                self._process.wait(max(0.0, by - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.is_lost = True
        self._close()

    def _close(self) -> None:
        self.peer.close()
        if self._stack is not None:
            os.close(self._stack)
            self._stack = None


def _connected(spec: WorkerSpec, token: str | None) -> Peer:
    """Return the connection to a worker that listens on another machine."""
    if not token:
        raise InputError(
            f"{spec.name} is on {spec.host}: a token is needed that its worker knows too", key="SLOB_WORKER_TOKEN"
        )
    try:
        connection = socket.create_connection((spec.host or "", spec.port), 20.0)
    except OSError as error:
        raise EngineError(
            f"can't reach the worker of {spec.name} at {spec.host}:{spec.port}: {error.strerror or error};"
            " start it there with slob worker"
        ) from error
    connection.settimeout(None)
    send_token(connection, token)
    return Peer(connection, spec.name)
