from __future__ import annotations

import json

import pytest
from reference_data import reference_file

from slob_opt.errors import InputError
from slob_opt.problem.catalogue import model, model_facts, model_ids


@pytest.mark.parametrize("id_", model_ids())
def test_parameter_totals_are_the_published_ones(id_):
    """Exactly; where only a rounded or a card's figure is published, by the deviation that the data file states."""
    spec, known = model(id_), model_facts(id_)
    deviation_pct = 100 * (spec.num_params - known.published_params) / known.published_params
    if known.is_published_exact:
        assert spec.num_params == known.published_params
    assert deviation_pct == pytest.approx(known.deviation_pct, abs=1e-3)
    assert abs(deviation_pct) < 0.3
    assert spec.name == id_
    assert spec.sources
    assert bool(spec.uncertain) == (not known.is_published_exact)


def test_there_are_enough_models():
    assert len(model_ids()) >= 45


def test_layers_and_caches_are_those_of_the_facts():
    rows = json.loads(reference_file("models.json").read_text(encoding="utf-8"))["models"]
    for row in rows:
        spec = model(row["id"])
        last = spec.layers[-1]
        assert spec.num_layers == row["num_layers"]
        elements = last.kv_elems_per_token or 2 * last.num_kv_heads * last.head_dim
        assert elements == row["kv_elems_per_token_per_layer"]
        active = sum(layer.active_params for layer in spec.layers)
        assert spec.num_params - sum(layer.num_params for layer in spec.layers) + active == row["active_params"]
    assert {row["id"] for row in rows} <= set(model_ids())


def test_gemma_2_alternates_from_a_windowed_first_layer():
    windows = [layer.window_tokens for layer in model("gemma-2-9b").layers]
    assert windows == [4096, None] * 21


def test_mistral_has_its_window_in_every_layer():
    assert {layer.window_tokens for layer in model("mistral-7b").layers} == {4096}


def test_mixtral_uses_two_of_eight_experts():
    """Router 4096*8; one expert 3*4096*14336."""
    layer = model("mixtral-8x7b").layers[0]
    assert layer.mlp_params == 32768 + 8 * 176160768
    assert layer.active_mlp_params == 32768 + 2 * 176160768


def test_deepseek_caches_576_elements_and_starts_with_a_dense_layer():
    spec = model("deepseek-v2-lite")
    assert spec.layers[0].kv_elems_per_token == 512 + 64
    assert not spec.layers[0].is_moe
    assert all(layer.is_moe for layer in spec.layers[1:])
    assert not spec.has_identical_layers


def test_a_model_is_found_by_its_checkpoint():
    assert model("meta-llama/Llama-2-70b-hf") is model("llama-2-70b")
    assert model("Llama-2-70B").num_layers == 80


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(InputError, match=r"'llama-2-71b' is not in the catalogue; did you mean llama-2-7"):
        model("llama-2-71b")
