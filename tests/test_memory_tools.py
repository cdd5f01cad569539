"""Tools with which an agent looks after a user's memory, and what a user asks it to forget."""

from __future__ import annotations

import asyncio

import pytest
from doubles import ScriptedReader
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory, create_memory_tools
from memagent_graph.errors import ConfigurationError


class Model(GenericFakeChatModel):
    """Calls the tools that it is told to, and knows the schemas that it was given."""

    given: list = []

    def bind_tools(self, tools, **options):
        self.given.extend(tools)
        return self


def ask(memory, *calls, user="ann", how="sync", **options):
    """What the tools return."""
    made = [{"name": name, "args": args, "id": f"c{n}"} for n, (name, args) in enumerate(calls)]
    replies = [AIMessage("", tool_calls=[call]) for call in made]
    model = Model(messages=iter([*replies, AIMessage("Done.")]), given=[])
    agent = create_agent(
        model, create_memory_tools(memory), checkpointer=InMemorySaver(), **options
    )
    config = {"configurable": {"user_id": user, "thread_id": "monday"}}
    said = {"messages": [HumanMessage("Go.")]}
    sync = how == "sync"
    out = agent.invoke(said, config) if sync else asyncio.run(agent.ainvoke(said, config))
    return [m.text for m in out["messages"] if m.type == "tool"], model


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_agent_remembers_recalls_corrects_and_forgets(how):
    memory = ConversationMemory("extractive", store=InMemoryStore())

    (kept, found, corrected, now, gone, left), _ = ask(
        memory,
        ("remember", {"statement": "I live in Husum."}),
        ("recall", {"about": "Where do I live?"}),
        ("correct", {"wrong": "live in Husum", "right": "I live in Kiel."}),
        ("recall", {"about": "Where do I live?"}),
        ("forget", {"subject": "Kiel"}),
        ("recall", {"about": "Where do I live?"}),
        how=how,
    )

    assert kept == "Remembered."
    assert "I live in Husum." in found
    assert "I live in Husum." in corrected
    assert "Kiel" in now
    assert "Husum" not in now
    assert "I live in Kiel." in gone
    assert "Kiel" not in left


def test_the_model_cannot_name_a_user():
    memory = ConversationMemory("extractive", store=InMemoryStore())
    memory.save([("human", "I live in Bern.")], user="bob", thread="t")

    (told,), model = ask(memory, ("recall", {"about": "Bern", "user": "bob", "user_id": "bob"}))

    assert told == "Nothing is remembered."
    names = {name for tool in model.given for name in tool.tool_call_schema.model_fields}
    assert names == {"statement", "about", "subject", "wrong", "right"}


def test_the_store_of_the_agent_is_used():
    store = InMemoryStore()
    ask(ConversationMemory("extractive"), ("remember", {"statement": "I sail."}), store=store)

    assert "I sail." in ConversationMemory("extractive", store=store).load("ann")


def test_an_error_is_the_tools_message():
    memory = ConversationMemory("extractive", store=InMemoryStore())

    (said,), _ = ask(memory, ("forget", {"subject": "it"}))

    assert "specific words" in said


def test_what_was_not_found_is_not_reported_as_forgotten():
    memory = ConversationMemory("extractive", store=InMemoryStore())
    memory.save([("human", "I live in Bern.")], user="ann", thread="t")

    (said,), _ = ask(memory, ("forget", {"subject": "my phone number"}))

    assert said.startswith("No statement has")
    assert "Bern" in memory.load("ann")


@pytest.mark.parametrize(
    "text",
    [
        "Forget my phone number.",
        "Forget peanuts, even a phone number of 0171 would do.",
        "Oublie mon phone number 0171.",
        "Don't forget my phone number.",
    ],
)
def test_a_sentence_alone_deletes_nothing(text):
    memory = ConversationMemory("extractive", store=InMemoryStore())
    memory.save([("human", "My phone number is 0171 555."), ("human", text)], user="a", thread="t")

    assert "My phone number is 0171 555." in memory.load("a")
    assert "0171 555" in memory.prompt("a", about="phone number")[0].text.partition("<passages>")[2]


@pytest.mark.parametrize(
    ("named", "goes"), [("phone number", True), ("rent phone", False), ("", False), ("it", False)]
)
@pytest.mark.parametrize("together", [True, False])
def test_what_a_model_says_is_to_be_forgotten_goes_if_the_user_said_its_words(
    named, goes, together
):
    notes = "2026-03-05: phone number 0171 555\n2026-03-05: the rent is 900 euros"
    replies = [notes, f"{notes}\nForget: {named}"][together:]
    memory = ConversationMemory(FakeListChatModel(responses=replies), store=InMemoryStore())
    known = HumanMessage("My phone number is 0171 555. My rent is 900 euros.", name="Ann")
    asks = HumanMessage("Please forget my phone number.", name="Ann")

    for said in [[known, asks]] if together else [[known], [asks]]:
        memory.save(said, user="ann", thread="t")

    told = memory.load("ann") + memory.prompt("ann", about="phone number, rent")[0].text
    assert ("0171" not in told) == goes
    assert "900 euros" in memory.load("ann")
    assert "900 euros" in told.partition("<passages>")[2]
    assert "Forget:" not in memory.load("ann")


def test_a_profile_and_a_subject_without_words_are_refused():
    memory = ConversationMemory(ScriptedReader(), store=InMemoryStore())

    with pytest.raises(ConfigurationError, match="specific words"):
        memory.forget_about("ann", "it")
