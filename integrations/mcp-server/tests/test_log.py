"""What the server writes on standard error commands no terminal and forges no line."""

import logging
from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import MCPError
from mcp_serving import ACCEPT, PING, http_server

from memagent_mcp_server.command import Lines

HOSTILE = "\x1b]0;owned\x07\x1b[31m\x9b2J\r\nmemagent: forged \u202e"


@given(st.text())
def test_a_record_is_one_line_of_printable_characters(text):
    record = logging.LogRecord("mcp", logging.WARNING, "a.py", 1, "said %s", (text,), None)

    line = Lines().format(record)

    assert line.isprintable()
    if text.isprintable() and len(text) < 400:
        assert line.endswith(text)


@pytest.mark.slow
async def test_no_client_commands_the_terminal_that_shows_the_log(connect, tmp_path):
    async with connect() as client:
        for asked in (
            client.get_prompt(HOSTILE),
            client.get_prompt("ask_document", {HOSTILE: HOSTILE}),
            client.read_resource(f"memagent://memories/{HOSTILE}"),
            client.call_tool(HOSTILE, {}),
        ):
            with suppress(MCPError):
                await asked
        await client.call_tool("read", {"question": HOSTILE, "source": HOSTILE})

    said = (tmp_path / "log").read_text()
    assert "ValueError" in said  # what the SDK logs of the first
    assert all(line.isprintable() for line in said.split("\n"))
    assert "owned" not in said


@pytest.mark.slow
def test_what_stands_in_headers_does_not_reach_the_log(options, tmp_path):
    value = HOSTILE.encode().replace(b"\r\n", b"")

    with http_server(tmp_path / "log", *options) as (url, _):
        for name in ("host", "origin", "authorization", "mcp-session-id", "mcp-protocol-version"):
            found = httpx.post(url, json=PING, headers={**ACCEPT, name: value})
            assert found.is_client_error

    said = (tmp_path / "log").read_text()
    assert all(line.isprintable() for line in said.split("\n"))
    assert "owned" not in said
