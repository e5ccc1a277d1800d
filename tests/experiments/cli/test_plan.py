"""`slob plan` and `slob validate`: the plan, the reasons, the file, and the check of the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Slob = Callable[..., Any]


@pytest.fixture
def planned(slob: Slob, tiny: tuple[str, ...], tmp_path: Path) -> Path:
    """A plan.json with a verified bound."""
    path = tmp_path / "plan.json"
    answer = slob("plan", *tiny, "--methods", "parametric", "--out", path)
    assert answer.code == 0, answer.err
    return path


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The plan file with a change."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_plan_shows_plan_reasons_and_certificate(slob: Slob, tiny: tuple[str, ...]) -> None:
    """Case P02. The model fits on the fast card: latency leaves both slow cards out and says why."""
    answer = slob("plan", *tiny, "--methods", "parametric", "--objective", "latency")
    assert answer.code == 0
    out = " ".join(answer.out.split())
    assert "by parametric" in out
    assert "left out 2 ×" in out
    assert "would slow the plan down" in out
    assert "no pipeline uses a link" in out
    assert "certificate: memory and times recomputed exactly, plan valid; optimal" in out


def test_the_default_is_slob_and_a_proof(slob: Slob, tiny: tuple[str, ...]) -> None:
    pytest.importorskip("slob_opt.slob.placement")
    answer = slob("plan", *tiny, "--format", "json")
    data = json.loads(answer.out)
    assert [m["method"] for m in data["methods"]] == ["slob", "parametric"]
    assert data["status"] == "OPTIMAL"
    assert data["best_bound_is_verified"] is True


def test_json_has_the_documented_keys(slob: Slob, tiny: tuple[str, ...]) -> None:
    documented = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    data = json.loads(slob("plan", *tiny, "--methods", "even,parametric", "--format", "json").out)

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            free = {"details", "memory", "cards"}
            return set(value) | {k for name, v in value.items() if name not in free for k in keys(v)}
        if isinstance(value, list):
            return {k for item in value for k in keys(item)}
        return set()

    missing = {key for key in keys(data) if f"`{key}`" not in documented}
    assert missing == set()


def test_a_model_that_does_not_fit_is_infeasible_with_the_smallest_conflict(slob: Slob, tiny: tuple[str, ...]) -> None:
    argv = [*tiny[:3], "llama-2-70b"]
    answer = slob("plan", *argv, "--methods", "parametric")
    assert answer.code == 1
    assert answer.out.startswith("infeasible: ")
    assert "GiB more" in answer.out
    as_json = slob("plan", *argv, "--methods", "parametric", "--format", "json")
    assert as_json.code == 1
    assert json.loads(as_json.out)["status"] == "INFEASIBLE"


def test_a_plan_has_at_most_as_many_stages_as_layers(slob: Slob, tmp_path: Path, tiny: tuple[str, ...]) -> None:
    """Cases P29 and P30. Two layers, three cards: two work at most, and the unused ones are listed."""
    model = Path(tiny[3])
    model.write_text(model.read_text(encoding="utf-8").replace("num_layers: 6", "num_layers: 2"), encoding="utf-8")
    data = json.loads(
        slob("plan", *tiny, "--methods", "parametric,even", "--format", "json", "--objective", "latency").out
    )
    for method in data["methods"]:
        used = {stage["device"] for pipeline in method["pipelines"] for stage in pipeline["stages"]}
        assert len(used) <= 2
        assert len(used) + len(method["left_out"]) == 3
    assert all(item["reason"] for item in data["plan"]["left_out"])


def test_each_stage_may_have_its_own_tensor_parallel_degree(slob: Slob) -> None:
    """Case P07. 4 x V100 and 2 x A100 of one published cluster: all degrees are planning devices, stages may differ."""
    common = ("--cluster", "llmpq-8", "--model", "opt-30b", "--tp", "1,2,4", "--show-config")
    problem = json.loads(slob("plan", *common).out)["problem"]
    assert problem["cluster"]["tp_degrees"] == [1, 2, 4]
    assert problem["num_devices"] == (4 + 2 + 1) + (2 + 1)


def test_what_if_says_that_links_are_not_the_bottleneck(slob: Slob, tiny: tuple[str, ...]) -> None:
    """Case P38. 400 Gb/s between nodes: more changes nothing, since hops take under 1 % of the token interval."""
    pytest.importorskip("slob_opt.slob.placement")
    cluster = Path(tiny[1])
    text = cluster.read_text(encoding="utf-8").replace("10Gbps, latency: 0.1ms", "400Gbps, latency: 5us")
    cluster.write_text(text.replace("memory: 12GiB", "memory: 2200MiB"), encoding="utf-8")
    argv = ("plan", *tiny, "--methods", "parametric", "--what-if", "--format", "json", "--context-tokens", "1024")
    data = json.loads(slob(*argv, "--objective", "latency", "--kv-bits", "8").out)
    assert len(data["plan"]["pipelines"][0]["stages"]) > 1
    assert data["links"].startswith("links are not the bottleneck")
    gains = {row["resource"]: row["same_plan_gain"] for row in data["what_if"]}
    assert len(gains) == 5
    assert gains["link bandwidth +10%"] < 0.01
    assert gains["memory bandwidth +10%"] > 0.03
    best = max(max(row["same_plan_gain"] or 0, row["new_plan_gain"] or 0) for row in data["what_if"])
    first = data["what_if"][0]
    assert max(first["same_plan_gain"] or 0, first["new_plan_gain"] or 0) == best


def test_a_plan_file_is_valid_and_its_bound_is_verified_again(slob: Slob, planned: Path) -> None:
    answer = slob("validate", planned, "--format", "json")
    assert answer.code == 0
    data = json.loads(answer.out)
    assert data["is_valid"] is True
    assert data["plan"]["status"] == "OPTIMAL"
    assert data["plan"]["bound_status"] == "verified"
    assert "the plan is optimal" in slob("validate", planned).out


def _too_good(data: dict[str, Any]) -> None:
    data["value"] *= 1.01


def _bound_too_low(data: dict[str, Any]) -> None:
    data["bound"] *= 0.9


def _gap_of_another_plan(data: dict[str, Any]) -> None:
    data["gap"] = 0.05


def _other_cards(data: dict[str, Any]) -> None:
    data["inputs"]["cluster"]["nodes"][0]["devices"][0]["bytes_per_s"] *= 2


@pytest.mark.parametrize("change", [_too_good, _bound_too_low, _gap_of_another_plan, _other_cards])
def test_a_false_claim_is_found(change: Callable[[dict[str, Any]], None], slob: Slob, planned: Path) -> None:
    answer = slob("validate", edited(planned, change))
    assert answer.code == 1
    assert "not valid" in answer.out
    assert "violation: " in answer.out or "refuted" in answer.out


def _unknown_key(data: dict[str, Any]) -> None:
    data["valu"] = data.pop("value")


def _unknown_device(data: dict[str, Any]) -> None:
    data["pipelines"][0]["stages"][0]["device"] = "fats/0"


def _too_few_layers(data: dict[str, Any]) -> None:
    last = data["pipelines"][0]["stages"][-1]
    last["layers"][1] -= 1


def _damaged_input(data: dict[str, Any]) -> None:
    data["inputs"]["model"]["layers"][0]["mlp_params"] = "many"


def _unknown_witness(data: dict[str, Any]) -> None:
    data["certificate"]["witness"]["type"] = "Belief"


DAMAGES = [
    (_unknown_key, "value"),
    (_unknown_device, "did you mean 'fast/0'?"),
    (_too_few_layers, "the model has 6"),
    (_damaged_input, "inputs.model.layers[0].mlp_params"),
    (_unknown_witness, "certificate.witness.type"),
]


@pytest.mark.parametrize(("change", "sentence"), DAMAGES)
def test_a_damaged_file_is_one_sentence(
    change: Callable[[dict[str, Any]], None], sentence: str, slob: Slob, planned: Path
) -> None:
    answer = slob("validate", edited(planned, change))
    assert answer.code == 2, answer.out
    assert sentence in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_file_that_is_cut_off_is_one_sentence(slob: Slob, planned: Path) -> None:
    text = planned.read_text(encoding="utf-8")
    planned.write_text(text[: len(text) // 2], encoding="utf-8")
    answer = slob("validate", planned)
    assert answer.code == 2
    assert "cut off" in answer.err


def hand_made(folder: Path, *counts: int) -> Path:
    """A plan with nothing but pipelines: one pipeline over fast, slow-0, slow-1."""
    devices = ("fast/0", "slow-0/0", "slow-1/0")
    stages = [{"device": d, "num_layers": n} for d, n in zip(devices, counts, strict=False)]
    path = folder / "mine.json"
    path.write_text(json.dumps({"schema_version": 1, "pipelines": [{"stages": stages}]}), encoding="utf-8")
    return path


def test_a_hand_made_plan_is_checked_too(slob: Slob, tiny: tuple[str, ...], tmp_path: Path) -> None:
    answer = slob("validate", hand_made(tmp_path, 4, 2), *tiny, "--format", "json")
    assert answer.code == 0, answer.err
    data = json.loads(answer.out)
    assert data["plan"]["method"] == "by hand"
    assert data["plan"]["bound_status"] == "none"


def test_a_hand_made_plan_that_does_not_fit_is_not_valid(slob: Slob, tiny: tuple[str, ...], tmp_path: Path) -> None:
    answer = slob("validate", hand_made(tmp_path, 6), *tiny, "--context-tokens", "500000")
    assert answer.code == 1
    assert "violation: " in answer.out
    assert "GiB" in answer.out


def test_a_hand_made_plan_needs_its_problem(slob: Slob, tmp_path: Path, tiny: tuple[str, ...]) -> None:
    answer = slob("validate", hand_made(tmp_path, 4, 2))
    assert answer.code == 2
    assert "give cluster, model and traffic" in answer.err
    assert slob("validate", hand_made(tmp_path, 4, 2), *tiny[:2]).code == 2


def test_an_option_beside_a_plan_that_carries_its_problem_is_refused(slob: Slob, planned: Path) -> None:
    """It would have no effect."""
    answer = slob("validate", planned, "--kv-bits", "8")
    assert answer.code == 2
    assert "--kv-bits needs --cluster and --model" in answer.err


def test_a_plan_is_checked_against_another_cluster(slob: Slob, planned: Path, tiny: tuple[str, ...]) -> None:
    answer = slob("validate", planned, *tiny, "--kv-bits", "8")
    assert answer.code == 1
    assert "made for another model" in answer.out


def test_a_plan_that_only_the_interval_cap_forbids_says_which_cap_would_do(slob: Slob, tiny: tuple[str, ...]) -> None:
    """The named cap is enough: with it there is a plan."""
    answer = slob("plan", *tiny, "--max-interval", "1ms")
    assert answer.code == 1
    assert answer.out.startswith("infeasible: memory suffices, but no pipeline that fits")
    cap = answer.out.rpartition("see --max-interval ")[2].strip()
    assert slob("plan", *tiny, "--max-interval", cap).code == 0


def test_case_p07_per_stage_degrees_are_not_exported_and_a_uniform_plan_is_offered(slob: Slob, tmp_path: Path) -> None:
    """Boxes of 4, 1 and 2 cards: the plan may mix degrees; vLLM is offered the best plan with one degree for all."""
    cluster = tmp_path / "boxes.yaml"
    cluster.write_text(
        "inter_link: {bandwidth: 10Gbps, latency: 0.1ms}\n"
        "nodes:\n"
        "- {name: four, gpus: [{memory: 12GiB, bandwidth: 900GB/s, flops: 100TFLOPS, count: 4}], tp_degrees: [4]}\n"
        "- {name: one, gpus: [{memory: 40GiB, bandwidth: 2TB/s, flops: 300TFLOPS}]}\n"
        "- {name: two, gpus: [{memory: 24GiB, bandwidth: 900GB/s, flops: 100TFLOPS, count: 2}], tp_degrees: [1, 2]}\n",
        encoding="utf-8",
    )
    model = tmp_path / "model.yaml"
    model.write_text(
        "hidden_size: 6144\nvocab_size: 32000\nnum_layers: 60\nnum_heads: 48\nnum_kv_heads: 8\nffn_size: 20480\n",
        encoding="utf-8",
    )
    argv = ("plan", "--cluster", cluster, "--model", model, "--objective", "latency", "--export", "vllm")
    data = json.loads(slob(*argv, "--format", "json", "--methods", "slob").out)
    export = data["export"]
    assert export["is_exportable"] is False
    assert "per-stage degrees can't be exported" in export["obstacles"][0]
    assert export["substitute_tp_degree"] == 1
    assert export["substitute"]["objective"] >= data["plan"]["objective"]
    (engine,) = export["engines"]
    counts = [int(n) for n in engine["environment"]["VLLM_PP_LAYER_PARTITION"].split(",")]
    assert sum(counts) == 60
    assert counts == [rank["num_layers"] for rank in engine["ranks"]]
    stages = export["substitute"]["pipelines"][0]["stages"]
    assert [stage["device"] for stage in stages] == [rank["cards"][0] for rank in engine["ranks"]]
    assert engine["arguments"][:4] == ["--pipeline-parallel-size", str(len(counts)), "--tensor-parallel-size", "1"]
    text = slob(*argv, "--methods", "slob").out
    assert "not for vllm: pipeline 0 has tensor-parallel degrees" in text
    assert "best plan with TP 1 everywhere" in text
    assert engine["command"] in text


def test_case_p05_the_export_has_a_number_per_device_in_their_order(slob: Slob, tiny: tuple[str, ...]) -> None:
    answer = slob("plan", *tiny, "--objective", "interval", "-k", "3", "--export", "vllm", "--format", "json")
    data = json.loads(answer.out)
    stages = data["plan"]["pipelines"][0]["stages"]
    assert len(stages) > 1
    (engine,) = data["export"]["engines"]
    expected = ",".join(str(stage["end"] - stage["first"]) for stage in stages)
    assert engine["environment"] == {"VLLM_PP_LAYER_PARTITION": expected}
    assert [rank["cards"] for rank in engine["ranks"]] == [[stage["device"]] for stage in stages]
    assert data["export"]["obstacles"] == []
    assert data["export"]["substitute"] is None


def test_a_degree_that_a_cluster_only_offers_is_left_out_with_a_note(slob: Slob) -> None:
    """9 heads, boxes that offer TP 2: planned without it; asked for by --tp it is refused."""
    argv = ("plan", "--cluster", "nvlink-pairs-2", "--model", "smollm2-135m", "--methods", "slob")
    answer = slob(*argv)
    assert answer.code == 0
    assert "slob: warning: TP 2 of box-0, box-1 left out: smollm2-135m has 9 heads and 3 KV heads" in answer.err
    assert json.loads(slob(*argv, "--show-config").out)["problem"]["cluster"]["skipped_tp_degrees"] == [2]
    refused = slob(*argv, "--tp", "1,2")
    assert refused.code == 2
    assert "9 heads % TP 2 = 1" in refused.err


def test_a_plan_is_checked_with_its_own_objective_beside_its_problem(slob: Slob, tiny: tuple[str, ...]) -> None:
    """The caps in the file hold, not those of the traffic, unless an option says otherwise."""
    path = Path(tiny[1]).with_name("capped.json")
    argv = ("--methods", "slob", "--max-interval", "none", "--max-micro-batches", "3")
    assert slob("plan", *tiny, *argv, "--out", path).code == 0
    answer = slob("validate", path, *tiny)
    assert answer.code == 0, answer.out
    assert slob("validate", path, *tiny, "--max-micro-batches", "2").code == 1
