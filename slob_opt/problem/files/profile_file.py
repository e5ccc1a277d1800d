"""``profile.json``: what was measured of one device with one model, written by ``slob calibrate``.

A cluster file refers to it from a card, as ``{measured: profile.json, memory: 600MiB, slowdown: 3}``.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slob_opt.errors import InputError
from slob_opt.problem.files.checking import SCHEMA_VERSION, check
from slob_opt.problem.files.documents import read_document, write_whole
from slob_opt.problem.files.profile_schema import ProfileSchema, SlopeSchema, TimeSchema
from slob_opt.problem.measured import (
    Coefficient,
    FitQuality,
    HardwareFingerprint,
    MeasuredProfile,
    ModelFingerprint,
    Slope,
)
from slob_opt.units import format_bytes, format_seconds

_TIMES = (
    "step", "layer", "layer_tokens", "decode_row", "chunk_row", "kv_token", "pair", "embedding", "embedding_token",
    "head", "head_rows",
)  # fmt: skip


def load_profile(path: str | Path) -> MeasuredProfile:
    """Return the profile in a file (format: docs/calibration.md).

    Raises
    ------
    InputError
        With file, key, what was found and what was expected.
    """
    file = Path(path)
    return profile_from(read_document(file), file=str(file))


def profile_from(data: dict[str, Any], *, file: str, key: str | None = None) -> MeasuredProfile:
    """Return the profile in a document that was read already.

    Parameters
    ----------
    data
        The document.
    file
        Name for messages.
    key
        Where in the file it stands; ``None`` when it's the whole file.

    Raises
    ------
    InputError
        As :func:`load_profile`.
    """
    try:
        raw = check(ProfileSchema, data, file=file)
        return _profile(raw)
    except InputError as error:
        inner = ".".join(part for part in (key, error.key) if part)
        raise InputError(error.message, file=file, key=inner or None) from error


def _profile(raw: ProfileSchema) -> MeasuredProfile:
    times = raw.times
    return MeasuredProfile(
        model=ModelFingerprint(**raw.model.model_dump()),
        hardware=HardwareFingerprint(**raw.hardware.model_dump()),
        step=_coefficient(times.step),
        layer=_coefficient(times.layer),
        layer_tokens=tuple(_slope(slope) for slope in times.layer_tokens),
        decode_row=_coefficient(times.decode_row),
        chunk_row=_coefficient(times.chunk_row),
        kv_token=_coefficient(times.kv_token),
        pair=_coefficient(times.pair),
        embedding=_coefficient(times.embedding),
        embedding_token=_coefficient(times.embedding_token),
        head=_coefficient(times.head),
        head_rows=tuple(_slope(slope) for slope in times.head_rows),
        fit=FitQuality(**raw.fit.model_dump()),
        clock=raw.clock,
        wall_ratio=raw.wall_ratio,
        framework_bytes=raw.framework_memory or 0,
    )


def _coefficient(raw: TimeSchema) -> Coefficient:
    return Coefficient(raw.time, raw.error)


def _slope(raw: SlopeSchema) -> Slope:
    return Slope(raw.after, raw.time, raw.error)


def profile_data(profile: MeasuredProfile) -> dict[str, Any]:
    """Return a profile as plain JSON with its units, its slowdown left out: that belongs to a card, not to a device."""
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "slob-profile",
        "model": asdict(profile.model),
        "hardware": asdict(profile.hardware),
        "clock": profile.clock,
        "wall_ratio": float(profile.wall_ratio),
    }
    if profile.framework_bytes:
        data["framework_memory"] = format_bytes(profile.framework_bytes)
    data["times"] = {name: _times(getattr(profile, name)) for name in _TIMES}
    data["fit"] = asdict(profile.fit)
    return data


def _times(measured: Coefficient | tuple[Slope, ...]) -> dict[str, str] | list[dict[str, Any]]:
    if isinstance(measured, tuple):
        return [{"after": slope.after, **_time(slope)} for slope in measured]
    return _time(measured)


def _time(measured: Coefficient | Slope) -> dict[str, str]:
    return {"time": format_seconds(measured.value_s), "error": format_seconds(measured.error_s)}


def profile_to_json(profile: MeasuredProfile) -> str:
    """Return the text of a profile file.

    Raises
    ------
    InputError
        When the profile is an emulated device's: a file holds what was measured.
    """
    if profile.slowdown != 1.0:
        raise InputError(f"the profile is {profile.slowdown:g} times slowed down, expected the measured one")
    return json.dumps(profile_data(profile), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_profile(profile: MeasuredProfile, path: Path) -> None:
    """Write a profile file, whole or not at all; see :func:`slob_opt.problem.files.documents.write_whole`."""
    write_whole(path, profile_to_json(profile))
