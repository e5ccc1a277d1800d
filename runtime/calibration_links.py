"""From measured transfers to a link: latency and bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from slob_opt.errors import InputError
from slob_opt.problem.device import Link

SIZES = (64, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)
"""Bytes of the messages that are measured: from one token of a small model to prompts of a large one."""

MOST_BYTES_PER_S = 1e12
"""Bandwidth of a link that no size of message slows down measurably."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message one way.

    Attributes
    ----------
    num_bytes
        Its size.
    seconds
        Median time.
    """

    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkFit:
    """A link and how well it tells the transfers.

    Attributes
    ----------
    link
        Latency and bandwidth.
    transfers
        What was measured.
    median_error, worst_error
        Of the fitted times, as shares of the measured ones.
    """

    link: Link
    transfers: tuple[Transfer, ...]
    median_error: float
    worst_error: float


def fit_link(transfers: Sequence[Transfer]) -> LinkFit:
    """Return the link ``latency + bytes / bandwidth`` with the least squared relative error.

    Raises
    ------
    InputError
        When there are fewer than two sizes, or a time isn't above zero.
    """
    sizes = np.array([item.num_bytes for item in transfers], np.float64)
    times = np.array([item.seconds for item in transfers])
    if np.unique(sizes).size < 2 or not np.all(times > 0):
        raise InputError(f"{np.unique(sizes).size} sizes of messages were measured, expected two with times above zero")
    rows = np.column_stack([np.ones(sizes.size), sizes]) / times[:, None]
    scale = np.linalg.norm(rows, axis=0)
    found, _ = nnls(rows / scale, np.ones(times.size))
    latency_s, byte_s = (found / scale).tolist()
    rate = MOST_BYTES_PER_S if byte_s * MOST_BYTES_PER_S < 1 else 1 / byte_s
    link = Link(float(f"{rate:.4g}"), float(f"{latency_s:.4g}"))
    off = np.abs((link.latency_s + sizes / link.bytes_per_s) / times - 1)
    return LinkFit(link, tuple(transfers), round(float(np.median(off)), 4), round(float(off.max()), 4))
