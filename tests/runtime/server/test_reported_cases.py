"""What users of such servers reported, by the ids of the collected cases."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from http_servers import MODEL, Running, Serve, open_stream, prompt_of, read_until


def ask(client: httpx.Client, prompt: list[int], **more: object) -> httpx.Response:
    return client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "ignore_eos": True, **more})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("blocks", "prompt"), [(8, 129), (8, 200), (3, 48), (8, 12_000), (64, 12_000)])
def test_a01_a_prompt_beyond_the_kv_pool_is_refused_at_once(
    serve: Serve, blocks: int, prompt: int, stream: bool
) -> None:
    server = serve(engine={"num_blocks": blocks})
    limit = min(16 * blocks, 256)
    server.executor.hold()  # the answer doesn't wait for a step
    with server.client() as client:
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == limit
        found = ask(client, prompt_of(prompt), stream=stream)
    assert found.status_code == 400
    error = found.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    assert str(limit) in error["message"]
    assert str(prompt) in error["message"]
    assert server.used_blocks() == 0


@pytest.mark.parametrize("limits", [{"engine": {"num_blocks": 4}}, {"max_model_len": 64}])
def test_a02_up_to_the_last_token_and_not_beyond(serve: Serve, limits: dict[str, object]) -> None:
    server = serve(**limits)
    with server.client() as client:
        for size, answered in ((62, 2), (63, 1), (64, None), (65, None), (62, 2)):
            found = ask(client, prompt_of(size))
            if answered is None:
                assert found.status_code == 400
                assert found.json()["error"]["code"] == "context_length_exceeded"
                continue
            assert found.status_code == 200, found.text
            assert found.json()["choices"][0]["finish_reason"] == "length"
            assert found.json()["usage"]["completion_tokens"] == answered
        # The answer that is asked for counts too.
        assert ask(client, prompt_of(62), max_tokens=2).status_code == 200
        assert ask(client, prompt_of(62), max_tokens=3).status_code == 400
        assert client.get("/health").status_code == 200
    server.wait_idle()
    assert server.used_blocks() == 0


def test_a04_aborted_streams_leave_no_kv(serve: Serve) -> None:
    server = serve()

    def abort(index: int) -> None:
        sock = open_stream(server, {"prompt": prompt_of(5 + index % 20), "max_tokens": 200, "ignore_eos": True})
        read_until(sock, b"data: ")
        sock.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(abort, range(200)))
    server.wait_idle()
    assert server.used_blocks() == 0
    found = server.metrics()
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert found["slob_requests_pending"] == 0
    assert found["vllm:request_success_total{finished_reason=abort}"] > 150


@pytest.mark.slow
def test_a06_finished_requests_are_forgotten(serve: Serve) -> None:
    server = serve()
    process = psutil.Process()

    def ask_many(count: int) -> None:
        with ThreadPoolExecutor(8) as pool, server.client() as client:
            found = list(pool.map(lambda index: ask(client, [3 + index % 50, 4], max_tokens=2), range(count)))
        assert all(one.status_code == 200 for one in found)

    ask_many(200)  # what is made once, is made
    before = process.memory_info().rss
    ask_many(800)
    server.wait_idle()
    found = server.metrics()
    assert found["slob_requests_pending"] == 0
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
    assert found["vllm:request_success_total{finished_reason=length}"] == 1000
    assert server.frontend.exchange.num_live == 0
    assert process.memory_info().rss - before < 16 * 2**20


def test_a07_metrics_have_vllms_names_of_today(shared: Running) -> None:
    with shared.client() as client:
        ask(client, [5, 6, 7], max_tokens=4)
        text = client.get("/metrics").text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    for name in ("time_to_first_token", "inter_token_latency", "request_time_per_output_token", "e2e_request_latency"):
        assert f"vllm:{name}_seconds_bucket" in names
    for name in (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
        "prompt_tokens_total", "generation_tokens_total", "request_success_total",
    ):  # fmt: skip
        assert f"vllm:{name}" in names
    assert "vllm:time_per_output_token_seconds_bucket" not in names


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("body", ["{", "[]", '{"messages": 3}', ""])
def test_a08_malformed_bodies(shared: Running, path: str, body: str) -> None:
    with shared.client() as client:
        found = client.post(path, content=body)
        assert found.status_code == 400
        error = json.loads(found.text)["error"]
        assert error["type"] == "invalid_request_error"
        assert set(error) == {"message", "type", "param", "code"}
        assert client.get("/health").status_code == 200
