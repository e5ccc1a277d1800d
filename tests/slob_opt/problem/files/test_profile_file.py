"""Profile files, and cards of cluster files that refer to them."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from measured_profiles import measured_cluster, profile_for, profiles, small_model

from slob_opt.errors import InputError
from slob_opt.problem.cluster import Node
from slob_opt.problem.files import dump_cluster, load_cluster, load_profile
from slob_opt.problem.files.profile_file import profile_data, profile_to_json, write_profile

CLUSTER = """\
schema_version: 1
nodes:
- name: box
  gpus:
  - {measured: sub/profile.json, memory: 300MiB, slowdown: 3}
  - {measured: sub/profile.json, memory: 600MiB, count: 2}
"""


@given(profiles())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_profile_survives_its_file(tmp_path, profile) -> None:
    real = replace(profile, slowdown=1.0, framework_bytes=int(profile.slowdown * 2**20))
    write_profile(real, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == real


def test_times_are_written_with_their_units(tmp_path) -> None:
    text = profile_to_json(profile_for(small_model()))
    assert '"time": "100us"' in text
    assert '"after": 32' in text
    assert json.loads(text)["hardware"] == {"kind": "cpu", "name": "Some CPU", "threads": 1, "torch": "2.13.0"}


def test_a_file_holds_no_slowdown() -> None:
    with pytest.raises(InputError, match="3 times slowed down"):
        profile_to_json(profile_for(small_model()).scaled(3))


def test_cards_take_the_profile_their_slowdown_and_memory(tmp_path) -> None:
    """The path counts from the cluster file; nothing that is emulated is implausible."""
    profile = profile_for(small_model())
    (tmp_path / "sub").mkdir()
    write_profile(profile, tmp_path / "sub" / "profile.json")
    path = tmp_path / "c.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = load_cluster(path)
    slow, *fast = made.devices
    assert (slow.measured, slow.memory_bytes, slow.gpu) == (profile.scaled(3), 300 * 2**20, "Some CPU")
    assert [card.measured for card in fast] == [profile, profile]
    again = tmp_path / "again.yaml"
    for known in ({profile: "sub/profile.json"}, {}):
        again.write_text(dump_cluster(made, known), encoding="utf-8")
        assert load_cluster(again) == made
    assert "sub/profile.json" not in again.read_text(encoding="utf-8")


@given(profiles())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_measured_cluster_survives(tmp_path, profile) -> None:
    made = measured_cluster(small_model(), (1.0, 2.5))
    odd = replace(made.devices[0], gpu="custom", measured=profile)
    made = replace(made, nodes=(*made.nodes, Node("odd", (replace(odd, name="odd/0"),))))
    path = tmp_path / "c.yaml"
    path.write_text(dump_cluster(made), encoding="utf-8")
    assert load_cluster(path) == made


def broken(**changes: object) -> dict[str, object]:
    data = profile_data(profile_for(small_model()))
    for name, value in changes.items():
        at = data
        *path, last = name.split("__")
        for part in path:
            at = at[part]
        if value is None:
            del at[last]
        else:
            at[last] = value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (broken(kind="plan"), "kind: found 'plan', expected 'slob-profile'"),
        (broken(times__pair=None), "times: the key 'pair' is missing|times.pair: the key 'pair' is missing"),
        (broken(times__step__time="12"), "times.step.time: found '12' without a unit"),
        (broken(times__step__time="-1us"), "times.step.time: found '-1us'"),
        (broken(times__steps={}), "times.steps: unknown key 'steps'; did you mean 'step'"),
        (broken(model__dtype="int8"), "model.dtype: found 'int8'"),
        (broken(schema_version=2), "schema_version"),
        (broken(wall_ratio=0.0), "wall_ratio"),
        (
            broken(times__layer_tokens=[{"after": 3, "time": "1us", "error": "0s"}]),
            "slope from the first or second one",
        ),
    ],
)
def test_faults_are_one_sentence_with_file_and_key(tmp_path, data, message) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)
    cluster = tmp_path / "c.yaml"
    cluster.write_text("nodes: [{name: n, gpus: [{measured: p.json, memory: 1GiB}]}]", encoding="utf-8")
    with pytest.raises(InputError, match=r"c\.yaml: nodes\[0\]\.gpus\[0\]\.measured: .*p\.json"):
        load_cluster(cluster)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("{measured: none.json, memory: 1GiB}", r"gpus\[0\]\.measured: .*none\.json: no such file"),
        ("{measured: p.json}", "a card without a type needs memory"),
        ("{measured: p.json, memory: 1GiB, slowdown: 0}", r"gpus\[0\]\.slowdown"),
        ("{type: t4, slowdown: 2}", r"gpus\[0\]\.slowdown: a slowdown belongs to a card with a measured profile"),
        ("{measured: p.json, memory: 1GiB, layer_time: 1ms}", "a layer_time and a measured profile"),
        ("{measured: 3, memory: 1GiB}", r"gpus\[0\]\.measured: found 3, expected text"),
        ("{measured: {kind: x}, memory: 1GiB}", r"gpus\[0\]\.measured"),
    ],
)
def test_wrong_cards_are_refused(tmp_path, card, message) -> None:
    write_profile(profile_for(small_model()), tmp_path / "p.json")
    path = tmp_path / "c.yaml"
    path.write_text(f"nodes: [{{name: n, gpus: [{card}]}}]", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_cluster(path)
