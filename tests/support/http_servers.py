"""HTTP servers in a thread, in front of a real engine on a tiny model, whose steps a test may hold back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from engine_setups import deployment, one_pipeline
from prometheus_client.parser import text_string_to_metric_families

from experiments.registry import make_dispatcher, make_policy
from runtime.engine import Engine
from runtime.engine_report import EngineOptions
from runtime.executor import ExecutorSpec
from runtime.in_process import InProcessExecutor
from runtime.server import ServerOptions, listen, make_app
from runtime.server.frontend import Frontend
from runtime.server.serving import HttpServer, run_server
from runtime.steps import Event, WorkerLost
from runtime.text import TextCodec
from runtime.tiny_model import TinyModel, write_tiny_model
from slob_opt.problem.placement import Placement

MODEL = "tiny"
VOCAB, CONTEXT = 320, 256


def save_tiny(folder: Path) -> Path:
    """Write the model that is served: four layers, with a tokenizer and a chat template."""
    # The seed: others fall into the same token over and over, which proves less.
    sizes = TinyModel(num_layers=4, hidden_size=32, ffn_size=64, vocab_size=VOCAB, max_position=CONTEXT, seed=8)
    return write_tiny_model(folder, sizes)


class SteppedExecutor(InProcessExecutor):
    """Computes as the real one, but a test may hold it, or let it go on for so many steps."""

    def __init__(self, spec: ExecutorSpec) -> None:
        super().__init__(spec)
        self._turn = threading.Condition()
        self._is_held = self._is_called = False
        self._permits = 0
        self._events: list[Event] = []

    def hold(self) -> None:
        """Compute no step from now on."""
        with self._turn:
            self._is_held, self._permits = True, 0

    def allow(self, steps: int) -> None:
        """Compute so many steps more."""
        with self._turn:
            self._permits += steps
            self._turn.notify_all()

    def release(self) -> None:
        """Compute freely again."""
        with self._turn:
            self._is_held = False
            self._turn.notify_all()

    def lose(self, *pipelines: int) -> None:
        """Say that the worker of some pipelines died."""
        with self._turn:
            self._events.append(WorkerLost("box/0", pipelines, "the process ended with signal 9"))
        self.wake()

    def poll(self, timeout_s: float | None) -> list[Event]:
        with self._turn:
            if self._events:
                events, self._events = self._events, []
                return events
            if self._steps and self._is_held:
                self._turn.wait_for(lambda: self._permits or self._is_called or not self._is_held, timeout_s)
                self._is_called = False
                if self._permits:
                    self._permits -= 1
                elif self._is_held:
                    return []
        return super().poll(timeout_s)

    def wake(self) -> None:
        with self._turn:
            self._is_called = True
            self._turn.notify_all()
        super().wake()


@dataclasses.dataclass(frozen=True)
class Running:
    """A server that listens."""

    engine: Engine
    executor: SteppedExecutor
    server: HttpServer
    frontend: Frontend
    thread: threading.Thread
    address: tuple[str, int]

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://{host}:{port}"

    def client(self, **more: Any) -> httpx.Client:
        # Reading the certificates that nobody asks for here takes longer than most tests.
        return httpx.Client(base_url=self.url, timeout=60, verify=False, trust_env=False, **more)

    def metrics(self) -> dict[str, float]:
        """Return all samples by name and labels, as ``name{a=b}``, vLLM's two labels left out."""
        with self.client() as client:
            return samples(client.get("/metrics").text)

    def used_blocks(self) -> int:
        return sum(one.kv_blocks - one.free_blocks for one in self.engine.status().pipelines)

    def wait_idle(self) -> None:
        """Wait until neither engine nor server has a request left."""
        assert self.engine.wait_idle(60), "the engine still has requests"


def samples(text: str) -> dict[str, float]:
    """Return the samples of Prometheus' text format by name and labels, vLLM's two labels left out."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = ",".join(
                f"{key}={value}" for key, value in sorted(one.labels.items()) if key not in ("model_name", "engine")
            )
            found[f"{one.name}{{{labels}}}" if labels else one.name] = one.value
    return found


Serve = Callable[..., Running]
"""Starts servers with the arguments of :func:`running`, its folder left out; they stop after the test."""


@contextlib.contextmanager
def running(
    folder: Path, *, placement: Placement | None = None, policy: str = "slob",
    dispatcher: tuple[str, dict[str, Any]] = ("least-outstanding", {}), send_buffer: int | None = None,
    engine: dict[str, Any] | None = None, **options: Any,
) -> Iterator[Running]:  # fmt: skip
    """Serve a model's folder until the end of the block; `options` are those of the server."""
    what = deployment(folder, placement or one_pipeline(), **(engine or {}))
    executor = SteppedExecutor(what.executor_spec())
    made = Engine(
        executor,
        lambda capacities: what.build(capacities, lambda: make_policy(policy, {})),
        make_dispatcher(*dispatcher),
        TextCodec(folder),
        EngineOptions(policy),
    )
    made.start(lambda _: None)
    sock = listen("127.0.0.1", 0)
    if send_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    app = make_app(made, ServerOptions(MODEL, port=0, **options))
    server = HttpServer(app)
    thread = threading.Thread(target=run_server, args=(server, sock), name="test-server")
    thread.start()
    try:
        yield Running(made, executor, server, app.state.frontend, thread, sock.getsockname())
    finally:
        executor.release()
        server.should_exit = True
        thread.join(60)
        made.close()
        assert not thread.is_alive(), "the server didn't stop"


def wait_until(is_so: Callable[[], object]) -> None:
    """Return when something is so, which other threads make so; fail when that takes a minute."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.001)


def prompt_of(size: int) -> list[int]:
    """Return a prompt of so many tokens."""
    return [3 + place * 7 % 250 for place in range(size)]


def pieces(text: str) -> list[Any]:
    """Return the events of a stream, the last one as the text ``[DONE]`` where it has that."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def open_stream(running: Running, body: dict[str, Any], *, receive_buffer: int | None = None) -> socket.socket:
    """Return a bare connection that has asked for something and reads nothing by itself."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(60)
    sock.connect(running.address)
    raw = json.dumps({"model": MODEL, "stream": True, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    sock.sendall(head.encode() + raw)
    return sock


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    """Read up to where `mark` has come."""
    found = b""
    while mark not in found:
        more = sock.recv(4096)
        assert more, f"the connection ended after {found!r}"
        found += more
    return found
