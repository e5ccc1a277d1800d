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


def api_key_variable() -> str | None:
    """Return SLOB_API_KEY; ``None`` when it is unset or empty."""
    return os.environ.get("SLOB_API_KEY") or None


def model_cache() -> Path:
    """Return the folder that fetched models are kept in: SLOB_MODELS, or slob/models in the user's cache folder."""
    named = os.environ.get("SLOB_MODELS")
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "slob" / "models"


def worker_token() -> str | None:
    """Return SLOB_WORKER_TOKEN; ``None`` when it is unset or empty."""
    return os.environ.get("SLOB_WORKER_TOKEN") or None
