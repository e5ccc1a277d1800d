"""What the commands read from the environment."""

from __future__ import annotations

import os
from pathlib import Path


def tracking_uri() -> str | None:
    """Return MLFLOW_TRACKING_URI; ``None`` when it is unset or empty."""
    return os.environ.get("MLFLOW_TRACKING_URI") or None


def reference_data() -> Path | None:
    """Return the folder that SLOB_REFERENCE_DATA names; ``None`` when it is unset or empty."""
    named = os.environ.get("SLOB_REFERENCE_DATA")
    return Path(named) if named else None


def cuda_device_order() -> str | None:
    """Return CUDA_DEVICE_ORDER; ``None`` when it is unset or empty."""
    return os.environ.get("CUDA_DEVICE_ORDER") or None
