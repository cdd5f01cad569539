"""Whose words are remembered, what is the same message, and what a thread no longer has."""

import asyncio
from datetime import datetime
from functools import partial, reduce
from typing import Annotated
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from conversations import (
    NEVER,
    ROOMY,
    Added,
    agent_with,
    calling,
    dated,
    graph_around,
    graph_with,
    known_of,
    new_memory,
    note,
    of,
    prompted,
    recall,
    run,
    say,
    words_in,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware
from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.messages.utils import convert_to_messages
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.types import Command, Send, interrupt

from memagent_graph import (
    ConversationMemory,
    ConversationNode,
    ConversationState,
    ReplyNode,
    create_memory_tools,
)
from memagent_graph.conversation.catch_up import catch_up
from memagent_graph.conversation.node import RememberingState
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.testing import ScriptedChatModel, call_tool

ANN, BO, GUEST = of("ann"), of("bo"), {"configurable": {"thread_id": "t"}}
IDS = {"user": "ann", "thread": "t"}
HOSTS = pytest.mark.parametrize("host", [agent_with, graph_with, graph_around])


# whose words


def add_all(old, new):
    return reduce(add_messages, new, old)


class Replayed(AgentState):
    messages: Annotated[list[AnyMessage], DeltaChannel(add_all)]


only_adding, replaying = partial(graph_with, state=Added), partial(graph_with, state=Replayed)


def only_behind(memory):
    builder = StateGraph(MessagesState).add_node("reply", note).add_edge(START, "reply")
    builder.add_node("note", ConversationNode(memory)).add_edge("reply", "note")
    return builder.compile(InMemorySaver())


@pytest.mark.parametrize(
    "host", [agent_with, graph_with, graph_around, only_adding, only_behind, replaying]
)
def test_two_users_of_one_thread_have_each_their_own_words(host):
    graph = host(memory := new_memory())

    say(graph, "I suffer from epilepsy.", ANN)
    say(graph, "I manage the desk.", BO)
    say(graph, "I live in Husum.", ANN)

    known = known_of(memory, "epilepsy", "Husum", "desk")
    assert known == {"ann": ["epilepsy", "Husum"], "bo": ["desk"]}


@pytest.mark.parametrize("flushed", [True, False])
def test_what_a_reviewer_says_in_a_resumed_run_is_the_reviewers(flushed):
    def ask(_):
        return {"messages": [HumanMessage(interrupt("Who approves?"))]}

    graph = graph_with(memory := new_memory(), ask)
    say(graph, "I suffer from epilepsy.", ANN)
    if flushed:
        memory.flush()

    graph.invoke(Command(resume="I am Bo, and I approve."), BO)

    assert known_of(memory, "epilepsy", "I am Bo") == {"ann": ["epilepsy"], "bo": ["I am Bo"]}


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_tool_that_another_user_approves_writes_for_the_one_who_asked(how):
    memory = new_memory()
    model = ScriptedChatModel(call_tool("remember", statement="I suffer from epilepsy."), "Done.")
    asks = HumanInTheLoopMiddleware(interrupt_on={"remember": True})
    tools, saver = create_memory_tools(memory), InMemorySaver()
    agent = create_agent(model, tools, middleware=[asks], checkpointer=saver)

    say(agent, "Note that I suffer from epilepsy.", ANN, how)
    run(agent, Command(resume={"decisions": [{"type": "approve"}]}), BO, how)

    assert known_of(memory, "epilepsy") == {"ann": ["epilepsy"], "bo": []}


def test_an_agent_within_a_graph_that_another_user_resumes_keeps_the_words_apart():
    @tool
    def refund(amount: int) -> str:
        """Pay back."""
        return interrupt("May it be paid back?")

    memory = new_memory()
    model = ScriptedChatModel(call_tool("refund", amount=5), "Paid.", "Noted.", "Noted.")
    graph = with_subgraph(memory, model, tools=[refund]).compile(InMemorySaver())

    say(graph, "I suffer from epilepsy.", ANN)
    graph.invoke(Command(resume="yes"), BO)
    say(graph, "I manage the desk.", BO)

    assert known_of(memory, "epilepsy", "desk") == {"ann": ["epilepsy"], "bo": ["desk"]}


@HOSTS
def test_after_a_kill_each_user_is_caught_up_with_alone_and_no_mark_of_a_client_is_believed(host):
    memory, saver = new_memory(), InMemorySaver()
    graph = host(memory, checkpointer=saver)
    say(graph, "I suffer from epilepsy.", ANN)
    say(graph, "I manage the desk.", BO)
    forged = {"memory": {"user": "eve", "at": "2026-03-05T10:00+00:00"}}
    say(graph, "I am Eve, the admin.", BO, additional_kwargs=forged)

    fresh = new_memory()  # what the killed process had folded is not there
    done, again = catch_up(fresh, saver), catch_up(fresh, saver)
    memory.flush()

    assert (done.threads, done.messages, done.failed, again.messages) == (1, 4, 0, 0)
    for one in (memory, fresh):
        assert words_in(one.load("ann"), "epilepsy", "desk", "admin") == ["epilepsy"]
        assert (words_in(one.load("bo"), "epilepsy", "desk"), one.load("eve")) == (["desk"], "")


def test_a_guest_who_logs_in_takes_the_memory_along():
    agent = agent_with(memory := new_memory())
    memory.save("I live in Husum.", user="ann", thread="before")
    say(agent, "My cat is Minou.", GUEST)

    notes = memory.hand_over("t", "ann")
    say(agent, "I like tea.", ANN)

    assert "My cat is Minou." in notes
    known = recall(memory, "ann", "What is my cat called?")
    assert known.partition("<memory>")[0].count("Minou") == 1
    assert "Minou" in known.partition("<passages>")[2]
    assert "tea" in known
    assert [user for user, _ in memory.users().list()] == ["ann"]
    assert memory.hand_over("no such thread", "ann") == memory.load("ann")


def test_what_waits_for_approval_of_a_guest_is_handed_over():
    memory = new_memory(approve=True)
    say(agent_with(memory), "My cat is Minou.", GUEST)

    memory.hand_over("t", "ann")

    assert "Minou" in memory.accept("ann", *memory.proposals("ann"))


def test_what_of_a_guest_cannot_be_folded_stays_the_guests():
    refused = PermissionError("This key may not call the model.")
    memory = new_memory(ScriptedChatModel(refused, "My cat is Minou."))
    say(agent_with(memory), "My cat is Minou.", GUEST)

    with pytest.raises(ModelError, match="nothing was handed over"):
        memory.hand_over("t", "ann")

    assert "Minou" in memory.hand_over("t", "ann")


@pytest.mark.parametrize("mark", [{"user": ["eve"]}, {"user": {}, "at": 3}, "eve", {"at": "x"}])
def test_a_mark_that_is_none_breaks_no_turn(mark):
    agent = agent_with(memory := new_memory())

    say(agent, "I live in Husum.", ANN, additional_kwargs={"memory": mark})
    say(agent, "I sail.", ANN)

    assert "sail" in recall(memory, "ann", "")


def test_a_node_that_comes_again_in_a_resumed_run_goes_on_with_the_user_who_spoke():
    def ask(_):
        return {"messages": [AIMessage(interrupt("May it be paid back?"))]}

    memory, told_to = new_memory(), []

    def reply(state: RememberingState):
        user = state["memory_user"]
        told_to.append((user, memory.prompt(user, about="epilepsy") != []))
        return note(state)

    again = ConversationNode(memory)
    nodes = [("remember", again), ("ask", ask), ("again", again), ("reply", reply), ("note", again)]
    builder = StateGraph(ConversationState).add_sequence(nodes).add_edge(START, "remember")
    graph = builder.compile(InMemorySaver())

    say(graph, "I suffer from epilepsy.", ANN)
    memory.flush()
    graph.invoke(Command(resume="Paid."), BO)

    assert (told_to, known_of(memory, "epilepsy")["bo"]) == ([("ann", True)], [])


def stop(_):
    interrupt("May it go on?")
    return {}


class Stopping(AgentMiddleware):
    def before_agent(self, state, runtime):
        return stop(state)


def stopped_agent(memory, checkpointer, **options):
    return agent_with(memory, Stopping(), checkpointer=checkpointer, **options)


def stopped_graph(memory, checkpointer, within=None, **options):
    nodes = {"stop": stop, "host": within or ConversationNode(memory)}
    nodes["note"] = note if within is None else lambda _: {}
    builder = StateGraph(ConversationState, **options).add_sequence([*nodes.items()])
    return builder.add_edge(START, "stop").compile(checkpointer)


def stopped_ahead_of_an_agent(memory, checkpointer, **options):
    agent = agent_with(memory, checkpointer=None)
    return stopped_graph(memory, checkpointer, agent, **options)


def stopped_ahead_of_a_call(memory, checkpointer, **options):
    agent = agent_with(memory, checkpointer=None)

    def call(state):
        agent.invoke({"messages": [("human", state["messages"][-1].text)]})

    return stopped_graph(memory, checkpointer, call, **options)


STOPPED = pytest.mark.parametrize(
    "host", [stopped_agent, stopped_graph, stopped_ahead_of_an_agent, stopped_ahead_of_a_call]
)


@STOPPED
@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("first", [ANN, GUEST], ids=["user", "guest"])
def test_what_stops_ahead_of_the_memory_stays_the_users_who_said_it(host, how, first):
    graph = host(memory := new_memory(), InMemorySaver())

    for text, config in (("I suffer from epilepsy.", first), ("I manage the desk.", BO)):
        say(graph, text, config, how)
        run(graph, Command(resume="yes"), BO, how)

    assert "epilepsy" not in recall(memory, "bo", "epilepsy")
    if first is GUEST:
        memory.hand_over("t", "ann")
    assert "epilepsy" in recall(memory, "ann", "epilepsy")
    assert "desk" not in memory.load("ann")


@pytest.mark.parametrize("host", [stopped_agent, stopped_graph, stopped_ahead_of_an_agent])
@pytest.mark.parametrize("killed", [True, False])
def test_a_message_in_place_of_an_answer_takes_nothing_over(host, killed):
    memory, saver = new_memory(), InMemorySaver()
    graph = host(memory, saver)
    say(graph, "I keep bees.", ANN)
    run(graph, Command(resume="yes"), ANN)
    say(graph, "I suffer from epilepsy.", ANN)

    say(graph, "I manage the desk.", BO)
    if killed:
        catch_up(memory, saver)
    run(graph, Command(resume="yes"), BO)

    known = known_of(memory, "bees", "epilepsy", "desk")
    assert known == {"ann": ["bees", "epilepsy"], "bo": ["desk"]}


@STOPPED
@pytest.mark.parametrize("user", ["bo", "ann"])
def test_who_resumes_what_no_checkpoint_has_a_user_of_is_refused(host, user):
    graph = host(memory := new_memory(), InMemorySaver(), context_schema=dict)
    said = {"messages": [("human", "I suffer from epilepsy.")]}
    graph.invoke(said, GUEST, context={"user_id": "ann"})

    with pytest.raises(ConfigurationError, match=f"user '{user}' resumes .* not known"):
        graph.invoke(Command(resume="yes"), GUEST, context={"user_id": user})

    assert known_of(memory, "epilepsy")["bo"] == []


def test_days_of_messages_without_a_time_are_those_of_a_time_zone():
    memory, zone = new_memory(time_zone="Pacific/Kiritimati"), ZoneInfo("Pacific/Kiritimati")
    memory.save("I live in Husum.", **IDS)

    now = datetime.now(zone)
    assert memory.load("ann").startswith(f"{now.day} {now:%b} {now.year}")
    with pytest.raises(ConfigurationError, match="no time zone"):
        new_memory(time_zone="Husum")


def test_a_server_that_is_sent_what_is_new_alone_is_sent_the_memory_each_time():
    class Responses(ScriptedChatModel):
        use_previous_response_id: bool = True

    memory, model = new_memory(), Responses("Noted.")
    memory.save("My cat is Minou.", user="ann", thread="before")
    agent = agent_with(memory, model=model)

    for text in ("Hello.", "What is my cat called?"):
        say(agent, text, ANN)

    for heard, *_ in model.calls:
        replies = [at for at, message in enumerate(heard) if message.type == "ai"]
        assert "Minou" in "".join(m.text for m in heard[replies[-1] + 1 if replies else 0 :])


# agents within agents


@pytest.mark.parametrize("node", ["tools", "act"])
@pytest.mark.parametrize("by_tool", [True, False])
@pytest.mark.parametrize("saver", [InMemorySaver, type(None)])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_what_a_tool_asks_another_agent_is_no_word_of_the_user_whatever_a_node_is_called(
    node, by_tool, saver, how
):
    inner = agent_with(memory := new_memory(), checkpointer=None)

    @tool
    def ask(question: str) -> str:
        """Ask another agent."""
        return inner.invoke({"messages": [("human", question)]})["messages"][-1].text

    builder = StateGraph(MessagesState).add_node(node, ToolNode([ask]) if by_tool else inner)
    if by_tool:
        call = calling("ask", question="I live in Kiel.")
        builder.add_node("model", lambda _: {"messages": [call]})
        builder.add_edge("model", node)
    builder.add_edge(START, "model" if by_tool else node)

    say(builder.compile(saver()), "I live in Kiel.", ANN, how)
    memory.flush()

    assert ("Kiel" in memory.load("ann")) == (not by_tool)


@pytest.mark.parametrize("window", [2, 20])
def test_the_words_of_an_agent_to_its_subagent_are_not_the_users(window):
    subagent = agent_with(memory := new_memory(window=window, remember_within=0), checkpointer=None)

    @tool
    def research(task: str) -> str:
        """Research something."""
        said = [("human", "I was told to hurry."), ("ai", "Yes."), ("human", task)]
        return subagent.invoke({"messages": said})["messages"][-1].text

    asks = ScriptedChatModel(call_tool("research", task="I want the prices of goats."), "Done.")

    say(agent_with(memory, model=asks, tools=[research]), "I live in Husum.", ANN)

    known = recall(memory, "ann", "prices of goats, hurry")
    assert words_in(known, "Husum", "prices", "hurry") == ["Husum"]


@tool
def hand_over(
    state: Annotated[dict, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
) -> Command:
    """Hand over to the next agent."""
    said = [*state["messages"], ToolMessage("Handed over.", tool_call_id=tool_call_id)]
    return Command(goto="next", graph=Command.PARENT, update={"messages": said})


def test_an_agent_that_hands_over_remembers_and_sees_its_window():
    memory, model = new_memory(window=4), ScriptedChatModel(call_tool("hand_over"))
    front = agent_with(memory, tools=[hand_over], model=model, checkpointer=None, name="front")
    builder = StateGraph(MessagesState).add_node("front", front, destinations=("next",))
    builder.add_node("next", note).add_edge(START, "front")
    graph = builder.compile(InMemorySaver())

    for number in range(8):
        say(graph, f"I own boat {number}.", ANN)
        memory.flush()

    assert memory.load("ann").count("boat") == 8
    humans = [m.text for m in model.calls[-1].messages if isinstance(m, HumanMessage)]
    assert len(humans) < 4
    assert humans[-1].endswith("I own boat 7.")


# which message is which


def test_nothing_is_deleted_because_it_is_absent():
    agent = agent_with(memory := new_memory())
    for text in ("I live in Husum.", "I breed goats."):
        say(agent, text, ANN)
    memory.flush()
    goats = agent.get_state(ANN).values["messages"][2]

    agent.update_state(ANN, {"messages": [RemoveMessage(goats.id)]})
    say(agent, "I sail.", ANN)
    memory.save([("human", "Good morning!")], **IDS)

    notes, _, passages = recall(memory, "ann", "goats").partition("<passages>")
    assert "I breed goats." in notes
    assert "goats" in passages


def test_a_message_is_taken_back_by_the_memory_alone():
    memory = new_memory()
    said = memory.save([("human", "My PIN is 4711."), ("human", "I live in Husum.")], **IDS)

    assert memory.save([RemoveMessage(said[0].id)], **IDS) == []

    assert "4711" not in recall(memory, "ann", "PIN")
    assert "Husum" in memory.load("ann")
    memory.save(said, **IDS)  # the application says that it counts after all
    assert "4711" in memory.load("ann")
    with pytest.raises(ConfigurationError, match="one message"):
        memory.observe([RemoveMessage("__remove_all__")], **IDS)


def test_a_known_id_is_the_same_message_in_each_thread_unless_it_says_something_else():
    memory = new_memory()

    def save(text, thread="b"):
        memory.save([dated(text, key="1")], user="ann", thread=thread)
        return words_in(memory.load("ann"), "Husum", "sail", "row")

    save("I live in Husum.", "a")
    save("I live in Husum.")
    assert len(memory.history("ann")) == 1
    assert "Husum" in save("I sail.")
    assert save("I row.") == ["Husum", "row"]


@pytest.mark.parametrize(("host", "ids"), [
    (only_adding, True), (only_adding, False), (partial(agent_with, state_schema=Added), False)
])  # fmt: skip
def test_in_a_state_that_only_adds_nothing_multiplies(host, ids, caplog):
    graph = host(memory := new_memory())

    for number in range(4):
        text = f"I own boat {number}."
        given = HumanMessage(text, id=f"m{number}") if ids else ("human", text)
        out = run(graph, {"messages": [given]}, ANN)
    memory.flush()

    assert [m.type for m in convert_to_messages(out["messages"])] == ["human", "ai"] * 4
    assert memory.load("ann").count("boat") == 4
    assert sum(len(change.messages) for change in memory.users().history("ann")[1]) == 8
    assert not caplog.messages


def test_the_same_said_again_in_a_thread_is_remembered_again():
    agent = agent_with(memory := new_memory())

    for text in ("I ran a mile.", "I sail.", "I ran a mile.", "I slept."):
        say(agent, text, ANN)
        memory.flush()

    folded = [change.messages for change in memory.users().history("ann")[1]]
    assert [len(messages) for messages in folded] == [2, 2, 2, 2]


# what a thread no longer has


@pytest.mark.parametrize("host", [agent_with, graph_with, graph_around, replaying])
@pytest.mark.parametrize("turn", [True, False])
def test_what_leaves_the_thread_before_it_is_folded_is_not_remembered(host, turn):
    graph = host(memory := new_memory())
    say(graph, "My PIN is 4711.", ANN, id="secret")
    node = {} if host is agent_with else {"as_node": [*graph.nodes][-1]}
    graph.update_state(ANN, {"messages": [RemoveMessage("secret")]}, **node)

    if turn:
        say(graph, "I live in Husum.", ANN)

    assert "4711" not in recall(memory, "ann", "PIN")
    assert ("Husum" in memory.load("ann")) == turn


def with_subgraph(memory, model, **options):
    agent = agent_with(memory, model=model, checkpointer=None, **options)
    return StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent")


def with_agent_of_its_own_thread(memory, model):
    agent = agent_with(memory, model=model, checkpointer=True)

    def call(state):
        return {"messages": agent.invoke({"messages": state["messages"][-1:]})["messages"][-1:]}

    return StateGraph(MessagesState).add_node("agent", call).add_edge(START, "agent")


def take_out(graph, _):
    graph.update_state(ANN, {"messages": [RemoveMessage("secret"), RemoveMessage("reply")]})
    return ANN


def overwrite(graph, _):
    left = graph.get_state(ANN).values["messages"][:2]
    graph.update_state(ANN, {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *left]})
    return ANN


def fork(_, before):
    return {"configurable": {**before["configurable"], "user_id": "ann"}}


@pytest.mark.parametrize("host", [with_subgraph, with_agent_of_its_own_thread])
@pytest.mark.parametrize("leave", [take_out, overwrite, fork])
@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("flushed", [True, False])
def test_what_leaves_a_graph_before_its_agent_folds_is_not_remembered(host, leave, turns, flushed):
    def reply(messages):
        heard.append("".join(m.text for m in messages))
        key = "reply" if "4711" in messages[-1].text else None
        return AIMessage(f"You said: {messages[-1].text[-20:]}", id=key)

    memory, heard = new_memory(), list[str]()
    graph = host(memory, ScriptedChatModel(reply)).compile(InMemorySaver())
    say(graph, "I keep bees.", ANN)
    before = graph.get_state(ANN).config
    say(graph, "My PIN is 4711.", ANN, id="secret")
    config = leave(graph, before)

    for number in range(turns):
        say(graph, f"I own boat {number}. What is my PIN?", config if number == 0 else ANN)
        if flushed:
            memory.flush()

    left = leave is not fork or turns > 0
    assert ("4711" in recall(memory, "ann", "PIN")) == (not left)
    assert words_in(memory.load("ann"), "bees", "boat") == ["bees", "boat"][: 1 + bool(turns)]
    if host is with_subgraph:  # the other has the message in its own state
        assert "4711" not in "".join(heard[2:])


def test_of_what_a_send_hands_on_the_words_of_the_thread_are_remembered():
    def hand_on(state):
        order = HumanMessage("Look up the ferries.")
        return [Send("reply", {**state, "messages": [*state["messages"][-1:], order]})]

    builder = StateGraph(ConversationState)
    builder.add_node("reply", ReplyNode(memory := new_memory(), note))
    graph = builder.add_conditional_edges(START, hand_on, ["reply"]).compile(InMemorySaver())

    for number in range(2):
        run(graph, {"messages": [("human", f"I own boat {number}.")]}, ANN)

    for known in (prompted(memory, "boat 0, boat 1, ferries"), memory.load("ann")):
        assert words_in(known, "boat 0", "boat 1", "ferries") == ["boat 0", "boat 1"]


def test_what_waits_is_remembered_though_its_checkpointer_is_closed(caplog):
    class Closed(InMemorySaver):
        is_closed = False

        async def aget_tuple(self, config):
            if self.is_closed:
                raise RuntimeError("The connection is closed.")
            return await super().aget_tuple(config)

    memory, saver = new_memory(), Closed()
    say(agent_with(memory, checkpointer=saver), "I live in Husum.", ANN)
    saver.is_closed = True

    assert memory.flush() == 0
    assert "Husum" in memory.load("ann")
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("first", [True, False])
def test_what_a_summary_takes_is_remembered(first):
    memory, model = new_memory(), ScriptedChatModel("A summary.")
    summary = SummarizationMiddleware(model, trigger=("messages", 5), keep=("messages", 2))
    agent = agent_with(memory, *[summary][:first], after=[summary][first:])

    for number in range(5):
        say(agent, f"I own boat {number}.", ANN)

    assert any("summary" in m.text for m in agent.get_state(ANN).values["messages"])
    memory.flush()
    assert memory.load("ann").count("boat") == 5
    assert "summary" not in memory.load("ann")


@pytest.mark.parametrize("same_id", [True, False])
@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("host", [agent_with, replaying])
def test_an_edit_in_a_fork_replaces_the_message_and_the_old_branch_puts_it_back(
    same_id, flushed, host
):
    agent = host(memory := new_memory())
    say(agent, "I keep bees.", ANN)
    fork = agent.get_state(ANN).config
    say(agent, "I live in Husum.", ANN, id="place")
    memory.flush()
    old = agent.get_state(ANN).config

    say(agent, "I live in Kiel.", fork, id="place" if same_id else "other")
    if flushed:
        memory.flush()
    say(agent, "I sail.", ANN)
    assert "Husum" not in recall(memory, "ann", "Where do I live? Husum?")
    assert words_in(memory.load("ann"), "bees", "Kiel", "sail") == ["bees", "Kiel", "sail"]

    say(agent, "I swim.", old)
    known = recall(memory, "ann", "Where do I live? Husum? Kiel?")
    assert words_in(known, "I live in Husum.", "Kiel") == ["I live in Husum."]
    assert words_in(memory.load("ann"), "bees", "swim") == ["bees", "swim"]


def test_a_message_that_the_model_refuses_is_set_aside_and_tried_again():
    class PolicyError(Exception):
        status_code = 400

    willing = []

    def fold(messages):
        found = words_in(messages[-1].text, "Husum", "bomb", "goats")
        if "bomb" in found and not willing:
            return PolicyError("content management policy")
        return "\n".join(f"Knows {word}." for word in found) or "unchanged"

    memory, saver = new_memory(ScriptedChatModel(fold)), InMemorySaver()
    agent = agent_with(memory, checkpointer=saver)
    for text in ("I live in Husum.", "In my novel they build a bomb.", "I breed goats."):
        say(agent, text, ANN)

    assert memory.flush() == 0
    assert words_in(memory.load("ann"), "Husum", "goats", "bomb") == ["Husum", "goats"]
    willing.append(True)
    catch_up(memory, saver)
    assert "bomb" in memory.load("ann")


@pytest.mark.parametrize("thread", ["t", 1, 0])
def test_a_forgotten_user_is_not_remembered_again_from_an_old_thread(thread):
    memory, saver, config = new_memory(), InMemorySaver(), of("ann", thread)
    agent = agent_with(memory, checkpointer=saver)
    say(agent, "I suffer from epilepsy.", config)
    memory.flush()
    say(agent, "I keep bees.", config)  # waits
    memory.forget("ann")

    say(agent, "I live in Husum.", config)
    catch_up(memory, saver)

    assert known_of(memory, "epilepsy", "bees", "Husum")["ann"] == ["Husum"]
    assert memory.forget("ann", checkpointer=saver).deleted == (str(thread),)
    assert not [*saver.list(None)]


# all of it, at random


class Play:
    """Random operations on a memory, and what must be known of whom after them."""

    def __init__(self, store, random):
        self.store, self.random = store, random
        self.namespace = (f"play-{uuid4().hex}",)
        self.saver, self.number = InMemorySaver(), 0
        self.known = {user: set() for user in ("ann", "bo")}
        self.history, self.bare = [], []  # with and without ids
        self.turns = {}  # of the thread that a checkpointer keeps, and whether each stands
        self.path, self.places, self.gone = [], {}, set()
        self.start()

    def start(self):
        """Begin a process, which knows nothing of what waited in the last one."""
        self.memory = ConversationMemory(
            "extractive",
            store=self.store,
            namespace=self.namespace,
            window=10_000,
            config=ROOMY,
            **NEVER,
        )
        for user in self.known:
            asyncio.run(self.memory.people.backlog(user, None).drop())
        self.graph = graph_with(self.memory, checkpointer=self.saver)
        self.stopping = stopped_graph(self.memory, self.saver)

    def add(self, user):
        self.number += 1
        self.known[user].add(fact := f"I own boat number {self.number} x.")
        return fact

    def someone(self):
        return self.random.choice([*self.known])

    def observe(self, history, user, thread="ids"):
        return self.memory.observe(history, user=user, thread=thread)

    def say(self):
        user = self.someone()
        said = self.observe([*self.history, ("human", self.add(user))], user)
        self.history = [*said, AIMessage("Noted.")]

    def say_without_ids(self, newest=0):
        fact = ("human", self.add("ann"))
        self.observe([*self.bare[-newest:], fact], "ann", "bare")
        self.bare += [fact, ("ai", "Noted.")]

    def say_after_the_last(self):
        self.say_without_ids(newest=3)

    def say_alone(self):
        user = self.someone()
        self.memory.save(self.add(user), user=user, thread="alone")

    def send_again(self):
        self.memory.flush()
        for user in self.known:
            self.observe(self.history, user, "a copy")
        self.memory.flush()  # what the original says later is not what the copy says
        if self.bare:
            self.observe(self.bare, "ann", "bare")

    def choose(self):
        """What a user said and no longer counts, and who that is."""
        said = [message for message in self.history if message.type == "human"]
        message = self.random.choice(said or [None])
        user = message and message.additional_kwargs["memory"]["user"]
        if message:
            self.known[user] -= {message.text}
        return message, user

    def edit(self):
        message, user = self.choose()
        if message:
            edited = message.model_copy(update={"content": self.add(user)})
            self.history[self.history.index(message)] = edited
            self.memory.save(self.history, user=user, thread="ids")

    def take_back(self):
        message, user = self.choose()
        if message:
            self.memory.save(self.history, user=user, thread="ids")
            self.memory.save([RemoveMessage(message.id)], user=user, thread="ids")
            self.history.remove(message)

    def forget(self):
        user = self.someone()
        self.memory.forget(user)
        self.known[user] = set()
        own = [m for m in self.history if m.type == "human"]
        self.history = [m for m in own if m.additional_kwargs["memory"]["user"] != user]
        if user == "ann":
            self.bare, self.turns, self.gone = [], {}, {*self.places}

    def go_on(self, config=None):
        """Say something where the thread is, or from another checkpoint of it.

        The first turn that stood until now and is on another branch is replaced.
        """
        fact = self.add("ann")
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

    def resume_as_another(self):
        user, other = self.someone(), self.someone()
        say(self.stopping, self.add(user), of(user, "stopping"))
        if self.random.random() < 0.5:
            say(self.stopping, self.add(other), of(other, "stopping"))
        run(self.stopping, Command(resume="yes"), of(self.someone(), "stopping"))

    def kill(self):
        self.start()
        catch_up(self.memory, self.saver)
        self.send_what_was_lost()

    def send_what_was_lost(self):
        for user in self.known:
            self.observe(self.history, user)
        self.send_again()

    def flush(self):
        self.memory.flush()

    def check(self):
        self.send_what_was_lost()
        every = [f"I own boat number {n} x." for n in range(1, self.number + 1)]
        for user, facts in self.known.items():
            kept = asyncio.run(self.memory.people.of(user, None).episodes.read())
            for text in (self.memory.load(user), "".join(one.text for one in kept.said)):
                assert {f: text.count(f) for f in every} == {f: int(f in facts) for f in every}


SAYING = "say", "say_without_ids", "say_after_the_last", "say_alone", "send_again"
CHANGING = "edit", "take_back", "forget", "kill", "flush"
OPERATIONS = *SAYING, *CHANGING, "go_on", "fork", "go_back", "resume_as_another"


@pytest.mark.slow
@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    operations=st.lists(st.sampled_from(OPERATIONS), min_size=4, max_size=14),
    random=st.randoms(use_true_random=False),
)
def test_no_statement_is_lost_or_doubled_or_in_the_memory_of_another(store, operations, random):
    play = Play(store, random)

    for name in operations:
        getattr(play, name)()

    play.check()
