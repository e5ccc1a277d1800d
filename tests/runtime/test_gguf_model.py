"""Conversion of GGUF files: the same weights, the same logits, the same tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf_files import write_gguf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from runtime.gguf_model import convert_gguf
from runtime.text import TextCodec
from runtime.tiny_model import TinyModel, write_tiny_model
from slob_opt.errors import InputError

MODEL = TinyModel(num_layers=3, num_heads=8, num_kv_heads=2)
TEXT = "naïve 🙂 the 12 other things"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", MODEL)


def converted(path: Path) -> Path:
    target = path.parent / "converted"
    target.mkdir()
    convert_gguf(path, target, lambda _: None)
    return target


def logits(folder: Path, ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return found


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.Q4_1])
def test_weights_and_logits_are_those_of_the_original(folder: Path, tmp_path: Path, kind: GGMLQuantizationType) -> None:
    original = write_gguf(tmp_path / "model.gguf", folder, kind)
    kinds = {tensor.tensor_type for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds == {kind, GGMLQuantizationType.F32}
    made = converted(tmp_path / "model.gguf")
    weights = load_file(made / "model.safetensors")
    assert set(weights) == set(original)
    for name, weight in original.items():
        assert torch.equal(weights[name], torch.from_numpy(weight).to(torch.bfloat16)), name
    ids = TextCodec(folder).encode(TEXT)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    peer.load_state_dict({name: torch.from_numpy(weight).bfloat16().float() for name, weight in original.items()})
    with torch.inference_mode():
        expected = peer(torch.tensor([ids])).logits[0]
    found = logits(made, ids)
    torch.testing.assert_close(found, expected)
    if kind is GGMLQuantizationType.F32:
        exact = logits(folder, ids)
        assert (found - exact).abs().mean() < 0.02 * exact.std()  # bfloat16 has eight digits


def test_rows_of_queries_and_keys_are_put_back_for_rotary_positions(folder: Path, tmp_path: Path) -> None:
    """Attention scores as llama.cpp has them, from the file's rows with neighbours turned, are transformers'."""
    write_gguf(tmp_path / "model.gguf", folder)
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    weights = load_file(converted(tmp_path / "model.gguf") / "model.safetensors")
    size, pairs = MODEL.head_size, MODEL.head_size // 2
    hidden = np.random.default_rng(1).standard_normal((2, MODEL.hidden_size)).astype(np.float32)
    rates = 10000.0 ** (-np.arange(pairs) / pairs)

    def neighbours(rows: np.ndarray, position: int) -> np.ndarray:
        turn = (rows[0::2] + 1j * rows[1::2]) * np.exp(1j * position * rates)
        return np.stack([turn.real, turn.imag], axis=1).ravel()

    def halves(rows: np.ndarray, position: int) -> np.ndarray:
        turn = (rows[:pairs] + 1j * rows[pairs:]) * np.exp(1j * position * rates)
        return np.concatenate([turn.real, turn.imag])

    def head(matrix: np.ndarray, index: int, row: int) -> np.ndarray:
        found: np.ndarray = matrix[index * size : (index + 1) * size] @ hidden[row]
        return found

    query, key = (tensors[f"blk.1.attn_{which}.weight"] for which in "qk")
    own_query, own_key = (weights[f"model.layers.1.self_attn.{which}_proj.weight"].float().numpy() for which in "qk")
    for index in range(MODEL.num_heads):
        kv = index // (MODEL.num_heads // MODEL.num_kv_heads)
        theirs = neighbours(head(query, index, 0), 9) @ neighbours(head(key, kv, 1), 4)
        ours = halves(head(own_query, index, 0), 9) @ halves(head(own_key, kv, 1), 4)
        assert ours == pytest.approx(theirs, abs=0.15, rel=0.02)  # bfloat16
        unturned = halves(head(query, index, 0), 9) @ halves(head(key, kv, 1), 4)
        assert abs(unturned - theirs) > 4 * abs(ours - theirs)


def test_tokenizer_template_and_settings_come_along(folder: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", folder)
    made = converted(tmp_path / "model.gguf")
    before, after = TextCodec(folder), TextCodec(made)
    messages = [{"role": "user", "content": TEXT}]
    assert after.encode(TEXT) == before.encode(TEXT)
    assert after.chat(messages) == before.chat(messages)
    assert (after.eos_ids, after.vocab_size) == (before.eos_ids, before.vocab_size)
    config, original = (json.loads((place / "config.json").read_text()) for place in (made, folder))
    changed = {key for key in original if config.get(key) != original[key]}
    assert changed == {"dtype", "initializer_range"}


def test_smollm_cuts_numbers_into_digits_and_may_tie_the_output_layer(folder: Path, tmp_path: Path) -> None:
    write_gguf(
        tmp_path / "model.gguf", folder, change={"tokenizer.ggml.pre": "smollm"}, leave_out="output.weight"
    )  # fmt: skip
    made = converted(tmp_path / "model.gguf")
    assert json.loads((made / "config.json").read_text())["tie_word_embeddings"] is True
    assert "lm_head.weight" not in load_file(made / "model.safetensors")
    cut = json.loads((made / "tokenizer.json").read_text())["pre_tokenizer"]
    assert [step["type"] for step in cut["pretokenizers"]] == ["Digits", "ByteLevel"]
    assert logits(made, [5, 6]).shape == (2, MODEL.vocab_size)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("general.architecture", "gpt2", r"general.architecture: found 'gpt2', can convert 'llama' only"),
        ("tokenizer.ggml.model", "llama", "tokenizer.ggml.model: found 'llama'"),
        ("tokenizer.ggml.pre", "qwen2", "tokenizer.ggml.pre: found 'qwen2', can convert 'gpt-2' or 'smollm' only"),
        ("tokenizer.ggml.add_bos_token", True, "add_bos_token: found True"),
        ("llama.rope.scaling.type", "yarn", "llama.rope.scaling.type: found 'yarn'"),
        ("llama.rope.dimension_count", 2, "llama.rope.dimension_count: found 2"),
        ("llama.expert_count", 8, "llama.expert_count: found 8"),
        ("llama.context_length", None, "llama.context_length: the key is missing"),
        ("llama.embedding_length", 128, "would have shape"),
        ("llama.block_count", 9, r"tensor blk\.3\.attn_k\.weight is missing"),
    ],
)
def test_what_would_be_converted_wrongly_is_refused(
    folder: Path, tmp_path: Path, key: str, value: object, told: str
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, folder, change={key: value})
    with pytest.raises(InputError, match=told) as refused:
        converted(path)
    assert refused.value.file == str(path)


def test_tensors_that_a_plain_llama_lacks_are_refused(folder: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", folder, extra="rope_freqs.weight")
    with pytest.raises(InputError, match=r"tensor rope_freqs\.weight isn't one of a plain Llama"):
        converted(tmp_path / "model.gguf")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9])
def test_a_file_that_is_cut_off_is_refused(folder: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, folder)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError, match="damaged"):
        converted(path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"hello" * 100)
    with pytest.raises(InputError, match="no GGUF file"):
        converted(tmp_path / "model.gguf")
    with pytest.raises(InputError, match="no such file"):
        convert_gguf(tmp_path / "none.gguf", tmp_path, lambda _: None)
