"""What commands say is served, and by what."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving_systems import one_l4

from experiments.serving_load import offered_rate, service_s
from experiments.serving_problem import is_preset, parse_params, policy_choices, with_model_limit
from experiments.serving_setup import ServingOptions
from experiments.workload_source import TraceOptions
from slob_opt.errors import InputError
from slob_opt.problem.catalogue import model
from slob_opt.problem.files.traces import RowFault


def test_a_workload_is_a_preset_a_trace_or_an_error(tmp_path: Path) -> None:
    trace = tmp_path / "a.csv"
    trace.write_text("x", encoding="utf-8")
    assert is_preset("office_chat")
    assert not is_preset("example")
    assert not is_preset(str(trace))
    with pytest.raises(InputError, match="did you mean 'office_chat'"):
        is_preset("ofice_chat")
    with pytest.raises(InputError, match=r"missing\.csv: no such file"):
        is_preset("missing.csv")


def test_rows_over_the_model_are_skipped_and_counted_unless_clipped() -> None:
    limited = with_model_limit(TraceOptions("example"), model("llama-2-7b"))
    assert (limited.max_tokens, limited.skip) == (4096, (RowFault.TOO_LONG,))
    own = TraceOptions("example", max_tokens=100)
    assert with_model_limit(own, model("llama-2-7b")) is own


def test_parameters_belong_to_a_policy() -> None:
    assert parse_params(["chunk_tokens=64"], "chunked") == {"chunked": {"chunk_tokens": "64"}}
    for text, words in (("chunk_tokens", "expected name=value"), ("chunk_tokens=64", "doesn't say whose")):
        with pytest.raises(InputError, match=words):
            parse_params([text], "chunked,orca")


def test_policies_are_checked_before_anything_runs() -> None:
    choices = policy_choices("chunked, orca", {"chunked": {"chunk_tokens": "64"}}, "slob")
    assert [choice.label for choice in choices] == ["chunked", "orca"]
    for policies, params, dispatcher, words in (
        ("", {}, "slob", "expected names"),
        ("orca,orca", {}, "slob", "stands twice"),
        ("orca", {"slob": {}}, "slob", "parameters are given for 'slob'"),
        ("orca", {}, "slb", "no dispatcher 'slb'"),
        ("chunked", {"chunked": {"chunk": "1"}}, "slob", "has no parameter 'chunk'"),
    ):
        with pytest.raises(InputError, match=words):
            policy_choices(policies, params, dispatcher)


def test_an_offered_load_is_a_rate_by_the_time_alone() -> None:
    system = one_l4()
    alone_s = service_s("shop_floor_qa", system)
    assert offered_rate("shop_floor_qa", system, 2.0) == pytest.approx(2 / alone_s)
    with pytest.raises(InputError, match="can hold no request of preset shop_floor_qa"):
        service_s("shop_floor_qa", one_l4(ServingOptions(kv_blocks=1)))
