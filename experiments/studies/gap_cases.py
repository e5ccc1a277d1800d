"""What the gap study runs: instances, methods on each, and limits."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.instances import StudyProblem
from experiments.random_instances import Recipe, draw_small
from experiments.registry import PLANNERS
from slob_opt.planning.result import SolveLimits

NUM_INTERVAL = 150
NUM_THROUGHPUT = 150
MAX_DEVICES = 12
MAX_EXHAUSTIVE = 6
"""Devices up to which the enumerating oracle runs; such instances are short."""

MAX_INDEXED = 8
"""Devices up to which the device-indexed models run on throughput."""

MAX_GENERAL_THROUGHPUT = 9
"""Devices up to which throughput instances have general links."""

NUM_INDEXED_FROM = 99
"""Throughput instances among which device-indexed models run where the size allows: 63 of them."""

VARIED_OF_FIVE = 2
"""Of five instances in a row, how many are solved again in variants for the properties."""

SPEEDUP_DEVICES = 10
"""Devices from which `slob` is timed against the device-indexed models on intervals."""

LIMIT_S = 60.0
QUICK_LIMIT_S = 6.0
QUICK_INTERVAL_SIZES = (2, 4, 6, 8, 10, 12)
QUICK_THROUGHPUT_SIZES = (2, 3, 4, 7, 9)
QUICK_MAX_INDEXED = 4
BASELINES = tuple(entry.name for entry in PLANNERS.values() if entry.kind == "baseline")


@dataclass(frozen=True, slots=True)
class GapCase:
    """One instance of the study.

    Attributes
    ----------
    problem
        The instance.
    methods
        Methods to run on it; `slob` is among them.
    property_methods
        Those of them that run on its variants too.
    limits
        Of every solve.
    expected_s
        Rough seconds, for the estimate of time left.
    """

    problem: StudyProblem
    methods: tuple[str, ...]
    property_methods: tuple[str, ...]
    limits: SolveLimits
    expected_s: float


def gap_cases(seed: int, *, is_quick: bool) -> tuple[GapCase, ...]:
    """Return the cases of the study, heavy ones first so that workers end together."""
    if is_quick:
        intervals = [_interval(i, n, seed + i, QUICK_LIMIT_S) for i, n in enumerate(QUICK_INTERVAL_SIZES)]
        rates = [
            _throughput(i, n, seed + i, QUICK_LIMIT_S, has_indexed=n <= QUICK_MAX_INDEXED)
            for i, n in enumerate(QUICK_THROUGHPUT_SIZES)
        ]
    else:
        sizes = [2 + i % (MAX_DEVICES - 1) for i in range(max(NUM_INTERVAL, NUM_THROUGHPUT))]
        intervals = [_interval(i, sizes[i], seed + i, LIMIT_S) for i in range(NUM_INTERVAL)]
        rates = [
            _throughput(i, n, seed + i, LIMIT_S, has_indexed=n <= MAX_INDEXED and i < NUM_INDEXED_FROM)
            for i, n in enumerate(sizes[:NUM_THROUGHPUT])
        ]
    return tuple(sorted((*intervals, *rates), key=lambda case: -case.expected_s))


def _varied(index: int, *methods: str) -> tuple[str, ...]:
    """Return the methods when the instance is one of those with variants."""
    return methods if index % 5 < VARIED_OF_FIVE else ()


def _interval(index: int, size: int, seed: int, limit_s: float) -> GapCase:
    """K alternates every second instance, links every instance."""
    is_short = size <= MAX_EXHAUSTIVE
    links = "general" if index % 2 else "uniform"
    recipe = Recipe(size, "general" if index % 2 else "uniform", (1, 4)[index // 2 % 2], is_short)
    exact = ("parametric", "ilp", "cpsat", *(("exhaustive",) if is_short else ()))
    sampled: tuple[str, ...] = ("cpsat",) if index % 10 == 0 and size <= MAX_INDEXED else ()
    sampled += ("ilp",) if index % 10 == 5 and size <= MAX_INDEXED else ()
    return GapCase(
        draw_small(recipe, seed),
        ("slob", *BASELINES, *exact),
        _varied(index, "slob", *BASELINES, *(("parametric",) if size < MAX_DEVICES or not index % 2 else ()), *sampled),
        SolveLimits(limit_s, seed=seed),
        4.0 + (size if links == "general" else 0.0),
    )


def _throughput(index: int, size: int, seed: int, limit_s: float, *, has_indexed: bool) -> GapCase:
    """Every third instance has general links while it is small enough."""
    is_short = size <= MAX_EXHAUSTIVE
    is_general = index % 3 == 2 and size <= MAX_GENERAL_THROUGHPUT
    recipe = Recipe(size, "general" if is_general else "uniform", None, is_short)
    exact = ["parametric", "pattern-ilp"]
    if is_short:
        exact.append("exhaustive")
    if has_indexed:
        exact += ["ilp", "cpsat"]
    sampled = ("pattern-ilp",) if not is_general and index % 5 == 0 else ()
    return GapCase(
        draw_small(recipe, seed),
        ("slob", *BASELINES, *exact),
        _varied(index, "slob", *BASELINES, "parametric", *sampled),
        SolveLimits(limit_s, seed=seed),
        5.0 + size + (limit_s * max(0, size - 4) / 3 if has_indexed else 0.0),
    )
