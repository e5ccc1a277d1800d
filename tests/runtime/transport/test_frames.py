"""Frames: what goes in comes out, and what isn't one is refused before anything is made of it."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from runtime.transport.frames import HEAD_BYTES, MAGIC, MAX_ARRAY_BYTES, Frame, Head, head_of, pack, unpack
from slob_opt.errors import EngineError

TYPES = ("<i8", "<i4", "u1", "<f4", "<f8", "?")

VALUES = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)

ARRAYS = st.dictionaries(
    st.text(max_size=12),
    st.sampled_from(TYPES).flatmap(
        lambda name: arrays_of.arrays(
            np.dtype(name), arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
        )
    ),
    max_size=4,
)


def as_sent(frame: Frame) -> tuple[bytes, bytes]:
    info, parts, size = pack(frame)
    data = b"".join(parts)
    assert len(data) == size
    return info, data


def received(kind: int, info: bytes, data: bytes) -> Frame:
    return unpack(kind, info, np.frombuffer(data, np.uint8))


@given(st.integers(0, 2**16 - 1), VALUES, ARRAYS)
def test_a_frame_comes_out_as_it_went_in(kind: int, values: dict[str, Any], arrays: dict[str, Any]) -> None:
    got = received(kind, *as_sent(Frame(kind, values, arrays)))
    assert got.kind == kind
    assert got.values == values
    assert list(got.arrays) == list(arrays)
    for name, array in arrays.items():
        assert got.arrays[name].dtype == array.dtype
        assert got.arrays[name].shape == array.shape
        assert got.arrays[name].tobytes() == array.tobytes()  # NaN too


@given(ARRAYS)
def test_every_array_begins_where_its_numbers_may(arrays: dict[str, Any]) -> None:
    info, data = as_sent(Frame(1, {}, arrays))
    assert len(info) % 8 == len(data) % 8 == 0
    kept = np.empty(len(data), np.uint8)  # numpy's own memory is aligned
    kept[:] = np.frombuffer(data, np.uint8)
    assert all(array.flags.aligned for array in unpack(1, info, kept).arrays.values())


@given(st.integers(0, 2**16 - 1), st.integers(0, 1 << 24), st.integers(0, 1 << 31), st.none() | st.integers(0, 2**60))
def test_a_head_comes_out_as_it_went_in(kind: int, info: int, size: int, place: int | None) -> None:
    head = Head(kind, info, size, place)
    assert head_of(head.pack()) == head


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES).filter(lambda data: not data.startswith(MAGIC)))
def test_strangers_are_refused_by_their_first_bytes(data: bytes) -> None:
    with pytest.raises(EngineError, match="doesn't speak our protocol"):
        head_of(data)


def test_another_version_and_a_frame_that_is_too_long_are_refused() -> None:
    good = Head(1, 8, 8).pack()
    with pytest.raises(EngineError, match="speaks version 9 of the protocol"):
        head_of(good[:4] + b"\0\x09" + good[6:])
    with pytest.raises(EngineError, match=r"announces a message of 2,147,483,657 bytes"):
        head_of(Head(1, 8, MAX_ARRAY_BYTES + 1).pack())


@given(st.binary(max_size=80), st.binary(max_size=40))
def test_garbage_is_refused_or_read_but_never_breaks(info: bytes, data: bytes) -> None:
    with contextlib.suppress(EngineError):
        received(1, info, data)


@given(ARRAYS.filter(bool), st.data())
def test_a_damaged_frame_is_refused_or_read_but_never_breaks(arrays: dict[str, Any], data: st.DataObject) -> None:
    info, body = as_sent(Frame(3, {"step": 5}, arrays))
    place = data.draw(st.integers(0, len(info) - 1))
    changed = bytearray(info)
    changed[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(EngineError):
        received(3, bytes(changed), body)


@pytest.mark.parametrize("cut", [1, 8, 16])
def test_a_frame_that_is_cut_off_is_refused(cut: int) -> None:
    info, data = as_sent(Frame(3, {}, {"numbers": np.arange(4)}))
    with pytest.raises(EngineError, match="numbers goes beyond the message"):
        received(3, info, data[:-cut])
    with pytest.raises(EngineError, match="don't add up"):
        received(3, info, data + bytes(8))
    with pytest.raises(EngineError, match="damaged"):
        received(3, info[:-cut], data)


def test_a_shape_as_large_as_the_world_is_refused() -> None:
    info, data = as_sent(Frame(3, {}, {"n": np.zeros((1, 1), np.int64)}))
    huge = info.replace((1).to_bytes(8, "big"), (2**63).to_bytes(8, "big"))
    with pytest.raises(EngineError, match="array n goes beyond the message"):
        received(3, huge, data)


def test_what_numpy_would_have_to_pickle_is_not_sent() -> None:
    with pytest.raises(EngineError, match="array bag of a message has type object"):
        pack(Frame(1, {}, {"bag": np.array([{}], object)}))
