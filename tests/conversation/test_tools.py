"""Tools with which an agent looks after a user's memory, and what a user asks it to forget."""

import pytest
from conversations import calling, of, prompted, say, words_in
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory, create_memory_tools
from memagent_graph.errors import ConfigurationError
from memagent_graph.testing import ScriptedChatModel, call_tool


def ask(memory, *calls, how="sync", **options):
    """What the tools return."""
    model = ScriptedChatModel(*(call_tool(name, **args) for name, args in calls), "Done.")
    agent = create_agent(model, create_memory_tools(memory), **options)
    out = say(agent, "Go.", of("ann", "monday"), how)
    return [m.text for m in out["messages"] if m.type == "tool"], model


@pytest.fixture
def memory():
    return ConversationMemory("extractive", store=InMemoryStore())


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_agent_remembers_recalls_corrects_and_forgets(memory, how):
    recall = "recall", {"about": "Where do I live?"}
    calls = [*AGAIN["corrected"][:2], ("forget", {"subject": "Kiel"})]

    told, _ = ask(memory, *(call for one in calls for call in (one, recall)), how=how)

    kept, found, corrected, now, gone, left = told
    assert kept == "Remembered."
    assert "I live in Husum." in found
    assert "I live in Husum." in corrected
    assert words_in(now, "Kiel", "Husum") == ["Kiel"]
    assert "I live in Kiel." in gone
    assert "Kiel" not in left


def test_the_model_cannot_name_a_user(memory):
    memory.save([("human", "I live in Bern.")], user="bob", thread="t")

    (told,), model = ask(memory, ("recall", {"about": "Bern", "user": "bob", "user_id": "bob"}))

    assert told == "Nothing is remembered."
    tools = [tool["function"] for tool in model.calls[0].options["tools"]]
    names = {name for tool in tools for name in tool["parameters"]["properties"]}
    assert names == {"statement", "about", "subject", "wrong", "right"}


def test_the_store_of_the_agent_is_used(memory):
    store = memory.users().store
    ask(ConversationMemory("extractive"), ("remember", {"statement": "I sail."}), store=store)

    assert "I sail." in memory.load("ann")


def test_an_error_is_the_tools_message(memory):
    assert "specific words" in ask(memory, ("forget", {"subject": "it"}))[0][0]

    with pytest.raises(ConfigurationError, match="specific words"):
        memory.forget_about("ann", "it")


def test_what_was_not_found_is_not_reported_as_forgotten(memory):
    memory.save([("human", "I live in Bern.")], user="ann", thread="t")

    (said,), _ = ask(memory, ("forget", {"subject": "my phone number"}))

    assert said.startswith("No statement has")
    assert "Bern" in memory.load("ann")


@pytest.mark.parametrize("text", [
    "Forget my phone number.", "Forget peanuts, even a phone number of 0171 would do.",
    "Don't forget my phone number.",
])  # fmt: skip
def test_a_sentence_alone_deletes_nothing(memory, text):
    known = "My phone number is 0171 555."
    memory.save([("human", known), ("human", text)], user="a", thread="t")

    assert known in memory.load("a")
    assert "0171 555" in prompted(memory, "phone number", "a").partition("<passages>")[2]


@pytest.mark.parametrize(
    ("named", "goes"), [("phone number", True), ("rent phone", False), ("", False), ("it", False)]
)
@pytest.mark.parametrize("together", [True, False])
def test_what_a_model_says_is_to_be_forgotten_goes_if_a_user_said_its_words(named, goes, together):
    notes = "2026-03-05: phone number 0171 555\n2026-03-05: the rent is 900 euros"
    replies = [notes, f"{notes}\nForget: {named}"][together:]
    memory = ConversationMemory(ScriptedChatModel(*replies), store=InMemoryStore())
    known = HumanMessage("My phone number is 0171 555. My rent is 900 euros.", name="Ann")
    asks = HumanMessage("Please forget my phone number.", name="Ann")

    for said in [[known, asks]] if together else [[known], [asks]]:
        memory.save(said, user="ann", thread="t")

    text, passages = memory.load("ann"), prompted(memory, "phone number, rent")
    assert ("0171" not in text + passages) == goes
    assert words_in(text, "900 euros", "Forget:") == ["900 euros"]
    assert "900 euros" in passages.partition("<passages>")[2]


HUSUM = "remember", {"statement": "I live in Husum."}
AGAIN = {
    "forgotten": [HUSUM, ("forget", {"subject": "Husum"}), HUSUM],
    "corrected": [
        HUSUM,
        ("correct", {"wrong": "live in Husum", "right": "I live in Kiel."}),
        ("correct", {"wrong": "live in Kiel", "right": "I live in Husum."}),
    ],
}


@pytest.mark.parametrize("calls", AGAIN.values(), ids=AGAIN)
def test_what_was_forgotten_is_remembered_again_also_by_a_call_with_the_same_id(memory, calls):
    replies = [calling(name, "call_0", **args) for name, args in calls]
    agent = create_agent(ScriptedChatModel(*replies, "Done."), create_memory_tools(memory))

    say(agent, "Go.", of("ann", "monday"))

    assert words_in(memory.load("ann"), "Husum", "Kiel") == ["Husum"]
