from __future__ import annotations

import copy
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.errors import InputError
from slob_opt.units import (
    SpelledFloat,
    SpelledInt,
    format_bytes,
    format_flops,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_flops,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "24GiB", 24 * 2**30),
        (parse_bytes, "24 GB", 24 * 10**9),
        (parse_bytes, "512MiB", 512 * 2**20),
        (parse_bytes, "1.5KiB", 1536),
        (parse_bytes, "1e3kB", 10**6),
        (parse_bytes, "0.1GiB", 107374182),  # 107374182.4: the fraction of a byte is dropped
        (parse_rate, "10Gbps", 1.25e9),
        (parse_rate, "10Gb/s", 1.25e9),
        (parse_rate, "10 Gbit/s", 1.25e9),
        (parse_rate, "1.25GB/s", 1.25e9),
        (parse_rate, "1250 MB/s", 1.25e9),
        (parse_rate, "1GiB/s", 2.0**30),
        (parse_rate, "8bps", 1.0),
        (parse_seconds, "3ms", 0.003),
        (parse_seconds, "50us", 50e-6),
        (parse_seconds, "50µs", 50e-6),
        (parse_seconds, "1s", 1.0),
        (parse_seconds, "2min", 120.0),
        (parse_flops, "312TFLOPS", 312e12),
        (parse_flops, "312 TFLOP/s", 312e12),
        (parse_flops, "1.3PFLOPS", 1.3e15),
    ],
)
def test_units_are_read_exactly(parse, text, value):
    assert parse(text) == value


def test_bandwidth_spellings_agree_and_keep_their_unit():
    """Case G03: bandwidth held in bytes/s but printed as 'mbps'."""
    spellings = ["10Gbps", "1.25GB/s", "1250 MB/s"]
    values = [parse_rate(text) for text in spellings]
    assert values == [1.25e9] * 3
    assert [str(value) for value in values] == spellings
    assert [format_rate(value) for value in values] == spellings
    with pytest.raises(InputError, match=r"'10' without a unit.*10Gbps \(bits\) or 1.25GB/s \(bytes\)"):
        parse_rate("10")


@pytest.mark.parametrize("parse", [parse_bytes, parse_rate, parse_seconds, parse_flops])
@pytest.mark.parametrize(
    "bad", ["10", 10, 10.5, True, None, "", "GiB", ".nan", "nan", "inf", "-inf", math.nan, math.inf, [1], "1 2 s"]
)
def test_what_is_no_number_with_a_unit_is_refused(parse, bad):
    with pytest.raises(InputError, match=r"expected|not known"):
        parse(bad)


@pytest.mark.parametrize(
    ("parse", "bad"),
    [(parse_bytes, "-1GiB"), (parse_rate, "-10Gbps"), (parse_seconds, "-1ms"), (parse_flops, "0TFLOPS")],
)
def test_negative_and_zero_are_refused(parse, bad):
    with pytest.raises(InputError, match="above zero"):
        parse(bad)


def test_zero_is_a_latency_where_asked_for():
    assert parse_seconds("0us", allow_zero=True) == 0.0
    with pytest.raises(InputError, match="at least zero"):
        parse_seconds("-1us", allow_zero=True)


@pytest.mark.parametrize(
    ("parse", "bad", "hint"),
    [
        (parse_bytes, "24Gb", "bits"),
        (parse_bytes, "24gb", "GB .*or GiB"),
        (parse_bytes, "24G", "GB .*or GiB"),
        (parse_rate, "10gbps", "Gbps for bits or GB/s for bytes"),
        (parse_rate, "10GB", "per second; write GB/s"),
        (parse_rate, "10Gb", "per second; write Gbps"),
        (parse_seconds, "3m", "minutes"),
        (parse_flops, "312TFLOP", "per second"),
        (parse_bytes, "24GB/s", "24GiB"),
    ],
)
def test_slips_of_units_are_named(parse, bad, hint):
    with pytest.raises(InputError, match=hint):
        parse(bad)


@pytest.mark.parametrize("bad", ["1e99999999B/s", "1" * 100 + "B/s", "1e-99999999B/s"])
def test_absurd_magnitudes_end_at_once(bad):
    with pytest.raises(InputError, match="plausible"):
        parse_rate(bad)


def test_less_than_a_byte_is_no_size():
    with pytest.raises(InputError, match="at least one byte"):
        parse_bytes("0.1B")


@pytest.mark.parametrize("made", [parse_rate("10Gbps"), parse_bytes("24GiB")])
def test_a_spelled_number_is_that_number(made):
    plain = float(made) if isinstance(made, SpelledFloat) else int(made)
    assert made == plain
    assert hash(made) == hash(plain)
    assert repr(made) == repr(plain)  # fingerprints are built from repr
    assert json.dumps(made) == json.dumps(plain)
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert twin == made
        assert twin.text == made.text
    assert not isinstance(made * 2, SpelledFloat | SpelledInt)


def test_the_spelling_of_another_kind_is_not_kept():
    assert format_bytes(parse_bytes("24GiB")) == "24GiB"
    assert format_rate(SpelledFloat(1e9, "24GiB")) == "1GB/s"


@given(st.integers(1, 2**60))
def test_sizes_survive_printing(value):
    assert parse_bytes(format_bytes(value)) == value


@given(st.floats(1e-9, 1e18))
def test_rates_times_and_flops_survive_printing(value):
    assert parse_rate(format_rate(value)) == value
    assert parse_seconds(format_seconds(value)) == value
    assert parse_flops(format_flops(value)) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(24 * 2**30), "24GiB"),
        (format_bytes(24 * 10**9), "24GB"),
        (format_rate(936.2e9), "936.2GB/s"),
        (format_seconds(0.0), "0.0s"),
        (format_seconds(0.0005), "500us"),
        (format_flops(1307.4e12), "1.3074PFLOPS"),
    ],
)
def test_plain_numbers_print_in_the_largest_exact_unit(text, expected):
    assert text == expected
