"""Stages of every supported architecture: greedy tokens are those of transformers' own generate()."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    StableLmConfig,
)

from runtime.architectures import ARCHITECTURES
from runtime.packing import PackedBatch
from runtime.stage_model import StageModel
from runtime.steps import RowSampling, StepInput
from slob_opt.errors import InputError

LAYERS, VOCAB, BLOCK = 4, 128, 4

COMMON = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3,
}  # fmt: skip
SLIDES = ["sliding_attention", "full_attention"] * 2

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**COMMON),
    "llama-tied": LlamaConfig(**COMMON, tie_word_embeddings=True),
    "mistral-window": MistralConfig(**COMMON, sliding_window=8),
    "qwen2": Qwen2Config(**COMMON),
    "qwen3": Qwen3Config(**COMMON, head_dim=8),
    "phi3": Phi3Config(**COMMON),
    "olmo2": Olmo2Config(**COMMON),
    "smollm3": SmolLM3Config(**COMMON),
    "stablelm": StableLmConfig(**COMMON),
    "gemma2": Gemma2Config(**COMMON, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, layer_types=SLIDES),
    "gemma3": Gemma3TextConfig(**COMMON, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, layer_types=SLIDES),
    "gpt2": GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=LAYERS, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2,
        initializer_range=0.3,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp(request.param)
    AutoModelForCausalLM.from_config(CONFIGS[request.param]).save_pretrained(path)
    return path


def greedy(folder: Path, prompts: list[list[int]], length: int) -> list[list[int]]:
    """transformers' own answers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    found = []
    for prompt in prompts:
        with torch.inference_mode():
            ids = model.generate(
                torch.tensor([prompt]), max_new_tokens=length, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        found.append(ids[0, len(prompt) :].tolist())
    return found


class Rows:
    """Requests that pass through stages, several in a step, at different places of their sequences."""

    def __init__(self, folder: Path, cuts: list[int], prompts: list[list[int]], *, is_padded: bool = False) -> None:
        ends = [*cuts, LAYERS]
        self.stages = [
            StageModel.load(folder, first, end, device="cpu", dtype="float32")
            for first, end in zip([0, *cuts], ends, strict=True)
        ]
        self.caches = [stage.make_cache(200, BLOCK) for stage in self.stages]
        self.ids = [list(prompt) for prompt in prompts]
        self.cached = [0] * len(prompts)
        self.answers: list[list[int]] = [[] for _ in prompts]
        numbers = list(range(200))
        random.Random(0).shuffle(numbers)  # blocks are anywhere
        self.blocks = [numbers[30 * row : 30 * row + 30] for row in range(len(prompts))]
        self.spare = numbers[150:180]
        self.is_padded = is_padded

    def step(self, rows: list[int], lengths: list[int]) -> None:
        emits = [self.cached[row] + length == len(self.ids[row]) for row, length in zip(rows, lengths, strict=True)]
        held = [-(-(self.cached[row] + length) // BLOCK) for row, length in zip(rows, lengths, strict=True)]
        step = StepInput(
            0, 0, 0,
            np.concatenate([self.ids[row][self.cached[row] : self.cached[row] + length]
                            for row, length in zip(rows, lengths, strict=True)]).astype(np.int64),
            np.array(lengths), np.array([self.cached[row] for row in rows]), np.array(held),
            np.concatenate([self.blocks[row][:count] for row, count in zip(rows, held, strict=True)]).astype(np.int64),
            np.array(emits), tuple(RowSampling() for gets in emits if gets), self.is_padded,
        )  # fmt: skip
        batch = PackedBatch.of(step, BLOCK, torch.device("cpu"))
        hidden = None
        for stage, cache in zip(self.stages, self.caches, strict=True):
            hidden = stage.forward(batch, hidden, cache)
        assert hidden is not None
        tokens = iter(hidden.argmax(dim=-1).tolist())
        for row, length, gets in zip(rows, lengths, emits, strict=True):
            self.cached[row] += length
            if gets:
                token = next(tokens)
                self.ids[row].append(token)
                self.answers[row].append(token)

    def drop(self, row: int) -> None:
        """Lose a request's keys and values, and give it other blocks."""
        self.cached[row] = 0
        self.blocks[row] = self.spare


PROMPTS = [[5, 9, 33], list(range(20, 61)), [70] * 11]


@pytest.mark.parametrize(("cuts", "is_padded"), [([1], False), ([1, 3], False), ([2], True), ([], False)])
def test_packed_rows_of_uneven_stages_give_the_tokens_of_generate(
    folder: Path, cuts: list[int], is_padded: bool
) -> None:
    rows = Rows(folder, cuts, PROMPTS, is_padded=is_padded)
    rows.step([0, 1], [3, 16])  # a whole prompt beside a chunk
    rows.step([0, 1], [1, 7])
    rows.step([2, 1, 0], [11, 18, 1])
    for _ in range(4):
        rows.step([1, 0, 2], [1, 1, 1])
    rows.drop(2)
    rows.step([0, 2, 1], [1, len(rows.ids[2]), 1])  # prompt and answer so far again, into other blocks
    for _ in range(8):
        rows.step([2, 1, 0], [1, 1, 1])
    for answer, expected in zip(rows.answers, greedy(folder, PROMPTS, 20), strict=True):
        assert len(answer) >= 13
        assert answer == expected[: len(answer)]


def test_every_supported_architecture_is_tried() -> None:
    tried = {AutoModelForCausalLM.from_config(config).__class__.__name__ for config in CONFIGS.values()}
    assert tried == set(ARCHITECTURES)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("sharded")
    AutoModelForCausalLM.from_config(CONFIGS["llama"]).save_pretrained(path, max_shard_size="40KB")
    assert len(list(path.glob("*.safetensors"))) > 3
    return path


def test_a_stage_reads_its_own_tensors_only(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    shutil.copytree(llama, folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    needed = {file for name, file in index.items() if ".layers.1." in name}
    for file in set(index.values()) - needed:
        (folder / file).unlink()
    assert StageModel.load(folder, 1, 2, device="cpu", dtype="float32").weight_bytes > 0
    with pytest.raises(InputError, match="the shard is missing"):
        StageModel.load(folder, 0, 4, device="cpu", dtype="float32")


def test_what_is_wrong_with_a_model_is_one_sentence(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        StageModel.load(tmp_path / "none", 0, 1, device="cpu", dtype="float32")
    with pytest.raises(InputError, match=r"layers \[3, 5\) of a model with 4"):
        StageModel.load(llama, 3, 5, device="cpu", dtype="float32")
    with pytest.raises(InputError, match="found dtype 'int3', expected one of float32"):
        StageModel.load(llama, 0, 1, device="cpu", dtype="int3")
    cut = tmp_path / "cut"
    shutil.copytree(llama, cut)
    for file in cut.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged or cut off"):
        StageModel.load(cut, 0, 4, device="cpu", dtype="float32")
    other = tmp_path / "other"
    shutil.copytree(llama, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    with pytest.raises(InputError, match="found 'BertModel', the runtime serves LlamaForCausalLM"):
        StageModel.load(other, 0, 1, device="cpu", dtype="float32")
    (other / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    with pytest.raises(InputError, match=r"has shape \(.*\), expected \("):
        StageModel.load(other, 0, 1, device="cpu", dtype="float32")
