"""More than the server can take: who is told to come again, and when."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from http_servers import MODEL, Serve, prompt_of, wait_until

from runtime.generation import RequestRefused
from runtime.server.errors import of_refusal

ASK = {"model": MODEL, "prompt": prompt_of(10), "max_tokens": 5, "ignore_eos": True}


def test_too_many_that_wait_are_told_when_to_come_again(serve: Serve) -> None:
    server = serve(max_waiting=3, retry_after_s=7)
    server.executor.hold()
    with ThreadPoolExecutor(3) as pool, server.client() as client:
        taken = [pool.submit(client.post, "/v1/completions", json={**ASK, "stream": index == 1}) for index in range(3)]
        wait_until(lambda: server.frontend.exchange.num_waiting == 3)
        for stream in (False, True):
            found = client.post("/v1/completions", json={**ASK, "stream": stream})
            assert found.status_code == 429
            assert found.headers["retry-after"] == "7"
            assert found.json()["error"]["code"] == "rate_limit_exceeded"
            assert found.json()["error"]["type"] == "rate_limit_error"
        server.executor.release()
        assert [one.result(60).status_code for one in taken] == [200] * 3
        assert client.post("/v1/completions", json=ASK).status_code == 200
    assert server.metrics()["slob_requests_refused_total{why=full}"] == 2


def test_prompts_of_one_request_count_each(serve: Serve) -> None:
    server = serve(max_waiting=3)
    server.executor.hold()
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        many = pool.submit(client.post, "/v1/completions", json={**ASK, "prompt": [[5], [6]]})
        wait_until(lambda: server.frontend.exchange.num_waiting == 2)
        assert client.post("/v1/completions", json={**ASK, "prompt": [[5], [6]]}).status_code == 429
        assert client.post("/v1/completions", json={**ASK, "prompt": [[5], [6], [7], [8]]}).status_code == 400
        server.executor.release()
        assert many.result(60).status_code == 200


def test_more_requests_than_kv_all_get_their_answers(serve: Serve) -> None:
    server = serve(engine={"num_blocks": 8})
    with ThreadPoolExecutor(24) as pool, server.client() as client:
        found = list(
            pool.map(lambda index: client.post("/v1/completions", json={**ASK, "max_tokens": 5 + index}), range(24))
        )
    assert [one.status_code for one in found] == [200] * 24
    assert [one.json()["usage"]["completion_tokens"] for one in found] == list(range(5, 29))
    server.wait_idle()
    assert server.used_blocks() == 0


def test_each_refusal_of_the_engine_has_its_status() -> None:
    found = {
        kind: of_refusal(RequestRefused(kind, "why"), 3) for kind in ("too_long", "invalid", "busy", "unavailable")
    }
    assert {kind: error.status for kind, error in found.items()} == {
        "too_long": 400,
        "invalid": 400,
        "busy": 429,
        "unavailable": 503,
    }
    assert found["too_long"].code == "context_length_exceeded"
    assert found["busy"].headers == {"Retry-After": "3"}


def test_limits_of_the_operator(serve: Serve) -> None:
    server = serve(max_answer_tokens=20, default_max_tokens=7, max_model_len=100)
    with server.client() as client:
        assert client.post("/v1/completions", json={**ASK, "max_tokens": 21}).status_code == 400
        assert client.post("/v1/completions", json={**ASK, "max_tokens": 20}).status_code == 200
        found = client.post("/v1/completions", json={**ASK, "max_tokens": None})
        assert found.json()["usage"]["completion_tokens"] == 7
        assert client.post("/v1/completions", json={**ASK, "prompt": prompt_of(100)}).status_code == 400
        near = client.post("/v1/completions", json={**ASK, "prompt": prompt_of(97), "max_tokens": None})
        assert near.json()["usage"]["completion_tokens"] == 3
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 100


def test_what_the_dispatcher_does_not_want_is_told_to_come_again(serve: Serve) -> None:
    # Each request has to bring five times what one can, unless its weight says more.
    server = serve(dispatcher=("slob", {"least_gain": 5}))
    with server.client() as client:
        for stream in (False, True):
            found = client.post("/v1/completions", json={**ASK, "stream": stream})
            assert found.status_code == 429
            assert "dispatcher" in found.json()["error"]["message"]
            assert "retry-after" in found.headers
        assert client.post("/v1/completions", json={**ASK, "priority": 100}).status_code == 200
    server.wait_idle()
    metrics = server.metrics()
    assert metrics["slob_requests_refused_total{why=dispatcher}"] == 2
    assert metrics["slob_requests_pending"] == 0
