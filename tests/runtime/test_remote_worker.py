"""A worker elsewhere, here on the loopback address: the same tokens over TCP, and strangers are turned away."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from engine_setups import ask, deployment, engine_for, expected, one_pipeline, save_llama

from runtime.deployment import WorkerPlace
from runtime.engine import running
from runtime.generation import Reason
from runtime.process_executor import ProcessExecutor
from slob_opt.errors import EngineError, InputError

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def remote(port: int) -> Iterator[subprocess.Popen[str]]:
    """Run `slob worker` as its user would."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from experiments.cli.main import main; main(sys.argv[1:])"
    words = ["worker", "--listen", f"127.0.0.1:{port}", "--token", "secret"]
    with subprocess.Popen([sys.executable, "-P", "-c", code, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "waiting for a server" not in process.stderr.readline():
            assert process.poll() is None
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_stage_on_another_machine_gives_the_same_tokens(tmp_path: Path) -> None:
    folder, port = save_llama(tmp_path / "model"), free_port()
    what = replace(deployment(folder, one_pipeline()), places={"box/1": WorkerPlace(host="127.0.0.1", port=port)})
    with remote(port) as worker:
        with pytest.raises(EngineError, match="box/1"):
            ProcessExecutor(what.executor_spec(), "wrong").start(lambda _: None)
        with running(engine_for(what, ProcessExecutor(what.executor_spec(), "secret"))) as engine:
            client = ask(engine, [5, 9, 33, 70], 16)
            assert client.wait() is Reason.LENGTH
            assert client.tokens == expected(folder, [5, 9, 33, 70], 16)
        assert worker.wait(30) == 0  # it goes when its server goes


def test_without_a_secret_or_a_worker_there_is_one_sentence(tmp_path: Path) -> None:
    folder, port = save_llama(tmp_path / "model"), free_port()
    what = replace(deployment(folder, one_pipeline()), places={"box/1": WorkerPlace(host="127.0.0.1", port=port)})
    with pytest.raises(InputError, match="SLOB_WORKER_TOKEN"):
        ProcessExecutor(what.executor_spec()).start(lambda _: None)
    with pytest.raises(EngineError, match=f"can't reach the worker of box/1 at 127.0.0.1:{port}"):
        ProcessExecutor(what.executor_spec(), "secret").start(lambda _: None)
