"""A tiny problem in files, and a way to call `slob` as a user does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments.cli.main import main

CLUSTER = """
schema_version: 1
name: tiny
inter_link: {bandwidth: 10Gbps, latency: 0.1ms}
nodes:
- {name: fast, gpus: [{name: fast/0, memory: 12GiB, bandwidth: 900GB/s, flops: 80TFLOPS}]}
- {name: slow, count: 2, gpus: [{memory: 8GiB, bandwidth: 300GB/s, flops: 20TFLOPS}]}
"""
MODEL = """
schema_version: 1
name: small
hidden_size: 2048
vocab_size: 32000
num_layers: 6
num_heads: 16
num_kv_heads: 8
ffn_size: 8192
"""


@dataclass(frozen=True)
class Answer:
    """What a call of `slob` gave back."""

    code: int
    out: str
    err: str


@pytest.fixture
def slob(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Call `slob` in this process."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def call(*argv: object) -> Answer:
        code = 0
        try:
            main([str(word) for word in argv])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[str, ...]:
    """Options that name a cluster of three cards and a model of six layers, in files."""
    cluster, model = tmp_path / "cluster.yaml", tmp_path / "model.yaml"
    cluster.write_text(CLUSTER, encoding="utf-8")
    model.write_text(MODEL, encoding="utf-8")
    return ("--cluster", str(cluster), "--model", str(model))
