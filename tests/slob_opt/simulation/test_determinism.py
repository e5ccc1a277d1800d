"""The same input gives the same result, whatever the machine does meanwhile."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving_setups import chat, four_cards, play

import slob_opt
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policy import PipelineLimits

ROOT = Path(slob_opt.__file__).resolve().parent
SERVING = ("simulation", "scheduling", "metrics", "cost", "slob")
"""Rooms that a simulation passes through."""

SUPPORT = Path(__file__).resolve().parents[2] / "support"
CLOCKS = {"time", "datetime", "random", "secrets", "uuid", "timeit", "sched"}
"""Modules that bring the machine's clock or unseeded chance."""


def result_hash(workload: Workload, *, noise: float = 0.0, seed: int = 7) -> str:
    """Return the SHA-256 of all that a simulation tells."""
    played = play(workload, ChunkedPolicy(), four_cards(), PipelineLimits(3, 24, 900, 16, 512), noise=noise, seed=seed)
    digest = hashlib.sha256(repr(played.result.stages).encode() + repr(list(played.result.log)).encode())
    for request in sorted(played.deliveries):
        delivery = played.deliveries[request]
        digest.update(repr((request, delivery.end, delivery.pipeline, delivery.started_ns)).encode())
        digest.update(delivery.token_ns.tobytes())
    return digest.hexdigest()


def same_time(count: int) -> Workload:
    """So many requests that all arrive at once."""
    return Workload.of("ties", [1.0] * count, [5 + i % 7 for i in range(count)], [1 + i % 5 for i in range(count)])


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Processes that keep all cores busy."""
    count = os.cpu_count() or 1
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_busy_machine_changes_nothing(noise: float, request: pytest.FixtureRequest) -> None:
    """Case X05."""
    calm = result_hash(chat(40, 1.5, seed=7), noise=noise)
    request.getfixturevalue("busy_machine")
    assert result_hash(chat(40, 1.5, seed=7), noise=noise) == calm
    assert (result_hash(chat(40, 1.5, seed=7), noise=noise, seed=8) == calm) == (noise == 0.0)


def test_serving_reads_no_clock_and_no_unseeded_chance() -> None:
    """Case X05. Time is passed in; what is random takes a seed.

    The search for a placement may stop at a time limit, so it alone reads the clock.
    """
    found = []
    for path in sorted(path for room in SERVING for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found += [f"{path.relative_to(ROOT)}:{node.lineno}" for name in names if name.split(".")[0] in CLOCKS]
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("np.random."):
                is_seeded = node.attr in ("Generator", "default_rng", "SeedSequence", "PCG64")
                found += [] if is_seeded else [f"{path.relative_to(ROOT)}:{node.lineno}"]
    assert [line for line in found if not line.startswith("slob/placement.py:")] == []


def test_order_of_hashes_and_ties_change_nothing() -> None:
    """Case X06. A thousand events at one time, under three orders of sets and dictionaries by hash."""
    code = (
        f"import sys; sys.path[:0] = [{str(SUPPORT)!r}, {str(Path(__file__).parent)!r}]\n"
        "from test_determinism import result_hash, same_time\n"
        "print(result_hash(same_time(1000)))"
    )
    hashes = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        hashes.add(done.stdout.strip())
    assert hashes == {result_hash(same_time(1000))}
