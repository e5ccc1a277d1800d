"""Pipelines that open and close while they serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from serving_setups import fixed_clock

from slob_opt.errors import InputError, PolicyError
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.dispatchers.blind import LeastOutstandingDispatcher
from slob_opt.scheduling.policies.fcfs import OrcaPolicy
from slob_opt.scheduling.policy import KvUse, LaneView, PipelineLimits, Policy
from slob_opt.simulation.control import Observation, PipelineChange
from slob_opt.simulation.delivery import Delivery, End
from slob_opt.simulation.simulator import Simulator

SECOND = 1_000_000_000


@dataclass
class Scripted:
    """Does what a test says, and remembers what it saw."""

    script: Callable[[Observation], Sequence[PipelineChange]]
    period_ns: int = 10 * SECOND
    first_open: frozenset[int] = frozenset({0})
    wake_ns: int | None = None
    seen: list[Observation] = field(default_factory=list)

    def decide(self, observation: Observation) -> Sequence[PipelineChange]:
        self.seen.append(observation)
        return self.script(observation)


def simulate(workload: Workload, controller: Scripted, *, rows: int = 1) -> dict[int, Delivery]:
    """Two pipelines of one stage, 1 s a batch."""
    found: list[Delivery] = []
    clock = fixed_clock((SECOND,))
    Simulator(
        workload, [PipelineLimits(1, rows, 99)] * 2, [clock] * 2, [OrcaPolicy()] * 2, LeastOutstandingDispatcher(),
        sink=found.append, controller=controller,
    ).run()  # fmt: skip
    return {one.request: one for one in found}


def test_what_waits_goes_to_the_open_pipeline_and_what_runs_ends_where_it_is() -> None:
    """Three requests of 30 tokens at pipeline 0, one row: at 10 s the two that wait go to pipeline 1."""
    workload = Workload.of("three", [0.0, 1.0, 2.0], [5] * 3, [30] * 3)

    def script(seen: Observation) -> Sequence[PipelineChange]:
        if seen.now_ns != 10 * SECOND:
            return ()
        assert (seen.waiting, seen.running) == ((2, 0), (1, 0))
        assert (seen.arrivals, seen.prompt_tokens, seen.finished, seen.output_tokens) == (3, 15, 0, 0)
        return (PipelineChange(0, is_open=False), PipelineChange(1, is_open=True, from_ns=25 * SECOND))

    controller = Scripted(script)
    found = simulate(workload, controller)
    assert [found[i].pipeline for i in range(3)] == [0, 1, 1]
    assert found[0].token_ns[-1] == 30 * SECOND
    assert found[1].started_ns == 25 * SECOND  # loaded then
    assert found[1].token_ns[-1] == 55 * SECOND
    assert found[2].token_ns[-1] == 85 * SECOND
    # Asked each 10 s, and at once when pipeline 0 is empty: request 0 ends at 30 s.
    drained = [one for one in controller.seen if one.now_ns == 30 * SECOND]
    assert len(drained) == 2
    assert (drained[1].finished, drained[1].output_tokens, drained[1].running) == (1, 30, (0, 1))


def test_a_closed_pipeline_gets_nothing() -> None:
    workload = Workload.of("many", np.arange(20) * 0.5, [5] * 20, [2] * 20)
    found = simulate(workload, Scripted(lambda seen: ()), rows=8)
    assert {one.pipeline for one in found.values()} == {0}
    both = Scripted(lambda seen: (), first_open=frozenset({0, 1}))
    assert {one.pipeline for one in simulate(workload, both, rows=8).values()} == {0, 1}


def test_one_pipeline_stays_open() -> None:
    workload = Workload.of("one", [0.0], [5], [30])
    with pytest.raises(PolicyError, match="pipeline 0 closes, and no other is open"):
        simulate(workload, Scripted(lambda seen: (PipelineChange(0, is_open=False),)))
    with pytest.raises(PolicyError, match="changes pipeline 5 of 2"):
        simulate(workload, Scripted(lambda seen: (PipelineChange(5, is_open=True),)))
    with pytest.raises(PolicyError, match="period is 0 ns"):
        simulate(workload, Scripted(lambda seen: (), period_ns=0))


@dataclass
class Reader:
    """Notes predictions, and decodes."""

    is_clairvoyant: bool
    seen: list[float] = field(default_factory=list)
    name: str = "reader"
    kv_use: KvUse = KvUse.RESERVE
    holds_finished: bool = False
    is_streamed: bool = True

    def decide(self, view: LaneView) -> BatchPlan | None:
        self.seen += view.columns.predicted[view.waiting].tolist()
        return OrcaPolicy().decide(view)


def predictions_seen(policies: Sequence[Policy], predicted: list[float] | None) -> None:
    workload = Workload.of("two", [0.0, 1.0], [5, 5], [3, 4])
    clock = fixed_clock((1000,))
    Simulator(
        workload, [PipelineLimits(1, 4, 99)] * len(policies), [clock] * len(policies), policies,
        LeastOutstandingDispatcher(),
        sink=lambda one: None, predicted=None if predicted is None else np.array(predicted),
    ).run()  # fmt: skip


def test_only_a_clairvoyant_policy_sees_true_lengths() -> None:
    seeing, blind = Reader(is_clairvoyant=True), Reader(is_clairvoyant=False)
    predictions_seen([seeing], None)
    assert seeing.seen == [3.0, 4.0]
    predictions_seen([blind], [7.5, 9.0])
    assert blind.seen == [7.5, 9.0]
    none = Reader(is_clairvoyant=False)
    predictions_seen([none], None)
    assert np.isnan(none.seen).all()
    with pytest.raises(InputError, match="clairvoyant policies and others"):
        predictions_seen([seeing, blind], None)
    with pytest.raises(InputError, match="predicted has shape"):
        predictions_seen([blind], [1.0])


def test_unfinished_ones_are_told_where_they_are() -> None:
    workload = Workload.of("two", [0.0, 0.0], [5, 5], [30, 30])
    found: list[Delivery] = []
    clock = fixed_clock((SECOND,))
    Simulator(
        workload, [PipelineLimits(1, 1, 99)], [clock], [OrcaPolicy()], sink=found.append, horizon_ns=4 * SECOND
    ).run()
    assert [(one.end, one.token_ns.size, one.started_ns) for one in found] == [
        (End.UNFINISHED, 4, 0), (End.UNFINISHED, 0, None),
    ]  # fmt: skip
