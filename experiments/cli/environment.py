"""What the commands read from the environment."""

from __future__ import annotations

import os


def tracking_uri() -> str | None:
    """Return MLFLOW_TRACKING_URI; ``None`` when it is unset or empty."""
    return os.environ.get("MLFLOW_TRACKING_URI") or None


def cuda_device_order() -> str | None:
    """Return CUDA_DEVICE_ORDER; ``None`` when it is unset or empty."""
    return os.environ.get("CUDA_DEVICE_ORDER") or None
