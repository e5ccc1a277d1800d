"""Status matrix: each back end ends each kind of model with the same word of ours (O02, O04, O05, O06, O10)."""

import random

import pytest

from slob_opt.errors import InputError
from solvers import cpsat_adapter, pulp_adapter
from solvers.backend import BackendAnswer, BackendLimits, Ending
from solvers.integer_model import IntegerModel
from solvers.messages import Backend

BACKENDS = [Backend.HIGHS, Backend.CBC, Backend.CPSAT]


class Memo:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.solutions: list[dict[int, float]] = []
        self.bounds: list[float] = []

    def on_solution(self, values: object) -> None:
        self.solutions.append(dict(values))  # type: ignore[call-overload]

    def on_bound(self, bound: float) -> None:
        self.bounds.append(bound)


def solve(backend: Backend, model: IntegerModel, limits: BackendLimits, memo: Memo | None = None) -> BackendAnswer:
    memo = memo or Memo()
    if backend is Backend.CPSAT:
        pytest.importorskip("ortools", reason="pip install 'slob[exact]'")
        return cpsat_adapter.solve(model, limits, memo)
    pytest.importorskip("pulp", reason="pip install 'slob[exact]'")
    if backend is Backend.HIGHS:
        pytest.importorskip("highspy", reason="pip install 'slob[exact]'")
    elif not pulp_adapter.has_cbc():
        pytest.skip("CBC comes with neither this PuLP nor this machine: pip install 'pulp[cbc]'")
    return pulp_adapter.solve(model, limits, memo, backend=backend.value)


def knapsack() -> IntegerModel:
    """max 5a + 4b + 3c, 2a + 3b + c <= 5, 4a + b + 2c <= 11, 3a + 4b + 2c <= 8, whole: a = 2, c = 1 make 13."""
    model = IntegerModel("knapsack")
    a, b, c = (model.add_int(name, 0, 5) for name in "abc")
    for i, (terms, limit) in enumerate((((2, 3, 1), 5), ((4, 1, 2), 11), ((3, 4, 2), 8))):
        model.add_row(f"r{i}", dict(zip((a, b, c), terms, strict=True)), upper=limit)
    model.objective.update({a: -5, b: -4, c: -3})
    return model


def market_split(num_picks: int = 40, num_rows: int = 5, *, is_exact: bool = False) -> IntegerModel:
    """Half of each of some rows of random weights: least distance, or exactly (a solution is planted).

    Easy to satisfy with a distance, hard to prove; hard to meet exactly.

    References
    ----------
    Cornuejols, Dawande (1998), A class of hard small 0-1 programs: 10 (rows - 1) columns, weights up to 99.
    """
    rng = random.Random(20)
    model = IntegerModel("market split")
    picks = [model.add_bool(f"x{i}") for i in range(num_picks)]
    planted = [rng.random() < 0.5 for _ in picks]
    for r in range(num_rows):
        weights = [rng.randint(0, 99) for _ in picks]
        terms = dict(zip(picks, map(float, weights), strict=True))
        if is_exact:
            model.add_equal(f"half{r}", terms, sum(w for w, is_in in zip(weights, planted, strict=True) if is_in))
            continue
        over, under = model.add_int(f"o{r}", 0, 10**4), model.add_int(f"n{r}", 0, 10**4)
        model.add_equal(f"half{r}", {**terms, over: -1, under: 1}, sum(weights) // 2)
        model.objective.update({over: 1, under: 1})
    model.objective.update({picks[0]: 1.0} if is_exact else {})
    return model


@pytest.mark.parametrize("backend", BACKENDS)
def test_optimum(backend: Backend) -> None:
    answer = solve(backend, knapsack(), BackendLimits(60.0))
    assert answer.ending is Ending.FINISHED
    assert answer.values == {0: pytest.approx(2), 1: pytest.approx(0), 2: pytest.approx(1)}
    assert answer.bound == pytest.approx(-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_infeasible(backend: Backend) -> None:
    model = knapsack()
    model.add_row("too much", {0: 1, 1: 1, 2: 1}, lower=9)
    answer = solve(backend, model, BackendLimits(60.0))
    assert answer.ending is Ending.INFEASIBLE
    assert answer.values is None
    assert answer.bound is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_limit_with_a_solution_is_not_optimal_and_keeps_it(backend: Backend) -> None:
    """O02 (PuLP: "Optimal"), O05 (infeasible), O23 (empty result): on a limit the solution at hand comes back."""
    model, memo = market_split(), Memo()
    answer = solve(backend, model, BackendLimits(1.0), memo)
    assert answer.ending is Ending.LIMIT
    assert answer.values is not None
    assert model.violated_row(answer.values) is None
    value = sum(c * answer.values[v] for v, c in model.objective.items())
    if backend is not Backend.CBC:  # tells nothing while it runs, and no bound
        assert memo.solutions
        assert answer.bound is not None
        assert answer.bound <= value
    assert answer.bound is None or answer.bound < value


@pytest.mark.parametrize("backend", BACKENDS)
def test_limit_without_a_solution_has_no_values(backend: Backend) -> None:
    """O04: a model whose rows are hard to meet at all, stopped at once; variables are not read."""
    answer = solve(backend, market_split(60, 7, is_exact=True), BackendLimits(0.5, deterministic_s=0.1))
    assert answer.ending is Ending.LIMIT
    assert answer.values is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_reported_infeasible_row_of_nine_thousands(backend: Backend) -> None:
    """O06: 9000 a + 7200 b + 10800 c == 16200 * 2 has the solution a = 2, b = 2, c = 0; rows arrive divided by gcd."""
    model = IntegerModel("m")
    a, b, c = (model.add_int(name, 0, 3) for name in "abc")
    model.add_equal("mix", {a: 9000, b: 7200, c: 10800}, 32400)
    assert model.rows[0].terms == ((a, 5), (b, 4), (c, 6))
    model.objective.update({c: 1, a: 1})
    answer = solve(backend, model, BackendLimits(60.0))
    assert answer.ending is Ending.FINISHED
    assert answer.values is not None
    assert 5 * answer.values[a] + 4 * answer.values[b] + 6 * answer.values[c] == pytest.approx(18)


@pytest.mark.parametrize("backend", [Backend.HIGHS, Backend.CPSAT])
def test_rows_with_conditions(backend: Backend) -> None:
    """x >= 3 only if both literals are 1; the cheapest way out of x = 0 is to drop one literal."""
    model = IntegerModel("m")
    p, q = model.add_bool("p"), model.add_bool("q")
    x = model.add_int("x", 0, 10)
    model.add_row("cond", {x: 1}, lower=3, only_if=(p, q))
    model.objective.update({x: 1, p: -2, q: -2})
    # both literals: 3 - 4 = -1; one: 0 - 2 = -2
    answer = solve(backend, model, BackendLimits(60.0))
    assert answer.bound == pytest.approx(-2)


def test_sum_of_forty_booleans_beyond_two_to_31_under_a_condition() -> None:
    """O10: sum of 40 * 1.2e8 = 4.8e9 > 2^31 under a literal; CP-SAT and HiGHS prove the same optimum."""

    def build() -> IntegerModel:
        model = IntegerModel("bytes")
        on = model.add_bool("on")
        picks = [model.add_bool(f"x{i}") for i in range(40)]
        sizes = {v: 120_000_000 + 1_000_003 * i for i, v in enumerate(picks)}
        model.add_row("memory", sizes, upper=10**9, only_if=(on,))
        model.add_row("pairs", dict.fromkeys(picks[:20], 1), upper=9)
        model.objective.update({on: -4.0, **dict.fromkeys(picks, -1.0)})
        return model

    assert build().largest_boolean_sum() > 2**31
    found = [solve(b, build(), BackendLimits(60.0)) for b in (Backend.CPSAT, Backend.HIGHS)]
    # off: 9 + 20 = 29; on: seven of the smallest (0.86e9) and 4 make 11
    assert [answer.bound for answer in found] == [pytest.approx(-29), pytest.approx(-29)]


def test_ilp_refuses_circuits_and_cpsat_refuses_reals() -> None:
    model = knapsack()
    model.add_real("r", 0, 1)
    pytest.importorskip("ortools", reason="pip install 'slob[exact]'")
    with pytest.raises(InputError, match="real"):
        cpsat_adapter.build(model)
    other = knapsack()
    other.circuits.append(())
    with pytest.raises(InputError, match="circuits"):
        pulp_adapter.build(other)


def test_unknown_back_end_is_named() -> None:
    with pytest.raises(InputError, match=r"'scip'.*'highs' or 'cbc'"):
        pulp_adapter.solve(knapsack(), BackendLimits(1.0), Memo(), backend="scip")
