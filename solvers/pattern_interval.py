"""The interval objective over type counts: least sums of stage times by small integer programs.

For a given interval every device has a whole number of layers that it may execute at most, so one program of a few
variables a group finds the pipeline of least sum of stage times (FORMULATION.md, section 4.3). Its answer moves one end
of the range that holds the shortest interval; the process that solves the programs decides by itself which comes next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import TICK_S, FloatArray, IntArray
from slob_opt.planning.groups import PatternPlan, ShapeCosts, realise
from slob_opt.planning.interval_program import IntervalProgram, interval_upper
from slob_opt.planning.pattern_kernel import pattern_split, shortest_interval, single_interval
from slob_opt.planning.pattern_rates import PatternProblem
from slob_opt.planning.witness import ThresholdWitness
from solvers.backend import BackendAnswer, Ending
from solvers.child_process import run_in_child
from solvers.integer_model import IntegerModel
from solvers.messages import Backend, ModelJob
from solvers.pattern_attempt import PatternAttempt
from solvers.pattern_master import BOUND_MARGIN

RELATIVE_WIDTH = 1e-8
"""Width of the range at which the search stops. Chosen: far below ``OPTIMALITY_TOLERANCE``, above `BOUND_MARGIN`."""

SUM_SCALE = 1000.0
"""Least sum of stage times in the model's units. Chosen, see `pattern_master.WORTH_SCALE`."""

_VARIABLES = ("n", "l", "f", "lf", "g", "lg")


@dataclass(frozen=True, slots=True)
class Found:
    """A pipeline: devices by group, ends, and the shortest interval (ticks) of such a pattern."""

    counts: tuple[int, ...]
    first: int
    last: int
    interval: float


@dataclass(frozen=True, slots=True)
class SearchState:
    """What the answers so far say.

    Attributes
    ----------
    low
        Ticks; no pipeline of several devices has a shorter interval.
    high
        Ticks of the best pipeline known, however it was found.
    found
        The best pipeline found by the search; ``None`` when none beats what was known before.
    interval
        Interval to try next; ``None`` when the search has ended.
    """

    low: float
    high: float
    found: Found | None
    interval: float | None


@dataclass(frozen=True)
class IntervalModels:
    """Source of the programs; see :class:`solvers.messages.ModelSource`.

    Attributes
    ----------
    costs
        The one shape.
    available
        (G,) devices.
    usage, cards
        (pools, G) and (pools,): units of cards.
    num_layers
        L.
    known
        Ticks of the best pipeline known before; infinite without one.
    """

    costs: ShapeCosts
    available: IntArray
    usage: IntArray
    cards: IntArray
    num_layers: int
    known: float

    def next_model(self, answers: Sequence[BackendAnswer]) -> IntegerModel | None:
        """Return the program of the interval that comes next."""
        interval = self.state(answers).interval
        return None if interval is None else self.model(interval)

    def state(self, answers: Sequence[BackendAnswer]) -> SearchState:
        """Return what the answers say: replays the search, so that both processes see the same."""
        costs = self.costs
        low, high, found = max(1.0, costs.num_micro_batches * costs.occupancy), self.known, None
        interval = min(high, interval_upper(costs, self.num_layers))
        if low > interval:
            return SearchState(high, high, None, None)
        for number, answer in enumerate(answers):
            edge = self.next_edge(interval)
            if answer.ending is Ending.INFEASIBLE:
                low = max(low, edge if number else np.inf)
            elif answer.ending is Ending.FINISHED and answer.values is not None and answer.bound is not None:
                least = answer.bound * self.unit * (1 - BOUND_MARGIN)
                # Smaller intervals leave smaller caps, hence no smaller sums; larger ones do so only from `edge` on.
                low = max(low, least if least <= interval else min(least, edge))
                pipeline = self.pipeline(answer.values)
                if pipeline is not None and pipeline.interval < high:
                    high, found = pipeline.interval, pipeline
            else:
                return SearchState(min(low, high), high, found, None)
            low = min(low, high)
            if not np.isfinite(high) or high - low <= max(1.0, RELATIVE_WIDTH * high):
                return SearchState(low, high, found, None)
            # The lower end first: with few micro-batches in flight the least sum is the answer.
            interval = float(np.ceil(low)) if number == 0 else float(np.floor((low + high) / 2))
        return SearchState(low, high, found, interval)

    @property
    def unit(self) -> float:
        """Ticks of one unit of the model's objective."""
        return max(1.0, float((self.costs.fixed + self.num_layers * self.costs.layer).min())) / SUM_SCALE

    def _caps(self, interval: float) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Most layers of a middle, first and last device within an interval, and the interval at which one grows."""
        costs = self.costs
        per_stage = np.floor(interval / costs.num_micro_batches)
        edges: list[FloatArray] = []
        caps: list[FloatArray] = []
        for extra, memory in ((0.0, costs.cap), (costs.embed, costs.cap_first), (costs.head, costs.cap_last)):
            fixed = costs.fixed + extra
            with np.errstate(divide="ignore", invalid="ignore"):
                by_time = np.where(
                    costs.layer > 0,
                    np.floor((per_stage - fixed) / costs.layer),
                    np.where(per_stage >= fixed, float(self.num_layers), -1.0),
                )
            caps.append(np.clip(np.minimum(by_time, memory), 0, self.num_layers))
            grows = by_time < np.minimum(memory, self.num_layers)
            next_layers = np.maximum(np.minimum(by_time, self.num_layers) + 1, 1)
            edges.append(np.where(grows, costs.num_micro_batches * (fixed + next_layers * costs.layer), np.inf))
        return caps[0], caps[1], caps[2], np.concatenate(edges)

    def next_edge(self, interval: float) -> float:
        """Return the next longer interval, ticks, at which a device may execute more; infinite without one."""
        return float(self._caps(interval)[3].min())

    def model(self, interval: float) -> IntegerModel:
        """Return the program: least sum of stages and hops with no stage above ``interval / K``."""
        costs, layers = self.costs, self.num_layers
        middle, first, last, _ = self._caps(interval)
        model = IntegerModel("pattern-interval")
        groups = range(self.available.size)
        ids: dict[str, list[int]] = {name: [] for name in _VARIABLES}
        for h in groups:
            free = int(self.available[h])
            for name, most in zip(_VARIABLES, (free, layers, 1, layers, 1, layers), strict=True):
                ids[name].append(model.add_int(f"{name}[{h}]", 0, most))
        for h in groups:
            for count, share, cap in (("n", "l", middle), ("f", "lf", first), ("g", "lg", last)):
                model.add_row(f"cap[{share},{h}]", {ids[share][h]: 1, ids[count][h]: -int(cap[h])}, upper=0)
                model.add_row(f"one[{share},{h}]", {ids[count][h]: 1, ids[share][h]: -1}, upper=0)
            model.add_row(f"available[{h}]", {ids[c][h]: 1 for c in ("n", "f", "g")}, upper=int(self.available[h]))
        for pool, limit in enumerate(self.cards):
            used = {ids[c][h]: int(self.usage[pool, h]) for h in groups for c in ("n", "f", "g") if self.usage[pool, h]}
            model.add_row(f"pool[{pool}]", used, upper=int(limit))
        model.add_equal("first", {ids["f"][h]: 1 for h in groups}, 1)
        model.add_equal("last", {ids["g"][h]: 1 for h in groups}, 1)
        model.add_equal("layers", {ids[c][h]: 1 for c in ("l", "lf", "lg") for h in groups}, layers)
        ret = costs.ret  # paid once, like the one first stage
        for h in groups:
            model.objective[ids["n"][h]] = float(costs.fixed[h] + costs.hop) / self.unit
            model.objective[ids["f"][h]] = float(costs.fixed[h] + costs.embed[h] + ret) / self.unit
            model.objective[ids["g"][h]] = float(costs.fixed[h] + costs.head[h] + costs.hop) / self.unit
            for share in ("l", "lf", "lg"):
                model.objective[ids[share][h]] = float(costs.layer[h]) / self.unit
        return model

    def pipeline(self, values: Mapping[int, float]) -> Found | None:
        """Return the pattern behind a solution with its shortest interval; ``None`` when it is none after all."""
        whole = np.array([round(values.get(i, 0.0)) for i in range(len(_VARIABLES) * self.available.size)])
        part = dict(zip(_VARIABLES, whole.reshape(self.available.size, len(_VARIABLES)).T, strict=True))
        if part["f"].sum() != 1 or part["g"].sum() != 1:
            return None
        counts = part["n"] + part["f"] + part["g"]
        first, last = int(part["f"].argmax()), int(part["g"].argmax())
        column = counts.astype(np.float64)[:, None]
        ticks = float(shortest_interval(column, self.costs, self.num_layers, np.array([self.known]), first, last)[0])
        return Found(tuple(int(n) for n in counts), first, last, ticks) if np.isfinite(ticks) else None


def solve_interval(problem: PatternProblem, attempt: PatternAttempt) -> None:
    """Add plan and bound of one pipeline to an attempt; a bound only when patterns are relaxed.

    Raises
    ------
    SolverUnavailable
        When PuLP or HiGHS isn't installed.
    """
    costs, groups, layers = problem.costs[0], problem.groups, problem.num_layers
    alone = single_interval(costs, layers)
    known = float(alone.min())
    if problem.is_exact and np.isfinite(known):
        plan = PatternPlan((int(alone.argmin()),), (layers,), costs.num_micro_batches, costs.batch_size)
        attempt.add_plan(realise(problem.instance.table, groups, [plan]))
    if problem.is_exact and attempt.worth is not None:
        known = min(known, float(np.rint(attempt.worth / TICK_S)))
    source = IntervalModels(costs, groups.available, groups.usage, groups.pool_cards, layers, known)
    attempt.note("route", "layer program").note("groups", groups.num_groups)
    limits = attempt.backend_limits()
    if limits is None:
        attempt.message = "no time left for the layer program"
        return
    report = run_in_child(ModelJob(source, Backend.HIGHS, limits, attempt.limits.memory_bytes))
    attempt.note_report(report)
    state = source.state(report.answers)
    if state.found is not None and problem.is_exact:
        counts = np.array(state.found.counts, np.int64)
        split = pattern_split(counts, costs, layers, state.found.interval, state.found.first, state.found.last)
        plan = PatternPlan(*split, costs.num_micro_batches, costs.batch_size)
        attempt.add_plan(realise(problem.instance.table, groups, [plan]))
    if np.isfinite(state.high):
        attempt.add_bound(state.low * TICK_S, ThresholdWitness("pattern"))
        return
    if not report.answers or report.answers[0].ending is not Ending.INFEASIBLE:
        attempt.message = "no pipeline was found"
    elif _is_confirmed(problem):
        attempt.exclude(ThresholdWitness("pattern"))
    else:
        attempt.message = "the integer program says infeasible and the dynamic program could not confirm it"


def _is_confirmed(problem: PatternProblem) -> bool:
    """Whether the dynamic program (which knows no shared cards) finds no pipeline of several devices either."""
    costs = problem.costs[0]
    program = IntervalProgram(costs, problem.groups.available.astype(np.float64), problem.num_layers)
    return not program.reaches(interval_upper(costs, problem.num_layers))
