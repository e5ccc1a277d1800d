"""A ladder served in simulation: one level alone, or the adapter that switches between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.serving_run import PolicyChoice, RunOptions, Sink
from slob_opt.metrics.request_columns import RequestColumns
from slob_opt.problem.workload import NS_PER_S, Workload
from slob_opt.scheduling.policy import PipelineLimits
from slob_opt.simulation.control import Controller, Observation
from slob_opt.simulation.levels import Change, LevelController, LevelPlan
from slob_opt.simulation.simulator import Simulator
from slob_opt.slob.adapter import Adapter, AdapterState, Seen
from slob_opt.slob.ladder import Server
from slob_opt.slob.ladder_planning import PlannedLadder

SLOB = PolicyChoice("slob", "slob", "slob")
"""Policy and dispatcher of every level unless another is named."""

LOAD_BYTES_PER_S = 1e9
"""Rate at which a card reads weights. Chosen: between SSDs on SATA (0.5) and on NVMe (3 and more); 10 Gb/s is 1.25."""


@dataclass(frozen=True, slots=True)
class LadderRun:
    """What came out.

    Attributes
    ----------
    columns
        Figures of each request.
    card_s
        Card-seconds in which cards held or loaded weights, over the observation.
    end_s
        Length of the observation, seconds.
    changes
        Levels in order, the first one included; empty for a fixed level.
    states
        Of the adapter after each decision; empty for a fixed level.
    cpu_s
        Processor time, seconds.
    """

    columns: RequestColumns
    card_s: float
    end_s: float
    changes: tuple[Change, ...]
    states: tuple[AdapterState, ...]
    cpu_s: float

    @property
    def loss(self) -> float:
        """1 - mean satisfaction."""
        return float(1 - self.columns.satisfaction[self.columns.counts].mean())


class AdapterChooser:
    """The adapter as a controller of levels asks it; keeps the adapter's states.

    Attributes
    ----------
    states
        The first one, and one after each decision.
    """

    def __init__(self, adapter: Adapter, first: AdapterState | None = None) -> None:
        self._adapter = adapter
        self.states = [first or adapter.start()]

    def __call__(self, observation: Observation) -> int:
        """Return the level that should serve."""
        seen = Seen(
            observation.now_ns, observation.arrivals, observation.prompt_tokens, observation.finished,
            observation.output_tokens, sum(observation.waiting),
        )  # fmt: skip
        self.states.append(self._adapter.decide(self.states[-1], seen))
        return self.states[-1].level


def level_plan(planned: PlannedLadder, load_bytes_per_s: float = LOAD_BYTES_PER_S) -> LevelPlan:
    """Return what a switch between the levels of a ladder must know."""
    memory, servers = planned.memory, planned.ladder.servers
    weights = [
        {card: memory.weight_bytes(card, one.pipeline) for card in sorted(one.pipeline.cards)} for one in servers
    ]
    held = [
        {card: size + memory.kv_bytes(card, one.pipeline, one.limits.kv_blocks) for card, size in sizes.items()}
        for one, sizes in zip(servers, weights, strict=True)
    ]
    room = {card: memory.room_bytes(card) for card in range(len(memory.cluster.devices))}
    levels = tuple(level.servers for level in planned.ladder.levels)
    return LevelPlan(levels, tuple(held), tuple(weights), room, load_bytes_per_s)


def serve_level(
    planned: PlannedLadder,
    level: int,
    workload: Workload,
    choice: PolicyChoice = SLOB,
    options: RunOptions | None = None,
) -> LadderRun:
    """Return what becomes of a workload on one level alone, which has the whole memory of its cards."""
    pipelines = planned.pipelines(level)
    servers = [
        replace(
            planned.ladder.servers[place],
            limits=replace(
                planned.ladder.servers[place].limits, kv_blocks=planned.memory.kv_blocks(pipeline, pipelines)
            ),
        )
        for place, pipeline in zip(planned.ladder.levels[level].servers, pipelines, strict=True)
    ]
    run = _serve(servers, workload, choice, options, None)
    return replace(run, card_s=len(planned.ladder.levels[level].cards) * run.end_s)


def serve_adapter(
    planned: PlannedLadder,
    workload: Workload,
    adapter: Adapter,
    choice: PolicyChoice = SLOB,
    options: RunOptions | None = None,
    *,
    first: AdapterState | None = None,
    load_bytes_per_s: float = LOAD_BYTES_PER_S,
) -> LadderRun:
    """Return what becomes of a workload when the adapter switches levels.

    Parameters
    ----------
    planned, workload, choice, options
        What serves what, and how; the adapter's ladder is that of `planned`.
    adapter
        Decides.
    first
        State before the first request; ``None`` is the adapter's own.
    load_bytes_per_s
        Rate at which a card reads weights.
    """
    chooser = AdapterChooser(adapter, first)
    controller = LevelController(
        level_plan(planned, load_bytes_per_s),
        chooser,
        first=chooser.states[0].level,
        period_ns=round(adapter.period_s * NS_PER_S),
    )
    run = _serve(planned.ladder.servers, workload, choice, options, controller)
    return replace(
        run,
        card_s=controller.cards_until(round(run.end_s * NS_PER_S)) / NS_PER_S,
        changes=tuple(controller.changes),
        states=tuple(chooser.states),
    )


def _serve(
    servers: Sequence[Server],
    workload: Workload,
    choice: PolicyChoice,
    options: RunOptions | None,
    controller: Controller | None,
) -> LadderRun:
    options = options or RunOptions(has_qoe=False)
    sink = Sink(workload, options)
    end_ns = options.end_ns(workload)
    limits: list[PipelineLimits] = [server.limits for server in servers]
    simulator = Simulator(
        workload,
        limits,
        [server.clock for server in servers],
        choice.policies(len(servers)),
        choice.make_dispatcher(len(servers), options.seed),
        sink=sink,
        options=options.engine,
        horizon_ns=end_ns,
        cards=[[stage.cards for stage in server.pipeline.stages] for server in servers],
        controller=controller,
    )
    began = time.process_time()
    simulator.run()
    cpu_s = time.process_time() - began
    return LadderRun(sink.metrics.columns(), 0.0, end_ns / NS_PER_S, (), (), cpu_s)
