"""Calibration on a tiny real model: what is measured, told and refused. How long things take is not asserted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runtime.calibration import CalibrationOptions, CalibrationProgress, calibrate
from runtime.calibration_shapes import ShapeLimits, calibration_shapes, calibration_slices
from runtime.hardware import check_hardware, find_hardware
from runtime.tiny_model import TinyModel, write_tiny_model
from slob_opt.cost.profiled import check_model
from slob_opt.errors import InputError
from slob_opt.problem.files import find_model
from slob_opt.problem.measured import with_dtype
from slob_opt.problem.model import ModelSpec

SMALL = CalibrationOptions(ShapeLimits(2, 16, 8, 64), rounds=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = TinyModel(num_layers=4, hidden_size=32, ffn_size=48, max_position=128)
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", model)


@pytest.fixture
def spec(folder: Path) -> ModelSpec:
    return find_model(str(folder))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_stage_and_shape_is_measured_and_told(folder: Path, spec: ModelSpec, dtype: str) -> None:
    told: list[CalibrationProgress] = []
    fit = calibrate(folder, spec, "cpu", dtype, SMALL, told.append)
    shapes, slices = calibration_shapes(SMALL.limits), calibration_slices(4)
    assert {(m.first, m.end) for m in fit.measurements} == set(slices)
    assert [m.shape for m in fit.measurements[:: len(slices)]] == list(shapes)
    assert all(m.seconds > 0 and m.wall_s > 0 and m.num_runs >= 1 for m in fit.measurements)
    profile = fit.profile
    assert (profile.clock, profile.slowdown, profile.framework_bytes) == ("cpu", 1.0, 0)
    assert profile.fit.num_measurements == len(shapes) * len(slices)
    check_model(profile, with_dtype(spec, dtype))
    check_hardware(profile, find_hardware("cpu", threads=1))
    assert told[-1].what == "fitting"
    assert told[-1].done == told[-1].total == profile.fit.num_measurements
    counted = [t for t in told if t.what.startswith(("warming", "round"))]
    assert [t.done for t in counted] == list(range(len(slices), counted[0].total + 1, len(slices)))
    assert [t.left_s is None for t in counted] == [t.what == "warming up" for t in counted]


def test_several_threads_are_timed_on_the_wall(folder: Path, spec: ModelSpec) -> None:
    fit = calibrate(folder, spec, "cpu", "float32", CalibrationOptions(ShapeLimits(1, 4, 4, 16), rounds=1, threads=2))
    assert (fit.profile.clock, fit.profile.hardware.threads, fit.profile.wall_ratio) == ("wall", 2, 1.0)


@pytest.mark.parametrize(
    ("device", "dtype", "options", "message"),
    [
        ("cpu", "int8", SMALL, "dtype is 'int8', expected one of float32"),
        ("tpu", "float32", SMALL, "device 'tpu'"),
        ("cpu", "float32", replace(SMALL, max_layers=2), "at most 2 layers may be held"),
    ],
)
def test_what_cant_be_measured_is_refused(
    folder: Path, spec: ModelSpec, device: str, dtype: str, options: CalibrationOptions, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        calibrate(folder, spec, device, dtype, options)


def test_a_model_of_mixed_layers_is_refused_before_it_is_loaded(spec: ModelSpec, tmp_path: Path) -> None:
    layers = (*spec.layers[:-1], replace(spec.layers[-1], mlp_params=1))
    with pytest.raises(InputError, match="layer 3 of tiny has mlp_params 1"):
        calibrate(tmp_path / "not there", replace(spec, layers=layers), "cpu", "float32", SMALL)


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"threads": 0}, {"block_tokens": 0}])
def test_wrong_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected at least 1"):
        CalibrationOptions(**wrong)  # type: ignore[arg-type]
