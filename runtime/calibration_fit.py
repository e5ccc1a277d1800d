"""From measured stage times to a profile: coefficients of at least zero, with their errors.

The fit is non-negative least squares on relative errors: a shape of 1 ms counts as much as one of 1 s. Where the time
of a computed token bends is chosen among :data:`KNOT_CHOICES` by how well shapes are foretold that took no part in the
fit; standard errors come from fits to resampled measurements (bootstrap).

References
----------
Lawson & Hanson (1974), "Solving Least Squares Problems", chapter 23, as in scipy.optimize.nnls. Efron & Tibshirani
(1993), "An Introduction to the Bootstrap", section 9.5 (pairs).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from slob_opt.cost.batch import BatchShape
from slob_opt.cost.profiled import PART_NAMES, parts
from slob_opt.errors import InputError
from slob_opt.problem.measured import (
    Coefficient,
    FitQuality,
    HardwareFingerprint,
    MeasuredProfile,
    ModelFingerprint,
    Slope,
)
from slob_opt.problem.model import ModelSpec

FloatArray = NDArray[np.float64]
_Knots = tuple[tuple[int, ...], tuple[int, ...]]

KNOT_CHOICES = (
    (0,),
    (1, 2),
    (0, 32, 128),
    (1, 2, 32, 128),
    (1, 2, 4, 16, 64, 256),
    (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
)
"""Computed tokens after which a slope may begin. Chosen: matrix products change their ways at small powers of two."""

HEAD_KNOT_CHOICES = ((0,), (1, 2), (1, 2, 8))
"""Rows after which a slope of the head may begin. Chosen likewise."""

NUM_FOLDS, NUM_RESAMPLES, SEED = 5, 100, 0
"""Parts of the cross-validation, fits of the bootstrap, and the seed of both."""

WORTH = 0.97
"""More slopes have to make the error of what was held out smaller by this factor. Chosen."""

FLOOR = 0.03
"""Relative error that is expected of any measurement; what scatters more counts for less. Chosen."""

DIGITS = 6
"""Significant digits of a coefficient; far below its error, and short in a file."""


@dataclass(frozen=True, slots=True)
class StageMeasurement:
    """The time of a stage in one iteration, the median of several runs.

    Attributes
    ----------
    first, end
        Layers.
    shape
        The iteration.
    seconds
        By the profile's clock.
    wall_s
        On the wall.
    num_runs
        So many were measured.
    spread
        Distance of the quartiles of `seconds` over its median.
    """

    first: int
    end: int
    shape: BatchShape
    seconds: float
    wall_s: float
    num_runs: int
    spread: float


@dataclass(frozen=True, slots=True)
class ProfileFit:
    """A profile and what it was fitted to.

    Attributes
    ----------
    profile
        The profile.
    measurements
        What was measured.
    fitted_s
        What the profile says of each, seconds.
    held_out_s
        What fits without its shape say of each, seconds.
    """

    profile: MeasuredProfile
    measurements: tuple[StageMeasurement, ...]
    fitted_s: tuple[float, ...]
    held_out_s: tuple[float, ...]


def fit_profile(
    model: ModelSpec,
    dtype: str,
    hardware: HardwareFingerprint,
    measurements: Sequence[StageMeasurement],
    *,
    clock: str,
    framework_bytes: int = 0,
    knot_choices: Sequence[tuple[int, ...]] = KNOT_CHOICES,
    head_knot_choices: Sequence[tuple[int, ...]] = HEAD_KNOT_CHOICES,
) -> ProfileFit:
    """Return the profile that tells the measured times best.

    Parameters
    ----------
    model, dtype, hardware, clock, framework_bytes
        As in :class:`~slob_opt.problem.measured.MeasuredProfile`.
    measurements
        Stages and shapes; the same shape on several stages is left out together.
    knot_choices, head_knot_choices
        Where the slopes of computed tokens, and of rows of the head, may begin.

    Raises
    ------
    InputError
        When there are fewer measurements than a fit needs, or one of them isn't above zero.
    """
    if len(measurements) < 2 * NUM_FOLDS:
        raise InputError(f"{len(measurements)} measurements, expected at least {2 * NUM_FOLDS} for a fit")
    times = np.array([item.seconds for item in measurements])
    if not (np.all(np.isfinite(times)) and np.all(times > 0)):
        raise InputError("a measured time isn't above zero; the clock is too coarse for this model")
    weights = 1 / np.array([_tolerance(item) for item in measurements])
    folds = _folds(measurements)
    best: tuple[float, _Knots, FloatArray, FloatArray] | None = None
    most_tokens = max(item.shape.computed_tokens for item in measurements)
    most_rows = max(item.shape.num_sequences for item in measurements)
    choices = itertools.product(_within(knot_choices, most_tokens), _within(head_knot_choices, most_rows))
    for chosen in choices:
        rows = np.array([parts(model, item.first, item.end, item.shape, *chosen) for item in measurements])
        held_out = _held_out(rows, times, weights, folds)
        error = float(np.average(np.abs(held_out / times - 1), weights=weights))
        if best is None or error < WORTH * best[0] - 1e-4:
            best = error, chosen, rows, held_out
    assert best is not None
    _, (knots, head_knots), rows, held_out = best
    values = [float(f"{value:.{DIGITS}g}") for value in _solve(rows, times, weights)]
    errors = [float(f"{error:.2g}") for error in _bootstrap(rows, times, weights)]
    fitted = rows @ values
    quality = FitQuality(len(measurements), *_errors(fitted, times), *_errors(held_out, times))
    single = {name: Coefficient(values[i], errors[i]) for i, name in enumerate(PART_NAMES)}
    sloped = zip((*knots, *head_knots), values[len(PART_NAMES) :], errors[len(PART_NAMES) :], strict=True)
    slopes = [Slope(*item) for item in sloped]
    profile = MeasuredProfile(
        model=ModelFingerprint.of(model, dtype),
        hardware=hardware,
        step=single["step"],
        layer=single["layer"],
        layer_tokens=tuple(slopes[: len(knots)]),
        decode_row=single["decode_row"],
        chunk_row=single["chunk_row"],
        kv_token=single["kv_token"],
        pair=single["pair"],
        embedding=single["embedding"],
        embedding_token=single["embedding_token"],
        head=single["head"],
        head_rows=tuple(slopes[len(knots) :]),
        fit=quality,
        clock=clock,
        wall_ratio=round(float(np.median([item.wall_s / item.seconds for item in measurements])), 4),
        framework_bytes=framework_bytes,
    )
    return ProfileFit(profile, tuple(measurements), tuple(fitted.tolist()), tuple(held_out.tolist()))


def _within(choices: Sequence[tuple[int, ...]], most: int) -> list[tuple[int, ...]]:
    """Return the choices without slopes that begin where little or nothing was measured: they'd be taken for flat."""
    return list(dict.fromkeys(tuple(knot for knot in knots if knot <= max(1, most // 2)) for knots in choices))


def _tolerance(item: StageMeasurement) -> float:
    """Relative error that a measurement may have: what no model tells, and the standard error of its median."""
    # a quartile is 0.67 standard deviations from the median, whose own error is 1.25 of them over the root of the runs
    return math.hypot(FLOOR, 1.25 * item.spread / (2 * 0.67) / math.sqrt(item.num_runs))


def _solve(rows: FloatArray, times: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the coefficients of least squared relative error; columns are scaled, since units differ by 10^6."""
    relative = rows * (weights / times)[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(relative / scale, weights, maxiter=100 * rows.shape[1])
    return np.asarray(found / scale, np.float64)


def _folds(measurements: Sequence[StageMeasurement]) -> NDArray[np.int64]:
    """Return the fold of each measurement; all stages that computed a shape share one."""
    shapes = list(dict.fromkeys(item.shape for item in measurements))
    order = np.random.default_rng(SEED).permutation(len(shapes))
    fold = {shapes[at]: place % NUM_FOLDS for place, at in enumerate(order.tolist())}
    return np.array([fold[item.shape] for item in measurements], np.int64)


def _held_out(rows: FloatArray, times: FloatArray, weights: FloatArray, folds: NDArray[np.int64]) -> FloatArray:
    found = np.empty_like(times)
    for fold in np.unique(folds).tolist():
        inside = folds == fold
        others = ~inside if not np.all(inside) else inside
        found[inside] = rows[inside] @ _solve(rows[others], times[others], weights[others])
    return found


def _bootstrap(rows: FloatArray, times: FloatArray, weights: FloatArray) -> list[float]:
    rng = np.random.default_rng(SEED)
    found = []
    for _ in range(NUM_RESAMPLES):
        drawn = rng.integers(0, times.size, times.size)
        found.append(_solve(rows[drawn], times[drawn], weights[drawn]))
    return np.std(found, axis=0, ddof=1).tolist()


def _errors(told: FloatArray, times: FloatArray) -> tuple[float, float]:
    off = np.abs(told / times - 1)
    return round(float(np.median(off)), 4), round(float(np.quantile(off, 0.95)), 4)
