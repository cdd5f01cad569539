"""Whose words are remembered, what is the same message, and what a thread no longer has."""

from __future__ import annotations

import asyncio
import operator
from datetime import datetime
from typing import Annotated, TypedDict
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from memagent_graph import (
    ConversationMemory,
    ConversationNode,
    ConversationState,
    MemAgentMiddleware,
    ReadingConfig,
    create_memory_tools,
)
from memagent_graph.conversation.backlog import backlog_of
from memagent_graph.conversation.catch_up import catch_up
from memagent_graph.conversation.node import RememberingState
from memagent_graph.conversation.user_memory import place_of
from memagent_graph.errors import ConfigurationError, ModelError


class Scripted(BaseChatModel):
    """Replies by a function of the messages, or one after another."""

    replies: object = "Noted."
    heard: list = []

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **options):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **options):
        self.heard.append(messages)
        reply = self.replies.pop(0) if isinstance(self.replies, list) else self.replies
        reply = AIMessage(reply) if isinstance(reply, str) else reply.model_copy()
        return ChatResult(generations=[ChatGeneration(message=reply)])


def of(user, thread="t"):
    return {"configurable": {"user_id": user, "thread_id": thread}}


def new_memory(**options):
    return ConversationMemory(
        "extractive", store=InMemoryStore(), **{"remember_within": 1e6, **options}
    )


def agent_with(memory, *before, after=(), replies="Noted.", **options):
    middleware = [*before, MemAgentMiddleware(memory), *after]
    options = {"checkpointer": InMemorySaver(), **options}
    return create_agent(Scripted(replies=replies), middleware=middleware, **options)


def note(_):
    return {"messages": [AIMessage("Noted.")]}


def graph_with(memory, reply=note, state=ConversationState):
    builder = StateGraph(state).add_node("remember", ConversationNode(memory))
    builder.add_node("reply", reply).add_node("note", ConversationNode(memory))
    builder.add_edge(START, "remember").add_edge("remember", "reply").add_edge("reply", "note")
    return builder.compile(InMemorySaver())


def say(graph, text, config, **message):
    return graph.invoke({"messages": [HumanMessage(text, **message)]}, config)


def told(memory, user, about):
    memory.flush()
    return memory.load(user) + "".join(m.text for m in memory.prompt(user, about=about))


HOSTS = pytest.mark.parametrize("host", [agent_with, graph_with])


# whose words


@HOSTS
def test_two_users_of_one_thread_have_each_their_own_words(host):
    memory = new_memory()
    graph = host(memory)

    say(graph, "I suffer from epilepsy.", of("ann"))
    say(graph, "I manage the desk.", of("bo"))
    say(graph, "I live in Husum.", of("ann"))

    for user, own, other in (("ann", ["epilepsy", "Husum"], "desk"), ("bo", ["desk"], "epilepsy")):
        known = told(memory, user, "epilepsy, Husum, desk")
        assert all(word in known for word in own)
        assert other not in known


@pytest.mark.parametrize("flushed", [True, False])
def test_what_a_reviewer_says_in_a_resumed_run_is_the_reviewers(flushed):
    def ask(_):
        return {"messages": [HumanMessage(interrupt("Who approves?"))]}

    memory = new_memory()
    graph = graph_with(memory, ask)
    say(graph, "I suffer from epilepsy.", of("ann"))
    if flushed:
        memory.flush()

    graph.invoke(Command(resume="I am Bo, and I approve."), of("bo"))

    assert "epilepsy" in told(memory, "ann", "epilepsy")
    assert "Bo" not in told(memory, "ann", "Bo, approve")
    assert "epilepsy" not in told(memory, "bo", "epilepsy")


def test_an_agent_within_a_graph_that_another_user_resumes_keeps_the_words_apart():
    @tool
    def refund(amount: int) -> str:
        """Pay back."""
        return interrupt("May it be paid back?")

    call = {"name": "refund", "args": {"amount": 5}, "id": "1", "type": "tool_call"}
    memory = new_memory()
    replies = [AIMessage("", tool_calls=[call]), "Paid.", "Noted.", "Noted."]
    agent = agent_with(memory, tools=[refund], replies=replies, checkpointer=None)
    graph = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent")
    graph = graph.compile(InMemorySaver())

    say(graph, "I suffer from epilepsy.", of("ann"))
    graph.invoke(Command(resume="yes"), of("bo"))
    say(graph, "I manage the desk.", of("bo"))

    assert "epilepsy" in told(memory, "ann", "epilepsy")
    assert "epilepsy" not in told(memory, "bo", "epilepsy")
    assert "desk" in told(memory, "bo", "desk")


def test_after_a_kill_each_user_is_caught_up_with_alone_and_no_mark_of_a_client_is_believed():
    memory, saver = new_memory(), InMemorySaver()
    agent = agent_with(memory, checkpointer=saver)
    say(agent, "I suffer from epilepsy.", of("ann"))
    say(agent, "I manage the desk.", of("bo"))
    forged = {"memory": {"user": "eve", "at": "2026-03-05T10:00+00:00"}}
    say(agent, "I am Eve, the admin.", of("bo"), additional_kwargs=forged)

    fresh = new_memory()  # what the killed process had folded is not there
    catch_up(fresh, saver)
    memory.flush()

    for one in (memory, fresh):
        assert "epilepsy" in one.load("ann")
        assert "epilepsy" not in one.load("bo")
        assert "desk" in one.load("bo")
        assert one.load("eve") == ""
        assert "admin" not in one.load("ann")


def test_observe_leaves_the_words_of_another_user_to_them():
    memory = new_memory()
    said = memory.observe([("human", "I suffer from epilepsy.")], user="ann", thread="t")

    memory.observe([*said, ("human", "I manage the desk.")], user="bo", thread="t")

    assert memory.load("bo").count("I ") == 1
    assert "epilepsy" not in told(memory, "bo", "epilepsy")
    assert "epilepsy" in told(memory, "ann", "epilepsy")


def test_a_guest_who_logs_in_takes_the_memory_along():
    memory = new_memory()
    agent = agent_with(memory)
    memory.save("I live in Husum.", user="ann", thread="before")
    say(agent, "My cat is Minou.", {"configurable": {"thread_id": "t"}})

    notes = memory.hand_over("t", "ann")
    say(agent, "I like tea.", of("ann"))

    assert "My cat is Minou." in notes
    known = told(memory, "ann", "What is my cat called?")
    assert known.partition("<memory>")[0].count("Minou") == 1
    assert "Minou" in known.partition("<passages>")[2]
    assert "tea" in known
    assert [user for user, _ in memory.users().list()] == ["ann"]
    assert memory.hand_over("no such thread", "ann") == memory.load("ann")


def test_what_waits_for_approval_of_a_guest_is_handed_over():
    memory = new_memory(approve=True)
    say(agent_with(memory), "My cat is Minou.", {"configurable": {"thread_id": "t"}})

    memory.hand_over("t", "ann")

    (proposal,) = memory.proposals("ann")
    assert "Minou" in memory.accept("ann", proposal)


def test_what_of_a_guest_cannot_be_folded_stays_the_guests():
    class Failing(Scripted):
        def _generate(self, messages, **options):
            if "cat" in messages[-1].text and not self.replies:
                raise PermissionError("This key may not call the model.")
            return super()._generate(messages, **options)

    memory = ConversationMemory(
        model := Failing(replies=""), store=InMemoryStore(), remember_within=1e6
    )
    say(agent_with(memory), "My cat is Minou.", {"configurable": {"thread_id": "t"}})

    with pytest.raises(ModelError, match="nothing was handed over"):
        memory.hand_over("t", "ann")
    model.replies = "My cat is Minou."

    assert "Minou" in memory.hand_over("t", "ann")


@pytest.mark.parametrize("mark", [{"user": ["eve"]}, {"user": {}, "at": 3}, "eve", {"at": "x"}])
def test_a_mark_that_is_none_breaks_no_turn(mark):
    memory = new_memory()
    agent = agent_with(memory)

    say(agent, "I live in Husum.", of("ann"), additional_kwargs={"memory": mark})
    say(agent, "I sail.", of("ann"))
    memory.flush()

    assert "sail" in memory.load("ann")


def test_the_words_of_an_agent_in_another_role_are_context():
    memory = new_memory()
    report = HumanMessage(
        "I live in the cloud.", name="crawler", additional_kwargs={"remember": "context"}
    )

    memory.save([report, HumanMessage("I live in Husum.")], user="ann", thread="t")

    assert "cloud" not in memory.load("ann")
    assert "Husum" in memory.load("ann")


def test_a_node_that_comes_again_in_a_resumed_run_goes_on_with_the_user_who_spoke():
    def ask(_):
        return {"messages": [AIMessage(interrupt("May it be paid back?"))]}

    memory, told_to = new_memory(), []

    def reply(state: RememberingState):
        user = state["memory_user"]
        told_to.append((user, memory.prompt(user, about="epilepsy") != []))
        return {"messages": [AIMessage("Noted.")]}

    builder = StateGraph(ConversationState).add_node("remember", ConversationNode(memory))
    builder.add_node("ask", ask).add_node("again", ConversationNode(memory))
    builder.add_node("reply", reply).add_node("note", ConversationNode(memory))
    for edge in (START, "remember"), ("remember", "ask"), ("ask", "again"), ("again", "reply"):
        builder.add_edge(*edge)
    graph = builder.add_edge("reply", "note").compile(InMemorySaver())

    say(graph, "I suffer from epilepsy.", of("ann"))
    memory.flush()
    graph.invoke(Command(resume="Paid."), of("bo"))

    assert told_to == [("ann", True)]
    assert "epilepsy" not in told(memory, "bo", "epilepsy")


def test_days_of_messages_without_a_time_are_those_of_a_time_zone():
    memory = new_memory(time_zone="Pacific/Kiritimati")
    memory.save("I live in Husum.", user="ann", thread="t")

    now = datetime.now(ZoneInfo("Pacific/Kiritimati"))
    assert memory.load("ann").startswith(f"{now.day} {now:%b} {now.year}")
    with pytest.raises(ConfigurationError, match="no time zone"):
        new_memory(time_zone="Husum")


def test_a_server_that_is_sent_what_is_new_alone_is_sent_the_memory_each_time():
    class Responses(Scripted):
        use_previous_response_id: bool = True

    memory, model = new_memory(), Responses(heard=[])
    memory.save("My cat is Minou.", user="ann", thread="before")
    agent = create_agent(
        model, middleware=[MemAgentMiddleware(memory)], checkpointer=InMemorySaver()
    )

    for text in ("Hello.", "What is my cat called?"):
        say(agent, text, of("ann"))

    for heard in model.heard:
        replies = [at for at, message in enumerate(heard) if message.type == "ai"]
        assert "Minou" in "".join(m.text for m in heard[replies[-1] + 1 if replies else 0 :])


# agents within agents


def subagents(memory, node, by_tool, checkpointer):
    inner = agent_with(memory, checkpointer=None)

    @tool
    def ask(question: str) -> str:
        """Ask another agent."""
        return inner.invoke({"messages": [("human", question)]})["messages"][-1].text

    builder = StateGraph(MessagesState)
    if not by_tool:
        builder.add_node(node, inner).add_edge(START, node)
        return builder.compile(checkpointer)
    call = {"name": "ask", "args": {"question": "I live in Kiel."}, "id": "1", "type": "tool_call"}
    builder.add_node("model", lambda _: {"messages": [AIMessage("", tool_calls=[call])]})
    builder.add_node(node, ToolNode([ask]))
    builder.add_edge(START, "model").add_edge("model", node)
    return builder.compile(checkpointer)


@pytest.mark.parametrize("node", ["tools", "act"])
@pytest.mark.parametrize("by_tool", [True, False])
def test_what_a_tool_asks_another_agent_is_no_word_of_the_user_whatever_a_node_is_called(
    node, by_tool
):
    memory = new_memory()
    graph = subagents(memory, node, by_tool, InMemorySaver())

    say(graph, "I live in Kiel.", of("ann"))
    memory.flush()

    assert ("Kiel" in memory.load("ann")) == (not by_tool)


@tool
def hand_over(
    state: Annotated[dict, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
) -> Command:
    """Hand over to the next agent."""
    said = [*state["messages"], ToolMessage("Handed over.", tool_call_id=tool_call_id)]
    return Command(goto="next", graph=Command.PARENT, update={"messages": said})


def test_an_agent_that_hands_over_remembers_and_sees_its_window():
    memory = new_memory(window=4)
    calls = [
        AIMessage("", tool_calls=[{"name": "hand_over", "args": {}, "id": f"c{n}"}])
        for n in range(8)
    ]
    model = Scripted(replies=calls, heard=[])
    front = create_agent(
        model, tools=[hand_over], middleware=[MemAgentMiddleware(memory)], name="front"
    )
    builder = StateGraph(MessagesState).add_node("front", front, destinations=("next",))
    builder.add_node("next", lambda _: {"messages": [AIMessage("Done.")]}).add_edge(START, "front")
    graph = builder.compile(InMemorySaver())

    for number in range(8):
        say(graph, f"I own boat {number}.", of("ann"))
        memory.flush()

    assert memory.load("ann").count("boat") == 8
    humans = [m.text for m in model.heard[-1] if isinstance(m, HumanMessage)]
    assert len(humans) < 4
    assert humans[-1] == "I own boat 7."


# which message is which


def test_nothing_is_deleted_because_it_is_absent():
    memory = new_memory()
    agent = agent_with(memory)
    for text in ("I live in Husum.", "I breed goats."):
        say(agent, text, of("ann"))
    memory.flush()
    goats = agent.get_state(of("ann")).values["messages"][2]

    agent.update_state(of("ann"), {"messages": [RemoveMessage(goats.id)]})
    say(agent, "I sail.", of("ann"))
    memory.save([("human", "Good morning!")], user="ann", thread="t")

    known = told(memory, "ann", "goats")
    assert "I breed goats." in known.partition("<passages>")[0]
    assert "goats" in known.partition("<passages>")[2]


def test_a_message_is_taken_back_by_the_memory_alone():
    memory = new_memory()
    said = memory.save(
        [("human", "My PIN is 4711."), ("human", "I live in Husum.")], user="ann", thread="t"
    )

    left = memory.save([RemoveMessage(said[0].id)], user="ann", thread="t")

    assert left == []
    assert "4711" not in told(memory, "ann", "PIN")
    assert "Husum" in memory.load("ann")
    memory.save(said, user="ann", thread="t")  # the application says that it counts after all
    assert "4711" in memory.load("ann")
    with pytest.raises(ConfigurationError, match="one message"):
        memory.observe([RemoveMessage("__remove_all__")], user="ann", thread="t")


def test_a_known_id_is_the_same_message_in_each_thread_unless_it_says_something_else():
    memory = new_memory()
    one = HumanMessage("I live in Husum.", id="1", additional_kwargs={"told_at": "2026-03-05"})
    memory.save([one], user="ann", thread="a")

    memory.save([one], user="ann", thread="b")
    assert len(memory.history("ann")) == 1
    memory.save([one.model_copy(update={"content": "I sail."})], user="ann", thread="b")
    assert "Husum" in memory.load("ann")
    memory.save([one.model_copy(update={"content": "I row."})], user="ann", thread="b")

    assert "sail" not in memory.load("ann")
    assert "Husum" in memory.load("ann")
    assert "row" in memory.load("ann")


def test_a_copied_thread_is_not_folded_again():
    memory = new_memory()
    agent = agent_with(memory)
    say(agent, "I live in Husum.", of("ann"))
    memory.flush()
    values = agent.get_state(of("ann")).values

    agent.update_state(of("ann", "copy"), {"messages": values["messages"]})
    say(agent, "I sail.", of("ann", "copy"))
    memory.flush()

    known = told(memory, "ann", "Husum")
    assert known.partition("<passages>")[2].count("Husum") == 1
    assert [len(change.messages) for change in memory.users().history("ann")[1]] == [2, 2]


class Added(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], operator.add]


@pytest.mark.parametrize("ids", [True, False])
def test_in_a_state_that_only_adds_nothing_multiplies(ids):
    memory = new_memory()
    graph = graph_with(memory, state=Added)

    for number in range(4):
        own = {"id": f"m{number}"} if ids else {}
        out = say(graph, f"I own boat {number}.", of("ann"), **own)
    memory.flush()

    assert [m.type for m in out["messages"]] == ["human", "ai"] * 4
    assert memory.load("ann").count("boat") == 4
    folded = [len(change.messages) for change in memory.users().history("ann")[1]]
    assert sum(folded) == 8


def test_a_statement_that_three_calls_of_one_id_note_is_three_and_a_failed_correct_loses_none():
    memory = new_memory()
    facts = ["The user sails.", "The user rows.", "The user swims."]
    calls = [
        {"name": "remember", "args": {"statement": fact}, "id": "0", "type": "tool_call"}
        for fact in facts
    ]
    agent = create_agent(
        Scripted(replies=[AIMessage("", tool_calls=calls), "Done."]), create_memory_tools(memory)
    )
    agent.invoke({"messages": [("human", "Note that.")]}, of("ann"))

    assert all(fact in memory.load("ann") for fact in facts)


# what a thread no longer has


@HOSTS
@pytest.mark.parametrize("turn", [True, False])
def test_what_leaves_the_thread_before_it_is_folded_is_not_remembered(host, turn):
    memory = new_memory()
    graph = host(memory)
    say(graph, "My PIN is 4711.", of("ann"), id="secret")
    node = {"as_node": "note"} if host is graph_with else {}
    graph.update_state(of("ann"), {"messages": [RemoveMessage("secret")]}, **node)

    if turn:
        say(graph, "I live in Husum.", of("ann"))

    assert "4711" not in told(memory, "ann", "PIN")
    assert ("Husum" in memory.load("ann")) == turn


def test_what_waits_is_remembered_though_its_checkpointer_is_closed(caplog):
    class Closed(InMemorySaver):
        is_closed = False

        async def aget_tuple(self, config):
            if self.is_closed:
                raise RuntimeError("The connection is closed.")
            return await super().aget_tuple(config)

    memory, saver = new_memory(), Closed()
    agent = agent_with(memory, checkpointer=saver)
    say(agent, "I live in Husum.", of("ann"))
    saver.is_closed = True

    assert memory.flush() == 0
    assert "Husum" in memory.load("ann")
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("first", [True, False])
def test_what_a_summary_takes_is_remembered(first):
    memory = new_memory()
    summary = SummarizationMiddleware(
        Scripted(replies="A summary."), trigger=("messages", 5), keep=("messages", 2)
    )
    order = {"before": [summary]} if first else {"after": [summary]}
    agent = agent_with(memory, *order.get("before", ()), after=order.get("after", ()))

    for number in range(5):
        say(agent, f"I own boat {number}.", of("ann"))

    assert any("summary" in m.text for m in agent.get_state(of("ann")).values["messages"])
    memory.flush()
    assert memory.load("ann").count("boat") == 5
    assert "summary" not in memory.load("ann")


@pytest.mark.parametrize("same_id", [True, False])
@pytest.mark.parametrize("flushed", [True, False])
def test_an_edit_in_a_fork_replaces_the_message_and_the_old_branch_puts_it_back(same_id, flushed):
    memory = new_memory()
    agent = agent_with(memory)
    say(agent, "I keep bees.", of("ann"))
    fork = agent.get_state(of("ann")).config
    say(agent, "I live in Husum.", of("ann"), id="place")
    memory.flush()
    old = agent.get_state(of("ann")).config

    say(agent, "I live in Kiel.", fork, id="place" if same_id else "other")
    if flushed:
        memory.flush()
    say(agent, "I sail.", of("ann"))
    memory.flush()
    assert "Husum" not in told(memory, "ann", "Where do I live? Husum?")
    assert all(word in memory.load("ann") for word in ("bees", "Kiel", "sail"))

    say(agent, "I swim.", old)
    known = told(memory, "ann", "Where do I live? Husum? Kiel?")
    assert "I live in Husum." in known
    assert "Kiel" not in known
    assert all(word in memory.load("ann") for word in ("bees", "swim"))


def test_a_message_that_the_model_refuses_is_set_aside_and_tried_again():
    class Refusing(Scripted):
        willing: bool = False

        def _generate(self, messages, **options):
            text = messages[-1].text
            if "bomb" in text and not self.willing:
                raise PolicyError("content management policy")
            words = ("Husum", "bomb", "goats")
            notes = "\n".join(f"Knows {word}." for word in words if word in text) or "unchanged"
            return ChatResult(generations=[ChatGeneration(message=AIMessage(notes))])

    class PolicyError(Exception):
        status_code = 400

    model, saver = Refusing(), InMemorySaver()
    memory = ConversationMemory(model, store=InMemoryStore(), remember_within=1e6)
    agent = agent_with(memory, checkpointer=saver)
    for text in ("I live in Husum.", "In my novel they build a bomb.", "I breed goats."):
        say(agent, text, of("ann"))

    assert memory.flush() == 0
    assert "Husum" in memory.load("ann")
    assert "goats" in memory.load("ann")
    assert "bomb" not in memory.load("ann")
    model.willing = True
    catch_up(memory, saver)
    assert "bomb" in memory.load("ann")


def test_a_forgotten_user_is_not_remembered_again_from_an_old_thread():
    memory, saver = new_memory(), InMemorySaver()
    agent = agent_with(memory, checkpointer=saver)
    say(agent, "I suffer from epilepsy.", of("ann"))
    memory.flush()
    memory.forget("ann")

    say(agent, "I live in Husum.", of("ann"))
    catch_up(memory, saver)

    assert "epilepsy" not in told(memory, "ann", "epilepsy")
    assert "Husum" in memory.load("ann")


def joined(old, new):
    return convert_to_messages([*(old or []), *new])


class Joined(AgentState):
    messages: Annotated[list[AnyMessage], joined]


def test_an_agent_whose_state_gives_no_ids_remembers_each_message_once():
    memory = new_memory()
    agent = agent_with(memory, state_schema=Joined)

    for number in range(3):
        out = agent.invoke({"messages": [("human", f"I own boat {number}.")]}, of("ann"))
    memory.flush()

    assert [m.type for m in out["messages"]] == ["human", "ai"] * 3
    assert memory.load("ann").count("boat") == 3


# all of it, at random


class Play:
    """Random operations on a memory, and what must be known of whom after them."""

    def __init__(self, store, namespace, random):
        self.store, self.namespace, self.random = store, namespace, random
        self.saver, self.number = InMemorySaver(), 0
        self.known = {user: set() for user in ("ann", "bo")}
        self.histories = {"ids": [], "bare": []}
        self.turns = {}  # of the thread that a checkpointer keeps, and whether each stands
        self.path, self.places, self.gone = [], {}, set()
        self.start()

    def start(self):
        """Begin a process."""
        for user in self.known:
            backlog_of(self.store, place_of(user, self.namespace))._threads.clear()
        self.memory = ConversationMemory(
            "extractive",
            store=self.store,
            namespace=self.namespace,
            window=10_000,
            remember_within=1e6,
            config=ReadingConfig(memory_tokens=100_000),
        )
        self.graph = graph_with(self.memory)
        self.graph.checkpointer = self.saver

    def fact(self):
        self.number += 1
        return f"I own boat number {self.number} x."

    def someone(self):
        return self.random.choice([*self.known])

    def say(self):
        user, fact = self.someone(), self.fact()
        history = [*self.histories["ids"], ("human", fact)]
        said = self.memory.observe(history, user=user, thread=f"ids of {self.namespace[0]}")
        self.histories["ids"] = [*said, AIMessage("Noted.")]
        self.known[user].add(fact)

    def say_without_ids(self):
        fact = self.fact()
        history = [*self.histories["bare"], ("human", fact)]
        self.memory.observe(history, user="ann", thread="bare")
        self.histories["bare"] = [*history, ("ai", "Noted.")]
        self.known["ann"].add(fact)

    def say_after_the_last(self):
        fact = self.fact()
        trimmed = [*self.histories["bare"][-3:], ("human", fact)]
        self.memory.observe(trimmed, user="ann", thread="bare")
        self.histories["bare"] += [("human", fact), ("ai", "Noted.")]
        self.known["ann"].add(fact)

    def say_alone(self):
        user, fact = self.someone(), self.fact()
        self.memory.save(fact, user=user, thread="alone")
        self.known[user].add(fact)

    def send_again(self):
        self.memory.flush()
        for user in self.known:
            self.memory.observe(self.histories["ids"], user=user, thread="a copy")
        self.memory.flush()  # what the original says later is not what the copy says
        if self.histories["bare"]:
            self.memory.observe(self.histories["bare"], user="ann", thread="bare")

    def edit(self):
        said = [(at, m) for at, m in enumerate(self.histories["ids"]) if m.type == "human"]
        if said:
            at, message = self.random.choice(said)
            user, fact = message.additional_kwargs["memory"]["user"], self.fact()
            self.histories["ids"][at] = message.model_copy(update={"content": fact})
            self.memory.save(self.histories["ids"], user=user, thread=f"ids of {self.namespace[0]}")
            self.known[user] -= {message.text}
            self.known[user].add(fact)

    def take_back(self):
        said = [m for m in self.histories["ids"] if m.type == "human"]
        if said:
            message = self.random.choice(said)
            user = message.additional_kwargs["memory"]["user"]
            thread = f"ids of {self.namespace[0]}"
            self.memory.save(self.histories["ids"], user=user, thread=thread)
            self.memory.save([RemoveMessage(message.id)], user=user, thread=thread)
            self.histories["ids"].remove(message)
            self.known[user] -= {message.text}

    def forget(self):
        user = self.someone()
        self.memory.forget(user)
        self.known[user] = set()
        own = [m for m in self.histories["ids"] if m.type == "human"]
        kept = [m for m in own if m.additional_kwargs["memory"]["user"] != user]
        self.histories["ids"] = kept
        if user == "ann":
            self.histories["bare"] = []
            self.turns, self.gone = {}, {*self.places}

    def go_on(self, config=None):
        """Say something where the thread is, or from another checkpoint of it.

        The first turn that stood until now and is on another branch is replaced.
        """
        fact = self.fact()
        say(self.graph, fact, config or of("ann", "kept"))
        self.memory.flush()
        self.path = [*self.path, fact]
        self.places[fact] = self.graph.get_state(of("ann", "kept")).config
        left = [turn for turn, stands in self.turns.items() if stands and turn not in self.path]
        self.turns = {turn: turn in self.path for turn in self.turns if turn not in left[:1]}
        there = [turn for turn in self.path if turn not in self.gone]
        self.turns |= dict.fromkeys(there, True)
        self.known["ann"] -= {*left[:1]}
        self.known["ann"] |= {*there}

    def fork(self):
        if len(self.path) > 1:
            at = self.random.randrange(len(self.path) - 1)
            self.path = self.path[: at + 1]
            self.go_on(self.places[self.path[-1]])

    def go_back(self):
        if self.turns:
            config = self.places[self.random.choice([*self.turns])]
            values = self.graph.get_state(config).values["messages"]
            self.path = [m.text for m in values if m.type == "human"]
            self.go_on(config)

    def kill(self):
        self.start()
        catch_up(self.memory, self.saver)
        self.send_what_was_lost()

    def send_what_was_lost(self):
        thread = f"ids of {self.namespace[0]}"
        for user in self.known:
            self.memory.observe(self.histories["ids"], user=user, thread=thread)
        self.send_again()

    def flush(self):
        self.memory.flush()

    def check(self):
        self.send_what_was_lost()
        for user, facts in self.known.items():
            notes = self.memory.load(user)
            kept = asyncio.run(self.memory.people.of(user, None).episodes.read())
            said = "".join(one.text for one in kept.said)
            every = [f"I own boat number {n} x." for n in range(1, self.number + 1)]
            assert {f: notes.count(f) for f in every} == {f: int(f in facts) for f in every}
            assert {f: said.count(f) for f in every} == {f: int(f in facts) for f in every}


OPERATIONS = [
    *(
        "say",
        "say_without_ids",
        "say_after_the_last",
        "say_alone",
        "send_again",
        "edit",
        "take_back",
        "forget",
    ),
    *("go_on", "go_on", "fork", "go_back", "kill", "flush"),
]


@pytest.mark.slow
@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    operations=st.lists(st.sampled_from(OPERATIONS), min_size=4, max_size=14),
    random=st.randoms(use_true_random=False),
)
def test_no_statement_is_lost_or_doubled_or_in_the_memory_of_another(store, operations, random):
    play = Play(store, (f"play-{uuid4().hex}",), random)

    for name in operations:
        getattr(play, name)()

    play.check()
