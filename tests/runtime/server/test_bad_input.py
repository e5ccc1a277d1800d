"""Wrong requests: each gets an error in OpenAI's shape that says what is wrong, and the server goes on."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from http_servers import MODEL, VOCAB, Running, Serve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "5 6"}], "max_tokens": 2}


def error_of(server: Running, path: str, body: Any, status: int = 400, **headers: str) -> dict[str, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with server.client() as client:
        found = client.post(path, content=raw, headers=headers)
        assert found.status_code == status, found.text
        assert client.get("/health").status_code == 200
    error: dict[str, Any] = found.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"{", "valid JSON"),
        (b"null", "null"),
        (b'"text"', "string"),
        (b"12", "number"),
        (b" \n", "empty"),
        (b'{"model": "\xff"}', "UTF-8"),
        ("{}".encode("utf-16"), "UTF-8"),
        (b"\xef\xbb\xbf{}", "valid JSON"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": -Infinity}', "Infinity"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"messages": ' + b"[" * 40_000 + b"]" * 40_000 + b"}", "nested"),
        (b'{"model": "\\ud800"}', "surrogate"),
        (b'{"model": "tiny",}', "valid JSON"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_bodies_that_are_no_json_object(shared: Running, path: str, raw: bytes, said: str) -> None:
    error = error_of(shared, path, raw)
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("max_tokens", [5]),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", 1e308),
        ("top_p", 1.01),
        ("top_p", -1),
        ("top_k", -2),
        ("top_k", 10**30),
        ("top_k", 1.5),
        ("seed", 2**63),
        ("seed", 10**400),
        ("seed", "one"),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", [""]),
        ("stop", ""),
        ("stop", [5]),
        ("stop", {"a": 1}),
        ("stop", "x" * 2000),
        ("stream", "yes"),
        ("priority", 0),
        ("priority", -1),
        ("priority", "high"),
        ("slo", {"ttft_s": 0}),
        ("slo", {"ttft": 1}),
        ("slo", 3),
        ("user", 5),
        ("ignore_eos", 1),
        ("stream_options", {"include_usage": True}),
        ("logit_bias", {"5": 1}),
        ("n", 2),
        ("n", 0),
        ("best_of", 3),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", {"type": "json_object"}),
        ("min_p", 0.1),
        ("repetition_penalty", 1.1),
        ("structured_outputs", {"regex": "a"}),
        ("stop_token_ids", [5]),
        ("echo", True),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_field_that_is_wrong_is_named(shared: Running, path: str, field: str, value: object) -> None:
    what = ASK if path == CHAT else {"model": MODEL, "prompt": "5 6"}
    error = error_of(shared, path, {**what, field: value})
    assert error["param"] == field
    assert field in error["message"] or field == "stop"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("modalities", ["text", "audio"]),
        ("web_search_options", {}),
        ("logprobs", 3),
        ("top_logprobs", 21),
        ("top_logprobs", 2),
        ("max_completion_tokens", 0),
        ("continue_final_message", True),
        ("messages", []),
        ("messages", [5]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "wizard", "content": "5"}]),
        ("messages", [{"role": "tool", "content": "5", "tool_call_id": "1"}]),
        ("messages", [{"content": "5"}]),
        ("messages", [{"role": ["user"], "content": "5"}]),
        ("messages", [{"role": "assistant", "content": None, "tool_calls": [{}]}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
        ("messages", [{"role": "user", "content": ["5"]}]),
    ],
)
def test_what_chat_can_not_do_is_refused(shared: Running, field: str, value: object) -> None:
    assert error_of(shared, CHAT, {**ASK, field: value})["param"] == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "end"),
        ("logprobs", True),
        ("logprobs", 21),
        ("prompt", None),
        ("prompt", 5),
        ("prompt", ""),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", ["5", 6]),
        ("prompt", ["5", ""]),
        ("prompt", [5, "6"]),
        ("prompt", [5, -1]),
        ("prompt", [5, VOCAB]),
        ("prompt", [10**400]),
        ("prompt", [True]),
        ("prompt", [5.0]),
        ("prompt", {"text": "5"}),
        ("prompt", ["5"] * 65),
    ],
)
def test_what_completions_can_not_do_is_refused(shared: Running, field: str, value: object) -> None:
    assert error_of(shared, TEXT, {"model": MODEL, "prompt": "5 6", field: value})["param"] == field


def test_a_missing_field_is_named(shared: Running) -> None:
    assert error_of(shared, CHAT, {"model": MODEL})["code"] == "missing_required_parameter"
    assert error_of(shared, TEXT, {"model": MODEL})["param"] == "prompt"


@pytest.mark.parametrize("size", [300, 10**30])
def test_an_answer_that_cannot_fit_is_refused_with_the_numbers(shared: Running, size: int) -> None:
    error = error_of(shared, CHAT, {**ASK, "max_tokens": size})
    assert error["code"] == "context_length_exceeded"
    assert "256" in error["message"]


def test_harmless_and_unknown_fields_are_passed_over(shared: Running) -> None:
    more = {
        "n": 1, "logit_bias": {}, "tools": [], "tool_choice": "auto", "response_format": {"type": "text"},
        "presence_penalty": 0.0, "frequency_penalty": 0, "store": True, "metadata": {"a": "b"}, "service_tier": "auto",
        "parallel_tool_calls": True, "reasoning_effort": "low", "modalities": ["text"], "stop": None, "seed": None,
        "stream": None, "top_k": -1, "something_of_tomorrow": [1, 2], "user": "ann", "temperature": 1e-300, "top_p": 0,
    }  # fmt: skip
    with shared.client() as client:
        assert client.post(CHAT, json={**ASK, **more}).status_code == 200


FIELDS = (
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed",
    "stop", "stream", "stream_options", "logprobs", "top_logprobs", "n", "user", "priority", "slo", "ignore_eos",
    "tools", "echo", "logit_bias", "response_format",
)  # fmt: skip
INNER = ("role", "content", "type", "text", "ttft_s", "include_usage")
SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.integers(-2, 6) | st.floats() | st.text(max_size=8)
    | st.sampled_from([MODEL, "user", "role", "content", "text", "type"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "ttft_s", "include_usage"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(
    st.sampled_from([CHAT, TEXT]),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6),
    st.booleans(),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_is_a_mistake_of_the_server(shared: Running, path: str, more: dict[str, Any], is_based: bool) -> None:
    base = {"messages": ASK["messages"], "prompt": "5 6", "max_tokens": 2} if is_based else {}
    try:
        raw = json.dumps({**base, **more}).encode()
    except UnicodeEncodeError:
        return
    with shared.client() as client:
        found = client.post(path, content=raw)
    assert found.status_code in (200, 400, 404), (found.text, raw)
    if found.status_code != 200:
        assert set(found.json()["error"]) == {"message", "type", "param", "code"}


def test_paths_and_methods_that_are_not_there(shared: Running) -> None:
    with shared.client() as client:
        for method, path, status in (
            ("GET", "/v2/models", 404),
            ("POST", "/v1/embeddings", 404),
            ("GET", "/v1/chat/completions", 405),
            ("DELETE", "/v1/models", 405),
            ("POST", "/metrics", 405),
            ("GET", "/v1/models/", 404),
        ):
            found = client.request(method, path)
            assert found.status_code == status, (method, path)
            assert found.json()["error"]["type"] == "invalid_request_error"
        assert client.get("/v1/completions").headers["allow"] == "POST"


def test_a_body_that_is_too_large(shared: Running) -> None:
    big = {**ASK, "metadata": "x" * 200_000}
    assert error_of(shared, CHAT, big, 413)["code"] == "request_too_large"

    def parts() -> Any:  # chunked: no length is told beforehand
        for _ in range(20):
            yield b"x" * 10_000

    with shared.client() as client:
        assert client.post(CHAT, content=parts()).status_code == 413
        # One that is beyond all measure isn't even read to its end.
        found = client.post(CHAT, content=b"x" * 700_000)
        assert found.status_code == 413


def test_a_body_that_never_comes(serve: Serve) -> None:
    server = serve(body_timeout_s=0.05)
    with socket.create_connection(server.address, timeout=60) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        found = sock.recv(4096)
    assert b" 408 " in found.splitlines()[0]


class TestKey:
    @pytest.fixture
    def server(self, serve: Serve) -> Running:
        return serve(api_key="s3cret")

    @pytest.mark.parametrize(
        "header", [None, "", "Bearer", "Bearer wrong", "Bearer s3cre", "s3cret", "Basic s3cret", "Bearer sécret"]
    )
    def test_without_it_nothing_is_told(self, server: Running, header: str | None) -> None:
        with server.client() as client:
            headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
            for found in (client.post(CHAT, json=ASK, headers=headers), client.get("/v1/models", headers=headers)):
                assert found.status_code == 401
                assert found.json()["error"]["code"] == "invalid_api_key"
                assert "s3cret" not in found.text

    def test_with_it_all_works_and_operators_need_none(self, server: Running) -> None:
        with server.client() as client:
            right = {"Authorization": "Bearer s3cret"}
            assert client.post(CHAT, json={**ASK, "user": "ann"}, headers=right).status_code == 200
            assert client.get("/v1/models", headers={"Authorization": "bearer s3cret"}).status_code == 200
            server.wait_idle()
            for path in ("/", "/health", "/metrics", "/status.json"):
                assert client.get(path).status_code == 200
            # Who asks is nobody's business without the key.
            assert client.get("/status.json").json()["engine"]["latest"][0]["label"] is None


def test_a_label_comes_from_user_or_header(serve: Serve) -> None:
    server = serve()
    with server.client() as client:
        first = client.post(CHAT, json=ASK, headers={"X-Request-Id": "run-7/3"})
        assert first.headers["x-request-id"] == "run-7/3"
        second = client.post(CHAT, json={**ASK, "user": "ann"}, headers={"X-Request-Id": "a" * 500})
        assert second.headers["x-request-id"] == "a" * 128
        third = client.post(CHAT, json={**ASK, "max_tokens": -1})
        assert third.status_code == 400
        assert third.headers["x-request-id"]
    server.wait_idle()
    assert [one.label for one in server.engine.status().latest] == ["ann", "run-7/3"]
