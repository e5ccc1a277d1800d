"""A workload served by a real engine at its own arrival times, with figures that compare with a simulation's."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.deploying import Deploying, engine_of
from experiments.serving_run import PolicyChoice, RunOptions, serve
from experiments.serving_setup import ServingOptions, ServingSystem, make_system
from experiments.serving_trace import trace_header
from runtime.engine import Engine
from runtime.executor import Executor
from runtime.generation import EndEvent, GenerationRequest, Sampling, TokenEvent
from runtime.text import TextCodec
from slob_opt.metrics.iterations import Iteration
from slob_opt.metrics.summary import summarise
from slob_opt.metrics.trace_lines import TraceRequest
from slob_opt.metrics.trace_reader import read_trace
from slob_opt.metrics.trace_writer import TraceWriter
from slob_opt.problem.workload import NS_PER_S, Workload


def system_of(what: Deploying, engine: Engine) -> ServingSystem:
    """Return the simulated twin of a deployment: the same placement, lanes, rows, and KV as the engine found it."""
    deployment = what.deployment
    blocks = min(one.kv_blocks for one in engine.status().pipelines)
    options = ServingOptions(
        max_rows=deployment.max_rows, chunk_tokens=deployment.chunk_tokens, kv_blocks=blocks,
        block_tokens=deployment.block_tokens,
    )  # fmt: skip
    name = f"{deployment.cluster.name}/{deployment.model.name}"
    return make_system(name, deployment.cluster, deployment.model, deployment.placement, options)


class _Recorder:
    """Writes a trace whose time begins with the workload, without what came before."""

    def __init__(self) -> None:
        self.writer: TraceWriter | None = None
        self.shift_ns = 0

    def iteration(self, iteration: Iteration) -> None:
        if self.writer is not None:
            shift = self.shift_ns
            self.writer.iteration(
                iteration._replace(
                    start_ns=tuple(at - shift for at in iteration.start_ns),
                    end_ns=tuple(at - shift for at in iteration.end_ns),
                    back_ns=iteration.back_ns - shift,
                )
            )

    def request(self, request: TraceRequest) -> None:
        if self.writer is not None:
            shift, outcome = self.shift_ns, request.outcome
            started = None if outcome.started_ns is None else outcome.started_ns - shift
            moved = replace(outcome, started_ns=started, token_ns=outcome.token_ns - shift)
            self.writer.request(request._replace(outcome=moved, arrival_ns=request.arrival_ns - shift))


class MeasuredEngine:
    """An engine that runs workloads and records them.

    Parameters
    ----------
    what
        The deployment.
    executor
        That computes.
    """

    def __init__(self, what: Deploying, executor: Executor) -> None:
        self.what, self._recorder = what, _Recorder()
        self.engine = engine_of(what, TextCodec(what.options.folder), executor, recorder=self._recorder)

    def run(self, workload: Workload, path: Path, seed: int = 0) -> None:
        """Serve a workload at its arrival times and write its trace; returns when the last request is over.

        Prompts are random tokens of the given lengths; answers have their true lengths exactly.

        Parameters
        ----------
        workload
            Requests; limits of new tokens must be the true lengths.
        path
            Of the trace.
        seed
            Of the tokens.
        """
        rng, engine = np.random.default_rng(seed), self.engine
        vocabulary = engine.codec.vocab_size
        over = threading.Semaphore(0)

        def sink(event: TokenEvent | EndEvent) -> None:
            if isinstance(event, EndEvent):
                over.release()

        choice = PolicyChoice(self.what.options.policy, self.what.options.policy, self.what.options.dispatcher)
        system = system_of(self.what, engine)
        header = trace_header(workload, system, choice, is_padded=False, seed=seed, source="runtime")
        with TraceWriter(path, header) as writer:
            begin = time.monotonic_ns()
            self._recorder.shift_ns, self._recorder.writer = begin - engine.origin_ns, writer
            for index in range(workload.num_requests):
                wait_s = (begin + workload.arrival_ns.item(index) - time.monotonic_ns()) / NS_PER_S
                if wait_s > 0:
                    time.sleep(wait_s)
                prompt = tuple(rng.integers(3, vocabulary, workload.prompt_tokens.item(index)).tolist())
                engine.submit(
                    GenerationRequest(
                        prompt, workload.output_tokens.item(index), Sampling(ignores_eos=True), number=index
                    ),
                    sink,
                )
            for _ in range(workload.num_requests):
                over.acquire()
            engine.wait_idle(None)
            self._recorder.writer = None
            writer.finish(time.monotonic_ns() - begin)


def measured_figures(path: Path) -> dict[str, float]:
    """Return the figures of a trace."""
    trace = read_trace(path)
    found = trace.accumulate(has_qoe=False)
    return summarise(found.columns(), found.itl, trace.end_ns / NS_PER_S)


def simulated_figures(workload: Workload, system: ServingSystem, what: Deploying) -> dict[str, float]:
    """Return the figures of the same workload in simulation."""
    choice = PolicyChoice(what.options.policy, what.options.policy, what.options.dispatcher)
    run = serve(workload, system, choice, RunOptions(has_qoe=False))
    return summarise(run.columns, run.itl, run.end_ns / NS_PER_S)
