"""Engines on a tiny random model, in this process: what the runtime's tests serve from."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.registry import make_dispatcher, make_policy
from runtime.deployment import Deployment
from runtime.engine import Engine
from runtime.engine_report import EngineOptions, Recorder
from runtime.executor import Executor
from runtime.generation import EndEvent, GenerationRequest, Reason, Sampling, TokenEvent
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Device, Link
from slob_opt.problem.files.find import find_model
from slob_opt.problem.placement import Pipeline, Placement, Stage

NUM_LAYERS, VOCAB, MAX_POSITION = 4, 128, 256
EOS = 2


def save_llama(folder: Path, *, seed: int = 0, num_layers: int = NUM_LAYERS) -> Path:
    """Write a random Llama of a few layers as a Hugging Face folder."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=num_layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=MAX_POSITION, bos_token_id=1, eos_token_id=EOS, pad_token_id=0,
        initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder


@lru_cache(maxsize=4)
def _reference(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def expected(folder: Path, prompt: Sequence[int], num_tokens: int, *, ends: bool = False) -> list[int]:
    """Return the greedy answer of transformers' own generate()."""
    model = _reference(folder)
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([list(prompt)]), max_new_tokens=num_tokens, do_sample=False,
            eos_token_id=EOS if ends else None, pad_token_id=0,
        )  # fmt: skip
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


class Numbers:
    """An answer whose text is its token ids, each with a blank behind it."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stops, self.stop, self._text = stop, None, ""

    def add(self, token: int) -> str:
        piece = f"{token} "
        if piece.strip() in self._stops:
            self.stop = piece.strip()
            return ""
        return piece

    def flush(self) -> str:
        return ""


class NumberCodec:
    """Token ids as text: ``5 6 7``."""

    eos_ids = frozenset({EOS})
    vocab_size = VOCAB

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        return [token for message in messages for token in self.encode(str(message["content"]))]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def token_text(self, token: int) -> str:
        return str(token)

    def token_bytes(self, token: int) -> bytes:
        return str(token).encode()

    def answer(self, stop: tuple[str, ...]) -> Numbers:
        return Numbers(stop)


def two_cards(memory_bytes: int = 8 << 30) -> Cluster:
    """Return a cluster of two devices, the second one of half the speed."""
    devices = (Device("box/0", "one", memory_bytes, 1e11, 1e10), Device("box/1", "two", memory_bytes, 5e10, 5e9))
    return Cluster("box", (Node("box", devices),), Link(1e9, 1e-4), Link(1e9, 1e-5))


def one_pipeline(num_layers: int = NUM_LAYERS, lanes: int = 1) -> Placement:
    """Return a placement of one pipeline over both cards."""
    return Placement((Pipeline((Stage((0,), 0, num_layers - 1), Stage((1,), num_layers - 1, num_layers)), lanes),))


def two_pipelines(num_layers: int = NUM_LAYERS, lanes: int = 1) -> Placement:
    """Return a placement of the whole model on each card."""
    return Placement(tuple(Pipeline((Stage((card,), 0, num_layers),), lanes) for card in (0, 1)))


def deployment(folder: Path, placement: Placement, **more: object) -> Deployment:
    """Return the deployment of a placement on :func:`two_cards`, in float32, with a small KV pool."""
    given: dict[str, object] = {"places": {}, "num_blocks": 64, "max_rows": 16, "chunk_tokens": 32, **more}
    return Deployment(two_cards(), find_model(str(folder)), placement, folder, "float32", **given)  # type: ignore[arg-type]


def engine_for(
    what: Deployment, executor: Executor, policy: str = "slob", *, recorder: Recorder | None = None, **more: object
) -> Engine:
    """Return an engine, not started yet, whose answers are numbers."""
    return Engine(
        executor,
        lambda capacities: what.build(capacities, lambda: make_policy(policy, {})),
        make_dispatcher("least-outstanding", {}),
        NumberCodec(),
        EngineOptions(policy, is_padded=what.is_padded, keeps_log=True),
        recorder=recorder,
        **more,  # type: ignore[arg-type]
    )


@dataclass
class Client:
    """Collects the events of one request."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    end: EndEvent | None = None
    over: threading.Event = field(default_factory=threading.Event)
    first: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: TokenEvent | EndEvent) -> None:
        assert self.end is None, "an event after the end"
        self.text += event.text
        if isinstance(event, TokenEvent):
            assert event.index == len(self.tokens)
            self.tokens.append(event.token)
            self.first.set()
        else:
            self.end = event
            self.over.set()

    def wait(self, timeout_s: float = 60.0) -> Reason:
        """Return why the answer ended."""
        assert self.over.wait(timeout_s), f"no end after {len(self.tokens)} tokens"
        assert self.end is not None
        return self.end.reason


def ask(engine: Engine, prompt: Sequence[int], num_tokens: int, **sampling: object) -> Client:
    """Submit a request that runs to its limit unless `sampling` says otherwise, and return its client."""
    client = Client()
    given: dict[str, object] = {"ignores_eos": True, **sampling}
    engine.submit(GenerationRequest(tuple(prompt), num_tokens, Sampling(**given)), client)  # type: ignore[arg-type]
    return client
