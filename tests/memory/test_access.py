"""What a run may do with the memory, and an agent to which it is attached read-only."""

from __future__ import annotations

import asyncio

import pytest
from doubles import Hearing, ScriptedReader
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from memagent_graph import (
    ConversationMemory,
    ConversationNode,
    ConversationState,
    MemAgentMiddleware,
    create_memory_tools,
)
from memagent_graph.conversation.catch_up import catch_up
from memagent_graph.conversation.session import Talk
from memagent_graph.conversation.users import Users
from memagent_graph.errors import ConfigurationError


def dump(store):
    return sorted(repr((i.namespace, i.key, i.value)) for i in store.search((), limit=10_000))


def config(access=None, thread="monday"):
    found = {"user_id": "ann", "thread_id": thread}
    return {"configurable": found | ({} if access is None else {"memory_access": access})}


def agent_with(memory, saver, **options):
    model = Hearing(messages=iter([AIMessage(f"Reply {n}.") for n in range(9)]), heard=[])
    agent = create_agent(
        model, middleware=[MemAgentMiddleware(memory)], checkpointer=saver, **options
    )
    return agent, model


@pytest.mark.parametrize("access", ["read", "none"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_nothing_of_a_run_without_writing_is_remembered_ever(access, how):
    store, saver = InMemoryStore(), InMemorySaver()
    memory = ConversationMemory("extractive", store=store, remember_within=0)
    memory.save([("human", "I live in Husum.")], user="ann", thread="sunday")
    agent, model = agent_with(memory, saver)

    def say(text, access=None):
        given = {"messages": [HumanMessage(text)]}
        if how == "sync":
            return agent.invoke(given, config(access))
        return asyncio.run(agent.ainvoke(given, config(access)))

    say("My PIN is yoghurt.", access)
    assert ("Husum" in model.heard[-1]) == (access == "read")
    memory.flush()
    say("I breed goats.")
    memory.flush()
    catch_up(memory, saver)

    assert "goats" in memory.load("ann")
    assert "yoghurt" not in "".join(dump(store))
    told = agent.get_state(config()).values["messages"]
    assert [m.text for m in told if m.type == "human"] == ["My PIN is yoghurt.", "I breed goats."]
    resent = [m.model_copy(update={"id": None, "additional_kwargs": {}}) for m in told]
    memory.save(resent, user="ann", thread="monday")
    assert "yoghurt" not in "".join(dump(store))


def test_a_run_that_only_writes_is_not_told_what_is_known():
    memory = ConversationMemory("extractive", store=InMemoryStore(), remember_within=0)
    memory.save([("human", "I live in Husum.")], user="ann", thread="sunday")
    agent, model = agent_with(memory, InMemorySaver())

    agent.invoke({"messages": [HumanMessage("I breed goats.")]}, config("write"))
    memory.flush()

    assert "Husum" not in model.heard[-1]
    assert "goats" in memory.load("ann")


def test_an_agent_says_so_in_its_context():
    memory = ConversationMemory("extractive", store=InMemoryStore(), remember_within=0)
    agent, _ = agent_with(memory, InMemorySaver(), context_schema=dict)
    given = {"messages": [HumanMessage("I breed goats.")]}

    agent.invoke(given, config(), context={"memory_access": "read"})
    memory.flush()

    assert memory.load("ann") == ""


@pytest.mark.parametrize("behind", [True, False])
def test_a_node_remembers_no_run_without_writing(behind):
    memory = ConversationMemory("extractive", store=InMemoryStore(), remember_within=0)
    builder = StateGraph(ConversationState)
    builder.add_node("remember", ConversationNode(memory))
    builder.add_node("reply", lambda state: {"messages": [AIMessage("Noted.")]})
    builder.add_edge(START, "remember").add_edge("remember", "reply")
    if behind:
        builder.add_node("note", ConversationNode(memory)).add_edge("reply", "note")
    graph = builder.compile(InMemorySaver())

    graph.invoke({"messages": [HumanMessage("My PIN is yoghurt.")]}, config("read"))
    graph.invoke({"messages": [HumanMessage("I breed goats.")]}, config())
    memory.flush()

    assert "goats" in memory.load("ann")
    assert "yoghurt" not in memory.load("ann")


def test_observe_save_and_prompt_follow_the_config(store):
    memory = ConversationMemory("extractive", store=store)
    said = memory.observe(
        [("human", "My PIN is yoghurt.")], user="ann", thread="t", config=config("read")
    )
    memory.flush()
    said = memory.observe(
        [*said, ("ai", "I see."), ("human", "I breed goats.")], user="ann", thread="t"
    )

    assert "goats" in memory.load("ann")
    assert "yoghurt" not in memory.load("ann")
    memory.save([("human", "I sail.")], user="ann", thread="u", config=config("none"))
    assert "sail" not in memory.load("ann")
    assert memory.prompt("ann", config=config("write")) == []
    assert "yoghurt" not in "".join(dump(store))


def test_messages_without_writing_leave_the_window():
    memory = ConversationMemory("extractive", store=InMemoryStore(), window=2, remember_within=1e6)
    agent, model = agent_with(memory, InMemorySaver())

    for n in range(4):
        agent.invoke({"messages": [HumanMessage(f"My PIN is {n}000.")]}, config("read"))

    assert "0000" not in model.heard[-1]
    assert "0000" not in memory.load("ann")


@pytest.mark.parametrize("wrong", ["r", "", 7, ["read"], True])
def test_another_access_is_an_error(wrong):
    memory = ConversationMemory("extractive", store=InMemoryStore())

    with pytest.raises(ConfigurationError, match="must be one of 'all', 'read'"):
        memory.save([("human", "I sail.")], user="ann", thread="t", config=config(wrong))


def runtime(access):
    class Runtime:
        state, store, context, tool_call_id = {}, None, None, "c1"

    Runtime.config = config(access)
    return Runtime


def test_tools_follow_the_config():
    memory = ConversationMemory("extractive", store=InMemoryStore())
    memory.save([("human", "I live in Husum.")], user="ann", thread="t")
    tools = {tool.name: tool for tool in create_memory_tools(memory)}

    def call(name, access, **given):
        return tools[name].func(**given, runtime=runtime(access))

    with pytest.raises(ToolException, match="cannot be changed"):
        call("remember", "read", statement="I sail.")
    with pytest.raises(ToolException, match="cannot be changed"):
        call("forget", "read", subject="Husum")
    with pytest.raises(ToolException, match="cannot be changed"):
        call("correct", "none", wrong="Husum", right="I sail.")
    with pytest.raises(ToolException, match="cannot be read"):
        call("recall", "write", about="Husum")
    assert "Husum" in call("recall", "read", about="Husum")
    assert "sail" not in memory.load("ann")


def export_of(user):
    memory = ConversationMemory("extractive", store=InMemoryStore())
    memory.save([("human", "I build boats.")], user=user, thread="t")
    return memory.users().export([user])


WRITES = {
    "observe": lambda m: m.observe([("human", "I sail.")], user="ann", thread="t"),
    "save": lambda m: m.save([("human", "I sail.")], user="ann", thread="t"),
    "forget": lambda m: m.forget("ann"),
    "forget messages": lambda m: m.forget_messages("ann", ["1"]),
    "forget about": lambda m: m.forget_about("ann", "Husum"),
    "accept": lambda m: m.accept("ann", "x"),
    "refuse": lambda m: m.refuse("ann", "x"),
    "users' edit": lambda m: m.users().edit("ann", "Sails.", by="olga"),
    "users' forget": lambda m: m.users().forget("ann", by="olga"),
    "users' prune": lambda m: m.users().prune(idle_days=0, by="olga"),
    "users' import": lambda m: m.users().import_(export_of("bob"), by="olga"),
    "bank": lambda m: m.users().of("ann").bank.edit("memory", "Sails."),
    "bank's delete": lambda m: m.users().of("ann").bank.delete("memory"),
    "bank's repair": lambda m: m.users().of("ann").bank.clear(),
    "store": lambda m: m.users().store.put(("a",), "b", {}),
    "batch": lambda m: m.users().store.batch([PutOp(("a",), "b", None)]),
    "fold": lambda m: asyncio.run(
        Talk(m, "ann", "t", None).fold([HumanMessage("I sail.", id="9")])
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("write", [pytest.param(w, id=name) for name, w in WRITES.items()])
def test_a_memory_attached_read_only_refuses_every_write(store, write):
    ConversationMemory("extractive", store=store).save(
        [HumanMessage("I live in Husum.", id="1")], user="ann", thread="t"
    )
    reader = ScriptedReader()
    memory = ConversationMemory(reader, store=store, read_only=True)
    before = dump(store)

    with pytest.raises(ConfigurationError, match="read-only"):
        write(memory)

    assert dump(store) == before
    assert reader.calls == []
    assert "Husum" in memory.load("ann")
    assert "Husum" in memory.prompt("ann", about="Where do I live?")[0].text
    assert [v.text for v in memory.history("ann")] == [memory.load("ann")]
    assert [tool.name for tool in create_memory_tools(memory)] == ["recall"]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_agent_has_a_memory_of_its_own_beside_one_attached_read_only(how):
    store = InMemoryStore()
    shared = ConversationMemory("extractive", store=store, namespace=["shop"])
    shared.save([("human", "I wear size 43.")], user="ann", thread="t")
    attached = ConversationMemory("extractive", store=store, namespace=["shop"], read_only=True)
    own = ConversationMemory("extractive", store=store, namespace=["desk"], remember_within=0)
    model = Hearing(messages=iter([AIMessage("Hello."), AIMessage("Hello.")]), heard=[])
    agent = create_agent(
        model,
        middleware=[MemAgentMiddleware(own), MemAgentMiddleware(attached)],
        checkpointer=InMemorySaver(),
    )
    before = Users(store, ["shop"]).export()

    for text in ("I breed goats.", "And now?"):
        given = {"messages": [HumanMessage(text)]}
        if how == "sync":
            agent.invoke(given, config())
        else:
            asyncio.run(agent.ainvoke(given, config()))
        own.flush()

    assert "size 43" in model.heard[0]
    assert "size 43" in model.heard[1]
    assert "goats" in own.load("ann")
    assert Users(store, ["shop"]).export() == before


def test_a_node_of_a_memory_attached_read_only_writes_nothing():
    store = InMemoryStore()
    shared = ConversationMemory("extractive", store=store)
    shared.save([("human", "I wear size 43.")], user="ann", thread="t")
    before = dump(store)
    memory = ConversationMemory("extractive", store=store, read_only=True)
    builder = StateGraph(ConversationState).add_node("remember", ConversationNode(memory))
    graph = builder.add_edge(START, "remember").compile(InMemorySaver())

    out = graph.invoke({"messages": [HumanMessage("I sail.")]}, config())
    memory.flush()

    assert [m.text for m in out["memory_view"]] == ["I sail."]
    assert dump(store) == before


def test_each_user_has_instructions(store):
    nevers = {"ann": "goats", "bob": "boats"}
    memory = ConversationMemory("extractive", store=store, never=lambda user: nevers.get(user, ""))
    said = [("human", "I breed goats."), ("human", "I build boats.")]

    for user in ("ann", "bob", "eve"):
        memory.save(said, user=user, thread=user)
    texts = {user: memory.load(user) for user in ("ann", "bob", "eve")}

    assert ["goats" in text for text in texts.values()] == [False, True, True]
    assert ["boats" in text for text in texts.values()] == [True, False, True]
    assert "goats" not in "".join(m.text for m in memory.prompt("ann", about="goats or boats?"))


def test_a_chat_model_is_asked_with_the_instructions_of_the_user():
    model = Hearing(messages=iter([AIMessage("A note on goats.")] * 3), heard=[])
    memory = ConversationMemory(
        model,
        store=InMemoryStore(),
        keep=lambda user: f"the allergies of {user}",
        never=lambda user: "" if user == "ann" else "money",
    )

    for user in ("ann", "bob"):
        memory.save([("human", "I breed goats.")], user=user, thread=user)

    assert "the allergies of ann" in model.heard[0]
    assert "money" not in model.heard[0]
    assert "the allergies of bob" in model.heard[1]
    assert "money" in model.heard[1]


def test_a_function_that_fails_loses_no_message(caplog):
    broken = True

    def keep(user):
        if broken:
            raise LookupError("No such user.")
        return ""

    memory = ConversationMemory("extractive", store=InMemoryStore(), keep=keep)
    memory.observe([("human", "I breed goats.")], user="ann", thread="t")
    assert memory.load("ann") == ""
    assert "No such user" in caplog.text
    broken = False

    assert "goats" in memory.load("ann")


def test_an_instruction_for_one_task_does_not_stay(store):
    model = "2026-03-05: Lives in Husum.\n2026-03-05: Writes in British English. [ends 2026-03-05]"
    memory = ConversationMemory(
        Hearing(messages=iter([AIMessage(model), AIMessage(model)]), heard=[]), store=store
    )
    said = [("human", "I live in Husum. For this essay, write in British English.")]

    memory.save(said, user="ann", thread="t")

    assert memory.load("ann") == "2026-03-05: Lives in Husum."
    assert "British" not in "".join(m.text for m in memory.prompt("ann"))


def test_an_instruction_stays_until_its_end():
    notes = "2026-03-05: Writes in British English. [ends 9999-03-05]"
    model = Hearing(messages=iter([AIMessage(notes), AIMessage(notes)]), heard=[])
    memory = ConversationMemory(model, store=InMemoryStore())

    memory.save([("human", "Until further notice, British English.")], user="ann", thread="t")

    assert "British" in memory.prompt("ann")[0].text


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("For this essay, I want you to write in British English.", False),
        ("I want short answers, just for now.", False),
        ("In this translation I use the formal address.", False),
        ("For the current draft my limit is 900 words.", False),
        ("I always write in British English.", True),
        ("I wrote this essay in May.", True),
        ("I work for this company.", True),
    ],
)
def test_the_built_in_reader_takes_no_instruction_for_one_task_for_a_fact(text, stays):
    memory = ConversationMemory("extractive", store=InMemoryStore())

    memory.save(text, user="ann", thread="t")

    assert (text in memory.load("ann")) == stays
