"""The examples of docs/files.md are files that load."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from slob_opt.problem import TrafficProfile
from slob_opt.problem.catalogue import left_out_clusters
from slob_opt.problem.files import load_cluster, load_model, load_traffic
from slob_opt.problem.files.checkpoint_config import known_types

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "files.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n# (\w+)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("kind", "text"), EXAMPLES)
def test_examples_load_without_a_warning(kind, text, tmp_path):
    path = tmp_path / "example.yaml"
    path.write_text(text, encoding="utf-8")
    load = {"cluster": load_cluster, "model": load_model, "traffic": load_traffic}[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = load(path)
    if kind == "traffic":
        assert made.kv_tokens == TrafficProfile().kv_tokens
        assert (made.tpot_s, made.max_in_flight) == (TrafficProfile().tpot_s, TrafficProfile().max_in_flight)
    else:
        assert made.name in ("office", "my-30-layer-model", "example")


def test_every_kind_has_an_example():
    assert {kind for kind, _ in EXAMPLES} == {"cluster", "model", "traffic"}


def test_the_page_names_what_is_read_and_what_is_left_out():
    for kind in known_types():
        assert f"`{kind}`" in PAGE
    for _, reason in left_out_clusters():
        assert reason in PAGE
