"""Ports, signals and going down; workers that die under a stream."""

from __future__ import annotations

import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from engine_setups import two_pipelines
from http_servers import MODEL, Serve, open_stream, pieces, prompt_of, read_until, running, wait_until

from runtime.server import ServerOptions, check_port, listen, serve
from runtime.server.serving import address_of
from slob_opt.errors import InputError

ASK = {"model": MODEL, "prompt": prompt_of(10), "max_tokens": 40, "ignore_eos": True}


def test_a_port_in_use_is_one_sentence() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(InputError, match=rf"^port {port} on 127.0.0.1 is in use, expected a free one"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)  # and free again


@pytest.mark.parametrize("host", ["256.1.1.1", "no-such-host.invalid", "192.0.2.1", "a" * 300])
def test_a_host_that_is_not_here(host: str) -> None:
    with pytest.raises(InputError, match="expected"):
        check_port(host, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70_000},
        {"model_name": ""},
        {"api_key": " "},
        {"api_key": "schlüssel"},
        {"max_waiting": 0},
        {"drain_s": -1.0},
        {"max_model_len": 0},
        {"default_temperature": 3.0},
        {"keepalive_s": 0.0},
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="expected"):
        ServerOptions(**{"model_name": MODEL, **wrong})  # type: ignore[arg-type]


def test_going_down_lets_running_answers_end_and_takes_no_more(serve: Serve) -> None:
    server = serve(drain_s=60)
    server.executor.hold()
    sock = open_stream(server, ASK)
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        whole = pool.submit(client.post, "/v1/completions", json=ASK)
        server.executor.allow(4)
        head = read_until(sock, b"data: ")
        server.server.begin_drain()
        server.server.begin_drain()
        for stream in (False, True):
            found = client.post("/v1/completions", json={**ASK, "stream": stream})
            while found.status_code == 200:  # the loop hadn't heard of it yet
                found = client.post("/v1/completions", json={**ASK, "max_tokens": 1})
            assert found.status_code == 503
            assert found.json()["error"]["type"] == "service_unavailable_error"
            assert "retry-after" in found.headers
        health = client.get("/health")
        assert health.status_code == 503
        assert "going down" in health.json()["error"]["message"]
        assert client.get("/status.json").json()["is_draining"]
        server.executor.release()
        assert whole.result(60).json()["usage"]["completion_tokens"] == 40
    text = (head + read_until(sock, b"[DONE]")).decode()
    assert pieces(text)[-1] == "[DONE]"
    server.thread.join(60)
    assert not server.thread.is_alive()
    assert server.used_blocks() == 0
    with pytest.raises(httpx.ConnectError), server.client() as client:
        client.get("/health")


def test_answers_that_take_too_long_to_go_down_end_with_an_error(serve: Serve) -> None:
    server = serve(drain_s=0.05)
    server.executor.hold()
    sock = open_stream(server, ASK)
    server.executor.allow(3)
    head = read_until(sock, b"data: ")
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        whole = pool.submit(client.post, "/v1/completions", json=ASK)
        wait_until(lambda: server.frontend.exchange.num_live >= 2)
        server.server.begin_drain()
        found = whole.result(60)
    assert found.status_code == 503
    assert "went down" in found.json()["error"]["message"]
    text = (head + read_until(sock, b"0\r\n\r\n")).decode()
    assert pieces(text)[-1]["error"]["code"] == "unavailable"  # an error, and no [DONE] after it
    server.thread.join(60)
    assert not server.thread.is_alive()
    server.executor.release()
    server.wait_idle()
    assert server.used_blocks() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(folder: Path, number: signal.Signals) -> None:
    """`serve` in the main thread, which gets the signal while a stream runs."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only, and this test runs in another one")
    with running(folder) as other:  # for its engine; its own server stays beside
        other.executor.hold()
        sock = listen("127.0.0.1", 0)
        address = sock.getsockname()
        found: list[bytes] = []

        def client() -> None:
            with socket.create_connection(address, timeout=60) as mine:
                body = b'{"prompt": [5, 6], "max_tokens": 30, "stream": true, "ignore_eos": true}'
                mine.sendall(
                    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
                other.executor.allow(3)
                head = read_until(mine, b"data: ")
                os.kill(os.getpid(), number)
                other.executor.release()
                found.append(head + read_until(mine, b"[DONE]"))

        thread = threading.Thread(target=client)
        thread.start()
        before = signal.getsignal(number)
        told: list[str] = []
        # It returns: the signal doesn't kill us.
        serve(other.engine, ServerOptions(MODEL, port=0), sock=sock, progress=told.append)
        url = f"http://127.0.0.1:{address[1]}"
        assert told == [f"serving tiny at {url}/v1, status page at {url}/"]
        assert signal.getsignal(number) is before
        thread.join(60)
        assert found[0].count(b'"finish_reason":null') == 30


def test_a_dead_worker_moves_its_streams_to_another_pipeline(serve: Serve) -> None:
    server = serve(placement=two_pipelines())
    server.executor.hold()
    with ThreadPoolExecutor(4) as pool, server.client() as client:
        given = {**ASK, "temperature": 0, "stream": True}
        asked = [pool.submit(client.post, "/v1/completions", json=given) for _ in range(4)]
        wait_until(lambda: server.frontend.exchange.num_live >= 4)
        server.executor.allow(6)
        wait_until(lambda: server.frontend.metrics.num_generated >= 4)
        server.executor.lose(0)
        server.executor.release()
        texts = [one.result(60).text for one in asked]
        answers = ["".join(piece["choices"][0]["text"] for piece in pieces(text)[:-1]) for text in texts]
        assert len(set(answers)) == 1
        assert client.post("/v1/completions", json={**ASK, "temperature": 0}).json()["choices"][0]["text"] == answers[0]
        assert client.get("/health").status_code == 200
        seen = client.get("/status.json").json()["engine"]
    assert [one["is_up"] for one in seen["pipelines"]] == [False, True]
    assert "signal 9" in seen["faults"][0]
    metrics = server.metrics()
    assert metrics["slob_pipelines_up"] == 1
    assert metrics["slob_pipeline_up{pipeline=0}"] == 0
    assert metrics["slob_worker_faults_total"] == 1


def test_without_a_pipeline_streams_end_with_an_error_and_health_says_why(serve: Serve) -> None:
    server = serve()
    server.executor.hold()
    sock = open_stream(server, ASK)
    server.executor.allow(3)
    head = read_until(sock, b"data: ")
    server.executor.lose(0)
    text = (head + read_until(sock, b"0\r\n\r\n")).decode()
    assert "signal 9" in pieces(text)[-1]["error"]["message"]
    with server.client() as client:
        health = client.get("/health")
        assert health.status_code == 503
        assert "signal 9" in health.json()["error"]["message"]
        assert client.post("/v1/completions", json=ASK).status_code == 503
        assert client.get("/metrics").status_code == 200
        assert client.get("/v1/models").status_code == 200


def test_an_engine_that_is_busy_for_long_does_not_hang_the_server(serve: Serve) -> None:
    server = serve()
    with server.client() as client:
        assert client.get("/health").status_code == 200
        with server.engine._lock:  # as while it loads a new plan
            health = client.get("/health")
            assert health.status_code == 503
            assert "busy" in health.json()["error"]["message"]
            assert client.get("/metrics").status_code == 200
            assert not client.get("/status.json").json()["is_fresh"]
            assert client.get("/v1/models").status_code == 200
        assert client.get("/health").status_code == 200


def test_addresses_that_can_be_clicked() -> None:
    with listen("127.0.0.1", 0) as sock:
        assert address_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
    with listen("0.0.0.0", 0) as sock:
        assert socket.gethostname() in address_of(sock)
