"""The tiny model: same bytes for the same seed, and printable answers."""

from __future__ import annotations

import hashlib
import string
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from runtime.text import TextCodec
from runtime.tiny_model import TinyModel, write_tiny_model
from slob_opt.errors import InputError


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    first, second = (digests(write_tiny_model(tmp_path / name)) for name in "ab")
    assert first == second
    other = digests(write_tiny_model(tmp_path / "c", TinyModel(seed=1)))
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors", "slob_model.json"}


def test_a_whole_one_stays_and_another_one_is_replaced(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    before = (folder / "model.safetensors").stat()
    write_tiny_model(folder)
    assert (folder / "model.safetensors").stat().st_ino == before.st_ino
    write_tiny_model(folder, TinyModel(num_layers=1))
    assert (folder / "model.safetensors").stat().st_size < before.st_size
    (folder / "config.json").unlink()
    write_tiny_model(folder, TinyModel(num_layers=1))
    assert (folder / "config.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "model",
    [TinyModel(), TinyModel(2, 32, 4, 4, 48, 259, 64, 3), TinyModel(1, 128, 8, 1, 96, 1000, 512, 4)],
    ids=["usual", "smallest vocabulary", "ids without a token"],
)
def test_transformers_reads_it_and_it_writes_printable_text(tmp_path: Path, model: TinyModel) -> None:
    folder = write_tiny_model(tmp_path / "model", model)
    codec, peer = TextCodec(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert codec.vocab_size == model.vocab_size
    answers = set()
    for prompt in ("hello", "the other one"):
        ids = torch.tensor([codec.encode(prompt)])
        torch.manual_seed(0)
        for samples in (False, True):
            found = peer.generate(ids, max_new_tokens=30, do_sample=samples, pad_token_id=0)[0, ids.shape[1] :]
            text = codec.decode(found.tolist())
            assert len(found) == 30
            assert len(text) >= 30
            assert set(text) <= set(string.printable) - set("\t\n\r\x0b\x0c")
            answers.add(text)
    assert len(answers) == 4


def test_many_layers_keep_to_printable_text(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", TinyModel(num_layers=48, hidden_size=32, ffn_size=32))
    peer = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        chances = peer(torch.arange(3, 259)[None]).logits[0].softmax(-1)  # every byte in front
    printable = [token for token, text in enumerate(map(TextCodec(folder).token_text, range(320)))
                 if token > 2 and text.isprintable() and text.isascii()]  # fmt: skip
    assert chances[:, printable].sum(-1).min() > 0.999


@pytest.mark.parametrize(
    ("sizes", "key"),
    [
        ({"vocab_size": 258}, "vocab_size"),
        ({"hidden_size": 60}, "hidden_size"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"num_layers": 0}, "num_layers"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], key: str) -> None:
    with pytest.raises(InputError, match=key):
        TinyModel(**sizes)
