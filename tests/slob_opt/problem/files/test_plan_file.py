"""plan.json: strict, self-contained, whole or absent."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slob_opt.errors import InputError
from slob_opt.problem.files.plan_file import (
    PlanCertificate,
    PlanFile,
    PlanPipeline,
    PlanStage,
    plan_from_json,
    plan_inputs,
    plan_to_json,
    read_inputs,
    read_plan,
    write_plan,
)
from slob_opt.problem.traffic import TrafficProfile

FULL = PlanFile(
    pipelines=(
        PlanPipeline((PlanStage("n0/0", 0, 3, (0,)), PlanStage("n1 tp2", 3, 8, (2, 3))), 4, 2),
        PlanPipeline((PlanStage("n0/1", 0, 8),)),
    ),
    name="küche",
    num_layers=8,
    objective={"kind": "throughput", "max_micro_batches": 16, "max_interval_s": 0.4, "max_in_flight": None},
    unit="tokens/s",
    value=1 / 3,
    bound=0.5,
    gap=0.5,
    status="FEASIBLE",
    fingerprints={"cluster": "a", "model": "b", "traffic": "c", "cost_table": "d", "instance": "e"},
    inputs={"cluster": {"nodes": [1]}, "model": {"layers": 8}, "traffic": {}, "options": {"kv_mode": "safe"}},
    certificate=PlanCertificate("claimed", {"type": "threshold", "kind": "pattern"}, "1", "3", ("a reason",), ("x",)),
    planner="slob",
    seed=3,
    limits={"time_s": 60.0, "memory_bytes": None, "workers": 1},
    versions={"numpy": "2.1"},
    commit="abc",
    created="2024-01-01T00:00:00Z",
)


def minimal(*stages: str, more: str = "") -> str:
    return f'{{"pipelines": [{{"stages": [{", ".join(stages)}]}}]{more}}}'


def refused(text: str, *, num_layers: int | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        plan_from_json(text, file="p.json", num_layers=num_layers)
    assert caught.value.file == "p.json"
    assert "\n" not in str(caught.value)
    return caught.value


def test_everything_goes_there_and_back() -> None:
    text = plan_to_json(FULL)
    assert plan_from_json(text) == FULL
    assert plan_to_json(plan_from_json(text)) == text
    assert json.loads(text)["schema_version"] == 1


def test_a_hand_made_plan_needs_devices_and_layers_only() -> None:
    by_count = plan_from_json(minimal('{"device": "a", "num_layers": 3}', '{"device": "b", "num_layers": 5}'))
    by_range = plan_from_json(minimal('{"device": "a", "layers": [0, 3]}', '{"device": "b", "layers": [3, 8]}'))
    assert by_count == by_range
    assert by_count.pipelines == (PlanPipeline((PlanStage("a", 0, 3), PlanStage("b", 3, 8))),)
    assert (by_count.value, by_count.bound, by_count.certificate) == (None, None, None)


@pytest.mark.parametrize("stages", [[7, 7, 7, 7], [8, 8, 8, 8], [29], [15, 16]])
def test_layers_that_do_not_add_up_are_refused_with_numbers(stages: list[int]) -> None:
    """Case P32: 30 layers on 4 stages built as 4 x 7 = 28; the loader compares with the model's count."""
    text = minimal(*(f'{{"device": "d{i}", "num_layers": {n}}}' for i, n in enumerate(stages)))
    error = refused(text, num_layers=30)
    assert error.key == "pipelines[0].stages"
    assert f"= {sum(stages)} layers, the model has 30" in error.message
    own = refused(text[:-1] + ', "num_layers": 30}')
    assert own.message == error.message


def test_pipelines_of_different_depth_are_refused_without_a_model() -> None:
    stage = '{"stages": [{"device": "a", "num_layers": %d}]}'
    text = f'{{"pipelines": [{stage % 3}, {stage % 4}]}}'
    assert "4 = 4 layers, the model has 3" in refused(text).message


def test_the_model_of_another_plan_is_refused() -> None:
    text = minimal('{"device": "a", "num_layers": 4}', more=', "num_layers": 4')
    assert "the plan is for 4 layers, the model has 5" in refused(text, num_layers=5).message


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        (minimal('{"device": "a", "layer": [0, 4]}'), "pipelines[0].stages[0].layer", "did you mean 'layers'"),
        (minimal('{"device": "a", "layers": [0, 4]}', more=', "piplines": []'), "piplines", "did you mean 'pipelines'"),
        (minimal('{"layers": [0, 4]}'), "pipelines[0].stages[0].device", "is missing"),
        (minimal('{"device": "a"}'), "pipelines[0].stages[0]", "neither layers nor num_layers"),
        (minimal('{"device": "a", "layers": [0]}'), "pipelines[0].stages[0].layers", "expected"),
        (minimal('{"device": "a", "layers": [4, 4]}'), "pipelines[0].stages[0]", "are none"),
        (minimal('{"device": "a", "layers": [1, 4]}'), "pipelines[0].stages[0]", "starts at layer 1"),
        (minimal('{"device": "a", "layers": [0, 4], "num_layers": 3}'), "pipelines[0].stages[0]", "are 4, num_layers"),
        (minimal('{"device": "a", "layers": [0, "4"]}'), "pipelines[0].stages[0].layers[1]", "expected"),
        (minimal('{"device": "a", "num_layers": 0}'), "pipelines[0].stages[0].num_layers", "found 0"),
        (minimal('{"device": "a", "num_layers": 2.5}'), "pipelines[0].stages[0].num_layers", "found 2.5"),
        (minimal(), "pipelines[0].stages", "expected"),
        ("{}", "pipelines", "is missing"),
        ('{"pipelines": [], "schema_version": 2}', "schema_version", "found 2"),
        ('{"pipelines": [], "status": "PERFECT"}', "status", "found 'PERFECT'"),
        ('{"pipelines": [], "objective": {"kind": "flow"}}', "objective.kind", "found 'flow'"),
        ('{"pipelines": [], "value": "12"}', "value", "found '12'"),
        ('{"pipelines": [], "inputs": {"cluster": {}, "model": {}}}', "inputs.traffic", "is missing"),
        ('{"pipelines": [], "certificate": {"bound_status": "sure"}}', "certificate.bound_status", "found 'sure'"),
        (
            '{"pipelines": [], "certificate": {"bound_status": "none", "denominator": "0"}}',
            "certificate.denominator",
            "0",
        ),
        ('{"pipelines": [], "pipelines": []}', "pipelines", "stands twice"),
    ],
)
def test_each_fault_is_named_by_key(text: str, key: str, word: str) -> None:
    error = refused(text)
    assert error.key == key
    assert word in error.message


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_text_that_is_cut_off_is_told_in_one_sentence(share: float) -> None:
    text = plan_to_json(FULL).rstrip()
    message = refused(text[: int(share * len(text))]).message
    assert "cut off" in message or "not valid JSON" in message


@pytest.mark.parametrize(
    "text", ["[]", "3", '"plan"', '{"pipelines": [], "value": NaN}', "pipelines: []", "[" * 100_000]
)
def test_other_texts_are_refused(text: str) -> None:
    refused(text)


def test_numbers_that_are_none_are_not_written() -> None:
    with pytest.raises(InputError, match="JSON can't"):
        plan_to_json(PlanFile((), value=float("nan")))


def test_inputs_go_through_the_functions_of_their_own_formats() -> None:
    def encode(traffic: TrafficProfile) -> Mapping[str, Any]:
        return {"prompt": traffic.prompt_tokens, "output": traffic.output_tokens}

    def decode(data: Mapping[str, Any]) -> TrafficProfile:
        if "prompt" not in data:
            raise InputError("the key 'prompt' is missing", key="prompt")
        return TrafficProfile(data["prompt"], data["output"])

    traffic = TrafficProfile(100, 50)
    inputs = plan_inputs(
        "lab", 7, traffic, {"kv_mode": "safe"},
        encode_cluster=lambda c: {"name": c}, encode_model=lambda m: {"layers": m}, encode_traffic=encode,
    )  # fmt: skip
    plan = plan_from_json(plan_to_json(PlanFile((), inputs=inputs)))
    back = read_inputs(
        plan, decode_cluster=lambda d: d["name"], decode_model=lambda d: d["layers"], decode_traffic=decode
    )
    assert back == ("lab", 7, traffic, {"kv_mode": "safe"})
    damaged = PlanFile((), inputs={**inputs, "traffic": {"output": 3}})
    with pytest.raises(InputError) as caught:
        read_inputs(damaged, decode_cluster=lambda d: d, decode_model=lambda d: d, decode_traffic=decode, file="p.json")
    assert (caught.value.file, caught.value.key) == ("p.json", "inputs.traffic.prompt")
    with pytest.raises(InputError, match="there are none"):
        read_inputs(PlanFile(()), decode_cluster=dict, decode_model=dict, decode_traffic=decode)


def test_files_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(FULL, path)
    assert read_plan(path, num_layers=8) == FULL
    write_plan(PlanFile(FULL.pipelines), path)
    assert read_plan(path).name is None
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert stat.S_IMODE(path.stat().st_mode) & stat.S_IRUSR


def test_a_full_disk_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_plan(FULL, path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device") as caught:
        write_plan(PlanFile(()), path)
    assert caught.value.file == str(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_missing_folder_and_a_missing_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be written"):
        write_plan(FULL, tmp_path / "no" / "plan.json")
    with pytest.raises(InputError, match="no such file"):
        read_plan(tmp_path / "plan.json")
