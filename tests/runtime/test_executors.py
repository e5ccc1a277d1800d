"""Executors without an engine: the same tokens in one process and in several, many steps in flight, and faults."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
from engine_setups import NUM_LAYERS, expected, save_llama
from executor_steps import Lane, play, spec_of, workers_of

from runtime import process_executor
from runtime.executor import Capacity, Emulation, Executor
from runtime.in_process import InProcessExecutor
from runtime.process_executor import ProcessExecutor
from runtime.steps import Event, StepOutput, WorkerLost
from runtime.transport.frames import Frame
from runtime.worker_link import WorkerLink
from runtime.worker_messages import Kind
from slob_opt.errors import EngineError, InputError

PIPELINES = (
    (("a", 0, 4),),
    (("a", 0, 1), ("b", 1, 4)),
    (("c", 0, 2), ("a", 2, 3), ("b", 3, 4)),
    (("b", 0, 1), ("c", 1, 2), ("a", 2, 3), ("b", 3, 4)),
    (("c", 0, 1), ("c", 1, 2), ("a", 2, 4)),
)
"""One to four unequal stages on three devices that all of them share, in different orders, one of them twice."""

PROMPTS = [[5, 9, 33, 70, 12], [80, 3, 3, 41], list(range(10, 50)), [7] * 20, [101, 102]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def processes(folder: Path) -> Iterator[ProcessExecutor]:
    """All pipelines in three processes, started by a thread that is long gone."""
    executor = ProcessExecutor(spec_of(folder, PIPELINES))
    found: list[Capacity] = []
    starter = threading.Thread(target=lambda: found.extend(executor.start(lambda _: None)))
    starter.start()
    starter.join()
    assert [one.kv_blocks for one in found] == [64] * len(PIPELINES)
    yield executor
    pids = executor.worker_pids.values()
    executor.close()
    executor.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.fixture(scope="module")
def one_process(folder: Path) -> Iterator[InProcessExecutor]:
    executor = InProcessExecutor(spec_of(folder, PIPELINES))
    executor.start(lambda _: None)
    yield executor
    executor.close()


@pytest.fixture(params=["one process", "processes"])
def executor(request: pytest.FixtureRequest) -> Executor:
    found: Executor = request.getfixturevalue(request.param.replace(" ", "_"))
    return found


@pytest.mark.parametrize("pipeline", range(len(PIPELINES)))
@pytest.mark.parametrize("num_lanes", [1, 3])
def test_greedy_tokens_are_those_of_generate(
    executor: Executor, folder: Path, pipeline: int, num_lanes: int
) -> None:  # fmt: skip
    played = play(executor, pipeline, PROMPTS, 12, num_lanes, first_step=100 * pipeline)
    assert played.answers == [expected(folder, prompt, 12) for prompt in PROMPTS]
    for output in played.outputs:
        spans = list(zip(output.start_ns, output.end_ns, strict=True))
        assert len(spans) == len(PIPELINES[pipeline])
        assert all(start < end for start, end in spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_a_thousand_steps_pass_four_stages_with_a_bounded_window(processes: ProcessExecutor, folder: Path) -> None:
    """As users of other tools saw batched sends between four stages hang after a while (PiPPy 1130, PyTorch 174288)."""
    played = play(processes, 3, [[5 + lane] for lane in range(8)], 125, num_lanes=8)
    assert len(played.outputs) == 1000
    assert 1 < played.most_in_flight <= 8
    assert played.answers[0] == expected(folder, [5], 125)


def test_polling_without_events_ends_by_time_and_by_wake(executor: Executor) -> None:
    assert executor.poll(0.0) == []
    executor.wake()
    assert executor.poll(60.0) == []


def events_until_lost(executor: Executor) -> tuple[list[Event], WorkerLost]:
    before: list[Event] = []
    while True:
        for event in executor.poll(60.0):
            if isinstance(event, WorkerLost):
                return before, event
            before.append(event)


def test_an_error_in_a_step_costs_its_pipeline_only(executor: Executor, folder: Path) -> None:
    """A token that the model doesn't have: the pipeline is lost, its workers live, and others go on."""
    pipeline = len(PIPELINES)
    executor.extend(workers_of([PIPELINES[4]], first_pipeline=pipeline), lambda _: None)
    wrong = Lane([[5, 10**6]], [[0]])
    executor.submit(wrong.step(pipeline, 0, 1))
    executor.submit(wrong.step(pipeline, 0, 2))
    _, lost = events_until_lost(executor)
    assert (lost.worker, lost.pipelines) == ("c", (pipeline,))
    assert "a step failed: IndexError" in lost.reason
    executor.drop(pipeline)
    with pytest.raises(EngineError, match="isn't loaded"):
        executor.submit(wrong.step(pipeline, 0, 3))
    for other in (3, 4):
        assert play(executor, other, PROMPTS[:2], 5, 2, first_step=9000).answers == [
            expected(folder, prompt, 5) for prompt in PROMPTS[:2]
        ]


def test_an_extension_that_fails_leaves_things_as_they_were(processes: ProcessExecutor, folder: Path) -> None:
    held = {name: psutil.Process(pid).num_fds() for name, pid in processes.worker_pids.items()}
    number = len(PIPELINES) + 1
    bad = [*workers_of([(("a", 0, 2), ("b", 2, 3))], first_pipeline=number)]
    bad[1] = replace(bad[1], slices=(replace(bad[1].slices[0], end=NUM_LAYERS + 1),))
    with pytest.raises(InputError, match=r"layers \[2, 5\) of a model with 4"):
        processes.extend(bad, lambda _: None)
    wrong = workers_of([(("a", 0, 2), ("new", 2, 4))], first_pipeline=number)
    with pytest.raises(EngineError, match="new: torch sees no GPU here"):
        processes.extend([wrong[0], replace(wrong[1], torch_device="cuda:7")], lambda _: None)
    assert sorted(processes.worker_pids) == ["a", "b", "c"]
    assert {name: psutil.Process(pid).num_fds() for name, pid in processes.worker_pids.items()} == held
    lines: list[str] = []
    (room,) = processes.extend(workers_of([(("b", 0, 3), ("a", 3, 4))], first_pipeline=number), lines.append)
    assert room.kv_blocks == 64
    assert lines[:2] == [f"b: loading layers 0-2 of pipeline {number}", f"a: loading layers 3-3 of pipeline {number}"]
    assert play(processes, number, PROMPTS, 5, 2).answers == [expected(folder, prompt, 5) for prompt in PROMPTS]
    processes.drop(number)


def test_a_link_that_broke_costs_the_pipelines_that_used_it(processes: ProcessExecutor) -> None:
    """Both ends live, as when a cable between two machines is pulled: the workers say so."""
    number = len(PIPELINES) + 2
    processes.extend(workers_of([(("a", 0, 2), ("b", 2, 4))], first_pipeline=number), lambda _: None)
    using = {1, 2, 3, number}  # pipelines 2 and 3 pass from a to b as well
    processes._links["a"].early.append(Frame(Kind.BROKEN, {"with": "b", "message": "connection reset"}))
    _, lost = events_until_lost(processes)
    assert lost.worker == "b"
    assert set(lost.pipelines) == using
    assert lost.reason == "its link to a broke"
    processes._linked.add(("a", "b"))  # it didn't really
    processes.drop(number)


def test_ctrl_c_at_the_terminal_does_not_reach_workers(processes: ProcessExecutor) -> None:
    for pid in processes.worker_pids.values():
        assert os.getpgid(pid) != os.getpgid(0)
        os.kill(pid, signal.SIGINT)
    assert play(processes, 2, PROMPTS[:1], 3).answers[0]


def test_a_pair_whose_link_carries_nothing_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped when the first bytes are sent (as in NCCL 857, where nobody said who waits for whom)."""
    monkeypatch.setattr(process_executor, "PROBE_S", 1.0)
    join = ProcessExecutor._join

    def stop_one(self: ProcessExecutor, a: WorkerLink, b: WorkerLink, progress: object) -> None:
        join(self, a, b, progress)  # type: ignore[arg-type]
        assert b.pid is not None
        os.kill(b.pid, signal.SIGSTOP)

    monkeypatch.setattr(ProcessExecutor, "_join", stop_one)
    executor = ProcessExecutor(spec_of(folder, [(("a", 0, 2), ("b", 2, 4))]))
    with pytest.raises(EngineError, match=r"1,024 bytes from a to b didn't arrive within 1 s"):
        executor.start(lambda _: None)
    assert executor.worker_pids == {}


def test_a_worker_that_hangs_tells_where_and_others_go_on(folder: Path) -> None:
    """One that computes a million times slower sleeps through the deadline; the other one serves its own pipeline."""
    slow = {"a": Emulation(1e6), "b": Emulation(2.0)}
    pipelines = ((("b", 0, 2), ("a", 2, 4)), (("b", 0, 4),))
    executor = ProcessExecutor(spec_of(folder, pipelines, emulation=slow, deadline_s=0.5))
    executor.start(lambda _: None)
    try:
        executor.submit(Lane([[5, 6]], [[0]]).step(0, 0, 1))
        before, lost = events_until_lost(executor)
        assert not any(isinstance(event, StepOutput) for event in before)
        assert (lost.worker, lost.pipelines) == ("a", (0,))
        assert "taken for hung; it is in wait_until (emulation.py:" in lost.reason
        executor.drop(0)
        assert play(executor, 1, PROMPTS[:2], 5).answers == [expected(folder, prompt, 5) for prompt in PROMPTS[:2]]
        assert list(executor.worker_pids) == ["b"]
    finally:
        executor.close()


def test_a_worker_killed_while_it_is_suspected_is_told_once(folder: Path) -> None:
    executor = ProcessExecutor(spec_of(folder, [(("a", 0, 4),)], emulation={"a": Emulation(1e6)}, deadline_s=0.01))
    executor.start(lambda _: None)
    try:
        executor.submit(Lane([[5, 6]], [[0]]).step(0, 0, 1))
        assert executor.poll(0.05) == []
        assert executor._watch.is_asked("a")
        os.kill(executor.worker_pids["a"], signal.SIGKILL)
        _, lost = events_until_lost(executor)
        assert lost.reason == "the worker was killed by SIGKILL"
        assert not executor._watch.is_asked("a")
        assert executor._watch.next_at() is None
        assert executor.poll(0.0) == []
    finally:
        executor.close()


def test_emulated_time_is_a_multiple_of_what_was_measured(folder: Path) -> None:
    """The same layers on two devices of one process, one of them four times as slow as the other."""
    emulation = {"a": Emulation(2.0), "b": Emulation(8.0)}
    spec = spec_of(folder, [(("a", 0, 4),), (("b", 0, 4),)], emulation=emulation)
    spec = replace(spec, workers=tuple(replace(one, torch_device="cpu") for one in spec.workers))
    executor = InProcessExecutor(spec)
    try:
        executor.start(lambda _: None)
    except InputError:
        pytest.skip("this machine has too few cores to emulate two devices")
    busy = []
    for pipeline in (0, 1):
        outputs = play(executor, pipeline, [[9] * 40], 20).outputs
        busy.append(float(np.median([output.end_ns[0] - output.start_ns[0] for output in outputs[1:]])))
    assert busy[1] > 2 * busy[0]  # four times; a busy machine delays both
    executor.close()
