"""A thousand requests that no client should send: each is refused, and none costs memory."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import suppress
from http.client import HTTPResponse
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_http import server as http_server
from memagent_openai_server import Limits, requests

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HI = [{"role": "user", "content": "Who is there?"}]
VALUES = st.recursive(
    st.text('"\\\\,[{n') | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('"\\\\,[{n'), inner),
    max_leaves=20,
)
WRONG = [None, True, 7, -1, 1.5, "", "x", [], {}, [[]], [None], [7], {"x": {}}, "\x00", [{}]]
FIELDS = ("messages", "stream", "user", "n", "max_tokens", "tools", "response_format", "memagent")


def body(**fields) -> bytes:
    found = {"model": "extractive", "messages": HI, **fields}
    return json.dumps({key: value for key, value in found.items() if value != "drop"}).encode()


def wrong_types() -> list[bytes]:
    """Fields with values of kinds that they cannot have."""
    allowed = {
        "messages": [],
        "stream": [None, True],
        "user": [None, "", "x", "\x00"],
        "n": [None],
        "max_tokens": [None, 7],
        "tools": [None, [], [{}]],
        "response_format": [None, {}, {"x": {}}],
        "memagent": [None],
    }
    found = [
        body(**{name: value})
        for name in FIELDS
        for value in WRONG
        if not any(type(value) is type(good) and value == good for good in allowed[name])
    ]
    found += [body(model=value) for value in WRONG]
    messages = [[{"role": role, "content": "x"}] for role in WRONG if role != "user"] + [
        [{"role": "user", "content": value}] for value in WRONG if value not in ("x", "\x00")
    ]
    # A part of an unknown kind is somebody's own.
    messages = [turn for turn in messages if turn[0]["content"] != [{}]]
    return found + [body(messages=turn) for turn in messages]


def not_json() -> list[bytes]:
    whole = body()
    return [
        b"",
        b"null",
        b"[]",
        b"7",
        b'"x"',
        b"\xff\xfe{}",
        b"\x00",
        whole.decode().encode("utf-16"),
        b'{"model": NaN}',
        b'{"model": Infinity}',
        whole[:-1] + b', "temperature": 1e999}',
        whole[:-1] + b', "seed": ' + b"9" * 5000 + b"}",
        *(whole[:end] for end in range(1, len(whole) - 1, 3)),
        *(whole + tail for tail in (b"}", b"x", b"\x00", whole)),
    ]


def deep() -> list[bytes]:
    found = [  # JSON, and sound but for its depth
        body()[:-1] + b',"x":' + opening * depth + closing * depth + b"}"
        for depth in (101, 200, 500)
        for opening, closing in ((b"[", b"]"), (b'{"a":[', b"]}"))
    ]
    for depth in (2_000, 20_000, 100_000, 1_000_000):
        found += [
            b"[" * depth,
            b'{"a":' * depth,
            b"[" * depth + b"]" * depth,
            b'{"model":"extractive","messages":[],"x":' + b"[" * depth + b"]" * depth + b"}",
        ]
    return found


def halves() -> list[bytes]:
    """Text with half of a surrogate pair, in every place that has text."""
    said = '{"model":"extractive","messages":[{"role":"user","content":%s}]}'
    templates = (
        said,
        '{"model":"extractive","user":%s,"messages":[{"role":"user","content":"x"}]}',
        '{"model":%s,"messages":[{"role":"user","content":"x"}]}',
        '{"model":"extractive","messages":[{"role":"user","content":"x","name":%s}]}',
        said % '[{"type":"text","text":%s}]',
    )
    halves = ("\\ud800", "\\udfff", "\\uD83D", "\\udc00\\ud800")
    return [(template % f'"x{half}"').encode() for half in halves for template in templates]


def broken(rng: random.Random, count: int) -> list[bytes]:
    """A good body with bytes changed at random, as long as it is not JSON any more."""
    whole, found = body(user="somebody"), []
    while len(found) < count:
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        try:
            json.loads(bytes(changed).decode())
        except ValueError:
            found.append(bytes(changed))
    return found


@pytest.mark.slow
@given(VALUES, st.integers(1, 9))
def test_values_of_a_body_are_counted_whatever_its_texts_have(value, window):
    def count(value):
        inner = value.values() if isinstance(value, dict) else value
        own = max(0, len(value) - 1) if isinstance(value, dict | list) else 0
        return (
            own
            + isinstance(value, dict | list)
            + sum(map(count, inner) if isinstance(value, dict | list) else ())
        )

    assert requests.count_values(json.dumps(value).encode(), window) == count(value)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ({"file_id": "file-7"}, "file-7: only files with their content can be read."),
        ({"filename": "lease.pdf", "file_data": "data:x"}, "lease.pdf: file_data is not base64."),
        ({"filename": "lease.pdf", "file_data": "bm8gUERG"}, "lease.pdf cannot be converted"),
        ({"filename": "lease.bin", "file_data": "AAECAwQFBgcI"}, "lease.bin is a binary file"),
        ({"filename": "lease.txt", "file_data": ""}, "lease.txt is empty"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_file_that_cannot_be_read_is_refused_by_name(shared, path, file, reason):
    text = "Who signed?"
    asked = {
        CHAT: {"messages": [user({"type": "file", "file": file}, {"type": "text", "text": text})]},
        RESPONSES: {
            "input": [user({"type": "input_file", **file}, {"type": "input_text", "text": text})]
        },
    }

    refused = httpx.post(shared.url + path, json={"model": "extractive", **asked[path]})

    assert refused.status_code == 400
    if path == CHAT or "file_data" in file:  # a response refuses a file of a store before
        assert refused.json()["error"]["message"].startswith(reason)


def user(*parts: dict) -> dict:
    return {"role": "user", "content": [*parts]}


@pytest.mark.slow
def test_a_thousand_hostile_bodies_are_refused_one_by_one(builtin):
    bodies = [*wrong_types(), *not_json(), *deep(), *halves()]
    bodies += broken(random.Random(7), max(0, 1000 - len(bodies)))
    with httpx.Client(base_url=builtin.url, timeout=240) as client:
        found = [
            client.post(CHAT, content=content, headers={"content-type": "application/json"})
            for content in bodies
        ]
        alive = client.post(CHAT, content=body(), headers={"content-type": "application/json"})

    bad = [
        (content[:100], response.status_code, response.text[:200])
        for content, response in zip(bodies, found, strict=True)
        if not 400 <= response.status_code < 500
    ]
    assert len(found) >= 1000
    assert bad == []
    assert all(response.json()["error"]["message"] for response in found)
    assert alive.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-big": "x" * 100_000},
        {f"x-{number}": "x" * 1000 for number in range(200)},
        {"authorization": "Bearer " + "k" * 100_000},
        {"cookie": "x=" + "y" * 1_000_000},
        {"x-memagent-session": "s" * 1000},
        {"x-memagent-session": ""},
        {"content-type": "text/html"},
        {"content-type": "multipart/form-data; boundary=x"},
    ],
)
def test_huge_and_wrong_headers_are_refused(shared, headers):
    try:
        found = shared.post(content=body(), headers={"content-type": "application/json", **headers})
    except httpx.HTTPError:  # it hung up on somebody who still talks; then it must have said why
        found = raw(shared, headers)
    assert 400 <= found.status_code < 500


def raw(server, headers) -> httpx.Response:
    """The answer to headers, read while they are still being sent."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode()
    with server.connect() as connection:
        connection.setblocking(False)
        answer, sent, give_up = b"", 0, time.monotonic() + 120
        while b"\r\n\r\n" not in answer and time.monotonic() < give_up:
            with suppress(OSError):
                sent += connection.send(head[sent : sent + 4096]) if sent < len(head) else 0
            try:
                answer += connection.recv(65536)
            except (BlockingIOError, ConnectionResetError):
                time.sleep(0.01)
    return httpx.Response(int(answer.split(b" ")[1]))


def sent(server, data: bytes, *, then: float = 120) -> bytes:
    with server.connect() as connection:
        connection.settimeout(then)
        connection.sendall(data)
        try:
            return connection.recv(65536)
        except TimeoutError:
            return b""


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: abc\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /v1/models/%00%ff%2e%2e%2f HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /v1/models/../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
        b"DELETE /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_not_http_is_refused(shared, data):
    answer = sent(shared, data)

    assert answer.startswith(b"HTTP/1.1 4")


def memory(process: str = "self") -> int:
    """Resident memory of this process, in bytes; the server runs in it."""
    fields = Path(f"/proc/{process}/statm").read_text().split()
    return int(fields[1]) * 4096


@pytest.mark.slow
@pytest.mark.parametrize("value", ["7", '{"a":[]}'])
def test_a_body_of_very_many_values_is_refused_and_takes_no_memory(builtin, value):
    many = ",".join([value] * (24 * 2**20 // (len(value) + 1)))
    content = f'{{"model": "extractive", "messages": {json.dumps(HI)}, "odd": [{many}]}}'.encode()
    before, highest, done = memory(), 0, threading.Event()

    def watch():
        nonlocal highest
        while not done.wait(0.005):
            highest = max(highest, memory())

    watching = threading.Thread(target=watch)
    watching.start()
    found = builtin.post(content=content, headers={"content-type": "application/json"})
    done.set()
    watching.join()

    assert found.status_code == 400
    assert highest - before < 150 * 2**20


def test_a_long_text_full_of_brackets_and_commas_is_no_matter(builtin):
    text = "[{,}]," * 100_000 + "\n\nWhere is the vault?"
    body = {"model": "extractive", "messages": [{"role": "user", "content": text}]}

    assert builtin.post(json=body).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_of_200_megabytes_are_refused_and_not_kept(builtin, chunked):
    before, piece, highest = memory(), b"x" * 2**20, 0

    def pieces():
        nonlocal highest
        for _ in range(200):
            highest = max(highest, memory())
            yield piece

    length = {} if chunked else {"content-length": str(200 * 2**20)}
    found = builtin.post(content=pieces(), headers={"content-type": "application/json", **length})

    assert found.status_code == 413
    assert highest - before < 100 * 2**20  # not over the 32 MB that a body may have, and copies


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        ("", b"x: " + b"y" * 1000),
        ("content-length: 2\r\n\r\n{}", b"y" * 1000),
        ("transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: ", b"y" * 1000),
        ("transfer-encoding: chunked\r\n\r\n2;", b"y" * 1000),
    ],
    ids=["a header", "a second request", "a trailer", "an extension"],
)
def test_what_has_no_end_and_is_no_body_is_hung_up_on(builtin, head, rest):
    begin = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{head}"
    with builtin.connect() as connection:
        connection.sendall(begin.encode())
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(1_000_000):  # a gigabyte
                connection.sendall(rest)


def test_a_body_that_is_announced_too_long_is_refused_before_it_is_sent(builtin):
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {2**40}\r\nexpect: 100-continue\r\n\r\n"
    )

    assert sent(builtin, head.encode()).startswith(b"HTTP/1.1 413")


def test_slow_bodies_are_given_up(serve):
    server = serve(limits=Limits(body_seconds=0.5))
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        "content-length: 1000\r\n\r\n"
    )
    connections = [server.connect() for _ in range(50)]
    for connection in connections:
        connection.sendall(head.encode() + b"{")

    answers = [connection.recv(65536) for connection in connections]

    for connection in connections:
        connection.close()
    assert all(answer.startswith(b"HTTP/1.1 408") for answer in answers)
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_headers_that_never_end_are_given_up_and_a_waiting_client_is_not(serve, monkeypatch):
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 1.0)
    server = serve()
    health = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    silent, slow, second = (server.connect() for _ in range(3))
    slow.sendall(health[:20])
    second.sendall(health)
    first = HTTPResponse(second)
    first.begin()
    assert (first.status, first.read()) == (200, b'{"status":"ok"}')
    second.sendall(health[:20])
    with server.connect() as body:  # headers in time, and a body that takes longer than they may
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        body.sendall(f"{head}content-length: 2\r\n\r\n{{".encode())
        ends = [connection.recv(65536) for connection in (silent, slow, second)]
        body.sendall(b"}")
        answer = body.recv(65536)

    for connection in (silent, slow, second):
        connection.close()
    assert ends == [b""] * 3
    assert answer.startswith(b"HTTP/1.1 400")
