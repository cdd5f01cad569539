"""The prompts that a client offers its user."""

import re

import pytest
from langgraph.store.memory import InMemoryStore
from mcp import Client

from memagent_mcp_server import Roots, create_server

ASKED = {"question": "When does the vault open?"}
ARGUMENTS = {
    "ask_document": {"source": "a.txt", **ASKED},
    "continue_memory": {"memory": "7f", **ASKED},
    "compare_documents": {"first": "a.txt", "second": "b.txt", **ASKED},
}


@pytest.fixture(params=["auto", "legacy"])
def client(request, tmp_path):
    (tmp_path / "a.txt").write_text("The vault opens at 6:40.")
    roots = Roots([tmp_path / "a.txt"])
    server = create_server("extractive", roots=roots, store=InMemoryStore())
    return Client(server, mode=request.param)


async def test_prompts_are_listed_with_what_they_ask_for(client):
    async with client:
        advertised = client.server_capabilities.prompts
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}

    assert advertised is not None
    assert prompts.keys() == ARGUMENTS.keys()
    for name, arguments in ARGUMENTS.items():
        assert {argument.name for argument in prompts[name].arguments} == arguments.keys()
        assert all(argument.required for argument in prompts[name].arguments)
        assert prompts[name].title
        assert prompts[name].description


async def test_a_prompt_has_what_the_user_filled_in_and_names_only_tools_that_there_are(client):
    async with client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        got = {name: await client.get_prompt(name, given) for name, given in ARGUMENTS.items()}
        found = {name: prompt.messages for name, prompt in got.items()}

    for name, (message,) in found.items():
        assert message.role == "user"
        assert all(value in message.content.text for value in ARGUMENTS[name].values())
        named = set(re.findall(r"`(\w+)`", message.content.text))
        assert named
        assert named <= tools
