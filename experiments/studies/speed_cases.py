"""What the speed study simulates: lengths of real conversations or a sample fitted to them, one card, four cards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.serving_setup import ServingOptions, ServingSystem, make_system
from slob_opt.problem.catalogue import gpu_device, model
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link
from slob_opt.problem.files.traces import read_trace
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.workload import Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

CONVERSATIONS = Path("traces") / "azure2023" / "AzureLLMInferenceTrace_conv.csv.gz"
"""Azure's conversations of 2023 in a folder of reference data; the project doesn't ship them."""

MAX_NEW_TOKENS = 1024
"""Client's limit; what a trace doesn't tell."""

KV_TOKENS, BLOCK_TOKENS = 400_000, 16
ROWS, CHUNK = 128, 512

PROMPTS = ((0.633, 6.274, 1.004), (0.291, 6.977, 0.058), (0.076, 8.316, 0.02))
OUTPUTS = ((0.701, 4.592, 0.684), (0.299, 6.02, 0.094))
"""Share, mu and sigma of lognormals."""

MODEL = "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output lengths, (N,) int64 each, and where they are from.

    Attributes
    ----------
    prompt, output
        Tokens.
    source
        In words.
    """

    prompt: IntArray
    output: IntArray
    source: str


def conversation_lengths(reference_data: Path | None) -> Lengths:
    """Return the lengths of Azure's conversations where they are at hand, else of a sample fitted to them.

    Parameters
    ----------
    reference_data
        Folder of published traces; ``None`` where there is none.
    """
    file = None if reference_data is None else reference_data / CONVERSATIONS
    if file is not None and file.is_file():
        trace, _ = read_trace(file, None)
        return Lengths(trace.prompt_tokens, trace.output_tokens, "Azure 2023 conversations")
    return fitted_lengths(20_000)


def fitted_lengths(size: int) -> Lengths:
    """Return lengths drawn from what was fitted to the same trace.

    Prompts are a mixture of three lognormals, fitted by expectation maximisation (Kolmogorov-Smirnov distance 0.11: the
    trace has steps near 1,050 and 4,100 tokens); outputs are preset ``office_chat``'s (0.055).
    """
    rng = np.random.default_rng(2023)
    prompt, output = (_mixture(parts, size, rng) for parts in (PROMPTS, OUTPUTS))
    return Lengths(
        np.rint(prompt).clip(3, 14_050).astype(np.int64),
        np.rint(output).clip(1, 1_000).astype(np.int64),
        "sample fitted to Azure 2023 conversations",
    )


def _mixture(parts: tuple[tuple[float, float, float], ...], size: int, rng: np.random.Generator) -> FloatArray:
    """Draw from a mixture of lognormals."""
    which = rng.choice(len(parts), size, p=[share for share, _, _ in parts])
    mu, sigma = np.array([mu for _, mu, _ in parts]), np.array([sigma for _, _, sigma in parts])
    return np.asarray(rng.lognormal(mu[which], sigma[which]))


def poisson_workload(lengths: Lengths, num_requests: int, rate_per_s: float, seed: int) -> Workload:
    """Return Poisson arrivals with lengths drawn in pairs, every client with the same limit."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_per_s, num_requests))
    index = rng.integers(lengths.prompt.size, size=num_requests)
    output = np.minimum(lengths.output[index], MAX_NEW_TOKENS)
    return Workload.of(
        "conversations", arrival_s, lengths.prompt[index], output, max_new_tokens=MAX_NEW_TOKENS, ttft_s=None
    )


def one_a100() -> ServingSystem:
    """Return one A100 with 80 GB, 400 k tokens of KV and at most 128 requests."""
    cluster = Cluster(
        "one-a100", (Node("n", (gpu_device("a100-sxm4-80gb", "n/0"),)),), Link(1e9, 1e-4), Link(1e10, 1e-5)
    )
    spec = model(MODEL)
    placement = Placement((Pipeline((Stage((0,), 0, spec.num_layers),)),))
    options = ServingOptions(1, ROWS, CHUNK, KV_TOKENS // BLOCK_TOKENS)
    return make_system("one-a100", cluster, spec, placement, options)


def four_unequal() -> ServingSystem:
    """Return four unequal cards in a pipeline, four lanes, at most 128 requests and 200 k tokens of KV."""
    parts = (("a100-pcie-40gb", 0, 14), ("l4", 14, 20), ("rtx-3090", 20, 28), ("t4", 28, 32))
    nodes = tuple(Node(f"n{i}", (gpu_device(gpu, f"n{i}/0"),)) for i, (gpu, _, _) in enumerate(parts))
    cluster = Cluster("four-unequal", nodes, Link(1.25e9, 1e-4), Link(1.25e9, 1e-4))
    stages = tuple(Stage((i,), first, end) for i, (_, first, end) in enumerate(parts))
    options = ServingOptions(4, ROWS, CHUNK, KV_TOKENS // BLOCK_TOKENS // 2)
    return make_system("four-unequal", cluster, model(MODEL), Placement((Pipeline(stages, 4),)), options)
