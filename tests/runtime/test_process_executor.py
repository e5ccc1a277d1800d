"""Stages in processes of their own: the same tokens, and what happens when one is killed, hangs or fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from engine_setups import (
    Client,
    ask,
    deployment,
    engine_for,
    expected,
    one_pipeline,
    save_llama,
    two_pipelines,
)

from experiments.deploying import try_place
from experiments.registry import make_policy
from runtime.deployment import WorkerPlace
from runtime.engine import Engine
from runtime.executor import Emulation
from runtime.generation import Reason
from runtime.process_executor import ProcessExecutor
from slob_opt.errors import EngineError, InputError
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.traffic import TrafficProfile

Start = Callable[..., tuple[Engine, ProcessExecutor]]

PROMPTS = [[5, 9, 33, 70, 12], [80, 3, 3, 41], list(range(10, 50)), [7] * 20]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    started: list[Engine] = []

    def make(placement: Placement, *, recovers: bool = False, **more: object) -> tuple[Engine, ProcessExecutor]:
        what = deployment(folder, placement, **more)
        executor = ProcessExecutor(what.executor_spec())

        def replan(cluster, model):  # type: ignore[no-untyped-def]
            found = try_place(cluster, model, TrafficProfile(), "throughput")
            return None if isinstance(found, str) else found

        recover = what.recovery(replan, lambda: make_policy("slob", {})) if recovers else None
        engine = engine_for(what, executor, recover=recover)
        started.append(engine)
        engine.start(lambda _: None)
        return engine, executor

    yield make
    for engine in started:
        engine.close()


def answered(engine: Engine, folder: Path, num_tokens: int = 12) -> None:
    """Ask for several answers at once, and compare them."""
    clients = [ask(engine, prompt, num_tokens) for prompt in PROMPTS]
    for client, prompt in zip(clients, PROMPTS, strict=True):
        assert client.wait() is Reason.LENGTH
        assert client.tokens == expected(folder, prompt, num_tokens)


def test_tokens_pass_from_process_to_process(start: Start, folder: Path) -> None:
    engine, executor = start(one_pipeline(lanes=2))
    pids = executor.worker_pids
    assert len(set(pids.values()) | {os.getpid()}) == 3
    answered(engine, folder)
    status = engine.status().pipelines[0]
    assert all(busy > 0 for busy in status.busy_s)
    engine.close()
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_pipelines_may_share_their_devices_in_both_orders(start: Start, folder: Path) -> None:
    placement = Placement(
        (
            Pipeline((Stage((0,), 0, 1), Stage((1,), 1, 4)), 2),
            Pipeline((Stage((1,), 0, 3), Stage((0,), 3, 4)), 2),
        )
    )
    engine, executor = start(placement)
    assert len(executor.worker_pids) == 2
    answered(engine, folder)
    assert {record.pipeline for record in engine.status().latest} == {0, 1}


def test_requests_of_a_killed_worker_go_on_elsewhere_with_the_same_tokens(start: Start, folder: Path) -> None:
    engine, executor = start(two_pipelines())
    clients = [ask(engine, prompt, 60) for prompt in PROMPTS]
    for client in clients:
        assert client.first.wait(60)
    os.kill(executor.worker_pids["box/0"], signal.SIGKILL)
    for client, prompt in zip(clients, PROMPTS, strict=True):
        assert client.wait() is Reason.LENGTH
        assert client.tokens == expected(folder, prompt, 60)
    status = engine.status()
    assert [one.is_up for one in status.pipelines] == [False, True]
    assert "box/0: the worker was killed by SIGKILL" in status.faults[-1]
    answered(engine, folder)


def test_the_plan_is_made_anew_for_the_devices_that_are_left(start: Start, folder: Path) -> None:
    engine, executor = start(one_pipeline(), recovers=True)
    clients = [ask(engine, prompt, 40) for prompt in PROMPTS]
    for client in clients:
        assert client.first.wait(60)
    os.kill(executor.worker_pids["box/1"], signal.SIGKILL)
    for client, prompt in zip(clients, PROMPTS, strict=True):
        assert client.wait() is Reason.LENGTH
        assert client.tokens == expected(folder, prompt, 40)
    status = engine.status()
    assert [one.is_up for one in status.pipelines] == [False, True]
    assert status.pipelines[1].stages == (("box/0", 0, 4),)
    assert status.faults[0] == "planned anew: 1 pipeline(s) on box/0"


def test_without_another_pipeline_every_client_is_told(start: Start) -> None:
    engine, executor = start(one_pipeline())
    clients = [ask(engine, prompt, 200) for prompt in PROMPTS]
    for client in clients:
        client.first.wait(60)
    os.kill(executor.worker_pids["box/1"], signal.SIGKILL)
    for client in clients:
        assert client.wait() is Reason.ERROR
        assert client.end is not None
        assert "box/1 was lost" in client.end.message
    assert not engine.status().is_up
    with pytest.raises(Exception, match="no pipeline is up"):
        ask(engine, [5], 5)


def test_a_worker_that_hangs_is_given_up_after_the_deadline(start: Start, folder: Path) -> None:
    engine, executor = start(two_pipelines(), deadline_s=2.0)
    answered(engine, folder)
    os.kill(executor.worker_pids["box/1"], signal.SIGSTOP)
    clients = [ask(engine, prompt, 12) for prompt in PROMPTS]
    for client, prompt in zip(clients, PROMPTS, strict=True):
        assert client.wait() is Reason.LENGTH
        assert client.tokens == expected(folder, prompt, 12)
    assert "taken for hung" in engine.status().faults[0]


def test_a_worker_that_dies_while_it_loads_is_named(folder: Path) -> None:
    what = deployment(folder, one_pipeline())
    spec = what.executor_spec()
    bad = replace(spec, workers=(spec.workers[0], replace(spec.workers[1], torch_device="cuda:7")))
    executor = ProcessExecutor(bad)
    with pytest.raises(EngineError, match="box/1"):
        executor.start(lambda _: None)
    assert executor.worker_pids == {}


def test_weights_that_do_not_fit_are_refused_with_the_numbers(folder: Path) -> None:
    places = {"box/0": WorkerPlace(emulation=Emulation(2.0)), "box/1": WorkerPlace(emulation=Emulation(2.0, 100_000))}
    what = replace(deployment(folder, one_pipeline()), places=places)
    with pytest.raises(InputError, match="box/1 has 0 MiB; weights of"):
        ProcessExecutor(what.executor_spec()).start(lambda _: None)


def test_an_emulated_device_takes_so_many_times_as_long(start: Start, folder: Path) -> None:
    places = {"box/0": WorkerPlace(emulation=Emulation(2.0)), "box/1": WorkerPlace(emulation=Emulation(8.0))}
    half = Placement((Pipeline((Stage((0,), 0, 2), Stage((1,), 2, 4))),))
    engine, _ = start(half, places=places)
    ask(engine, [9] * 200, 1).wait()
    before = engine.status().pipelines[0].busy_s
    for seed in range(6):
        ask(engine, [9 + seed] * 200, 1).wait()
    fast, slow = (now - then for now, then in zip(engine.status().pipelines[0].busy_s, before, strict=True))
    assert slow > 1.5 * fast  # four times, and a head beside on the slow one; a busy machine delays both
    assert engine.status().pipelines[0].emulated == ("2x slower", "8x slower")


def test_more_emulated_speed_than_cores_is_refused(folder: Path) -> None:
    places = {name: WorkerPlace(emulation=Emulation(1.0 + 1e-9)) for name in ("box/0", "box/1")}
    what = replace(deployment(folder, one_pipeline()), places=places)
    if len(os.sched_getaffinity(0)) > 2:
        pytest.skip("this machine has cores enough")
    with pytest.raises(InputError, match="2 emulated CPU workers compute 2 cores' worth"):
        ProcessExecutor(what.executor_spec()).start(lambda _: None)


SCRIPT = """
import sys, time
from pathlib import Path
sys.path[:0] = [{root!r}, {support!r}]
from engine_setups import deployment, one_pipeline
from runtime.process_executor import ProcessExecutor
executor = ProcessExecutor(deployment(Path({folder!r}), one_pipeline()).executor_spec())
executor.start(lambda line: None)
print(*executor.worker_pids.values(), flush=True)
time.sleep(600)
"""


def test_workers_end_when_the_engine_is_killed(folder: Path) -> None:
    root = Path(__file__).parents[2]
    script = SCRIPT.format(root=str(root), support=str(root / "tests" / "support"), folder=str(folder))
    shared = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    with subprocess.Popen([sys.executable, "-P", "-c", script], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        pids = [int(word) for word in engine.stdout.readline().split()]
        assert len(pids) == 2
        engine.kill()
    ends = time.monotonic() + 20
    left = pids
    while left and time.monotonic() < ends:
        left = [pid for pid in left if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert left == []
    if shared:
        assert set(Path("/dev/shm").iterdir()) <= shared


def test_many_steps_in_flight_do_not_block(start: Start, folder: Path) -> None:
    engine, _ = start(one_pipeline(lanes=8), num_blocks=200, max_rows=32)
    clients: list[Client] = [ask(engine, [5 + index % 90] * (1 + index % 40), 30) for index in range(60)]
    assert {client.wait(120) for client in clients} == {Reason.LENGTH}
    assert engine.status().pipelines[0].free_blocks == 200
