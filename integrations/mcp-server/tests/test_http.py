from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mcp_serving import COMMAND, connected, environment, http_server

pytestmark = pytest.mark.slow

PING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture
def options(tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("The vault opens at 6:40.")
    return ["--root", tmp_path / "books", "--store", "none", "--model", "extractive"]


def test_a_web_page_cannot_reach_a_server_on_this_machine(options, tmp_path):
    with http_server(tmp_path / "log", *options) as url:
        rebound = httpx.post(url, json=PING, headers={**ACCEPT, "host": "evil.example"})
        foreign = httpx.post(url, json=PING, headers={**ACCEPT, "origin": "https://evil.example"})
        form = httpx.post(url, data={"x": "y"}, headers=ACCEPT)

    assert (rebound.status_code, foreign.status_code) == (421, 403)
    assert form.is_client_error


def test_a_body_beyond_the_limit_is_refused(options, tmp_path):
    with http_server(tmp_path / "log", *options) as url:
        declared = httpx.post(url, content=b" " * 5_000_000, headers=ACCEPT)
        streamed = httpx.post(url, content=(b" " * 100_000 for _ in range(50)), headers=ACCEPT)

    assert (declared.status_code, streamed.status_code) == (413, 413)


TOKEN = "correct horse"


def test_who_does_not_send_the_token_is_refused(options, tmp_path):
    wrong = ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}2", f"bearer{TOKEN}"]

    with http_server(tmp_path / "log", *options, MEMAGENT_MCP_TOKEN=TOKEN) as url:
        refused = [
            httpx.post(url, json=PING, headers={**ACCEPT, "authorization": sent}) for sent in wrong
        ]

    assert {response.status_code for response in refused} == {401}
    assert not any(TOKEN in response.text for response in refused)
    assert TOKEN not in (tmp_path / "log").read_text()


async def test_who_sends_the_token_is_served(options, tmp_path):
    asked = {"question": "When does the vault open?", "source": "books"}

    async with connected(
        "http", "auto", tmp_path / "log", *options, token=TOKEN, MEMAGENT_MCP_TOKEN=TOKEN
    ) as client:
        result = await client.call_tool("read", asked)

    assert result.structured_content["answer"] == "The vault opens at 6:40."


def test_without_a_token_it_listens_on_this_machine_only(options):
    command = [*COMMAND, *map(str, options), "--port", "1", "--host", "0.0.0.0"]

    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 1
    assert "MEMAGENT_MCP_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_root_that_does_not_exist_is_an_error_of_one_line(tmp_path):
    command = [*COMMAND, "--root", str(tmp_path / "none"), "--store", "none"]

    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 1
    assert "memagent: error: The root" in done.stderr
    assert not done.stdout
