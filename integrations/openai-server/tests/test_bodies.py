"""Bodies that are packed, and how much of all of them is held at once."""

from __future__ import annotations

import re
import socket
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
from servers.redis_server import wait_until
from servers.warm_python import PIPE, SERVERS, warm_python

from memagent_http.bodies import BytesUnderWay
from memagent_http.refusals import Refusal

CHAT = "/v1/chat/completions"
HI = {"model": "extractive", "messages": [{"role": "user", "content": "Who is there?"}]}
MB = 2**20

SERVE = """
import sys
from memagent_openai_server import Limits, create_app
from memagent_openai_server.app import make_server
app = create_app("extractive", limits=Limits(body_seconds=600))  # however busy the machine is
running = make_server(app)
async def started(*, sockets=None):
    await type(running).startup(running, sockets=sockets)
    print(running.servers[0].sockets[0].getsockname()[1], flush=True)
running.startup = started
running.run()
"""


@pytest.fixture
def process(environment):
    """A server in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", SERVE]
    process = warm_python(*SERVERS).start(command, stdout=PIPE, env=environment)
    yield process
    process.terminate()
    process.wait()
    process.kill()  # closes its pipe


def resident(pid: int, what: str = "VmRSS") -> int:
    """Bytes of memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{what}:\s+(\d+) kB", status)[1]) * 1024


def head(length: int, *more: str) -> bytes:
    lines = [f"POST {CHAT} HTTP/1.1", "host: localhost", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {length}", *more, "", ""]).encode()


@pytest.mark.slow
def test_twenty_unfinished_bodies_of_31_megabytes_do_not_hold_500(process):
    port = int(process.stdout.readline())
    url = f"http://127.0.0.1:{port}"
    assert httpx.post(f"{url}{CHAT}", json=HI, timeout=240).status_code == 200
    before = resident(process.pid)
    length, answers = 31 * MB, []
    with ExitStack() as stack:
        connections = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), 240)))
            for _ in range(20)
        ]
        for connection in connections:
            connection.sendall(head(length))
        for _ in range(length // MB):
            for connection in connections:
                connection.sendall(b"x" * (MB - 1))
        short = httpx.post(f"{url}{CHAT}", json=HI, timeout=240)
        held = resident(process.pid, "VmHWM") - before
        for connection in connections:
            connection.sendall(b"x" * (length // MB))
            answers.append(connection.recv(65536))

    assert held < 250 * MB
    assert short.status_code in (200, 503)  # they all have one address
    codes = {int(answer.split(b" ")[1]) for answer in answers}
    assert codes == {400, 503}
    assert all(b"retry-after: 5" in answer for answer in answers if b" 503 " in answer)
    again = lambda: httpx.post(f"{url}{CHAT}", json=HI, timeout=240).status_code == 200  # noqa: E731
    wait_until(again, "room", seconds=240)


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
    found = shared.post(json=HI, headers={"content-encoding": encoding})

    assert found.status_code == 415
    assert found.json()["error"]["code"] == "content_encoding"
    assert repr(encoding[:50]) in found.json()["error"]["message"]
    assert found.headers["accept-encoding"] == "identity"
