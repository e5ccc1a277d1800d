"""Metrics: each figure is what happened."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from engine_setups import two_pipelines
from http_servers import MODEL, Running, Serve, prompt_of, samples, wait_until
from prometheus_client.parser import text_string_to_metric_families

from runtime.generation import EndEvent, GenerationRequest, Reason, TokenEvent
from runtime.server.metrics import ServerMetrics
from runtime.server.replies import Part
from runtime.server.status_metrics import num_new_faults
from slob_opt.metrics.satisfaction import SatisfactionSpec

MS = 1_000_000


def answered(metrics: ServerMetrics, arrival_ms: int, token_ms: list[int], reason: Reason = Reason.LENGTH) -> None:
    """Let a request happen whose prompt has three tokens."""
    part = Part(GenerationRequest((5, 6, 7), 9), arrival_ms * MS)
    for index, at in enumerate(token_ms):
        part.token_ns.append(at * MS)
        metrics.token(part, TokenEvent(5, "a", index, at * MS))
    last = (token_ms[-1] if token_ms else arrival_ms) * MS
    metrics.ended(part, EndEvent(reason, "", "", 3, len(token_ms), last))


def seen(metrics: ServerMetrics) -> dict[str, float]:
    return samples(metrics.text(None, 0).decode())


def test_the_first_token_is_no_gap_and_one_token_gives_no_time_per_token() -> None:
    # Cases X08 and X09: tokens at 2.0, 2.1, 2.2, 2.3 s after arrival, then two answers of one token.
    metrics = ServerMetrics(MODEL, SatisfactionSpec(), None)
    answered(metrics, 0, [2000, 2100, 2200, 2300])
    answered(metrics, 0, [1000])
    answered(metrics, 0, [1200])
    found = seen(metrics)
    assert found["vllm:time_to_first_token_seconds_count"] == 3
    assert found["vllm:time_to_first_token_seconds_sum"] == pytest.approx(4.2)
    assert found["vllm:inter_token_latency_seconds_count"] == 3
    assert found["vllm:inter_token_latency_seconds_sum"] == pytest.approx(0.3)
    assert found["vllm:request_time_per_output_token_seconds_count"] == 1
    assert found["vllm:request_time_per_output_token_seconds_sum"] == pytest.approx(0.1)
    assert found["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(4.5)
    assert found["vllm:prompt_tokens_total"] == 9
    assert found["vllm:generation_tokens_total"] == 6
    assert found["vllm:request_generation_tokens_sum"] == 6


def test_satisfaction_counts_failures_as_nothing_and_leaves_aborts_out() -> None:
    metrics = ServerMetrics(MODEL, SatisfactionSpec(), None)
    answered(metrics, 0, [100, 200])  # in time: 1
    answered(metrics, 0, [6000])  # 5 s late with sigma 5: a half
    answered(metrics, 0, [], Reason.REJECTED)
    answered(metrics, 0, [100], Reason.ERROR)
    answered(metrics, 0, [100], Reason.ABORT)
    found = seen(metrics)
    assert found["slob_request_satisfaction_count"] == 4
    assert found["slob_request_satisfaction_sum"] == pytest.approx(1.5)
    assert found["vllm:request_success_total{finished_reason=length}"] == 2
    assert found["vllm:request_success_total{finished_reason=error}"] == 1
    assert found["vllm:request_success_total{finished_reason=abort}"] == 1
    assert found["vllm:request_success_total{finished_reason=stop}"] == 0
    assert found["slob_requests_refused_total{why=dispatcher}"] == 1
    assert found["vllm:e2e_request_latency_seconds_count"] == 2


def test_new_faults_are_counted_once() -> None:
    assert num_new_faults((), ()) == 0
    assert num_new_faults((), ("a",)) == 1
    assert num_new_faults(("a",), ("a",)) == 0
    assert num_new_faults(("a",), ("a", "a")) == 1
    assert num_new_faults(("b", "a"), ("c", "b")) == 1  # the oldest one fell out
    assert num_new_faults(("b", "a"), ("d", "c")) == 2


def test_two_servers_do_not_share_their_counts() -> None:
    one, other = (ServerMetrics(MODEL, SatisfactionSpec(), gap) for gap in (0.25, None))
    answered(one, 0, [5])
    assert seen(one)["vllm:generation_tokens_total"] == 1
    assert seen(other)["vllm:generation_tokens_total"] == 0
    assert seen(one)["slob_plan_gap"] == 0.25
    assert "slob_plan_gap" not in seen(other)


def test_the_engines_state_while_it_serves(serve: Serve) -> None:
    server = serve(placement=two_pipelines(), plan_gap=0.125)
    with server.client() as client:
        for size in (4, 5):
            body = {"model": MODEL, "prompt": prompt_of(size), "max_tokens": 3, "ignore_eos": True}
            assert client.post("/v1/completions", json=body).status_code == 200
    server.wait_idle()
    found = server.metrics()
    assert found["slob_pipelines_up"] == 2
    assert found["slob_engine_up"] == 1
    assert found["slob_engine_draining"] == 0
    assert found["slob_plan_gap"] == 0.125
    assert found["vllm:num_preemptions_total"] == 0
    busy = {key: value for key, value in found.items() if key.startswith("slob_stage_busy_seconds_total")}
    assert set(busy) == {
        "slob_stage_busy_seconds_total{device=box/0,pipeline=0,stage=0}",
        "slob_stage_busy_seconds_total{device=box/1,pipeline=1,stage=0}",
    }
    assert sum(busy.values()) > 0
    assert found["slob_stage_emulated{device=box/0,pipeline=0,stage=0}"] == 0
    assert found["slob_pipeline_waiting{pipeline=1}"] == 0
    assert found["vllm:request_prompt_tokens_sum"] == 9
    assert found["process_resident_memory_bytes"] > 0


def test_waiting_running_and_kv_while_a_step_is_held(serve: Serve) -> None:
    server = serve(engine={"max_rows": 1})
    server.executor.hold()
    with ThreadPoolExecutor(3) as pool, server.client() as client:
        body = {"model": MODEL, "prompt": prompt_of(20), "max_tokens": 3, "ignore_eos": True}
        asked = [pool.submit(client.post, "/v1/completions", json=body) for _ in range(3)]
        wait_until(lambda: sum(one.running + one.waiting for one in server.engine.status().pipelines) == 3)
        found = server.metrics()
        server.executor.release()
        assert all(one.result(60).status_code == 200 for one in asked)
    assert found["vllm:num_requests_running"] == found["slob_pipeline_running{pipeline=0}"] == 1
    assert found["vllm:num_requests_waiting"] == found["slob_pipeline_waiting{pipeline=0}"] == 2
    assert found["slob_requests_pending"] == 3
    assert 0 < found["vllm:kv_cache_usage_perc"] < 0.1


def test_the_text_is_what_prometheus_reads(shared: Running) -> None:
    with shared.client() as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family.type for family in text_string_to_metric_families(answer.text)}
    assert families["vllm:num_requests_running"] == "gauge"
    assert families["vllm:generation_tokens"] == "counter"
    assert families["vllm:inter_token_latency_seconds"] == "histogram"
    assert families["slob_stage_busy_seconds"] == "counter"
    with shared.client() as client:
        labels = client.get("/metrics").text
    assert f'model_name="{MODEL}"' in labels
