"""What is remembered after each turn: when, whose, once, and so that nobody else hears of it."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import TypedDict

import pytest
from doubles import ScriptedReader
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel
from servers.openai_server import OpenAIServer
from servers.warm_python import COMMAND_LINE, warm_python

from memagent_graph import (
    ConversationMemory,
    ConversationNode,
    MemAgentMiddleware,
    MemAgentNode,
    ReadingConfig,
    create_memory_tools,
)
from memagent_graph.conversation.catch_up import catch_up
from memagent_graph.conversation.messages import ConversationSource
from memagent_graph.conversation.reader import STANDING_QUESTION
from memagent_graph.conversation.session import Talk
from memagent_graph.conversation.user_memory import AnonymousUser
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.base import Update

SOON = {"remember_within": 0.01}
NEVER = {"remember_within": 1e6}
ROOMY = ReadingConfig(memory_tokens=10**6, chunk_tokens=10**5)


class Keeper(ScriptedReader):
    """Its memory is all that it read; says when it was asked."""

    def __init__(self, fails=lambda: False):
        super().__init__()
        self.asked = threading.Event()
        self.may_reply = threading.Event()
        self.may_reply.set()
        self.fails = fails
        self.read = []
        self.loops = set()

    async def update(self, step, *, config=None):
        self.loops.add(asyncio.get_running_loop())
        self.asked.set()
        await asyncio.to_thread(self.may_reply.wait, 60)
        if self.fails():
            raise ModelError("The model is away.")
        self.read.append(step.chunk.text)
        return Update(Memory(step.memory.text + step.chunk.text))


class Model(GenericFakeChatModel):
    """Replies, and knows what it was told."""

    heard: list = []

    def bind_tools(self, tools, **options):
        return self

    def _generate(self, messages, *args, **options):
        self.heard.append(messages)
        return super()._generate(messages, *args, **options)


def model():
    return Model(messages=(AIMessage(f"Reply {n}.") for n in range(999)), heard=[])


def of(user, thread):
    return {"configurable": {"user_id": user, "thread_id": thread}}


def human(text):
    return {"messages": [HumanMessage(text)]}


def agent_with(memory, saver=None, store=None, chat=None, **options):
    return create_agent(
        chat or model(),
        [],
        middleware=[MemAgentMiddleware(memory, **options)],
        checkpointer=saver or InMemorySaver(),
        store=store,
    )


def graph_with(memory, saver=None, *, behind=True, **options):
    """A graph whose model call tells the memory."""
    chat = model()

    def reply(state, config):
        told = memory.prompt(config["configurable"]["user_id"])
        return {"messages": [chat.invoke([*told, *state["messages"]])]}

    builder = StateGraph(MessagesState)
    builder.add_node("remember", ConversationNode(memory, **options))
    builder.add_node("reply", reply)
    builder.add_edge(START, "remember")
    builder.add_edge("remember", "reply")
    if behind:
        builder.add_node("note", ConversationNode(memory, **options))
        builder.add_edge("reply", "note")
        builder.add_edge("note", END)
    return builder.compile(checkpointer=saver or InMemorySaver())


def wait_until(is_so):
    """For work of other threads; the test's time limit ends it."""
    nap = threading.Event()
    while not is_so():
        nap.wait(0.005)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_new_thread_knows_what_the_last_one_said(how):
    chat = model()
    agent = agent_with(ConversationMemory(Keeper(), **NEVER), chat=chat)

    def say(text, thread):
        if how == "sync":
            agent.invoke(human(text), of("ann", thread))
        else:
            asyncio.run(agent.ainvoke(human(text), of("ann", thread)))

    for number in range(5):
        say(f"Fact {number}.", f"thread {number}")
    say("Hello.", "another")

    told = chat.heard[-1][0].text
    assert all(f"Fact {number}." in told for number in range(1, 5))  # the newest eight messages
    assert "Reply 3." in told


def test_what_was_said_is_found_in_another_thread_while_the_model_hangs():
    reader = Keeper()
    reader.may_reply.clear()
    chat = model()
    agent = agent_with(ConversationMemory(reader, **SOON), chat=chat)
    agent.invoke(human("My cat is called Pixel."), of("ann", "monday"))
    assert reader.asked.wait(60)

    for number in range(20):
        agent.invoke(human(f"Say {number}."), of("ann", "tuesday"))
    agent.invoke(human("What is my cat called?"), of("ann", "wednesday"))

    told = chat.heard[-1][0].text
    assert "My cat is called Pixel." in told
    assert "What is my cat called?" not in told
    reader.may_reply.set()


def test_what_is_edited_deleted_or_redacted_is_not_found_while_it_waits():
    memory = ConversationMemory(
        Keeper(), redact=lambda text: text.replace("4711", "#"), never="salary", **NEVER
    )
    said = [
        HumanMessage(text, id=key)
        for key, text in (
            ("a", "My cat is called Pixel."),
            ("b", "My dog is called Rex."),
            ("c", "My card is 4711."),
            ("d", "My salary is 70."),
        )
    ]
    memory.save([said[0]], user="ann", thread="monday")
    memory.observe(said, user="ann", thread="monday")
    edit, gone = HumanMessage("My cat is called Dot.", id="a"), RemoveMessage(id="b")

    memory.observe([edit, gone], user="ann", thread="monday")

    (told,) = memory.prompt("ann", about="my cat dog card salary")
    found = told.text.partition("<passages>")[2]
    assert "Dot." in found
    assert not any(word in found for word in ("Pixel", "Rex", "4711", "70"))
    memory.forget("ann")
    assert memory.prompt("ann", about="my cat") == []


def connect(folder):
    """What a process of its own has: a connection, and nothing that another one remembers."""
    from memagent_graph.memory.stores import open_store

    return open_store(str(folder / "store.sqlite"))


def test_another_process_finds_what_was_said_while_the_model_hangs(tmp_path):
    reader, chat = Keeper(), model()
    reader.may_reply.clear()
    with connect(tmp_path) as here, connect(tmp_path) as there:
        agent = agent_with(ConversationMemory(reader, **SOON), store=here)
        agent.invoke(human("My cat is called Pixel."), of("ann", "monday"))
        other = agent_with(ConversationMemory(reader, **SOON), store=there, chat=chat)
        other.invoke(human("What is my cat called?"), of("ann", "tuesday"))
        other.invoke(human("What is my cat called?"), of("bo", "tuesday"))
        reader.may_reply.set()

    of_ann, of_bo = ("".join(one.text for one in heard) for heard in chat.heard)
    assert "My cat is called Pixel." in of_ann
    assert "Pixel" not in of_bo


def test_what_is_edited_deleted_or_forgotten_is_not_found_by_another_process(tmp_path):
    with connect(tmp_path) as here, connect(tmp_path) as there:
        first, second = (
            ConversationMemory(Keeper(), store=store, never="salary", redact=redact, **NEVER)
            for store, redact in ((here, lambda text: text.replace("4711", "#")), (there, None))
        )
        told = ("cat is called Pixel", "dog is called Rex", "card is 4711", "salary is 70", "a ru")
        said = [HumanMessage(f"My {text}.", id=text[0]) for text in told]
        first.save(said[:1], user="ann", thread="monday")
        first.observe(said, user="ann", thread="monday")
        edit, gone = HumanMessage("My cat is called Dot.", id="c"), RemoveMessage(id="d")
        first.observe([edit, gone], user="ann", thread="monday")
        second.forget_messages("ann", ["a"])

        (found,) = second.prompt("ann", about="my cat dog card salary ru")
        second.forget("ann")
        left = first.prompt("ann", about="my cat")

    passages = found.text.partition("<passages>")[2]
    assert "Dot." in passages
    assert not any(word in passages for word in ("Pixel", "Rex", "4711", "70", " ru"))
    assert left == []


def test_another_process_that_goes_on_with_a_thread_drops_what_was_rolled_back(tmp_path):
    saver, config = InMemorySaver(), of("ann", "monday")
    with connect(tmp_path) as here, connect(tmp_path) as there:
        agent = agent_with(ConversationMemory(Keeper(), **NEVER), saver, here)
        agent.invoke(human("Hello."), config)
        before = agent.get_state(config).config
        agent.invoke(human("My PIN is 4711."), config)
        memory = ConversationMemory(Keeper(), **NEVER)

        agent_with(memory, saver, there).invoke(human("Never mind."), before)

        (told,) = memory.prompt("ann", about="What is my PIN?", store=there)
    assert "Never mind." in told.text
    assert "4711" not in told.text


def test_what_is_folded_waits_nowhere(tmp_path):
    with connect(tmp_path) as here, connect(tmp_path) as there:
        memory = ConversationMemory(Keeper(), store=here, **NEVER)
        memory.observe("My cat is called Pixel.", user="ann", thread="monday")
        other = ConversationMemory(store=there).people.of("ann", None).episodes
        before = asyncio.run(other.read_all())
        memory.flush()
        after = asyncio.run(other.read_all())

    assert [[len([*kept.said]), len(waiting)] for kept, waiting in (before, after)] == [
        [0, 1],
        [1, 0],
    ]


def test_the_tool_that_remembers_waits_for_no_fold():
    reader = Keeper()
    reader.may_reply.clear()
    memory = ConversationMemory(reader, store=InMemoryStore(), **SOON)
    (remember, *_) = create_memory_tools(memory)
    call = AIMessage(
        "", tool_calls=[{"name": "remember", "args": {"statement": "I sail."}, "id": "1"}]
    )
    chat = Model(messages=iter([call, AIMessage("Done.")]), heard=[])

    create_agent(chat, [remember]).invoke(human("Note that."), of("ann", "monday"))

    (told,) = memory.prompt("ann", about="Do I sail?")
    assert "I sail." in told.text
    reader.may_reply.set()


def test_what_is_not_to_be_remembered_is_not_found_while_it_waits():
    memory = ConversationMemory(Keeper(), store=InMemoryStore(), **NEVER)
    secret = HumanMessage("My PIN is 4711.", additional_kwargs={"remember": False})

    memory.observe([secret, ("ai", "Your PIN is 4711.")], user="ann", thread="monday")

    assert memory.prompt("ann", about="What is my PIN?") == []


def test_nothing_that_needs_approval_is_quoted_while_it_waits():
    memory = ConversationMemory(Keeper(), approve=True, **NEVER)

    memory.observe("My cat is called Pixel.", user="ann", thread="monday")

    assert memory.prompt("ann", about="my cat") == []


def test_a_turn_is_folded_after_its_reply_without_another_turn():
    reader = Keeper()
    store = InMemoryStore()
    agent = agent_with(ConversationMemory(reader, **SOON), store=store)
    reader.may_reply.clear()

    out = agent.invoke(human("I keep bees."), of("ann", "monday"))

    assert out["messages"][-1].text == "Reply 0."
    assert reader.asked.wait(60)  # while the reply is there already
    assert reader.read == []
    reader.may_reply.set()
    wait_until(lambda: "I keep bees." in ConversationMemory(store=store).load("ann"))


def test_turns_that_follow_fast_are_folded_together():
    reader = Keeper()
    memory = ConversationMemory(reader, **NEVER)
    agent = agent_with(memory)

    for number in range(6):
        agent.invoke(human(f"Fact {number}."), of("ann", "monday"))
    assert memory.flush() == 0

    assert len(reader.read) == 1
    assert [f"Fact {n}." in reader.read[0] for n in range(6)] == [True] * 6


def test_a_forked_child_waits_for_no_fold_of_its_parent():
    reader = Keeper()
    memory = ConversationMemory(reader, **SOON)
    reader.may_reply.clear()
    agent_with(memory).invoke(human("I keep bees."), of("ann", "monday"))
    assert reader.asked.wait(60)

    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(memory.flush())
    _, status = os.waitpid(child, 0)
    reader.may_reply.set()

    assert os.waitstatus_to_exitcode(status) == 0
    assert memory.flush() == 0


def test_the_next_turn_of_a_thread_waits_for_no_fold():
    reader = Keeper()
    agent = agent_with(ConversationMemory(reader, **SOON))
    agent.invoke(human("I keep bees."), of("ann", "monday"))
    wait_until(reader.asked.is_set)
    reader.may_reply.clear()

    for number in range(40):  # the window is exceeded, and nothing of this is folded yet
        out = agent.invoke(human(f"Fact {number}."), of("ann", "monday"))

    assert out["messages"][-1].text == "Reply 40."
    reader.may_reply.set()


def test_messages_leave_the_window_once_the_background_has_folded_them():
    memory = ConversationMemory(reader := Keeper(), window=6, config=ROOMY, **NEVER)
    agent = agent_with(memory, chat=(chat := model()))

    for number in range(12):
        agent.invoke(human(f"Fact {number}."), of("ann", "monday"))
        memory.flush()

    assert len(chat.heard[-1]) <= 8
    assert [sum(f"Fact {n}." in text for text in reader.read) for n in range(12)] == [1] * 12


class Hanging(Keeper):
    """Waits for ever at the first call."""

    async def update(self, step, *, config=None):
        if not self.asked.is_set():
            self.asked.set()
            await asyncio.Event().wait()
        return await super().update(step, config=config)


def test_there_is_no_loop_that_a_fold_needs_to_outlive():
    memory = ConversationMemory(reader := Hanging(), **NEVER)
    agent = agent_with(memory)
    asyncio.run(agent.ainvoke(human("One."), of("ann", "monday")))
    asyncio.run(agent.ainvoke(human("Two."), of("ann", "monday")))

    async def end_within_a_fold():
        waiting = asyncio.create_task(memory.aflush("ann"))
        await asyncio.to_thread(reader.asked.wait)
        waiting.cancel()

    asyncio.run(end_within_a_fold())

    assert "Two." in memory.load("ann")
    assert memory.flush() == 0


def test_a_loop_that_is_closed_within_a_fold_loses_nothing_and_is_no_error(caplog):
    """As `asyncio.run` closes one on which a fold was begun after it had cancelled all tasks."""
    memory = ConversationMemory(reader := Hanging(), **SOON)
    loop = asyncio.new_event_loop()

    async def turn():
        await agent_with(memory).ainvoke(human("I keep bees."), of("ann", "monday"))
        await asyncio.to_thread(reader.asked.wait)
        await loop.shutdown_default_executor()

    loop.run_until_complete(turn())
    loop.close()
    wait_until(lambda: reader.read)

    assert memory.flush() == 0
    assert "I keep bees." in memory.load("ann")
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_folds_run_on_the_loop_of_the_turn_while_it_runs():
    reader = Keeper()
    memory = ConversationMemory(reader, **SOON)

    await agent_with(memory).ainvoke(human("One."), of("ann", "monday"))
    await asyncio.to_thread(wait_until, lambda: reader.read)

    assert reader.loops == {asyncio.get_running_loop()}


async def test_loading_from_sync_code_within_a_loop_does_not_wait_for_that_loop():
    reader = Keeper()
    memory = ConversationMemory(reader, **SOON)
    reader.may_reply.clear()
    await agent_with(memory).ainvoke(human("I keep bees."), of("ann", "monday"))
    await asyncio.to_thread(reader.asked.wait)
    reader.may_reply.set()

    assert "I keep bees." in memory.load("ann")  # this loop has a fold under way, and stands still


def test_a_fold_that_fails_is_logged_and_tried_again_at_the_next_turn(caplog):
    failing = True
    memory = ConversationMemory(reader := Keeper(fails=lambda: failing), **NEVER)
    agent = agent_with(memory)

    agent.invoke(human("One."), of("ann", "monday"))
    with caplog.at_level(logging.WARNING):
        assert memory.flush() == 2
    assert "Folding 2 messages failed, and is tried again" in caplog.text
    failing = False
    agent.invoke(human("Two."), of("ann", "monday"))

    assert memory.flush() == 0
    assert reader.read[0].count("One.") == reader.read[0].count("Two.") == 1


def test_an_edit_while_its_message_is_folded_is_folded_next():
    memory = ConversationMemory(reader := Keeper(), **SOON)
    reader.may_reply.clear()
    memory.observe([HumanMessage("My cat is Pixel.", id="1")], user="ann", thread="t")
    memory.observe([HumanMessage("Hm.", id="2"), AIMessage("Yes?", id="3")], user="ann", thread="t")
    assert reader.asked.wait(60)

    memory.observe([HumanMessage("My cat is Dot.", id="1")], user="ann", thread="t")
    reader.may_reply.set()

    assert memory.flush() == 0
    assert "My cat is Dot." in memory.load("ann")


def test_one_failing_thread_does_not_keep_the_others_from_being_folded():
    class Squeamish(Keeper):
        async def update(self, step, *, config=None):
            if "horror" in step.chunk.text:
                raise ModelError("I will not read that.")
            return await super().update(step, config=config)

    memory = ConversationMemory(Squeamish(), **NEVER)
    agent = agent_with(memory)
    agent.invoke(human("A horror story."), of("ann", "monday"))
    agent.invoke(human("I keep bees."), of("ann", "tuesday"))

    assert memory.flush() == 2
    assert "I keep bees." in memory.load("ann")


async def test_another_process_that_still_wants_to_fold_what_left_the_thread_folds_nothing():
    """Two workers of a server: the first has not folded a turn when the second is through."""
    store = InMemoryStore()
    readers = Keeper(), Keeper()
    first, second = (
        ConversationMemory(reader, store=store, window=4, config=ROOMY, **NEVER)
        for reader in readers
    )
    said = [HumanMessage(f"Fact {n}.", id=str(n)) for n in range(12)]
    talk = Talk(first, "ann", "monday", None)

    await second.asave(said, user="ann", thread="monday")
    await second.asave(said[6:], user="ann", thread="monday")
    await second.asave([*said[9:], HumanMessage("Fact 12.", id="12")], user="ann", thread="monday")

    assert await talk.fold(said[:8]) == 0
    assert readers[0].read == []


def test_at_the_end_means_at_the_end():
    memory = ConversationMemory(reader := Keeper(), remember_within=1e6)
    agent = agent_with(memory)
    for number in range(3):
        agent.invoke(human(f"Fact {number}."), of("ann", "monday"))
    assert reader.read == []

    assert memory.flush("ann") == 0

    assert all(f"Fact {n}." in reader.read[0] for n in range(3))


def test_what_leaves_the_window_is_folded_though_turns_are_not():
    memory = ConversationMemory(reader := Keeper(), window=4, **NEVER)
    agent = agent_with(memory)
    agent.invoke(human("Fact 0."), of("ann", "monday"))
    assert reader.read == []

    for number in range(1, 4):
        agent.invoke(human(f"Fact {number}."), of("ann", "monday"))

    wait_until(lambda: any("Fact 0." in one for one in reader.read))


def test_a_time_before_now_is_refused():
    with pytest.raises(ConfigurationError, match="within"):
        ConversationMemory(remember_within=-1)


def test_forgetting_takes_what_waits_along():
    memory = ConversationMemory(reader := Keeper(), **NEVER)
    agent = agent_with(memory)
    agent.invoke(human("I keep bees."), of("ann", "monday"))

    memory.forget("ann")

    assert memory.flush() == 0
    assert memory.load("ann") == ""
    assert reader.read == []


def test_after_forgetting_a_thread_goes_on_without_what_was_folded_of_it_before():
    memory = ConversationMemory(Keeper(), **NEVER)
    agent = agent_with(memory)
    for text in ("I keep bees.", "And hens."):
        agent.invoke(human(text), of("ann", "monday"))
        memory.flush()
    agent.invoke(human("And a goat."), of("ann", "monday"))

    memory.forget("ann")
    agent.invoke(human("And a cow."), of("ann", "monday"))
    memory.flush()

    told = memory.load("ann")
    assert "cow" in told
    assert "bees" not in told
    assert "hens" not in told


CHILD = """
import os, sys
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from memagent_graph import ConversationMemory, MemAgentMiddleware
from memagent_graph.memory.stores import open_store

folder, end = sys.argv[1:]
store = open_store(folder + "/store.sqlite")
saver = SqliteSaver.from_conn_string(folder + "/threads.sqlite")
memory = ConversationMemory(store=store.__enter__(), remember_within=1e6)
agent = create_agent(
    GenericFakeChatModel(messages=iter([AIMessage("Nice.")])), [],
    middleware=[MemAgentMiddleware(memory)], checkpointer=saver.__enter__(),
    context_schema=dict,
)
agent.invoke(
    {"messages": [("human", "My goat Ria gives milk.")]},
    {"configurable": {"thread_id": "monday"}}, context={"user_id": "ann"},
)
if end == "kill":
    os.kill(os.getpid(), 9)
"""


def run_child(tmp_path, end):
    command = [sys.executable, "-c", CHILD, tmp_path, end]
    done = warm_python(*COMMAND_LINE).run(command, whole_end=True)
    assert done.returncode == (-9 if end == "kill" else 0)


@pytest.mark.slow
def test_what_waits_is_folded_when_the_process_ends(tmp_path):
    from memagent_graph.memory.stores import open_store

    run_child(tmp_path, "exit")

    with open_store(str(tmp_path / "store.sqlite")) as store:
        assert "goat Ria" in ConversationMemory(store=store).load("ann")


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_catching_up_does_not_fold_once(tmp_path):
    from memagent_graph.memory.stores import open_store

    run_child(tmp_path, "kill")

    with open_store(str(tmp_path / "store.sqlite")) as store:
        memory = ConversationMemory(store=store)
        assert memory.load("ann") == ""
        assert "goat Ria" in memory.prompt("ann", about="Who gives milk?")[0].text
    threads = str(tmp_path / "threads.sqlite")
    for messages in (2, 0):
        with (
            open_store(str(tmp_path / "store.sqlite")) as store,
            SqliteSaver.from_conn_string(threads) as saver,
        ):
            done = catch_up(ConversationMemory(store=store), saver)
        assert (done.messages, done.threads, done.failed) == (messages, 1, 0)
    with open_store(str(tmp_path / "store.sqlite")) as store:
        assert ConversationMemory(store=store).load("ann").count("goat Ria") == 1


class Pets(BaseModel):
    pet: str | None = None


@pytest.mark.slow
def test_catching_up_folds_notes_or_a_profile_with_a_chat_model(tmp_path, monkeypatch):
    def reply(body):
        if "response_format" not in body:
            return "The user has a goat, Ria."
        change = {"field": "pet", "action": "set", "value": "Ria", "message": 1}
        return json.dumps({"changes": [change]})

    server = OpenAIServer(reply)
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    run_child(tmp_path, "kill")
    notes = ConversationMemory("openai:small", store=InMemoryStore())
    profile = ConversationMemory("openai:small", schema=Pets, store=InMemoryStore())
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite")) as saver:
        done = [catch_up(memory, saver).messages for memory in (notes, profile)]
    server.close()

    assert done == [2, 2]
    assert STANDING_QUESTION in server.requests[0]["messages"][-1]["content"]
    assert notes.load("ann") == "The user has a goat, Ria."
    assert profile.load("ann") == Pets(pet="Ria")


@pytest.mark.parametrize("make", [agent_with, graph_with], ids=["middleware", "node"])
def test_catching_up_knows_the_user_from_the_thread(make, tmp_path):
    lost = ConversationMemory(Keeper(), **NEVER)
    memory = ConversationMemory(reader := Keeper(), store=InMemoryStore())
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite")) as saver:
        agent = make(lost, saver)
        for user in ("ann", "bob"):
            for number in range(2):
                agent.invoke(human(f"{user} says {number}."), of(user, f"of {user}"))

        done = catch_up(memory, saver)
        again = catch_up(memory, saver)

    assert (done.threads, done.messages, done.failed) == (2, 8, 0)
    assert again.messages == 0
    assert "ann says 0." in memory.load("ann")
    assert "ann" not in memory.load("bob")
    assert len(reader.read) == 2


NOTE = "confidential note"


class Replies(BaseCallbackHandler):
    """Hears the replies of all calls of a run, also of those that end after it."""

    def __init__(self):
        self.heard = []

    def on_llm_end(self, response, **_):
        self.heard.append(response)


class NoteTaker(GenericFakeChatModel):
    """Writes the same note at each fold."""

    def _generate(self, messages, *args, **options):
        self.messages = iter([AIMessage(f"A {NOTE} for nobody else.")])
        return super()._generate(messages, *args, **options)

    def _stream(self, messages, *args, **options):
        self.messages = iter([AIMessage(f"A {NOTE} for nobody else.")])
        yield from super()._stream(messages, *args, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [agent_with, graph_with, lambda memory: as_subgraph(agent_with(memory))],
    ids=["middleware", "node", "agent in a graph"],
)
async def test_no_stream_of_a_run_has_what_a_model_notes(make):
    taker = NoteTaker(messages=iter(()))
    memory = ConversationMemory(taker, window=1, remember_within=0)
    agent = make(memory)
    heard = []
    for number, mode in enumerate(("messages", "updates", "custom", "values") * 2):
        stream = agent.astream(human(f"Fact {number}."), of("ann", "t"), stream_mode=mode)
        heard += [part async for part in stream]
        stream = agent.astream(
            human(f"More {number}."), of("ann", "t"), stream_mode=mode, subgraphs=True
        )
        heard += [part async for part in stream]
        await memory.aflush()
    events = [event async for event in agent.astream_events(human("Bye."), of("ann", "t"))]
    replies = Replies()
    await agent.ainvoke(human("Hello again."), {**of("ann", "t"), "callbacks": [replies]})

    assert NOTE in await memory.aload("ann")
    assert "Reply" in str(replies.heard)
    assert NOTE not in str(replies.heard)
    assert any("Reply" in str(part) for part in heard)
    assert not [part for part in heard if NOTE in str(part)]
    # What the model is told stands in the events of its own call, as its input; nowhere else.
    assert not [e for e in events if NOTE in str({**e["data"], "input": None})]
    inputs = {e["event"] for e in events if NOTE in str(e["data"].get("input"))}
    assert inputs == {"on_chat_model_start", "on_chat_model_end"}
    assert {e["name"] for e in events if e["event"] == "on_chat_model_end"} == {"Model"}


def as_subgraph(agent):
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    return builder.compile(checkpointer=InMemorySaver())


def test_no_checkpoint_has_the_memory():
    saver = InMemorySaver()
    memory = ConversationMemory(NoteTaker(messages=iter(())), **NEVER)
    agent = agent_with(memory, saver)
    for number in range(3):
        agent.invoke(human(f"Fact {number}."), of("ann", "t"))
        memory.flush()

    assert NOTE in memory.load("ann")
    assert NOTE not in str([*saver.list(None)])


@dataclass
class Context:
    user_id: str


@pytest.mark.parametrize(
    ("how", "config", "context"),
    [
        ({}, {}, Context("ann")),
        ({}, {}, {"user_id": "ann"}),
        ({}, {"user_id": "ann"}, None),
        ({}, {"user_id": "bob"}, Context("ann")),
        ({"user": lambda runtime, config: config["metadata"]["who"]}, {}, None),
    ],
    ids=["attribute", "key", "configurable", "context first", "function"],
)
def test_the_user_is_found(how, config, context):
    memory = ConversationMemory(Keeper(), **NEVER)
    agent = create_agent(
        model(), [], middleware=[MemAgentMiddleware(memory, **how)], context_schema=Context
    )
    run = {"configurable": {"thread_id": "t", **config}, "metadata": {"who": "ann"}}

    agent.invoke(human("I keep bees."), run, context=context)

    assert "bees" in memory.load("ann")


@pytest.mark.parametrize("make", [agent_with, graph_with], ids=["middleware", "node"])
def test_a_run_without_a_user_is_refused_if_strict_and_else_warned_of_once(make, caplog):
    nobody = {"configurable": {"thread_id": "t", "user_id": ""}}
    memory = ConversationMemory(Keeper(), **NEVER)

    with pytest.raises(ConfigurationError, match="user_id"):
        make(memory, strict=True).invoke(human("Hi."), nobody)
    agent = agent_with(memory)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            agent.invoke(human("I keep bees."), nobody)

    assert caplog.text.count("names no user") == 1
    assert "bees" in memory.load(AnonymousUser.of("t"))


def test_a_thread_that_goes_on_without_naming_its_user_is_still_theirs():
    memory = ConversationMemory(Keeper(), **NEVER)
    agent = agent_with(memory, strict=True)
    agent.invoke(human("One."), of("ann", "t"))

    agent.invoke(human("Two."), {"configurable": {"thread_id": "t"}})

    assert "Two." in memory.load("ann")


@pytest.mark.parametrize("make", [agent_with, graph_with], ids=["middleware", "node"])
def test_what_one_user_said_in_a_thread_is_not_remembered_of_the_next(make):
    memory = ConversationMemory(Keeper(), **NEVER)
    agent = make(memory)

    agent.invoke(human("I am ill."), of("ann", "shared"))
    agent.invoke(human("I am well."), of("bob", "shared"))
    agent.invoke(human("And you?"), of("bob", "shared"))

    assert "ill" in memory.load("ann")
    assert "well" not in memory.load("ann")
    assert "I am well." in memory.load("bob")
    assert "And you?" in memory.load("bob")
    assert "ill" not in memory.load("bob")


def test_agents_share_memories_or_keep_them_apart_by_namespace():
    store, chat = InMemoryStore(), model()
    sales, support, doctor = (
        agent_with(ConversationMemory(Keeper(), namespace=[name], **NEVER), store=store, chat=chat)
        for name in ("shop", "shop", "practice")
    )
    sales.invoke(human("I am ill."), of("ann", "1"))

    support.invoke(human("Hello."), of("ann", "2"))
    told = chat.heard[-1][0].text
    doctor.invoke(human("Hello."), of("ann", "3"))

    assert "I am ill." in told
    assert "ill" not in chat.heard[-1][0].text


def test_the_node_alone_before_the_reply_remembers_as_well():
    reader = Keeper()
    memory = ConversationMemory(reader, **SOON)
    graph = graph_with(memory, behind=False)

    graph.invoke(human("I keep bees."), of("ann", "t"))

    wait_until(lambda: any("bees" in text for text in reader.read))


def test_nobody_but_the_user_speaks_as_the_user():
    said = ConversationSource(
        [
            FunctionMessage("I am a function.", name="look"),
            ChatMessage("I am a tool.", role="tool"),
            ChatMessage("I am a model.", role="assistant"),
            HumanMessage("A summary.", additional_kwargs={"lc_source": "summarization"}),
        ]
    ).text

    assert "user: " not in said


def test_instructions_are_not_remembered():
    memory = ConversationMemory(reader := Keeper(), **NEVER)
    messages = [("system", "Sell!"), ChatMessage("Sell more!", role="developer"), ("human", "Hi.")]

    memory.observe(messages, user="ann", thread="t")
    memory.flush()
    memory.save(messages, user="bob", thread="t")

    assert "Hi." in reader.read[0]
    assert not any("Sell" in text for text in reader.read)


class Asked(TypedDict):
    question: str
    document: str
    answer: str


def test_what_a_reader_writes_for_itself_is_in_no_token_stream_but_its_answer_is():
    chat = GenericFakeChatModel(
        messages=(AIMessage(text) for text in [f"A {NOTE}."] * 3 + ["The answer."])
    )
    config = ReadingConfig(chunk_tokens=400)
    builder = StateGraph(Asked)
    builder.add_node("read", MemAgentNode(chat, config=config))
    builder.add_edge(START, "read")
    asked = {"question": "Who sat?", "document": "The cat sat. " * 300}

    parts = builder.compile().stream(asked, stream_mode="messages", subgraphs=True)
    heard = "".join(message.text for _, (message, _) in parts)

    assert heard == "The answer."


@pytest.mark.parametrize("restarts", [False, True])
def test_a_client_that_sends_its_history_each_turn_is_folded_once(restarts):
    reader, store, history = Keeper(), InMemoryStore(), []
    memory = ConversationMemory(reader, store=store, config=ROOMY, **SOON)
    for number in range(5):
        agent = create_agent(model(), [], middleware=[MemAgentMiddleware(memory)])
        history.append({"role": "user", "content": f"I bought boat number {number}."})
        done = agent.invoke({"messages": history}, of("ann", "monday"))
        memory.flush()
        history.append({"role": "assistant", "content": done["messages"][-1].text})
        if restarts:  # another process knows only what the store has
            memory.people.backlog("ann", None)._threads.clear()

    assert [memory.load("ann").count(f"boat number {n}.") for n in range(5)] == [1] * 5


def test_a_thread_whose_messages_keep_their_ids_may_say_the_same_again():
    memory = ConversationMemory(Keeper(), store=InMemoryStore(), config=ROOMY, **SOON)
    agent = agent_with(memory, chat=Model(messages=iter([AIMessage("Noted.")] * 3)))
    for _ in range(3):
        agent.invoke(human("I had a coffee."), of("ann", "monday"))

    assert memory.load("ann").count("I had a coffee.") == 3


@pytest.mark.parametrize("flushed", [True, False])
def test_an_edited_message_corrects_notes_and_passages(flushed):
    memory = ConversationMemory("extractive", store=InMemoryStore(), **NEVER)
    first = {"id": "m1"}
    said = [HumanMessage("I live in Hamburg. I have a dog.", **first), AIMessage("Reply 0.")]
    agent = create_agent(model(), [], middleware=[MemAgentMiddleware(memory)])
    agent.invoke({"messages": said[:1]}, of("ann", "monday"))
    if flushed:
        memory.flush()
    said[0] = HumanMessage("I live in Husum. I have a dog.", **first)
    agent.invoke({"messages": [*said, HumanMessage("Thanks.")]}, of("ann", "monday"))

    (prompt,) = (memory.flush(), memory.prompt("ann", about="Where do I live?"))[1]
    assert "Hamburg" not in memory.load("ann") + prompt.text
    assert "I live in Husum." in memory.load("ann")
    assert memory.load("ann").count("I have a dog.") == 1


def test_a_model_reads_what_an_edited_message_said_before():
    reader = Keeper()
    memory = ConversationMemory(reader, store=InMemoryStore(), config=ROOMY)
    memory.save([HumanMessage("I live in Hamburg.", id="m1")], user="ann", thread="monday")
    memory.save([HumanMessage("I live in Husum.", id="m1")], user="ann", thread="monday")

    assert reader.read[1].endswith("user: (instead of: 'I live in Hamburg.') I live in Husum.\n")


def test_a_message_that_is_gone_from_a_history_that_is_sent_again_is_not_forgotten():
    memory = ConversationMemory("extractive", store=InMemoryStore())
    said = [("human", "I live in Husum."), ("ai", "Nice."), ("human", "I have a dog."), ("ai", "O")]
    memory.save(said, user="ann", thread="monday")
    memory.save([*said[2:], ("human", "I sail.")], user="ann", thread="monday")

    assert memory.load("ann").splitlines()[1:] == ["I live in Husum.", "I have a dog.", "I sail."]
