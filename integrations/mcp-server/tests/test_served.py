import json
import signal

import anyio
import pytest
from fixed_readers import numbered
from mcp import MCPError
from mcp_serving import COMMAND, INITIALIZE, PYTHON, connected, environment, note
from servers.warm_python import PIPE

TEXT = "Filler. " * 9000 + "The vault opens at 6:40.\n"
ASKED = {"question": "When does the vault open?", "source": "books/log.txt"}

pytestmark = pytest.mark.slow

over_stdio, over_http = (
    pytest.mark.parametrize("transport", [name], indirect=True) for name in ("stdio", "http")
)
"""For what is the same over both, and is tried over one of them."""


@pytest.fixture
def books(books, tmp_path):
    (books / "log.txt").write_text(TEXT)
    (books / "a.txt").unlink()
    (tmp_path / "secret.txt").write_text("The vault opens at 3:33.")
    (books / "link.txt").symlink_to(tmp_path / "secret.txt")
    return books


@pytest.fixture
def options(books, tmp_path):
    return ["--root", books, "--store", tmp_path / "memories.sqlite", "--model", "extractive"]


async def test_every_tool_does_what_it_says(connect):
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        read = await client.call_tool("read", ASKED)
        name = read.structured_content["memory"]
        listed = await client.call_tool("list_memories", {})
        other = {"question": "At what time does the vault open?", "memory": name}
        before = await client.call_tool("ask_memory", other)
        shown = await client.call_tool("show_memory", {"memory": name})
        new = {"memory": name, "text": "The vault opens at 7:15."}
        edited = await client.call_tool("edit_memory", new)
        after = await client.call_tool("ask_memory", other)
        forgotten = await client.call_tool("forget", {"memory": name})
        left = await client.call_tool("list_memories", {})

    own = {"read", "ask_memory", "list_memories", "show_memory", "edit_memory", "forget"}
    assert set(tools) == own
    assert set(tools["read"].input_schema["properties"]) == {"question", "source"}
    assert tools["forget"].annotations.destructive_hint
    assert tools["show_memory"].annotations.read_only_hint
    assert read.structured_content["answer"] == "The vault opens at 6:40."
    assert read.structured_content["places"][0]["source"] == "books/log.txt"
    assert "It stands at books/log.txt:1." in read.content[0].text
    (memory,) = listed.structured_content["result"]
    assert memory.items() >= {"name": name, **ASKED, "coverage": 1.0}.items()
    assert "6:40" in before.structured_content["answer"]
    assert "6:40" in shown.content[0].text
    assert edited.content[0].text != name
    assert "7:15" in after.structured_content["answer"]
    assert after.structured_content["memory"] == name
    assert forgotten.structured_content["result"] >= 3
    assert left.structured_content["result"] == []


@over_http
async def test_memories_are_resources(connect):
    async with connect() as client:
        none = (await client.list_resources()).resources
        read = await client.call_tool("read", ASKED)
        (resource,) = (await client.list_resources()).resources
        content = (await client.read_resource(resource.uri)).contents[0]
        (template,) = (await client.list_resource_templates()).resource_templates
        for path in ("gone", "..%2F..%2Fsecret.txt", "%2Fetc%2Fpasswd"):
            with pytest.raises(MCPError, match="no memory"):
                await client.read_resource(f"memagent://memories/{path}")
        with pytest.raises(MCPError, match="Unknown resource"):
            await client.read_resource("file:///etc/passwd")

    assert none == []
    assert resource.name == read.structured_content["memory"]
    assert resource.description == f"{ASKED['question']} (from books/log.txt)"
    assert "6:40" in content.text
    assert template.uri_template == "memagent://memories/{name}"


@over_stdio
async def test_progress_comes_with_each_chunk_and_none_the_next_time(connect):
    told, again = [], []

    async with connect() as client:
        await client.call_tool("read", ASKED, progress_callback=note(told))
        await client.call_tool("read", ASKED, progress_callback=note(again))

    positions = [position for position, _, _ in told]
    assert len(told) == 3
    assert positions == sorted(set(positions))
    assert positions[-1] == len(TEXT)
    assert {length for _, length, _ in told} == {len(TEXT)}
    assert told[0][2] == "chunk 1 of about 3"
    assert again == []


async def test_a_cancelled_reading_stops_and_the_next_goes_on_where_it_was(
    transport, mode, gated, books, tmp_path
):
    (books / "lines.txt").write_text(numbered(400))
    asked = {"question": "What do the lines say?", "source": "books/lines.txt"}
    model = ["--model", "openai:small", "--base-url", gated.base_url, "--set", "chunk_tokens=250"]
    options = ["--root", books, "--store", tmp_path / "memories.sqlite", *model]
    first, second = [], []

    async with connected(transport, mode, tmp_path / "log", *options) as client:
        with anyio.CancelScope() as scope:

            async def until_the_fourth_chunk(position, length, message):
                first.append(position)
                if len(first) == 3:
                    await anyio.to_thread.run_sync(gated.reached.wait)
                    scope.cancel()

            await client.call_tool("read", asked, progress_callback=until_the_fourth_chunk)
        await client.call_tool("list_memories", {})
        gated.gate.set()

        result = await client.call_tool("read", asked, progress_callback=note(second))

    chunks = len(first) + len(second)
    assert scope.cancelled_caught
    assert chunks > 12
    assert second[0][0] > first[-1]
    assert second[-1][0] == len(numbered(400))
    # The chunk that was cut off, maybe one more; the answer:
    assert len(gated.requests) <= chunks + 3
    assert result.structured_content["coverage"] == 1


async def test_what_is_refused_is_an_error_that_a_model_can_act_on(connect, tmp_path):
    question = "When does the vault open?"

    async with connect() as client:

        async def error(tool, **arguments):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert "3:33" not in result.content[0].text
            return result.content[0].text

        refused = (
            f"secret.txt {tmp_path}/secret.txt books/../secret.txt books/link.txt "
            f"http://127.0.0.1:1/secret.txt file://{tmp_path}/secret.txt"
        )
        for source in refused.split():
            asked = {"question": question, "source": source}
            assert "A source is one of books" in await error("read", **asked)
        assert "There is no books/x" in await error("read", question=question, source="books/x")
        assert "question is empty" in await error("read", question=" ", source="books")
        assert "question" in await error("read", source="books")
        assert "valid string" in await error("read", question=question, source=7)
        assert "no memory" in await error("ask_memory", question=question, memory="x")
        assert "no memory" in await error("show_memory", memory="../../secret.txt")
        assert "no memory" in await error("edit_memory", memory="x", text="y")
        assert "no memory" in await error("forget", memory="x")
        assert "1024 tokens" in await error("edit_memory", memory="x", text="y " * 5000)
        whole = await client.call_tool("read", {"question": question, "source": "books"})

    assert whole.structured_content["answer"] == "The vault opens at 6:40."
    assert "3:33" not in whole.model_dump_json()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_a_busy_server_and_says_one_line(number, options):
    command = [*COMMAND, *options]
    process = PYTHON.start(command, env=environment(), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        process.stdin.write(json.dumps(INITIALIZE) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        for index in range(500):
            ping = {"jsonrpc": "2.0", "id": 2 + index, "method": "ping"}
            process.stdin.write(json.dumps(ping) + "\n")
        process.stdin.flush()
        process.send_signal(number)
        code = process.wait(120)
        told = process.stderr.read()
    finally:
        process.kill()

    assert answer["result"]["serverInfo"]["name"] == "memagent"
    assert code == 130
    assert told == "memagent: stopped.\n"


@over_http
async def test_the_log_has_nothing_of_what_was_asked_or_read(connect, tmp_path):
    log = tmp_path / "log"

    async with connect() as client:
        await client.call_tool("read", ASKED)
        await client.call_tool("read", {"question": "Who?", "source": "books/none.txt"})
        await client.call_tool("show_memory", {"memory": "no such memory"})

    for word in ("vault", "6:40", "none.txt", "no such memory"):
        assert word not in log.read_text()


def test_a_line_that_is_no_message_is_answered_and_the_next_is_served(options):
    broken = ["{not json", "\u202e \x00", '{"jsonrpc": "2.0", "id": 7', '{"id": 5}']
    given = "\n".join([*broken, json.dumps(INITIALIZE), ""])

    done = PYTHON.run([*COMMAND, *map(str, options)], env=environment(), input=given)

    *errors, answer = map(json.loads, done.stdout.splitlines())
    codes = [-32700, -32700, -32700, -32600]
    assert [(one["id"], one["error"]["code"]) for one in errors] == [(None, code) for code in codes]
    assert answer["id"] == INITIALIZE["id"]
    assert answer["result"]["serverInfo"]["name"] == "memagent"
