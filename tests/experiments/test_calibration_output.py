"""What a calibration leaves behind: emulated clusters that load and plan, plain JSON, a picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from measured_profiles import HARDWARE, profile_for, small_model

from experiments.calibration_output import (
    EmulatedCard,
    calibration_json,
    emulated_cards,
    emulated_cluster,
    relative_name,
    shape_text,
    short_time,
    time_rows,
    workers_text,
    worst_rows,
)
from experiments.calibration_plot import draw_calibration, plot_points
from experiments.plain_data import decode, encode
from runtime.calibration_fit import ProfileFit, StageMeasurement, fit_profile
from runtime.calibration_links import Transfer, fit_link
from runtime.calibration_shapes import QUICK, calibration_shapes, calibration_slices
from slob_opt.cost.batch import BatchShape
from slob_opt.cost.profiled import PART_NAMES, coefficients, parts
from slob_opt.errors import InputError
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.device import Device, Link
from slob_opt.problem.files import dump_cluster, load_cluster
from slob_opt.problem.files.profile_file import write_profile
from slob_opt.problem.files.workers_file import load_workers

MODEL = small_model()
MIB = 2**20


@pytest.fixture(scope="module")
def fit() -> ProfileFit:
    true = profile_for(MODEL)
    rows = [
        StageMeasurement(
            first,
            end,
            shape,
            float(parts(MODEL, first, end, shape, true.knots, true.head_knots) @ coefficients(true)),
            1.0,
            3,
            0.0,
        )
        for shape in calibration_shapes(QUICK)
        for first, end in calibration_slices(MODEL.num_layers)
    ]
    rows[5] = replace(rows[5], seconds=2 * rows[5].seconds)
    return fit_profile(MODEL, "float32", HARDWARE, rows, clock="cpu")


def test_cards_take_one_or_each_their_own() -> None:
    assert emulated_cards([1, 3], [300, 600], 2) == [EmulatedCard(1, 300), EmulatedCard(3, 600)]
    assert emulated_cards([4], [300, 600], 2) == [EmulatedCard(4, 300), EmulatedCard(4, 600)]
    assert emulated_cards([1, 3], [300], 2) == [EmulatedCard(1, 300), EmulatedCard(3, 300)]


@pytest.mark.parametrize(
    ("slowdowns", "memories", "message"),
    [
        ([1, 2, 3], [1, 2], "3 slowdowns and 2 memories"),
        ([0.5], [1], "slowdown 0.5, expected at least 1"),
        ([1, 1], [1], "take 2.00 cores together, the machine has 2 and 0.5 must stay free"),
    ],
)
def test_impossible_cards_are_refused(slowdowns: list[float], memories: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        emulated_cards(slowdowns, memories, 2)


def test_cards_of_a_gpu_arent_counted_in_cores() -> None:
    assert len(emulated_cards([1, 1, 1], [1], None)) == 3


def test_the_cluster_file_refers_to_the_profile_and_loads(tmp_path: Path) -> None:
    profile = profile_for(MODEL)
    (tmp_path / "p").mkdir()
    write_profile(profile, tmp_path / "p" / "profile.json")
    made = emulated_cluster("demo", profile, emulated_cards([1, 3], [600 * MIB, 300 * MIB], 2), Link(1.5e9, 3e-5))
    path = tmp_path / "demo.yaml"
    name = relative_name(tmp_path / "p" / "profile.json", tmp_path)
    path.write_text(dump_cluster(made, {profile: name}), encoding="utf-8")
    assert "measured: p/profile.json" in path.read_text(encoding="utf-8")
    again = load_cluster(path)
    assert again == made
    assert [(d.name, d.measured.slowdown, d.memory_bytes) for d in again.devices if d.measured] == [
        ("box/0", 1.0, 600 * MIB),
        ("box/1", 3.0, 300 * MIB),
    ]
    assert again.link(0, 1) == Link(1.5e9, 3e-5)


def test_plans_carry_measured_clusters_and_leave_others_as_they_were() -> None:
    """A plan file holds its inputs; clusters without profiles are written as before there were any."""
    made = emulated_cluster("demo", profile_for(MODEL), [EmulatedCard(2.0, MIB)], Link(1.5e9, 3e-5))
    assert decode(Cluster, json.loads(json.dumps(encode(made)))) == made
    card = Device("a", "custom", MIB, 1e12, 1e11)
    assert "measured" not in encode(card)
    assert decode(Device, encode(card)) == card


def test_the_workers_file_makes_the_cards(tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    path.write_text(workers_text([EmulatedCard(1.0, 600 * MIB), EmulatedCard(2.5, MIB)], "cpu"), encoding="utf-8")
    first, second = load_workers(path)
    assert (first.device, first.torch, first.slowdown, first.memory_bytes) == ("box/0", "cpu", 1.0, 600 * MIB)
    assert (second.device, second.slowdown, second.memory_bytes) == ("box/1", 2.5, MIB)


def test_json_tells_everything_in_plain_values(fit: ProfileFit) -> None:
    link = fit_link([Transfer(64, 1e-5), Transfer(10**6, 1e-3)])
    data = json.loads(json.dumps(calibration_json(fit.profile, fit, link, {"seed": 0}, {"profile": "p.json"})))
    assert data["profile"]["kind"] == "slob-profile"
    assert data["link"]["latency_s"] == pytest.approx(1e-5, rel=0.1)
    assert len(data["measurements"]) == fit.profile.fit.num_measurements
    assert set(data["measurements"][0]) >= {"layers", "measured_s", "fitted_s", "held_out_s", "decode_contexts"}
    without = calibration_json(fit.profile, None, None, {}, {})
    assert (without["link"], without["measurements"]) == (None, [])


def test_the_table_has_every_time_and_the_worst_shape_comes_first(fit: ProfileFit) -> None:
    rows = time_rows(fit.profile)
    assert len(rows) == len(PART_NAMES) + len(fit.profile.layer_tokens) + len(fit.profile.head_rows)
    worst = worst_rows(fit)
    assert abs(worst[0][3]) == pytest.approx(0.5, abs=0.1)
    assert [abs(row[3]) for row in worst] == sorted((abs(row[3]) for row in worst), reverse=True)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (BatchShape.ragged((100,)), "1 decode over 100"),
        (BatchShape.ragged((100, 20)), "2 decodes over 20..100"),
        (BatchShape.ragged((), ((8, 32),)), "prompt of 32 after 8"),
        (BatchShape.ragged((5, 5), ((0, 32), (0, 32))), "2 decodes over 5 + 2 x 32"),
    ],
)
def test_shapes_in_words(shape: BatchShape, text: str) -> None:
    assert shape_text(shape) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0"), (2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us"), (2e-10, "0.2 ns")]
)
def test_times_in_words(seconds: float, text: str) -> None:
    assert short_time(seconds) == text


def test_the_picture_shows_every_measurement(fit: ProfileFit) -> None:
    points = plot_points(fit)
    assert set(points) == {"decode", "prefill", "mixed"}
    assert sum(map(len, points.values())) == len(fit.measurements)
    assert len(draw_calibration(fit).axes) == 2
