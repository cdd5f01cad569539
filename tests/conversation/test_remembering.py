"""What is remembered after each turn: when, whose, once, and so that nobody else hears of it."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from conversations import (
    NEVER,
    ROOMY,
    Added,
    Keeper,
    agent_with,
    graph_with,
    new_memory,
    of,
    prompted,
    recall,
    run,
    say,
    words_in,
)
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from servers.warm_python import COMMAND_LINE, warm_python

from memagent_graph import ConversationMemory, MemAgentMiddleware, ReadingConfig
from memagent_graph.conversation.catch_up import catch_up
from memagent_graph.conversation.thread import AnonymousUser
from memagent_graph.errors import ConfigurationError, TransientModelError
from memagent_graph.memory.stores import open_store
from memagent_graph.testing import ScriptedChatModel

SOON = {"remember_within": 0.01}
MONDAY, WHO = of("ann", "monday"), {"user": "ann", "thread": "monday"}


def wait_until(is_so):
    """For work of other threads; the test's time limit ends it."""
    nap = threading.Event()
    while not is_so():
        nap.wait(0.005)


def hanging():
    reader = Keeper()
    reader.may_reply.clear()
    return reader


@pytest.fixture
def processes(tmp_path):
    """What two processes have: a connection each, and nothing that the other one remembers."""
    file = str(tmp_path / "store.sqlite")
    with open_store(file) as here, open_store(file) as there:
        yield here, there


def test_what_was_said_is_found_in_other_threads_and_processes_while_the_model_hangs(processes):
    readers, models = (hanging(), hanging()), [ScriptedChatModel("Noted.") for _ in range(2)]
    here, there = (
        agent_with(ConversationMemory(reader, **SOON), store=store, model=model)
        for store, reader, model in zip(processes, readers, models, strict=True)
    )
    say(here, "My cat is called Pixel.", MONDAY)
    assert readers[0].asked.wait(60)

    for number in range(20):
        say(here, f"Say {number}.", of("ann", "tuesday"))
    for agent in (here, there):
        say(agent, "What is my cat called?", of("ann", "wednesday"))
    say(there, "What is my cat called?", of("bo", "thursday"))

    for model, at in ((models[0], -1), (models[1], 0)):
        told = model.calls[at].messages[0].text
        assert "My cat is called Pixel." in told
        assert told.count("What is my cat called?") == 1
    assert "Pixel" not in models[1].prompts[-1]
    for reader in readers:
        reader.may_reply.set()


@pytest.mark.parametrize("another", [False, True], ids=["this process", "another process"])
def test_what_is_edited_deleted_redacted_or_forgotten_is_not_found_as_it_waits(another, processes):
    here, there = processes
    shared = {"never": "salary", **NEVER}
    first = ConversationMemory(
        Keeper(), store=here, redact=lambda text: text.replace("4711", "#"), **shared
    )
    other = ConversationMemory(Keeper(), store=there, **shared) if another else first
    told = ("cat is called Pixel", "dog is called Rex", "card is 4711", "salary is 70", "a ru")
    said = [HumanMessage(f"My {text}.", id=text[0]) for text in told]
    first.save(said[:1], **WHO)
    first.observe(said, **WHO)
    first.observe([HumanMessage("My cat is called Dot.", id="c"), RemoveMessage(id="d")], **WHO)
    other.forget_messages("ann", ["a"])

    passages = prompted(other, "my cat dog card salary ru").partition("<passages>")[2]
    other.forget("ann")

    assert words_in(passages, "Dot.", "Pixel", "Rex", "4711", "70", " ru") == ["Dot."]
    assert first.prompt("ann", about="my cat") == []


@pytest.mark.parametrize("make", [agent_with, graph_with])
@pytest.mark.parametrize("another", [False, True], ids=["this process", "another process"])
def test_what_is_forgotten_while_it_waits_stays_so_as_its_thread_goes_on(make, another, processes):
    saver = InMemorySaver()
    memories = [ConversationMemory("extractive", store=store, **NEVER) for store in processes]
    graphs = [make(memory, checkpointer=saver) for memory in memories]
    say(graphs[0], "My PIN is 4711.", MONDAY, id="pin")

    memories[another].forget_messages("ann", ["pin"])

    for graph, memory, animal in zip(graphs, memories, ("cat", "dog"), strict=True):
        say(graph, f"I have a {animal}.", MONDAY)
        assert "4711" not in recall(memory, "ann", "What is my PIN?")
    assert words_in(memory.load("ann"), "cat", "dog") == ["cat", "dog"]


def test_a_history_without_ids_is_known_when_a_message_of_it_was_forgotten():
    memory = new_memory()
    history = [("human", "My PIN is 4711."), ("ai", "Noted."), ("human", "I have a cat.")]
    (first, *_) = memory.observe(history, **WHO)

    memory.forget_messages("ann", [first.id])
    memory.observe([*history, ("ai", "Nice."), ("human", "I sail.")], **WHO)

    assert words_in(memory.load("ann"), "PIN", "cat", "sail") == ["cat", "sail"]


def test_another_process_that_goes_on_with_a_thread_drops_what_was_rolled_back(processes):
    saver, (here, there) = InMemorySaver(), processes
    agent = agent_with(ConversationMemory(Keeper(), **NEVER), checkpointer=saver, store=here)
    say(agent, "Hello.", MONDAY)
    before = agent.get_state(MONDAY).config
    say(agent, "My PIN is 4711.", MONDAY)
    memory = ConversationMemory(Keeper(), **NEVER)

    say(agent_with(memory, checkpointer=saver, store=there), "Never mind.", before)

    (told,) = memory.prompt("ann", about="What is my PIN?", store=there)
    assert words_in(told.text, "Never mind.", "4711") == ["Never mind."]


def test_what_waits_in_another_process_is_its_users_if_neither_state_nor_checkpoint_says(processes):
    saver, memories = InMemorySaver(), []
    for store, text in zip(processes, ("I keep bees.", "I sail."), strict=True):
        memories.append(ConversationMemory(Keeper(), store=store, **NEVER))
        graph = graph_with(memories[-1], state=Added, checkpointer=saver, user=lambda *_: "ann")
        say(graph, text, of("ann"))

    for memory in reversed(memories):
        memory.flush()

    assert words_in(memories[0].load("ann"), "bees", "sail") == ["bees", "sail"]


@pytest.mark.parametrize(("options", "fields"), [
    ({}, {"additional_kwargs": {"remember": False}}), ({"approve": True}, {}),
], ids=["not to be remembered", "to be approved"])  # fmt: skip
def test_what_may_not_be_told_is_not_quoted_while_it_waits(options, fields):
    memory = new_memory(Keeper(), **options)

    memory.observe([HumanMessage("My PIN is 4711.", **fields), ("ai", "It is 4711.")], **WHO)

    assert memory.prompt("ann", about="What is my PIN?") == []


def test_a_turn_is_folded_after_its_reply_without_another_turn():
    store = InMemoryStore()
    agent = agent_with(ConversationMemory(reader := hanging(), **SOON), store=store)

    assert say(agent, "I keep bees.", MONDAY)["messages"][-1].text == "Noted."

    assert reader.asked.wait(60)  # while the reply is there already
    assert reader.calls == []
    reader.may_reply.set()
    wait_until(lambda: "I keep bees." in ConversationMemory(store=store).load("ann"))


def test_a_forked_child_waits_for_no_fold_of_its_parent():
    memory = ConversationMemory(reader := hanging(), **SOON)
    say(agent_with(memory), "I keep bees.", MONDAY)
    assert reader.asked.wait(60)

    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(memory.flush())
    _, status = os.waitpid(child, 0)
    reader.may_reply.set()

    assert (os.waitstatus_to_exitcode(status), memory.flush()) == (0, 0)


class Hanging(Keeper):
    async def update(self, step, *, config=None):
        if not self.asked.is_set():
            self.asked.set()
            await asyncio.Event().wait()
        return await super().update(step, config=config)


def test_a_loop_that_is_closed_within_a_fold_loses_nothing_and_is_no_error(caplog):
    """As `asyncio.run` closes one on which a fold was begun after it had cancelled all tasks."""
    memory = ConversationMemory(reader := Hanging(), **SOON)
    loop = asyncio.new_event_loop()

    async def turn():
        await agent_with(memory).ainvoke({"messages": [("human", "I keep bees.")]}, MONDAY)
        await asyncio.to_thread(reader.asked.wait)
        await loop.shutdown_default_executor()

    loop.run_until_complete(turn())
    loop.close()
    wait_until(lambda: reader.calls)

    assert memory.flush() == 0
    assert "I keep bees." in memory.load("ann")
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_loading_from_sync_code_within_a_loop_does_not_wait_for_that_loop():
    memory = ConversationMemory(reader := hanging(), **SOON)
    await agent_with(memory).ainvoke({"messages": [("human", "I keep bees.")]}, MONDAY)
    await asyncio.to_thread(reader.asked.wait)
    reader.may_reply.set()

    assert "I keep bees." in memory.load("ann")  # this loop has a fold under way, and stands still


def test_a_fold_that_fails_is_logged_and_tried_again_at_the_next_turn(caplog):
    failing = True
    memory = ConversationMemory(reader := Keeper(fails=lambda: failing), **NEVER)
    agent = agent_with(memory)

    say(agent, "One.", MONDAY)
    assert (memory.flush(), memory.load("ann")) == (2, "")
    assert "One." in prompted(memory, "One?")
    assert "Folding 2 messages failed, and is tried again" in caplog.text
    failing = False
    say(agent, "Two.", MONDAY)

    assert memory.flush() == 0
    assert reader.calls[0].count("One.") == reader.calls[0].count("Two.") == 1


def test_a_fold_asks_again_where_a_model_was_away_for_a_moment():
    model = ScriptedChatModel(TransientModelError("away"), "The user keeps bees in Ulm.")
    memory = ConversationMemory(model, config=ReadingConfig(retry_interval=0.001))

    memory.save("I keep bees in Ulm.", **WHO)

    assert "bees in Ulm" in memory.load("ann")


def test_an_edit_while_its_message_is_folded_is_folded_next():
    memory = ConversationMemory(reader := hanging(), **SOON)
    memory.observe([HumanMessage("My cat is Pixel.", id="1")], **WHO)
    memory.observe([HumanMessage("Hm.", id="2"), AIMessage("Yes?", id="3")], **WHO)
    assert reader.asked.wait(60)

    memory.observe([HumanMessage("My cat is Dot.", id="1")], **WHO)
    reader.may_reply.set()

    assert "My cat is Dot." in recall(memory, "ann", "")


CHILD = """
import os, sys
from conversations import agent_with, of
from langgraph.checkpoint.sqlite import SqliteSaver
from memagent_graph import ConversationMemory
from memagent_graph.memory.stores import open_store

folder, end = sys.argv[1:]
store = open_store(folder + "/store.sqlite")
saver = SqliteSaver.from_conn_string(folder + "/threads.sqlite")
memory = ConversationMemory(store=store.__enter__(), remember_within=1e6)
agent = agent_with(memory, checkpointer=saver.__enter__(), context_schema=dict)
said = {"messages": [("human", "My goat Ria gives milk.")]}
agent.invoke(said, {"configurable": {"thread_id": "monday"}}, context={"user_id": "ann"})
if end == "kill":
    os.kill(os.getpid(), 9)
"""


def run_child(folder, end):
    command = [sys.executable, "-c", CHILD, folder, end]
    done = warm_python(*COMMAND_LINE).run(command, whole_end=True)
    assert done.returncode == (-9 if end == "kill" else 0)


@pytest.mark.slow
def test_what_waits_is_folded_when_the_process_ends(tmp_path):
    run_child(tmp_path, "exit")

    with open_store(str(tmp_path / "store.sqlite")) as store:
        assert "goat Ria" in ConversationMemory(store=store).load("ann")


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_catching_up_does_not_fold_once(tmp_path):
    run_child(tmp_path, "kill")
    file, threads = str(tmp_path / "store.sqlite"), str(tmp_path / "threads.sqlite")
    with open_store(file) as store:
        memory = ConversationMemory(store=store)
        assert memory.load("ann") == ""
        assert "goat Ria" in prompted(memory, "Who gives milk?")
    for messages in (2, 0):
        with open_store(file) as store, SqliteSaver.from_conn_string(threads) as saver:
            memory = ConversationMemory(store=store)
            done = catch_up(memory, saver)
            assert (done.messages, done.threads, done.failed) == (messages, 1, 0)
            assert memory.load("ann").count("goat Ria") == 1


NOTE = "confidential note"


class Replies(BaseCallbackHandler):
    """Hears the replies of all calls of a run, also of those that end after it."""

    def __init__(self):
        self.heard = []

    def on_llm_end(self, response, **_):
        self.heard.append(response)


def telling_graph(memory):
    model = ScriptedChatModel("Reply.")

    def reply(state, config):
        told = memory.prompt(config["configurable"]["user_id"])
        return {"messages": [model.invoke([*told, *state["messages"]])]}

    return graph_with(memory, reply)


def agent_in_a_graph(memory):
    builder = StateGraph(MessagesState).add_node("agent", replying_agent(memory))
    return builder.add_edge(START, "agent").compile(checkpointer=InMemorySaver())


def replying_agent(memory):
    return agent_with(memory, model=ScriptedChatModel("Reply."))


@pytest.mark.slow
@pytest.mark.parametrize("make", [replying_agent, telling_graph, agent_in_a_graph])
async def test_no_stream_of_a_run_has_what_a_model_notes(make):
    taker = ScriptedChatModel(f"A {NOTE} for nobody else.")
    memory = ConversationMemory(taker, window=1, remember_within=0)
    agent, heard = make(memory), []
    for number, mode in enumerate(("messages", "updates", "custom", "values") * 2):
        for subgraphs in (False, True):
            given = {"messages": [("human", f"Fact {number} {subgraphs}.")]}
            stream = agent.astream(given, of("ann"), stream_mode=mode, subgraphs=subgraphs)
            heard += [str(part) async for part in stream]
        await memory.aflush()
    given, replies = {"messages": [("human", "Bye.")]}, Replies()
    events = [event async for event in agent.astream_events(given, of("ann"))]
    await agent.ainvoke(given, {**of("ann"), "callbacks": [replies]})

    assert NOTE in await memory.aload("ann")
    assert words_in(str(replies.heard), "Reply", NOTE) == ["Reply"]
    assert words_in("".join(heard), "Reply", NOTE) == ["Reply"]
    # What the model is told stands in the events of its own call, as its input; nowhere else.
    assert not [e for e in events if NOTE in str({**e["data"], "input": None})]
    inputs = {e["event"] for e in events if NOTE in str(e["data"].get("input"))}
    assert inputs == {"on_chat_model_start", "on_chat_model_end"}
    assert {e["name"] for e in events if e["event"] == "on_chat_model_end"} == {"ScriptedChatModel"}


@pytest.mark.parametrize(("how", "config", "context"), [
    ({}, {}, SimpleNamespace(user_id="ann")), ({}, {}, {"user_id": "ann"}),
    ({}, {"user_id": "ann"}, None), ({}, {"user_id": "bob"}, SimpleNamespace(user_id="ann")),
    ({"user": lambda runtime, config: config["metadata"]["who"]}, {}, None),
], ids=["attribute", "key", "configurable", "context first", "function"])  # fmt: skip
def test_the_user_is_found(how, config, context):
    memory = ConversationMemory(Keeper(), **NEVER)
    middleware = [MemAgentMiddleware(memory, **how)]
    agent = agent_with(memory, middleware=middleware, checkpointer=None, context_schema=object)
    config = {"configurable": {"thread_id": "t", **config}, "metadata": {"who": "ann"}}

    agent.invoke({"messages": [("human", "I keep bees.")]}, config, context=context)

    assert "bees" in memory.load("ann")


def strict_agent(memory):
    return agent_with(memory, middleware=[MemAgentMiddleware(memory, strict=True)])


@pytest.mark.parametrize("strict", [strict_agent, lambda memory: graph_with(memory, strict=True)])
@pytest.mark.parametrize("lax", [agent_with, graph_with])
def test_a_run_without_a_user_is_refused_if_strict_and_else_warned_of_once(strict, lax, caplog):
    memory = ConversationMemory(Keeper(), **NEVER)

    with pytest.raises(ConfigurationError, match="user_id"):
        say(strict(memory), "Hi.", of(""))
    with pytest.raises(ConfigurationError, match="user_id"):
        say(lax(memory, checkpointer=False), "Hi.", {})  # without a thread, too
    agent = lax(memory)
    for _ in range(3):
        say(agent, "I keep bees.", of(""))

    assert caplog.text.count("names no user") == 1
    assert "bees" in memory.load(AnonymousUser.of("t"))


@pytest.mark.parametrize("earlier", [0, 9])
def test_of_many_messages_that_come_at_once_nothing_is_left_out(earlier):
    memory = ConversationMemory(config=ReadingConfig(memory_tokens=300))
    said = [HumanMessage(f"Box {number} holds key {7 * number}.") for number in range(2_100)]
    said = memory.observe(said[:earlier], **WHO) + said[earlier:]

    memory.observe(said, **WHO)

    assert memory.flush() == 0
    assert "Box 42 holds key 294." in prompted(memory, "Which key does box 42 hold?")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_client_that_sends_its_history_each_turn_is_folded_once(restarts, tmp_path):
    file, history = str(tmp_path / "store.sqlite"), []
    with open_store(file) as first:
        for number in range(5):
            # Another process knows only what the store has.
            with open_store(file) if restarts else nullcontext(first) as store:
                memory = ConversationMemory(Keeper(), store=store, config=ROOMY, **SOON)
                agent = agent_with(memory, checkpointer=None)
                history.append({"role": "user", "content": f"I bought boat number {number}."})
                done = run(agent, {"messages": history}, MONDAY)
                memory.flush()
                history.append({"role": "assistant", "content": done["messages"][-1].text})
        notes = ConversationMemory(store=first).load("ann")

    assert [notes.count(f"boat number {n}.") for n in range(5)] == [1] * 5


@pytest.mark.parametrize("flushed", [True, False])
def test_an_edited_message_corrects_notes_and_passages(flushed):
    agent = agent_with(memory := new_memory(), checkpointer=None)
    say(agent, "I live in Hamburg. I have a dog.", MONDAY, id="m1")
    if flushed:
        memory.flush()
    edited = HumanMessage("I live in Husum. I have a dog.", id="m1")
    said = [edited, AIMessage("Noted."), HumanMessage("Thanks.")]
    run(agent, {"messages": said}, MONDAY)

    assert "Hamburg" not in prompted(memory, "Where do I live?")
    assert "Hamburg" not in recall(memory, "ann", "Where do I live?")
    assert "I live in Husum." in memory.load("ann")
    assert memory.load("ann").count("I have a dog.") == 1


def test_a_fold_that_an_ending_loop_never_begins_is_made_elsewhere(caplog):
    memory = ConversationMemory(store=InMemoryStore(), remember_within=0.2)
    loop, held = asyncio.new_event_loop(), threading.Event()

    def hold() -> None:
        held.set()
        time.sleep(0.8)  # the fold is due meanwhile
        loop.call_soon(loop.stop)

    def live() -> None:
        said = [("human", "I own a goat."), ("ai", "Nice.")]
        loop.run_until_complete(memory.aobserve(said, user="ann", thread="t"))
        loop.call_soon(hold)
        loop.run_forever()

    (thread := threading.Thread(target=live)).start()
    held.wait()
    thread.join()
    loop.close()
    wait_until(lambda: "goat" in memory.load("ann"))
    gc.collect()

    assert not [one for one in caplog.records if one.name == "asyncio"]
