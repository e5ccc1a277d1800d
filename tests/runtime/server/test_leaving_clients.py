"""Clients that hang up, or don't read: their requests end at once, and nobody else notices."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from http_servers import MODEL, Running, Serve, open_stream, pieces, prompt_of, read_until, wait_until

from runtime.generation import Reason

LONG = {"prompt": prompt_of(20), "max_tokens": 200, "ignore_eos": True}


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_frees_the_kv_while_others_go_on(serve: Serve, stream: bool) -> None:
    server = serve()
    server.executor.hold()
    leaving = open_stream(server, {**LONG, "stream": stream})
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        staying = pool.submit(client.post, "/v1/completions", json={"model": MODEL, **LONG, "max_tokens": 30})
        server.executor.allow(6)
        wait_until(lambda: server.frontend.metrics.num_generated >= 6)  # both have begun
        leaving.close()
        server.executor.release()
        found = staying.result(60)
    assert found.json()["usage"]["completion_tokens"] == 30
    server.wait_idle()
    status = server.engine.status()
    assert status.num_finished[Reason.ABORT] == 1
    assert status.latest[-1].num_generated < 200 or status.latest[0].num_generated < 200
    assert server.used_blocks() == 0
    assert server.metrics()["slob_requests_pending"] == 0


def test_hanging_up_before_the_first_step(serve: Serve) -> None:
    server = serve()
    server.executor.hold()
    sockets = [open_stream(server, {**LONG, "stream": bool(index % 2)}) for index in range(6)]
    wait_until(lambda: server.frontend.exchange.num_live == 6)
    for sock in sockets:
        sock.close()
    server.executor.release()
    server.wait_idle()
    assert server.engine.status().num_finished[Reason.ABORT] == 6
    assert server.used_blocks() == 0
    assert server.metrics()["slob_requests_pending"] == 0


def test_a_client_that_does_not_read_is_cut_and_nobody_else_waits(serve: Serve) -> None:
    server = serve(send_buffer=4096, max_buffered_events=8)
    slow = open_stream(server, {**LONG, "logprobs": 20}, receive_buffer=4096)
    with server.client() as client:
        found = client.post("/v1/completions", json={"model": MODEL, "stream": True, **LONG})
    assert pieces(found.text)[-1] == "[DONE]"
    assert len(pieces(found.text)) > 200
    server.wait_idle()
    status = server.engine.status()
    assert status.num_finished[Reason.ABORT] == 1
    assert status.num_finished[Reason.LENGTH] == 1
    assert server.used_blocks() == 0
    with pytest.raises(ConnectionResetError):  # noqa: PT012 - which of the readings fails isn't known
        while slow.recv(4096):
            pass
        raise ConnectionResetError  # an end without a last chunk is as good
    assert server.metrics()["slob_slow_clients_total"] == 1


def test_a_client_that_reads_late_but_reads_gets_all(serve: Serve) -> None:
    server = serve(send_buffer=4096)
    late = open_stream(server, {**LONG, "logprobs": 20}, receive_buffer=4096)
    server.wait_idle()  # the engine is through; the tokens wait in the server
    text = read_until(late, b"[DONE]").decode()
    tokens = [piece for piece in pieces(text)[:-1] if piece["choices"][0]["logprobs"]]
    assert len(tokens) == 200
    late.close()


def test_a_part_of_a_request_hurts_nobody(shared: Running) -> None:
    raw = json.dumps({"model": MODEL, **LONG}).encode()
    for cut in (b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n" + raw):
        with socket.create_connection(shared.address, timeout=60) as sock:
            sock.sendall(cut)
    with socket.create_connection(shared.address, timeout=60) as sock:
        sock.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        assert b" 400 " in sock.recv(4096).splitlines()[0]
    with shared.client() as client:
        assert client.get("/health").status_code == 200
    shared.wait_idle()
    assert shared.used_blocks() == 0
