"""Requests that no client should send: each is refused, and none costs memory."""

import json
import threading
import time
from contextlib import ExitStack, suppress
from http.client import HTTPResponse
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers.http_process import http_process
from servers.redis_server import wait_until

from memagent_http import server as http_server
from memagent_http.bodies import BytesUnderWay
from memagent_http.refusals import Refusal
from memagent_openai_server import Limits, requests

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
MB = 2**20
JSON = {"content-type": "application/json"}
HI = [{"role": "user", "content": "Who is there?"}]
VALUES = st.recursive(
    st.text('"\\\\,[{n') | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('"\\\\,[{n'), inner),
    max_leaves=20,
)
BODY = json.dumps({"model": "extractive", "messages": HI}).encode()
POST = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
"""The beginning of a request whose body is JSON."""


def not_json() -> list[bytes]:
    return [
        *(b"", b"null", b"[]", b"7", b'"x"', b"\xff\xfe{}", b"\x00", b'{"model": NaN}'),
        *(BODY.decode().encode("utf-16"), b'{"model": Infinity}'),
        BODY[:-1] + b', "temperature": 1e999}',
        BODY[:-1] + b', "seed": ' + b"9" * 5000 + b"}",
        *(BODY[:end] for end in range(1, len(BODY) - 1, 3)),
        *(BODY + tail for tail in (b"}", b"x", b"\x00", BODY)),
    ]


def deep() -> list[bytes]:
    found = [  # JSON, and sound but for its depth
        BODY[:-1] + b',"x":' + opening * depth + closing * depth + b"}"
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


@pytest.mark.slow
@given(VALUES, st.integers(1, 9))
def test_values_of_a_body_are_counted_whatever_its_texts_have(value, window):
    def count(value):
        if not isinstance(value, dict | list):
            return 0
        inner = value.values() if isinstance(value, dict) else value
        return max(1, len(value)) + sum(map(count, inner))

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
    question, said = {"type": "text", "text": "Who signed?"}, "input_text"
    parts = [{"type": "input_file", **file}, {"type": said, "text": "Who signed?"}]
    asked = {
        CHAT: {"messages": [user({"type": "file", "file": file}, question)]},
        RESPONSES: {"input": [user(*parts)]},
    }

    refused = httpx.post(shared.url + path, json={"model": "extractive", **asked[path]})

    assert refused.status_code == 400
    if path == CHAT or "file_data" in file:  # a response refuses a file of a store before
        assert refused.json()["error"]["message"].startswith(reason)


def user(*parts: dict) -> dict:
    return {"role": "user", "content": [*parts]}


@pytest.mark.slow
def test_hostile_bodies_are_refused_one_by_one(builtin):
    bodies = [*not_json(), *deep(), *halves()]
    with httpx.Client(base_url=builtin.url, timeout=240) as client:
        found = [client.post(CHAT, content=content, headers=JSON) for content in bodies]
        alive = client.post(CHAT, content=BODY, headers=JSON)

    answers = zip(bodies, found, strict=True)
    told = [(body[:100], answer.status_code, answer.text[:200]) for body, answer in answers]
    bad = [one for one in told if not 400 <= one[1] < 500]
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
        found = shared.post(content=BODY, headers={**JSON, **headers})
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


class Memory:
    """How much the resident memory of this process, in which the server runs, grows in a block."""

    def __enter__(self):
        self.grown, self._before, self._over = 0, self._resident(), threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self._watching.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._watching.join()

    def _watch(self):
        while not self._over.wait(0.005):
            self.grown = max(self.grown, self._resident() - self._before)

    def _resident(self) -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.parametrize("value", ["7", '{"a":[]}'])
def test_a_body_of_very_many_values_is_refused_and_takes_no_memory(builtin, value):
    many = ",".join([value] * (24 * MB // (len(value) + 1)))
    content = f'{{"model": "extractive", "messages": {json.dumps(HI)}, "odd": [{many}]}}'.encode()

    with Memory() as memory:
        found = builtin.post(content=content, headers=JSON)

    assert found.status_code == 400
    assert memory.grown < 150 * MB


def test_a_long_text_full_of_brackets_and_commas_is_no_matter(builtin):
    text = "[{,}]," * 100_000 + "\n\nWhere is the vault?"
    body = {"model": "extractive", "messages": [{"role": "user", "content": text}]}

    assert builtin.post(json=body).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_of_200_megabytes_are_refused_and_not_kept(builtin, chunked):
    piece = b"x" * MB
    length = {} if chunked else {"content-length": str(200 * MB)}
    headers = {"content-type": "application/json", **length}

    with Memory() as memory:
        found = builtin.post(content=(piece for _ in range(200)), headers=headers)

    assert found.status_code == 413
    assert memory.grown < 100 * MB  # not over the 32 MB that a body may have, and copies


@pytest.mark.slow
def test_twenty_unfinished_bodies_of_31_megabytes_do_not_hold_500(serve):
    server = serve(limits=Limits(body_seconds=600))  # however busy the machine is
    ask = {"content": BODY, "headers": JSON}
    assert server.post(**ask).status_code == 200
    length, answers = 31 * MB, []
    with ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(20)]
        with Memory() as memory:
            for connection in connections:
                connection.sendall(f"{POST}content-length: {length}\r\n\r\n".encode())
            for _ in range(length // MB):
                for connection in connections:
                    connection.sendall(b"x" * (MB - 1))
            short = server.post(**ask)
        for connection in connections:
            connection.sendall(b"x" * (length // MB))
            answers.append(connection.recv(65536))

    assert memory.grown < 250 * MB
    assert short.status_code in (200, 503)  # they all have one address
    assert {int(answer.split(b" ")[1]) for answer in answers} == {400, 503}
    assert all(b"retry-after: 5" in answer for answer in answers if b" 503 " in answer)
    wait_until(lambda: server.post(**ask).status_code == 200, "room", seconds=240)


def test_a_caller_may_hold_as_much_as_it_leaves_free():
    under_way = BytesUnderWay(900)
    with under_way.hold("ann") as first, under_way.hold("ann") as second:
        first(450)
        with pytest.raises(Refusal) as caught:
            second(1)
        with under_way.hold("ben") as other:
            other(225)
            with pytest.raises(Refusal):
                other(1)
        with under_way.hold("ben") as other:  # what is over is counted no longer
            other(225)

    with under_way.hold("joe") as alone:
        alone(450)
    assert caught.value.status_code == 503
    assert caught.value.headers == {"retry-after": "5"}


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, gzip", "x" * 500])
def test_a_compressed_body_is_refused_by_the_name_of_its_encoding(shared, encoding):
    headers = {"content-encoding": encoding, "content-type": "application/json"}

    found = shared.post(content=BODY, headers=headers)

    assert found.status_code == 415
    assert found.json()["error"]["code"] == "content_encoding"
    assert repr(encoding[:50]) in found.json()["error"]["message"]
    assert found.headers["accept-encoding"] == "identity"


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
    with builtin.connect() as connection:
        connection.sendall(f"{POST}{head}".encode())
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(1_000_000):  # a gigabyte
                connection.sendall(rest)


def test_a_body_that_is_announced_too_long_is_refused_before_it_is_sent(builtin):
    head = f"{POST}content-length: {2**40}\r\nexpect: 100-continue\r\n\r\n"

    assert sent(builtin, head.encode()).startswith(b"HTTP/1.1 413")


def test_slow_bodies_are_given_up(serve):
    server = serve(limits=Limits(body_seconds=0.5))
    head = f"{POST}content-length: 1000\r\n\r\n"
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
        body.sendall(f"{POST}content-length: 2\r\n\r\n{{".encode())
        with suppress(ConnectionError), server.connect() as dripping:
            for byte in health[:-2] + b"x: " + b"y" * 200:
                dripping.sendall(bytes([byte]))
                time.sleep(0.05)
            pytest.fail("It was waited for.")
        ends = [connection.recv(65536) for connection in (silent, slow, second)]
        body.sendall(b"}")
        answer = body.recv(65536)

    for connection in (silent, slow, second):
        connection.close()
    assert ends == [b""] * 3
    assert answer.startswith(b"HTTP/1.1 400")


HANG = 20.0
"""Seconds: what is asked for meanwhile takes a hundredth."""
TEXT = "Item 7 stands on shelf 3. "


def body_of(messages: str) -> bytes:
    return f'{{"model": "small", "messages": [{messages}]}}'.encode()


SIZE = 8 * MB
BODIES = (
    b'{"' + b'\\"' * (SIZE // 2),  # a text without an end
    b"[" + b"[]," * (SIZE // 3),
    body_of(f'{{"role": "user", "content": "{TEXT * (SIZE // len(TEXT))}"}}'),
    body_of(",".join(['{"role": "user", "content": ""}'] * 60_000)),
)


def post_and_leave(url, body):
    """Post a body, and leave after a second where that would be read; the status, or None."""
    timeout = httpx.Timeout(600, read=1.0 if TEXT.encode() in body[:200] else 600)
    try:
        sent = {"content": body, "headers": JSON}
        return httpx.post(f"{url}/v1/chat/completions", **sent, timeout=timeout).status_code
    except httpx.ReadTimeout:
        return None


@pytest.mark.slow
def test_no_hostile_body_keeps_others_waiting(upstream, tmp_path, environment):
    took, over = [], threading.Event()
    words = ["-m", "memagent_openai_server", "--model", "openai:small", "--store", "none"]
    words += ["--base-url", upstream.base_url, "--set", "chunk_tokens=400", "--set"]
    words += ["memory_tokens=100", "--set", "answer_tokens=100"]

    def watch():
        with httpx.Client(base_url=url, timeout=600) as http:
            while not over.is_set():
                begun = time.perf_counter()
                http.get("/health").raise_for_status()
                took.append(time.perf_counter() - begun)

    with http_process(*words, log=tmp_path / "log", env=environment) as (url, _):
        watching = threading.Thread(target=watch)
        watching.start()
        found = {post_and_leave(url, body) for body in BODIES}
        time.sleep(0.5)  # the server puts away what it had
        over.set()
        watching.join()

    assert found <= {200, 400, None}
    assert max(took) < HANG
