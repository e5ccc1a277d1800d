import pytest

from slob_opt.errors import InputError
from solvers.integer_model import IntegerModel


def test_infinite_and_huge_bounds_are_refused_by_name() -> None:
    """O14: a bound of 1e20 or infinity never reaches a solver."""
    model = IntegerModel("m")
    for upper in (float("inf"), float("nan"), 1e20):
        with pytest.raises(InputError, match=r"T of m"):
            model.add_real("T", 0, upper)


def test_row_that_can_pass_two_to_53_is_refused_with_its_name_and_a_unit() -> None:
    """O13: 200 TB as bytes times 100 Booleans is 2e16 > 9.0e15."""
    model = IntegerModel("m")
    fits = [model.add_bool(f"u[{d}]") for d in range(101)]
    model.add_row("memory[0]", {v: 2e14 + i for i, v in enumerate(fits)}, upper=10**15)
    with pytest.raises(InputError, match=r"row memory\[0\] of m .* use MiB"):
        model.check_magnitudes("MiB")


def test_rows_of_whole_numbers_are_divided_by_their_common_divisor() -> None:
    """O06: 9000 a + 7200 b + 10800 c <= 16200 is 5 a + 4 b + 6 c <= 9; the right side is rounded inwards."""
    model = IntegerModel("m")
    a, b, c = (model.add_int(name, 0, 9) for name in "abc")
    model.add_row("r", {a: 9000, b: 7200, c: 10800}, upper=16201, lower=1)
    assert model.rows[0].terms == ((a, 5), (b, 4), (c, 6))
    assert (model.rows[0].lower, model.rows[0].upper) == (1, 9)


def test_rows_with_real_variables_keep_their_coefficients() -> None:
    model = IntegerModel("m")
    x = model.add_real("x", 0, 1)
    model.add_row("r", {x: 10}, upper=5)
    assert model.rows[0].terms == ((x, 10),)


def test_boolean_sum_and_violated_row() -> None:
    model = IntegerModel("m")
    u = [model.add_bool(f"u{i}") for i in range(40)]
    n = model.add_int("n", 0, 7)
    model.add_row("bytes", {**dict.fromkeys(u, 120_000_001), n: 5}, upper=10**9)
    assert model.largest_boolean_sum() == 40 * 120_000_001
    values = dict.fromkeys([*u, n], 0.0)
    assert model.violated_row(values) is None
    assert model.violated_row({**values, **dict.fromkeys(u[:9], 1.0)}) == "bytes"
