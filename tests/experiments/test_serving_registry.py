"""Names of policies and dispatchers: all can be made, fixed fields stay, unknown names are told the nearest."""

from __future__ import annotations

import pytest

from experiments.registry import (
    dispatcher_names,
    make_dispatcher,
    make_policy,
    parameters,
    policy_entry,
    policy_names,
)
from slob_opt.errors import InputError
from slob_opt.scheduling.dispatchers.blind import RandomDispatcher
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policies.run_to_completion import RunToCompletionPolicy


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_answers_to_its_name(name: str) -> None:
    policy = make_policy(name)
    assert policy.name == name
    assert bool(getattr(policy, "is_clairvoyant", False)) is policy_entry(name).is_clairvoyant
    assert ("clairvoyant" in name) is policy_entry(name).is_clairvoyant


@pytest.mark.parametrize("name", policy_names())
def test_defaults_may_be_given_as_they_are(name: str) -> None:
    given = {key: parameter.default for key, parameter in parameters(policy_entry(name)).items()}
    assert make_policy(name, given) == make_policy(name)


@pytest.mark.parametrize("name", dispatcher_names())
def test_every_dispatcher_answers_to_its_name(name: str) -> None:
    assert make_dispatcher(name, seed=5).name == name


def test_parameters_reach_the_policy() -> None:
    assert make_policy("chunked", {"chunk_tokens": "256"}) == ChunkedPolicy(256)
    assert isinstance(found := make_dispatcher("random", seed=9), RandomDispatcher)
    assert found.seed == 9


def test_run_to_completion_has_a_name_for_each_kind() -> None:
    for name, is_streamed, drops in (
        ("rtc", False, False), ("rtc-streamed", True, False), ("rtc-drops", False, True),
        ("rtc-streamed-drops", True, True),
    ):  # fmt: skip
        policy = make_policy(name)
        assert isinstance(policy, RunToCompletionPolicy)
        assert (policy.is_streamed, policy.drops_finished) == (is_streamed, drops)


def test_what_makes_an_entry_cannot_be_changed() -> None:
    for name, params in (("rtc-streamed", {"is_streamed": False}), ("chunked", {"name": "other"})):
        with pytest.raises(InputError, match="has no parameter"):
            make_policy(name, params)
    with pytest.raises(InputError, match="has no parameter 'seed'"):
        make_dispatcher("random", {"seed": 1})


def test_unknown_names_are_told_the_nearest() -> None:
    with pytest.raises(InputError, match="no policy 'chnked'; did you mean 'chunked'"):
        make_policy("chnked")
    with pytest.raises(InputError, match="no dispatcher 'shortest'; did you mean 'shortest-time'"):
        make_dispatcher("shortest")


@pytest.mark.parametrize(
    ("name", "params"),
    [("chunked", {"chunk_tokens": 0}), ("prefill-first", {"max_prefill_tokens": "0"}), ("mlfq", {"num_levels": 0})],
)
def test_values_out_of_range_are_refused(name: str, params: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(params))} is 0"):
        make_policy(name, params)
    with pytest.raises(InputError, match="expected_output is 0"):
        make_dispatcher("shortest-time", {"expected_output": 0})
