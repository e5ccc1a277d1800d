"""Published facts that tests hold ours against: where they lie, and a loud skip where they don't.

The project ships none of them. The environment variable SLOB_REFERENCE_DATA names their folder; without it
``shared/data`` beside the checkout is looked at.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
REFERENCE_DATA = Path(os.environ.get("SLOB_REFERENCE_DATA") or _BESIDE)


def why_missing(name: str) -> str:
    """Return the reason of a skip for want of a file or folder."""
    return f"reference data {name} is not there; SLOB_REFERENCE_DATA names the folder that holds it"


def reference_file(name: str) -> Path:
    """Return the path of a file of the reference data; skips the test that asks when it isn't there."""
    path = REFERENCE_DATA / name
    if not path.is_file():
        pytest.skip(why_missing(name))
    return path
