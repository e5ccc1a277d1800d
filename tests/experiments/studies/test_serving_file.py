"""Study files: what ships with the studies, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_files import write_study

from experiments.serving_setup import plan_placement
from experiments.studies.serving_file import FOLDER, StudyFile, study_file
from experiments.studies.tuning import candidates, is_in_grid
from slob_opt.errors import InputError
from slob_opt.metrics.satisfaction import Decay, SatisfactionSpec
from slob_opt.planning.objectives import ThroughputObjective
from slob_opt.problem.traffic import TrafficProfile


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("grace: 2min", "grcae: 2min"), "unknown key 'grcae'; did you mean 'grace'"),
        (("grace: 2min", "grace: 2"), "grace"),
        (
            ("policy: orca-paged", "policy: orca-pagd"),
            r"policies\[2\]: no policy 'orca-pagd'; did you mean 'orca-paged'",
        ),
        (("oldest_share", "oldest_sahre"), r"policies\[4\]: policy 'slob' has no parameter 'oldest_sahre'"),
        (("preset: office_chat", "preset: ofice_chat"), r"sweeps\[0\].preset: .*office_chat"),
        (("[slob, orca, orca-paged, rtc]", "[slob, orcas]"), r"sweeps\[0\].policies\[1\]: found 'orcas'; did you mean"),
        (("system: one", "system: two"), r"sweeps\[0\].system: found 'two'"),
        (("loads: [1, 12]", "loads: [12, 1]"), r"sweeps\[0\].loads: found \[12.*expected rising loads"),
        (("seeds: [0, 1]", "seeds: [0, 0]"), "seeds: found .*expected different whole numbers"),
        (("sweeps: [chat]", "sweeps: [caht]"), r"quick.sweeps\[0\]: found 'caht'; did you mean 'chat'"),
        (("label: rtc", "label: orca"), "policies: 'orca' stands twice"),
        (("study: paper", "study: policies"), "found 'policies', expected 'paper'"),
    ],
)
def test_a_slip_is_one_sentence_with_its_place(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as told:
        StudyFile(write_study(tmp_path, change), "paper")
    assert told.value.file == str(tmp_path / "study.yaml")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("device: box/0", "device: box/1"), "no device 'box/1' in cluster one-l4; did you mean 'box/0'"),
        (("layers: 32", "layers: 31"), "executes 31 layers, model llama-3.1-8b has 32"),
        (("cluster: one.yaml", "cluster: two.yaml"), "two.yaml"),
    ],
)
def test_a_system_that_cannot_be_is_told(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        StudyFile(write_study(tmp_path, change), "paper").system("one")


def test_a_metric_is_as_the_file_says(tmp_path: Path) -> None:
    change = ("grace: 2min", "grace: 2min\nmetric: {scale: 1s, decay: exponential, first_weight: 3.0}")
    file = StudyFile(write_study(tmp_path, change), "paper")
    assert file.spec == SatisfactionSpec(scale_s=1.0, decay=Decay.EXPONENTIAL, first_weight=3.0)
    with pytest.raises(InputError, match=r"metric: first_weight is -1"):
        StudyFile(write_study(tmp_path, ("grace: 2min", "grace: 2min\nmetric: {first_weight: -1.0}")), "paper")


@pytest.mark.parametrize("name", ["paper", "policies", "sensitivity"])
def test_the_files_that_ship_are_right(name: str) -> None:
    file = study_file(name, None)
    for system in file.schema.systems:
        built = file.system(system.name)
        assert min(limits.kv_blocks for limits in built.limits) > 1000
    assert file.spec == SatisfactionSpec()


def test_the_paper_file_keeps_to_the_rules() -> None:
    """An hour of arrivals, ten minutes of grace, ten seeds; padded and ragged, streamed and not."""
    schema = study_file("paper", None).schema
    assert (float(schema.duration), float(schema.grace), len(schema.seeds)) == (3600.0, 600.0, 10)
    claims = [sweep for sweep in schema.sweeps if sweep.role == "claims"]
    assert all(sweep.seeds is None and {"slob", "orca", "rtc"} <= set(sweep.policies) for sweep in claims)
    assert {engine for sweep in claims for engine in sweep.engines} == {"ragged", "padded"}
    assert any("rtc-streamed" in sweep.policies for sweep in claims)


def test_placements_are_what_slob_plans() -> None:
    """The file writes them out so that they can't move; today slob would plan the same."""
    file = study_file("paper", None)
    for name in ("lab-3", "unequal-4"):
        system, traffic = file.system(name), TrafficProfile()
        planned = plan_placement(system.cluster, system.model, traffic, ThroughputObjective.for_traffic(traffic))
        stages = {frozenset(pipeline.stages) for pipeline in planned.pipelines}
        assert stages == {frozenset(pipeline.stages) for pipeline in system.placement.pipelines}


def test_policies_are_tuned_with_the_same_budget() -> None:
    file = study_file("policies", None)
    tuning = file.schema.tuning
    assert tuning is not None
    assert len(candidates(file, tuning)) == 6 * len(tuning.grids)
    for label, grid in tuning.grids.items():
        item = next(item for item in file.schema.policies if item.label == label)
        assert is_in_grid(dict(item.params), [dict(params) for params in grid]), label
    used = {seed for sweep in file.schema.sweeps for seed in sweep.seeds or file.schema.seeds}
    assert not used & set(tuning.seeds)
    assert sum(len(sweep.loads) for sweep in file.schema.sweeps if sweep.role == "claims") >= 40
    assert file.clairvoyant == {"srpt-clairvoyant"}


def test_clusters_beside_the_files_are_found() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} >= {"one-l4.yaml", "unequal-4.yaml"}
