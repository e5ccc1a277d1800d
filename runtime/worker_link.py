"""The engine's side of one worker: its process, its connection, and whether it still lives."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from runtime.executor import Progress, WorkerSpec
from runtime.transport.frames import Frame
from runtime.transport.peer import ClosedError, Peer
from runtime.worker import send_token
from runtime.worker_messages import Kind
from slob_opt.errors import EngineError, InputError

STOP_S = 5.0
"""In which a worker that was told to stop ends; then it's killed."""


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

    def __init__(self, spec: WorkerSpec, peer: Peer, process: subprocess.Popen[bytes] | None) -> None:
        self.spec, self.peer, self._process = spec, peer, process
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
            arguments = ["--fd", str(others.fileno()), "--parent", str(os.getpid())]
            process = subprocess.Popen(
                [sys.executable, "-m", "runtime.worker", *arguments], pass_fds=[others.fileno()], env=environment,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return cls(spec, Peer(own, spec.name), process)

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

    def wait_for(self, answer: Kind, timeout_s: float, progress: Progress) -> Frame:
        """Return the next answer of a kind; raises as :meth:`ask`."""
        self.peer.connection.settimeout(timeout_s)
        try:
            while True:
                got = self.peer.receive()
                if got.kind == Kind.PROGRESS:
                    progress(str(got.values["line"]))
                elif got.kind == Kind.FAILED:
                    kind = InputError if got.values["is_input"] else EngineError
                    name = "" if got.values["is_input"] else f"{self.spec.name}: "
                    raise kind(f"{name}{got.values['message']}")
                elif got.kind == answer:
                    return got
                else:
                    self.early.append(got)
        except ClosedError as error:
            raise EngineError(f"worker {self.spec.name} {self.death()}") from error
        finally:
            with contextlib.suppress(OSError):
                self.peer.connection.settimeout(None)

    def send_descriptor(self, frame: Frame, descriptor: int) -> None:
        """Send a message with an open file descriptor, after everything that was sent before."""
        self.peer.flush()
        self.peer.send(frame)
        self.peer.flush()
        socket.send_fds(self.peer.connection, [b"F"], [descriptor])

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

    def kill(self) -> None:
        """End it at once."""
        self.is_lost = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
        self.peer.close()

    def stop(self, by: float) -> None:
        """End it: it was told to stop already, and has until `by` on the monotonic clock."""
        if self._process is not None:
            try:
                self._process.wait(max(0.0, by - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.is_lost = True
        self.peer.close()


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
