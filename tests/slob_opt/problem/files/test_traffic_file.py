from __future__ import annotations

import pytest

from slob_opt.errors import InputError
from slob_opt.problem import TrafficProfile
from slob_opt.problem.files import load_traffic


def load(folder, text):
    path = folder / "t.yaml"
    path.write_text(text, encoding="utf-8")
    return load_traffic(path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "schema_version: 1\n", "{}"])
def test_an_empty_file_equals_the_defaults(tmp_path, text):
    assert load(tmp_path, text) == TrafficProfile()


def test_a_whole_file(tmp_path):
    text = "prompt_tokens: 100\noutput_tokens: 50\ncontext_tokens: 4096\ntpot: 250ms\nmax_in_flight: 8\n"
    assert load(tmp_path, text) == TrafficProfile(100, 50, 4096, 0.25, 8)


def test_null_sets_no_limit(tmp_path):
    assert load(tmp_path, "tpot: null\nmax_in_flight: null\n") == TrafficProfile(tpot_s=None, max_in_flight=None)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("prompt_token: 5", "prompt_token", "did you mean 'prompt_tokens'"),
        ("prompt_tokens: 0", "prompt_tokens", "found 0"),
        ("prompt_tokens: 1.5", "prompt_tokens", "found 1.5"),
        ("prompt_tokens: null", "prompt_tokens", "expected a whole number"),
        ("tpot: 0.4", "tpot", "without a unit"),
        ("tpot: 0s", "tpot", "above zero"),
        ("schema_version: 9", "schema_version", "expected 1"),
        ("max_in_flight: true", "max_in_flight", "found True"),
    ],
)
def test_bad_input(tmp_path, text, key, message):
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert caught.value.key == key
    assert message in caught.value.message
