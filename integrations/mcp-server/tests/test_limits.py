"""Clients that do not come to an end: with a body, with a session."""

import select
from http.client import HTTPResponse, RemoteDisconnected

import httpx
import pytest
from langgraph.store.memory import InMemoryStore
from mcp_serving import ACCEPT, INITIALIZE, Running
from servers.redis_server import wait_until

from memagent_http import access
from memagent_mcp_server import Roots, create_server, http

HEAD = (
    b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"accept: application/json, text/event-stream\r\n"
)


@pytest.fixture
def server(books):
    return create_server("extractive", roots=Roots([books]), store=InMemoryStore())


def initialize(url):
    return httpx.post(url, json=INITIALIZE, headers=ACCEPT, timeout=240)


def answer(connection):
    """The status of the next response, read to its end; None if the connection was closed."""
    response = HTTPResponse(connection)
    try:
        response.begin()
    except RemoteDisconnected:
        return None
    response.read()
    return response.status


def test_tokens_cannot_be_guessed_at_will(server, monkeypatch):
    now = access.monotonic()
    monkeypatch.setattr(access, "monotonic", lambda: now)  # however busy this machine is

    with Running(server, token="correct horse") as served:

        def status(token):
            headers = {**ACCEPT, "authorization": f"Bearer {token}"}
            return httpx.post(served.url, json=INITIALIZE, headers=headers, timeout=240).status_code

        guesses = [status(f"guess {number}") for number in range(21)]
        right = status("correct horse")

    assert guesses == [401] * 20 + [429]
    assert right == 429  # else guessing would go on


def test_slow_bodies_are_given_up(server, monkeypatch):
    monkeypatch.setattr(http, "_BODY_SECONDS", 0.5)

    with Running(server) as served:
        connections = [served.connect() for _ in range(50)]
        for connection in connections:
            connection.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
        answers = [answer(connection) for connection in connections]
        for connection in connections:
            connection.close()
        monkeypatch.undo()
        after = initialize(served.url)

    assert answers == [408] * 50
    assert after.status_code == 200


def test_unfinished_bodies_together_hold_no_more_than_the_limit(server, monkeypatch):
    monkeypatch.setattr(http, "_MOST_BYTES", 1_000_000)
    sent = HEAD + b"content-length: 400000\r\n\r\n" + b" " * 300_000

    with Running(server) as served:
        connections = [served.connect() for _ in range(4)]
        for connection in connections:
            connection.sendall(sent)
        answered, _, _ = select.select(connections, [], [], 240)
        refused = {answer(connection) for connection in answered}
        for connection in connections:
            connection.close()
        wait_until(lambda: initialize(served.url).status_code == 200, "room", seconds=120)

    assert refused == {503}


def test_sessions_that_nobody_deletes_are_bounded_in_number(server, monkeypatch):
    monkeypatch.setattr(http, "_MOST_SESSIONS", 3)

    with Running(server) as served:
        opened = [initialize(served.url) for _ in range(3)]
        refused = initialize(served.url)
        session = {"mcp-session-id": opened[0].headers["mcp-session-id"]}
        httpx.delete(served.url, headers=session)
        after = initialize(served.url)

    assert [found.status_code for found in opened] == [200] * 3
    assert (refused.status_code, after.status_code) == (503, 200)


def test_sessions_that_nobody_uses_end(server, monkeypatch):
    monkeypatch.setattr(http, "_MOST_SESSIONS", 1)
    monkeypatch.setattr(http, "_IDLE_SECONDS", 0.2)
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}

    with Running(server) as served:
        session = {"mcp-session-id": initialize(served.url).headers["mcp-session-id"]}
        wait_until(lambda: initialize(served.url).status_code == 200, "room", seconds=240)
        gone = httpx.post(served.url, json=ping, headers={**ACCEPT, **session})

    assert gone.status_code == 404
