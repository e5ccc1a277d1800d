"""From options to a deployment: what is refused, and what a plan must agree with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_setups import save_llama
from measured_profiles import measured_cluster, small_model

from experiments.deploying import (
    LOCAL,
    ServeOptions,
    check_profiles,
    deploying,
    local_cluster,
    model_difference,
    single_cards,
    try_place,
)
from runtime.deployment import Deployment
from slob_opt.errors import InputError
from slob_opt.problem.catalogue import cluster
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.traffic import TrafficProfile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("model"))


def test_a_profile_of_other_hardware_is_refused_with_the_difference() -> None:
    model = small_model()
    placement = Placement((Pipeline((Stage((0,), 0, model.num_layers),)),))
    what = Deployment(measured_cluster(model, (2.0,)), model, placement, Path("x"), "float32", {})
    with pytest.raises(InputError, match=r"doesn't hold here: .*calibrate on this machine"):
        check_profiles(what)


def test_without_a_plan_the_model_is_whole_on_one_device(folder: Path) -> None:
    what = deploying(ServeOptions(folder, devices={LOCAL: "cpu"}, dtype="float32"))
    assert what.deployment.placement.pipelines[0].stages == (Stage((0,), 0, 4),)
    assert what.deployment.model.weight_bits == 32
    assert what.gap is None
    assert what.note is None


def test_an_unknown_device_is_named_with_the_nearest(folder: Path) -> None:
    with pytest.raises(InputError, match=r"--on: found device 'local/1'.*'local/0'"):
        deploying(ServeOptions(folder, devices={"local/1": "cpu"}))


def test_workers_file_says_what_is_wrong_with_it(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    path.write_text("workers:\n- {device: local/0, emulate: {slowdown: 0.5}}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"workers\.yaml: workers\[0\]\.emulate\.slowdown: found 0.5"):
        deploying(ServeOptions(folder, workers=path))
    path.write_text('workers:\n- {device: local/0, connect: "nowhere"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="found 'nowhere', expected host:port"):
        deploying(ServeOptions(folder, workers=path))
    path.write_text("workers:\n- {device: local/0}\n- {device: local/0}\n", encoding="utf-8")
    with pytest.raises(InputError, match="'local/0' stands twice"):
        deploying(ServeOptions(folder, workers=path))
    path.write_text("workers:\n- {device: local/0, emulate: {slowdown: 3, memory: 2GiB}}\n", encoding="utf-8")
    place = deploying(ServeOptions(folder, workers=path)).deployment.place(LOCAL)
    assert place.emulation.words == "3x slower, 2048 MiB"


def test_the_difference_of_two_models_is_told() -> None:
    model = small_model()
    assert model_difference(model, model) == ""
    assert model_difference(model, replace(model, hidden_size=128)) == "hidden_size is 64 there and 128 here"
    assert model_difference(model, small_model(6)) == "num_layers is 8 there and 6 here"
    assert "weights have 32 bits there and 16 here" in model_difference(model, replace(model, weight_bits=16))


def test_groups_of_cards_are_not_planned_for() -> None:
    assert all(node.tp_degrees == (1,) for node in single_cards(cluster("llmpq-5")).nodes)


def test_a_model_that_does_not_fit_has_a_reason() -> None:
    found = try_place(measured_cluster(small_model(), (2.0,), 1 << 20), small_model(), TrafficProfile(), "latency")
    assert isinstance(found, str)
    assert found


def test_this_machine_is_a_cluster_of_one() -> None:
    (device,) = local_cluster("cpu").devices
    assert device.name == LOCAL
    assert device.memory_bytes > 0
