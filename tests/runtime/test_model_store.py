"""Models by name and path, and what is said where there is none."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from experiments.cli.environment import model_cache
from runtime.model_fetch import SMOLLM2_135M
from runtime.model_store import fetch_model, resolve_model, stored_model
from runtime.text import TextCodec
from runtime.tiny_model import write_tiny_model
from slob_opt.errors import InputError


def test_the_tiny_model_is_made_when_it_is_asked_for(tmp_path: Path) -> None:
    assert not stored_model("tiny-llama", tmp_path).is_there
    folder = resolve_model("tiny-llama", tmp_path)
    assert folder == tmp_path / "tiny-llama"
    found = stored_model("tiny-llama", tmp_path)
    assert found.is_there
    assert found.num_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert not fetch_model("tiny-llama", tmp_path, progress=lambda _: None)


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_model(tmp_path / "smollm2-135m")
    assert resolve_model(str(folder), tmp_path / "cache") == folder
    monkeypatch.chdir(tmp_path)
    assert resolve_model("smollm2-135m", tmp_path / "cache") == Path("smollm2-135m")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/smollm2-135m", tmp_path / "cache") == folder


def test_what_is_no_model_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.gguf").write_text("x")
    for name, told in (
        ("smollm2-135m", r"isn't there yet, run `slob model fetch smollm2-135m` first"),
        ("smollm2", "'smollm2': no folder and no model of that name is known; did you mean smollm2-135m"),
        ("tinyllama", "did you mean tiny-llama"),
        ("qwxyz", "expected smollm2-135m, tiny-llama"),
        (str(tmp_path / "none"), "no folder and no model"),
        (str(tmp_path / "empty"), r"empty: no config\.json there"),
        (str(tmp_path / "model.gguf"), "found a file, expected a folder"),
    ):
        with pytest.raises(InputError, match=told):
            resolve_model(name, tmp_path / "cache")


def test_names_that_cannot_be_fetched_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model of that name can be fetched; did you mean smollm2-135m"):
        fetch_model("smollm-135m", tmp_path, progress=lambda _: None)
    with pytest.raises(InputError, match="takes no wheel"):
        fetch_model("tiny-llama", tmp_path, wheel=tmp_path / "a.whl", progress=lambda _: None)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the fetched model, or fetch it from the installed package; never from the network."""
    if stored_model(SMOLLM2_135M.name, model_cache()).is_there:
        return resolve_model(SMOLLM2_135M.name, model_cache())
    try:
        importlib.metadata.version(SMOLLM2_135M.package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("smollm2-135m isn't there: run `slob model fetch smollm2-135m` (93 MB) to have it tested")
    cache = tmp_path_factory.mktemp("cache")
    fetch_model(SMOLLM2_135M.name, cache, progress=lambda _: None)
    return resolve_model(SMOLLM2_135M.name, cache)


@pytest.mark.slow
def test_smollm2_answers_sensibly(smollm2: Path) -> None:
    codec, model = TextCodec(smollm2), AutoModelForCausalLM.from_pretrained(smollm2)
    assert (model.dtype, codec.eos_ids, codec.vocab_size) == (torch.bfloat16, {2}, 49152)

    def answer(ids: list[int]) -> str:
        found = model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False)[0, len(ids) :].tolist()
        stream = codec.answer()
        text = "".join([*(stream.add(token) for token in found), stream.flush()])
        assert text == codec.decode(found)
        return text

    assert answer(codec.encode("The capital of France is")).startswith(" Paris")
    asked = [{"role": "user", "content": "What is the capital of Japan, and why do people visit it?"}]
    assert answer(codec.chat(asked)).startswith("The capital of Japan is Tokyo")


@pytest.mark.slow
def test_smollm2_cuts_text_as_its_makers_do(smollm2: Path) -> None:
    """Pieces as the original tokenizer's rules say: digits apart, a blank goes with the word behind it."""
    codec = TextCodec(smollm2)
    ids = codec.encode("Hello world 2024!")
    assert [codec.token_text(token) for token in ids] == ["Hello", " world", " ", "2", "0", "2", "4", "!"]
    text = "naïve Straße 🙂👩‍👧 你好\n\n\tdef f(x): return x**2  # don't"
    assert codec.decode(codec.encode(text)) == text
    chat = codec.chat([{"role": "user", "content": "Hi"}])
    assert "".join(codec.token_text(token) for token in chat) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
