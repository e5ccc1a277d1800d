"""The engine with a real model: the right tokens to the right client, whatever policy, lane, pipeline or pressure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from engine_setups import (
    EOS,
    NUM_LAYERS,
    VOCAB,
    Client,
    ask,
    deployment,
    engine_for,
    expected,
    one_pipeline,
    save_llama,
    two_pipelines,
)

from experiments.registry import policy_names
from runtime.deployment import Deployment
from runtime.engine import Engine
from runtime.generation import GenerationRequest, Reason, RequestRefused, Sampling
from runtime.in_process import InProcessExecutor
from slob_opt.metrics.trace_header import TraceHeader, TracePipeline, TraceStage
from slob_opt.metrics.trace_reader import read_trace
from slob_opt.metrics.trace_writer import TraceWriter
from slob_opt.problem.placement import Placement

Start = Callable[..., Engine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Start engines that are closed after the test."""
    started: list[Engine] = []

    def make(placement: Placement, policy: str = "slob", recorder: object = None, **more: object) -> Engine:
        what: Deployment = deployment(folder, placement, **more)
        engine = engine_for(what, InProcessExecutor(what.executor_spec()), policy, recorder=recorder)  # type: ignore[arg-type]
        started.append(engine)
        engine.start(lambda _: None)
        return engine

    yield make
    for engine in started:
        engine.close()


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 60))] for _ in range(count)]


POLICIES = [name for name in policy_names() if "clairvoyant" not in name]


@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_are_those_of_generate_under_every_policy(start: Start, folder: Path, policy: str) -> None:
    engine = start(one_pipeline(lanes=2), policy)
    asked = [(prompt, 5 + 3 * index) for index, prompt in enumerate(prompts(6))]
    clients = [ask(engine, *one) for one in asked]
    for client, (prompt, length) in zip(clients, asked, strict=True):
        assert client.wait() is Reason.LENGTH
        assert client.tokens == expected(folder, prompt, length)
    status = engine.status()
    assert status.num_finished[Reason.LENGTH] == 6
    assert status.pipelines[0].free_blocks == status.pipelines[0].kv_blocks


@pytest.mark.parametrize("policy", ["slob", "orca-paged", "chunked", "mlfq"])
def test_tokens_survive_preemption(start: Start, folder: Path, policy: str) -> None:
    # 12 blocks hold 192 tokens; five requests of up to 130 each can't all stay.
    engine = start(one_pipeline(), policy, num_blocks=12)
    asked = [(prompt, 70) for prompt in prompts(5, seed=1)]
    clients = [ask(engine, *one) for one in asked]
    for client, (prompt, length) in zip(clients, asked, strict=True):
        assert client.wait() is Reason.LENGTH
        assert client.tokens == expected(folder, prompt, length)
    assert engine.status().num_preempted > 0


def test_padded_steps_give_the_same_tokens(start: Start, folder: Path) -> None:
    engine = start(one_pipeline(), "slob", is_padded=True)
    asked = [(prompt, 8) for prompt in prompts(4, seed=2)]
    for client, (prompt, length) in zip([ask(engine, *one) for one in asked], asked, strict=True):
        client.wait()
        assert client.tokens == expected(folder, prompt, length)


def test_two_pipelines_share_the_requests(start: Start, folder: Path) -> None:
    engine = start(two_pipelines())
    asked = [(prompt, 12) for prompt in prompts(6, seed=3)]
    clients = [ask(engine, *one) for one in asked]
    for client, (prompt, length) in zip(clients, asked, strict=True):
        client.wait()
        assert client.tokens == expected(folder, prompt, length)
    assert {record.pipeline for record in engine.status().latest} == {0, 1}
    assert all(sum(one.busy_s) > 0 for one in engine.status().pipelines)


def test_a_draw_depends_on_its_seed_alone(start: Start) -> None:
    engine = start(one_pipeline(lanes=2))
    alone = ask(engine, [5, 6, 7], 20, temperature=1.0, seed=11)
    alone.wait()
    crowd = [ask(engine, prompt, 20, temperature=1.0, seed=index) for index, prompt in enumerate(prompts(5))]
    again, other = (ask(engine, [5, 6, 7], 20, temperature=1.0, seed=seed) for seed in (11, 12))
    for client in (*crowd, again, other):
        client.wait()
    assert again.tokens == alone.tokens != other.tokens


def test_an_answer_ends_with_the_models_own_end_or_a_stop_text(start: Start, folder: Path) -> None:
    engine = start(one_pipeline())
    long = {tuple(prompt): expected(folder, prompt, 100) for prompt in prompts(12, seed=4)}
    prompt = next((one for one, tokens in long.items() if EOS in tokens), None)
    if prompt is not None:
        client = ask(engine, prompt, 100, ignores_eos=False)
        assert client.wait() is Reason.STOP
        assert client.tokens == expected(folder, prompt, 100, ends=True)
        assert str(EOS) not in client.text.split()
    some, tokens = next(iter(long.items()))
    stopped = ask(engine, some, 100, stop=(str(tokens[9]),))
    assert stopped.wait() is Reason.STOP
    first = tokens.index(tokens[9])
    assert stopped.tokens == tokens[: first + 1]
    assert stopped.text.split() == [str(token) for token in tokens[:first]]
    assert stopped.end is not None
    assert stopped.end.stop == str(tokens[9])


def test_abort_frees_the_blocks_whenever_it_comes(start: Start) -> None:
    engine = start(one_pipeline(lanes=2), num_blocks=20)
    for seed in range(20):
        clients = [Client() for _ in range(4)]
        numbers = [
            engine.submit(GenerationRequest(tuple(prompt), 100, Sampling(ignores_eos=True)), client)
            for prompt, client in zip(prompts(4, seed), clients, strict=True)
        ]
        if seed % 2:
            clients[0].first.wait(30)
        for number in numbers:
            engine.abort(number)
            engine.abort(number)
        for client in clients:
            assert client.wait() in (Reason.ABORT, Reason.LENGTH)
    assert engine.wait_idle(10)
    status = engine.status()
    assert status.pipelines[0].free_blocks == 20
    assert status.pipelines[0].running == status.pipelines[0].waiting == 0
    assert all(record.satisfaction is None for record in status.latest if record.reason is Reason.ABORT)


def test_what_can_never_fit_is_refused_at_once(start: Start) -> None:
    engine = start(one_pipeline(), num_blocks=5)
    assert engine.max_tokens == 80
    assert ask(engine, [5] * 60, 20).wait() is Reason.LENGTH
    for prompt, length, kind in (([5] * 61, 20, "too_long"), ([], 5, "invalid"), ([5], 0, "invalid")):
        with pytest.raises(RequestRefused) as caught:
            ask(engine, prompt, length)
        assert caught.value.kind == kind
    with pytest.raises(RequestRefused, match="temperature nan"):
        ask(engine, [5], 5, temperature=float("nan"))


def test_a_model_is_no_longer_than_it_says(start: Start) -> None:
    engine = start(one_pipeline())
    assert engine.max_tokens == 256
    assert ask(engine, [5] * 255, 1).wait() is Reason.LENGTH
    with pytest.raises(RequestRefused, match="257, at most 256 fit"):
        ask(engine, [5] * 256, 1)


def test_draining_ends_what_runs_and_refuses_the_rest(start: Start) -> None:
    engine = start(one_pipeline())
    client = ask(engine, [5, 6], 40)
    engine.begin_drain()
    with pytest.raises(RequestRefused) as caught:
        ask(engine, [5], 5)
    assert caught.value.kind == "unavailable"
    assert engine.wait_idle(30)
    assert client.wait() is Reason.LENGTH
    assert engine.status().is_draining


def test_closing_tells_every_client(start: Start) -> None:
    engine = start(one_pipeline())
    clients = [ask(engine, [5, 6, index + 3], 200) for index in range(3)]
    clients[0].first.wait(30)
    engine.close()
    assert {client.wait() for client in clients} <= {Reason.ERROR, Reason.LENGTH}
    assert not engine.status().is_up
    with pytest.raises(RequestRefused):
        ask(engine, [5], 5)


def test_a_trace_tells_every_step_and_token(start: Start, tmp_path: Path) -> None:
    stages = (TraceStage(("box/0",), 0, NUM_LAYERS - 1), TraceStage(("box/1",), NUM_LAYERS - 1, NUM_LAYERS))
    header = TraceHeader("runtime", "w", "box", "tiny", "slob", None, "ragged", 0, (TracePipeline(1, stages),))
    with TraceWriter(tmp_path / "trace.jsonl", header) as writer:
        engine = start(one_pipeline(), recorder=writer)
        clients = [ask(engine, prompt, 10) for prompt in prompts(4)]
        for client in clients:
            client.wait()
        engine.close()
        writer.finish(max(client.end.at_ns for client in clients if client.end) - engine.origin_ns)
    trace = read_trace(tmp_path / "trace.jsonl")
    assert trace.outcomes.workload.num_requests == 4
    assert np.diff(trace.outcomes.token_start).tolist() == [10] * 4
    computed = sum(sum(step.tokens) for step in trace.iterations)
    assert computed == sum(len(prompt) for prompt in prompts(4)) + 4 * 9
    for step in trace.iterations:
        assert step.start_ns[0] <= step.end_ns[0] <= step.start_ns[1] <= step.end_ns[1] <= step.back_ns
