"""Over MCP, people are remembered, and operators find, edit, export and forget their memories."""

import pytest
from langgraph.store.memory import InMemoryStore
from mcp.client import Client
from mcp_serving import connected

from memagent_graph import ReadingConfig
from memagent_mcp_server.roots import Roots
from memagent_mcp_server.server import create_server

NAMES = ["Ada", "Bo", "Cleo", "Dot", "Ebba", "Fox", "Gus", "Hugo", "Ivy", "Jet", "Kim", "Leo"]
TOOLS = {"remember", "recall", *(f"{verb}_user" for verb in ("edit", "export", "forget"))}
TOOLS |= {"list_users", "search_users", "user_history"}


def serve(root, **options):
    options = {"roots": Roots([str(root)]), "store": InMemoryStore(), **options}
    return create_server("extractive", **options)


@pytest.mark.slow
async def test_a_person_is_remembered_found_edited_and_forgotten(transport, books, tmp_path):
    store = tmp_path / "memories.sqlite"
    options = ["--root", books, "--store", store, "--model", "extractive", "--users"]
    ann, said = {"user": "ann"}, "I breed quokkas in Hobart."
    async with connected(transport, "auto", tmp_path / "log", *options) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for _ in range(2):  # a client repeats a call
            now = await client.call_tool("remember", {**ann, "said": said, "thread": "monday"})
        recalled = await client.call_tool("recall", ann)
        listed = await client.call_tool("list_users", {})
        found = await client.call_tool("search_users", {"words": "QUOKKAS hobart"})
        nothing = await client.call_tool("search_users", {"words": "wombats"})
        exported = await client.call_tool("export_user", ann)
        await client.call_tool("edit_user", {**ann, "text": "Breeds emus."})
        too_long = await client.call_tool("edit_user", {**ann, "text": "word " * 2000})
        edited = await client.call_tool("recall", ann)
        history = await client.call_tool("user_history", ann)
        forgotten = await client.call_tool("forget_user", ann)
        after = await client.call_tool("list_users", {})
        zoe = await client.call_tool("edit_user", {"user": "zoe", "text": "Nothing."})

    assert set(tools) >= TOOLS
    assert tools["recall"].annotations.read_only_hint
    assert tools["forget_user"].annotations.destructive_hint
    assert now.content[0].text == recalled.content[0].text
    assert recalled.content[0].text.count("quokkas") == 1
    assert [user["user"] for user in listed.structured_content["result"]] == ["ann"]
    assert found.structured_content["result"] == [{"user": "ann", "text": said}]
    assert nothing.structured_content["result"] == []
    assert exported.content[0].text.startswith('{"user": "ann"}\n')
    assert edited.content[0].text == "Breeds emus."
    assert too_long.is_error
    changes = history.structured_content["result"]
    made = [(line["what"], line["by"]) for line in changes]
    assert made == [("edited", "mcp"), ("folded", "conversation")]
    assert changes[1]["thread"] == "monday"
    assert forgotten.structured_content["threads"] == ["monday"]
    assert after.structured_content["result"] == []
    assert zoe.is_error
    assert "Nothing is remembered about the user 'zoe'" in zoe.content[0].text
    assert all(b"quokkas" not in file.read_bytes() for file in tmp_path.glob("memories.sqlite*"))
    assert "quokkas" not in (tmp_path / "log").read_text()


async def test_people_are_not_served_unless_the_operator_says_so(books):
    server = serve(books)

    async with Client(server) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}

    assert names
    assert not names & TOOLS


async def test_the_id_of_a_person_is_of_bounded_length(books):
    server = serve(books, users=True)
    said, calls = {"said": "I breed quokkas."}, {}

    async with Client(server) as client:
        for tool in (await client.list_tools()).tools:
            fields = tool.input_schema["properties"]
            if "user" in fields:
                own = {"text": "Quokkas."} if "text" in fields else {}
                own |= said if "said" in fields else {}
                calls[tool.name] = [
                    await client.call_tool(tool.name, {**own, "user": "x" * length})
                    for length in (512, 513)
                ]
        long = {**said, "user": "ann", "thread": "x" * 513}
        in_a_long_thread = await client.call_tool("remember", long)
        users = await client.call_tool("list_users", {})

    assert set(calls) == TOOLS - {"list_users", "search_users"}
    assert not calls["remember"][0].is_error
    for _, too_long in calls.values():
        assert too_long.is_error
        assert "at most 512 characters" in too_long.content[0].text
    assert in_a_long_thread.is_error
    assert users.structured_content["result"] == []  # the one of 512 was forgotten again


async def test_what_a_person_said_is_recalled_when_it_bears_on_what_is_said_now(books):
    server = serve(books, config=ReadingConfig(memory_tokens=60), users=True)
    ann = {"user": "ann"}

    async with Client(server) as client:
        for said in ["Is the oboe in Linz?", *(f"My dog {name} is ill." for name in NAMES)]:
            await client.call_tool("remember", {**ann, "said": said})
        plain = await client.call_tool("recall", ann)
        recalled = await client.call_tool("recall", {**ann, "about": "Where is my oboe?"})
        nobody = await client.call_tool("recall", {"user": "zoe", "about": "Where is my oboe?"})

    assert "oboe" not in plain.content[0].text
    assert "user: Is the oboe in Linz?" in recalled.content[0].text
    assert nobody.content[0].text == ""


async def test_servers_of_other_namespaces_remember_other_people(books):
    store = InMemoryStore()
    ann, ben = (serve(books, store=store, namespace=(one,), users=True) for one in ("ann", "ben"))
    joe = {"user": "joe"}

    async with Client(ann) as one, Client(ben) as other:
        await one.call_tool("remember", {**joe, "said": "I breed quokkas."})
        recalled = await other.call_tool("recall", joe)
        listed = await other.call_tool("list_users", {})
        forgotten = await other.call_tool("forget_user", joe)
        kept = await one.call_tool("recall", joe)

    assert recalled.content[0].text == ""
    assert listed.structured_content["result"] == []
    assert forgotten.structured_content["items"] == 0
    assert "quokkas" in kept.content[0].text


async def test_servers_of_one_store_share_no_memory_if_their_namespaces_differ(tmp_path):
    (tmp_path / "lease.txt").write_text("The lease was signed by Mr. Fox.")
    store, listed = InMemoryStore(), {}

    for name in ("ann", "ben"):
        server = serve(tmp_path / "lease.txt", store=store, namespace=(name, "memagent"))
        async with Client(server) as client:
            before = await client.call_tool("list_memories", {})
            asked = {"question": "Who signed the lease?", "source": "lease.txt"}
            read = await client.call_tool("read", asked)
            after = await client.call_tool("list_memories", {})
        listed[name] = [len(found.structured_content["result"]) for found in (before, after)]
        assert read.structured_content["memory"]

    assert listed == {"ann": [0, 1], "ben": [0, 1]}
    spaces = {space[:2] for space in store.list_namespaces(limit=100)}
    assert spaces == {("ann", "memagent"), ("ben", "memagent")}
