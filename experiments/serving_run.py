"""One workload served by one system under one policy, in simulation, and its figures: the commands' and studies' way.

Tokens feed the figures as requests end and aren't kept, unless a record is asked for.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from experiments.registry import make_dispatcher, make_policy
from experiments.serving_setup import ServingSystem
from slob_opt.metrics.accumulator import MetricsAccumulator
from slob_opt.metrics.histogram import LogHistogram
from slob_opt.metrics.load import StageLoad
from slob_opt.metrics.outcomes import Outcome
from slob_opt.metrics.request_columns import RequestColumns, Status
from slob_opt.metrics.satisfaction import SatisfactionMeter, SatisfactionSpec
from slob_opt.problem.workload import NS_PER_S, Workload
from slob_opt.scheduling.policy import Dispatcher, PipelineLimits, Policy
from slob_opt.simulation.delivery import Delivery
from slob_opt.simulation.options import EngineOptions, SimulationResult
from slob_opt.simulation.simulator import Simulator

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

GRACE_S = 600.0
"""How long after the last arrival requests are still answered, seconds; what is undelivered then is worth nothing."""

LAST_NS = 1 << 62
"""No time is later, nanoseconds: some 146 years."""

ALONE_GAP_NS = 10_000 * NS_PER_S
"""Time between requests that are served alone; far more than any of them takes."""


def _no_params() -> Mapping[str, object]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy and a dispatcher by name.

    Attributes
    ----------
    label
        Shown in tables.
    policy, dispatcher
        Names in the registry; the dispatcher matters where there are several pipelines.
    params, dispatcher_params
        Values of their parameters by name.
    """

    label: str
    policy: str
    dispatcher: str = "least-outstanding"
    params: Mapping[str, object] = field(default_factory=_no_params)
    dispatcher_params: Mapping[str, object] = field(default_factory=_no_params)

    def __reduce__(self) -> tuple[type[PolicyChoice], tuple[object, ...]]:
        """Return what other processes rebuild the choice from; a read-only mapping can't be pickled."""
        given = (self.label, self.policy, self.dispatcher, dict(self.params), dict(self.dispatcher_params))
        return type(self), given

    def policies(self, count: int) -> list[Policy]:
        """Return a policy for each of so many pipelines."""
        return [make_policy(self.policy, self.params) for _ in range(count)]

    def make_dispatcher(self, count: int, seed: int) -> Dispatcher | None:
        """Return the dispatcher; ``None`` for a single pipeline, where there is nothing to choose."""
        return None if count == 1 else make_dispatcher(self.dispatcher, self.dispatcher_params, seed=seed)

    def effective(self) -> dict[str, object]:
        """Return plain JSON."""
        return {
            "label": self.label,
            "policy": self.policy,
            "params": dict(self.params),
            "dispatcher": self.dispatcher,
            "dispatcher_params": dict(self.dispatcher_params),
        }


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run is simulated and measured.

    Attributes
    ----------
    engine
        Of the simulation.
    horizon_ns
        When the observation ends, nanoseconds; ``None`` is :data:`GRACE_S` after the last arrival.
    spec
        Of satisfaction.
    family
        Other specifications by name, under which satisfaction is measured from the same token times.
    has_qoe
        Whether QoE is computed too.
    seed
        Of the dispatcher.
    """

    engine: EngineOptions = field(default_factory=EngineOptions)
    horizon_ns: int | None = None
    spec: SatisfactionSpec = field(default_factory=SatisfactionSpec)
    family: tuple[tuple[str, SatisfactionSpec], ...] = ()
    has_qoe: bool = True
    seed: int = 0

    def end_ns(self, workload: Workload) -> int:
        """Return when the observation of a workload ends, nanoseconds."""
        if self.horizon_ns is not None:
            return self.horizon_ns
        return int(workload.arrival_ns[-1]) + round(GRACE_S * NS_PER_S)


@dataclass(frozen=True, slots=True)
class ServingRun:
    """What came out of a run.

    Attributes
    ----------
    choice
        Policy and dispatcher.
    columns
        Figures of each request.
    itl
        Times between tokens.
    result
        Of the simulation.
    end_ns
        End of the observation, nanoseconds.
    reasons
        (reason, requests) of those that were rejected, the most frequent first; of each kind the first one's numbers.
    family
        (N,) satisfaction under each other specification, by name.
    cpu_s
        Processor time of the simulation with its metrics, seconds.
    """

    choice: PolicyChoice
    columns: RequestColumns
    itl: LogHistogram
    result: SimulationResult
    end_ns: int
    reasons: tuple[tuple[str, int], ...]
    family: Mapping[str, FloatArray]
    cpu_s: float

    @property
    def pipelines(self) -> tuple[tuple[StageLoad, ...], ...]:
        """What the stages of each pipeline did."""
        return tuple(
            tuple(
                StageLoad(stage.busy_ns, stage.first_ns, stage.last_ns, stage.tokens, stage.padding_tokens)
                for stage in stages
            )
            for stages in self.result.stages
        )

    @property
    def waited_s(self) -> FloatArray:
        """(M,) seconds from arrival to the first token of requests that were taken, until the end where none came.

        Rejected and aborted requests aren't among them; zero alone when there is no other.
        """
        until_end_s = (self.end_ns - self.columns.workload.arrival_ns) / NS_PER_S
        waited = np.where(np.isfinite(self.columns.ttft_s), self.columns.ttft_s, until_end_s)
        taken = (self.columns.status != Status.REJECTED) & (self.columns.status != Status.ABORTED)
        return np.asarray(waited[taken]) if taken.any() else np.zeros(1)


class Sink:
    """Takes requests as they end: figures, satisfaction under other specifications, reasons, and whoever else asks."""

    def __init__(self, workload: Workload, options: RunOptions, keep: Callable[[Outcome], None] | None = None) -> None:
        self.workload, self._keep = workload, keep
        self.metrics = MetricsAccumulator(
            workload, options.spec, has_qoe=options.has_qoe, end_ns=options.end_ns(workload)
        )
        self._meters = [(name, SatisfactionMeter(spec)) for name, spec in options.family]
        self.family = {name: np.zeros(workload.num_requests) for name, _ in options.family}
        self._reasons: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def __call__(self, delivery: Delivery) -> None:
        """Enter a request."""
        status = Status(int(delivery.end))
        self.metrics.add(delivery.request, status, delivery.started_ns, delivery.token_ns)
        if delivery.reason:
            kind = re.sub(r"\d+", "#", delivery.reason)
            self._first.setdefault(kind, delivery.reason)
            self._reasons[kind] += 1
        if self._meters and delivery.token_ns.size:
            self._enter_family(delivery)
        if self._keep is not None:
            self._keep(Outcome(delivery.request, status, delivery.pipeline, delivery.started_ns, delivery.token_ns))

    def _enter_family(self, delivery: Delivery) -> None:
        w, index = self.workload, delivery.request
        ttft_s = None if w.ttft_s is None else w.ttft_s.item(index)
        tpot_s = None if w.tpot_s is None else w.tpot_s.item(index)
        length, arrival = w.output_tokens.item(index), w.arrival_ns.item(index)
        for name, meter in self._meters:
            self.family[name][index] = meter.of(arrival, delivery.token_ns, length, ttft_s, tpot_s)

    @property
    def reasons(self) -> tuple[tuple[str, int], ...]:
        """(reason, requests) of rejections, the most frequent first."""
        return tuple((self._first[kind], count) for kind, count in self._reasons.most_common())


def serve(
    workload: Workload,
    system: ServingSystem,
    choice: PolicyChoice,
    options: RunOptions | None = None,
    *,
    keep: Callable[[Outcome], None] | None = None,
) -> ServingRun:
    """Return what becomes of a workload.

    Parameters
    ----------
    workload, system, choice
        What is served, by what, and how.
    options
        ``None`` takes the defaults.
    keep
        Takes each request with its token times as it ends; ``None`` keeps none.

    Raises
    ------
    InputError
        When policy or dispatcher are unknown or take other parameters.
    PolicyError
        When a policy decides something that isn't allowed.
    """
    options = options or RunOptions()
    count = len(system.limits)
    sink = Sink(workload, options, keep)
    end_ns = options.end_ns(workload)
    simulator = Simulator(
        workload,
        system.limits,
        system.clocks,
        choice.policies(count),
        choice.make_dispatcher(count, options.seed),
        sink=sink,
        options=options.engine,
        horizon_ns=end_ns,
    )
    began = time.process_time()
    result = simulator.run()
    cpu_s = time.process_time() - began
    return ServingRun(
        choice, sink.metrics.columns(), sink.metrics.itl, result, end_ns, sink.reasons, sink.family, cpu_s
    )


@dataclass(frozen=True, slots=True)
class Alone:
    """How each of N requests fares alone on the pipeline that is best for it.

    Attributes
    ----------
    satisfaction
        (N,) S; 0 where no pipeline can hold the request.
    e2e_s
        (N,) seconds from arrival to the last token; NaN where no pipeline can hold it.
    """

    satisfaction: FloatArray
    e2e_s: FloatArray

    @property
    def service_s(self) -> float:
        """E[S], mean time of the requests that can be served, seconds; NaN when none can."""
        known = self.e2e_s[np.isfinite(self.e2e_s)]
        return float(known.mean()) if known.size else float("nan")


def served_alone(workload: Workload, system: ServingSystem, spec: SatisfactionSpec | None = None) -> Alone:
    """Return how the requests fare when each has the system for itself: the yardstick of relative satisfaction.

    Each is simulated on each pipeline, long after the one before it has ended, on a ragged engine.
    """
    size = workload.num_requests
    apart = workload.shifted(np.arange(size, dtype=np.int64) * min(ALONE_GAP_NS, LAST_NS // size))
    best = Alone(np.zeros(size), np.full(size, np.nan))
    for limits, clock in zip(system.limits, system.clocks, strict=True):
        metrics = MetricsAccumulator(apart, spec, has_qoe=False)

        def enter(delivery: Delivery, into: MetricsAccumulator = metrics) -> None:
            into.add(delivery.request, Status(int(delivery.end)), delivery.started_ns, delivery.token_ns)

        single = PipelineLimits(1, 1, limits.kv_blocks, limits.block_tokens, None, limits.max_tokens)
        Simulator(apart, [single], [clock], [make_policy("orca")], sink=enter).run()
        columns = metrics.columns()
        best = Alone(np.maximum(best.satisfaction, columns.satisfaction), np.fmin(best.e2e_s, columns.e2e_s))
    return best
