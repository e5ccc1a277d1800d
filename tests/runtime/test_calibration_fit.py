"""The fit finds a known profile again, with and without noise, and says how well."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured_profiles import HARDWARE, profile_for, small_model

from runtime.calibration_fit import StageMeasurement, fit_profile
from runtime.calibration_shapes import QUICK, ShapeLimits, calibration_shapes, calibration_slices
from slob_opt.cost.batch import BatchShape
from slob_opt.cost.profiled import PART_NAMES, coefficients, parts
from slob_opt.errors import InputError
from slob_opt.problem.measured import MeasuredProfile, Slope
from slob_opt.problem.model import ModelSpec

MODEL = small_model(12, (None, 64))
TRUE = profile_for(MODEL)


def measured(
    model: ModelSpec, profile: MeasuredProfile, noise: float = 0.0, limits: ShapeLimits = QUICK
) -> list[StageMeasurement]:
    rng = np.random.default_rng(3)
    found = []
    for shape in calibration_shapes(limits):
        for first, end in calibration_slices(model.num_layers):
            exact = float(parts(model, first, end, shape, profile.knots, profile.head_knots) @ coefficients(profile))
            seconds = exact * float(np.exp(noise * rng.standard_normal()))
            found.append(StageMeasurement(first, end, shape, seconds, 1.1 * seconds, 5, 0.01))
    return found


def test_exact_times_give_the_profile_back() -> None:
    fit = fit_profile(MODEL, "float32", HARDWARE, measured(MODEL, TRUE), clock="cpu", knot_choices=[(0, 32)])
    for name in PART_NAMES:
        assert getattr(fit.profile, name).value_s == pytest.approx(getattr(TRUE, name).value_s, rel=1e-3), name
    assert [slope.value_s for slope in fit.profile.layer_tokens] == pytest.approx([20e-6, 10e-6], rel=1e-3)
    quality = fit.profile.fit
    assert quality.p95_error < 1e-3
    assert quality.held_out_p95_error < 1e-3
    assert fit.profile.wall_ratio == pytest.approx(1.1)


def test_the_bends_are_chosen_by_what_they_foretell() -> None:
    """The truth bends at 32 tokens; of the choices only those with a knot there tell it."""
    fit = fit_profile(MODEL, "float32", HARDWARE, measured(MODEL, TRUE, limits=ShapeLimits()), clock="cpu")
    assert 32 in fit.profile.knots
    assert fit.profile.fit.held_out_p95_error < 1e-2
    straight = replace(TRUE, layer_tokens=(Slope(0, 20e-6),))
    assert fit_profile(MODEL, "float32", HARDWARE, measured(MODEL, straight), clock="cpu").profile.knots == (0,)


def test_noise_widens_the_errors_and_stays_out_of_the_medians() -> None:
    calm, loud = (
        fit_profile(MODEL, "float32", HARDWARE, measured(MODEL, TRUE, noise, ShapeLimits()), clock="cpu").profile
        for noise in (0.005, 0.05)
    )
    assert calm.fit.median_error < loud.fit.median_error < 0.06
    assert loud.fit.held_out_median_error < 0.08
    assert calm.layer_tokens[0].error_s < loud.layer_tokens[0].error_s
    shape = BatchShape.ragged((300,) * 5, ((0, 50),))
    row = parts(MODEL, 0, 12, shape, loud.knots, loud.head_knots) @ coefficients(loud)
    assert row == pytest.approx(parts(MODEL, 0, 12, shape, TRUE.knots, TRUE.head_knots) @ coefficients(TRUE), rel=0.05)


def test_the_same_measurements_give_the_same_profile() -> None:
    rows = measured(MODEL, TRUE, 0.05)
    one, two = (fit_profile(MODEL, "float32", HARDWARE, rows, clock="cpu") for _ in range(2))
    assert one == two


def test_a_part_that_takes_no_time_is_zero_not_below() -> None:
    """Noise would make some coefficients negative in a plain least-squares fit."""
    bare = replace(TRUE, embedding=replace(TRUE.embedding, value_s=0.0), pair=replace(TRUE.pair, value_s=0.0))
    profile = fit_profile(MODEL, "float32", HARDWARE, measured(MODEL, bare, 0.05), clock="cpu").profile
    assert min(getattr(profile, name).value_s for name in PART_NAMES) >= 0
    assert profile.pair.value_s < 0.1 * TRUE.pair.value_s


def test_too_little_is_refused() -> None:
    with pytest.raises(InputError, match="9 measurements, expected at least 10"):
        fit_profile(MODEL, "float32", HARDWARE, measured(MODEL, TRUE)[:9], clock="cpu")
    rows = measured(MODEL, TRUE)
    with pytest.raises(InputError, match="isn't above zero"):
        fit_profile(MODEL, "float32", HARDWARE, [*rows, replace(rows[0], seconds=0.0)], clock="cpu")
