"""Servers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from http_servers import Running, Serve, running, save_tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model."""
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Running]:
    """A server for tests that leave it as it was."""
    with running(folder, max_body_bytes=100_000, body_timeout_s=5, default_max_tokens=8) as server:
        yield server


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    """Start servers that are stopped after the test."""
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(running(folder, **more))
