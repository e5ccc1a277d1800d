from __future__ import annotations

import pytest

from slob_opt.errors import InputError
from slob_opt.problem import catalogue
from slob_opt.problem.files import dump_cluster, find_cluster, find_model


def test_ids_are_found():
    assert find_cluster("lab-3") == catalogue.cluster("lab-3")
    assert find_model("llama-2-70b") == catalogue.model("llama-2-70b")
    assert find_model("meta-llama/Llama-2-70b-hf").name == "llama-2-70b"


def test_paths_are_found(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(dump_cluster(catalogue.cluster("lab-3")), encoding="utf-8")
    assert find_cluster(str(path)) == catalogue.cluster("lab-3")
    path = tmp_path / "m.yaml"
    path.write_text("hidden_size: 8\nvocab_size: 9\nlayers: [{count: 3, weights: 1MiB}]", encoding="utf-8")
    assert find_model(str(path)).num_layers == 3


def test_an_unrelated_folder_of_the_same_name_is_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab-3").mkdir()
    (tmp_path / "gpt2").mkdir()
    assert len(find_cluster("lab-3").devices) == 3
    assert find_model("gpt2").num_layers == 12


@pytest.mark.parametrize("find", [find_cluster, find_model])
@pytest.mark.parametrize("text", ["none.yaml", "./none", "/none/at/all", "dir/x.JSON"])
def test_what_looks_like_a_path_must_exist(find, text):
    with pytest.raises(InputError, match="no such file"):
        find(text)


@pytest.mark.parametrize("find", [find_cluster, find_model])
@pytest.mark.parametrize("text", ["", " ", "x" * 5000, "a\0b"])
def test_odd_names_are_one_sentence(find, text):
    with pytest.raises(InputError):
        find(text)


def test_unknown_ids_name_the_nearest():
    with pytest.raises(InputError, match=r"did you mean helix-single24.*no file of this name"):
        find_cluster("helix-single25")
    with pytest.raises(InputError, match="did you mean llama-2-70b"):
        find_model("llama-2-70bb")
