from __future__ import annotations

import asyncio
import inspect
import random
import sys
from itertools import count
from typing import Annotated
from uuid import UUID

import pytest
from conversations import is_valid
from doubles import ScriptedReader
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    SummarizationMiddleware,
    dynamic_prompt,
    wrap_model_call,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
)
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import ToolException, tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import _messages_delta_reducer
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import Field

from memagent_graph import ConversationMemory, MemAgentMiddleware
from memagent_graph.conversation.built_in import NewestReader
from memagent_graph.conversation.messages import view
from memagent_graph.errors import ConfigurationError, MissingDependencyError, ModelError

ANN = {"configurable": {"thread_id": "monday", "user_id": "ann"}}
FACTS = (
    "My daughter Lotte starts at the music school in Bremen.",
    "We adopted a greyhound named Pepper.",
    "I work nights at a paper mill.",
)


@tool
def price(item: int) -> str:
    """The price of an item."""
    if item % 7 == 0:
        raise ToolException("There is no such item.")
    return f"Item {item} costs {item % 13} euros and 20 cents."


price.handle_tool_error = True


@tool
def weather(town: str) -> str:
    """The weather of a town."""
    return f"{town}: light rain, 12 degrees."


class Agent(BaseChatModel):
    """Calls both tools at once on every second turn, then replies. Fails when told to."""

    heard: list = Field(default_factory=list)
    fails: object = None

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **options):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **options):
        assert is_valid(messages), messages
        self.heard.append(messages)
        if self.fails is not None and self.fails():
            raise ConnectionError("The model is away.")
        last, turn = messages[-1], len(self.heard)
        message = AIMessage(f"Reply {turn}: noted.")
        if isinstance(last, HumanMessage) and turn % 2:
            calls = [
                {"name": "price", "args": {"item": turn}, "id": f"p{turn}"},
                {"name": "weather", "args": {"town": "Oslo"}, "id": f"w{turn}"},
            ]
            message = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


class ChangesState(AgentState):
    """Checkpoints have the changes of the messages, as those of deepagents do."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


HOSTS = pytest.mark.parametrize("host", [AgentState, ChangesState])


def agent_with(*middleware, model, saver=None, store=None, host=None):
    return create_agent(
        model,
        [price, weather],
        system_prompt="You sell garden tools.",
        middleware=middleware,
        checkpointer=saver or InMemorySaver(),
        store=store,
        state_schema=host,
    )


def asked(number):
    if number == 3:
        return " ".join(FACTS)
    return f"What does item {number} cost, and will it rain tomorrow in town {number}?"


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "chance"), [(150, 0.0), (200, 0.2)], ids=["healthy", "failing"])
def test_hundreds_of_turns_stay_flat_and_remember_what_was_told_in_the_third(turns, chance):
    dice = random.Random(7)
    reader = Failing(lambda: dice.random() < chance)
    memory = ConversationMemory(reader, window=20, remember_within=1e6)
    model = Agent(fails=lambda: dice.random() < chance / 4)
    agent = agent_with(MemAgentMiddleware(memory), model=model)

    for number in range(1, turns + 1):
        message = HumanMessage(asked(number), id=f"turn-{number}")
        for _ in range(20):
            try:
                agent.invoke({"messages": [message]}, ANN)
                break
            except ConnectionError:  # as a client would: send the turn again
                continue

    told = memory.load("ann")
    for fact in FACTS:
        assert fact in told
    sizes = [count_tokens_approximately(messages) for messages in model.heard]
    early, late = sizes[50:150], sizes[-100:]
    assert max(late) <= 1.25 * max(early)
    assert max(late) < 3_000
    folded = {number for text in reader.read for number in turns_in(text)}
    state = agent.get_state(ANN).values
    left = view(state["messages"], state["memory_left"])
    staying = {int(m.id.removeprefix("turn-")) for m in left if isinstance(m, HumanMessage)}
    assert folded | staying == {*range(1, turns + 1)}
    assert sum(len(turns_in(text)) for text in reader.read) == len(folded)  # each once


def turns_in(text):
    found = [
        int(line.split("item ")[1].split()[0])
        for line in text.splitlines()
        if "and will it" in line
    ]
    return found + [3] * text.count(FACTS[0])


class Failing(NewestReader):
    """The built-in reader, which sometimes is away; knows what it has read."""

    def __init__(self, fails):
        super().__init__()
        self.fails = fails
        self.read = []

    async def update(self, step, *, config=None):
        if self.fails():
            raise ModelError("The reader is away.")
        self.read.append(step.chunk.text)
        return await super().update(step, config=config)


async def test_the_memory_is_told_to_the_model_in_another_thread_of_the_same_user():
    store = InMemoryStore()
    memory = ConversationMemory(window=2)
    model = Agent()
    agent = agent_with(MemAgentMiddleware(memory), model=model, store=store)
    for text in ("I keep bees near Lugo.", "Fine.", "And so on."):
        await agent.ainvoke({"messages": [("human", text)]}, ANN)

    tuesday = {"configurable": {"thread_id": "tuesday", "user_id": "ann"}}
    out = await agent.ainvoke({"messages": [("human", "Hello again.")]}, tuesday)

    system = model.heard[-1][0]
    assert system.type == "system"
    assert system.text.startswith("You sell garden tools.")
    assert "I keep bees near Lugo." in system.text
    assert set(out) == {"messages"}
    bob = {"configurable": {"thread_id": "bob", "user_id": "bob"}}
    await agent.ainvoke({"messages": [("human", "Hello.")]}, bob)
    assert "bees" not in model.heard[-1][0].text


def test_it_works_beside_other_middleware():
    limit = ModelCallLimitMiddleware(thread_limit=4, exit_behavior="end")
    summary = SummarizationMiddleware(Agent(), trigger=("messages", 500))
    memory = ConversationMemory(window=2)
    agent = agent_with(summary, MemAgentMiddleware(memory), limit, model=Agent())

    for number in range(4):
        out = agent.invoke({"messages": [("human", f"My goat {number} is named Ria.")]}, ANN)

    assert "My goat 0 is named Ria." in memory.load("ann")
    assert "limit" in out["messages"][-1].text


@pytest.mark.skipif(
    "summarizer" not in inspect.signature(SummarizationMiddleware).parameters,
    reason="langchain has summarizers since 1.5",
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_fold_is_the_summary_of_a_thread(is_async):
    memory = ConversationMemory()
    summary = SummarizationMiddleware(
        Agent(),
        trigger=("messages", 5),
        keep=("messages", 2),
        summarizer=memory.summarizer,
        trim_tokens_to_summarize=None,
    )
    agent = agent_with(summary, model=Agent())

    for name in ("Ria", "Uwe", "Ada", "Pim"):
        said = {"messages": [("human", f"My goat is named {name}.")]}
        out = await agent.ainvoke(said, ANN) if is_async else agent.invoke(said, ANN)

    first = out["messages"][0].text
    assert all(f"My goat is named {name}." in first for name in ("Ria", "Uwe"))
    assert len(out["messages"]) <= 5
    assert memory.load("ann") in first


def test_a_summarizer_outside_a_graph_is_refused():
    with pytest.raises(ConfigurationError, match="in a graph"):
        ConversationMemory().summarizer.invoke([HumanMessage("My goat is named Ria.")])


async def test_tokens_stream_as_without_it():
    numbers = count()
    agent = agent_with(MemAgentMiddleware(ConversationMemory(window=1)), model=Agent())
    for _ in range(2):
        parts = [
            message.text
            async for message, _ in agent.astream(
                {"messages": [("human", f"turn {next(numbers)}")]}, ANN, stream_mode="messages"
            )
        ]

    assert any("Reply" in part for part in parts)
    assert not any("turn" in part for part in parts)


def test_a_run_that_names_nobody_is_told_how_to():
    agent = create_agent(Agent(), [], middleware=[MemAgentMiddleware()])

    with pytest.raises(ConfigurationError, match="user_id"):
        agent.invoke({"messages": [("human", "hi")]})


@pytest.mark.slow
async def test_many_users_at_once_keep_apart():
    memory = ConversationMemory(ScriptedReader(), window=1)
    agent = agent_with(MemAgentMiddleware(memory), model=Agent())

    async def talk(user):
        config = {"configurable": {"thread_id": f"t-{user}", "user_id": user}}
        for number in range(3):
            await agent.ainvoke({"messages": [("human", f"{user} says {number}")]}, config)

    await asyncio.gather(*(talk(f"user{number}") for number in range(20)))

    for number in range(20):
        told = await memory.aload(f"user{number}")
        assert f"user{number} says 0" in told
        assert told.count("says") == told.count(f"user{number} says")


def test_without_langchain_it_says_what_to_install_and_the_other_names_are_there(monkeypatch):
    monkeypatch.delitem(sys.modules, "memagent_graph.conversation.middleware")
    monkeypatch.setitem(sys.modules, "langchain.agents.middleware", None)

    with pytest.raises(MissingDependencyError, match=r'pip install "memagent-graph\[langchain\]"'):
        from memagent_graph import MemAgentMiddleware  # noqa: F401
    exec("from memagent_graph import *", {})


def remembering(**options):
    memory = ConversationMemory(store=InMemoryStore())
    memory.save([HumanMessage("I keep bees near Lugo.", id="1")], user="ann", thread="sunday")
    return MemAgentMiddleware(memory, **options)


def system_message_for(*middleware, prompt=None):
    model = Agent()
    agent = create_agent(model, [], system_prompt=prompt, middleware=middleware)
    agent.invoke({"messages": [("human", "hello")]}, ANN)
    return model.heard[-1][0]


@pytest.mark.parametrize("prompt", ["Be nice.", SystemMessage("Be nice."), None])
def test_a_system_prompt_that_is_a_text_stays_a_text(prompt):
    content = system_message_for(remembering(), prompt=prompt).content

    assert isinstance(content, str)
    assert content.startswith("Be nice.\n\n" if prompt else "These are")
    assert "bees" in content


def test_the_parts_of_a_system_prompt_stay_as_they_are_with_the_memory_after_them():
    part = {"type": "text", "text": "Be nice.", "cache_control": {"type": "ephemeral"}}

    first, memory = system_message_for(remembering(), prompt=SystemMessage([part])).content

    assert first == part
    assert "bees" in memory["text"]


@dynamic_prompt
def be_brief(request):
    return "Be brief."


@dynamic_prompt
def be_brief_too(request):
    return f"{request.system_prompt}\nBe brief."


@wrap_model_call
def drop_the_prompt(request, handler):
    return handler(request.override(system_prompt=None))


@pytest.mark.parametrize("other", [be_brief, be_brief_too, drop_the_prompt])
@pytest.mark.parametrize("first", [True, False])
def test_a_prompt_that_other_middleware_sets_does_not_take_the_place_of_the_memory(other, first):
    stack = [remembering(), other] if first else [other, remembering()]

    text = system_message_for(*stack, prompt="Be nice.").text

    assert text.count("I keep bees near Lugo.") == 1
    assert ("Be brief." in text) is (other is not drop_the_prompt)


@pytest.mark.parametrize("user", [0, 42, UUID(int=5)])
def test_an_id_that_is_no_text_names_the_same_user_in_an_agent_and_in_a_call(user):
    memory = ConversationMemory(store=InMemoryStore())
    agent = create_agent(Agent(), [], middleware=[MemAgentMiddleware(memory, strict=True)])
    agent.invoke(
        {"messages": [("human", "I keep bees near Lugo.")]},
        {"configurable": {"user_id": user, "thread_id": 0}},
    )

    assert memory.flush(user) == 0
    assert "bees" in memory.load(user) == memory.load(str(user))
    assert "bees" in memory.prompt(user)[0].text
    memory.save([HumanMessage("I keep goats.", id="g")], user=user, thread=7)
    memory.observe([HumanMessage("I keep goats.", id="g")], user=user, thread=7)
    assert memory.forget_messages(user, ["g"], thread=7) == 1
    assert len(memory.history(user)) == 2
    users = memory.users()
    assert users.names() == [str(user)]
    assert users.held(user).threads == ("0", "7")
    assert [found.user for found in users.list([user])] == [str(user)]
    memory.forget(user)
    assert users.names() == []


@pytest.mark.parametrize("user", [None, "", 4.5, b"ann", ["ann"]])
def test_what_is_no_id_is_refused_with_the_reason(user):
    memory = ConversationMemory(store=InMemoryStore())

    with pytest.raises(ConfigurationError, match="give (the|an) id"):
        memory.load(user)


def test_no_user_id_reaches_the_memory_of_a_thread_without_a_user():
    model, memory = Agent(), ConversationMemory(store=InMemoryStore())
    agent = agent_with(MemAgentMiddleware(memory), model=model)
    for _ in range(2):
        agent.invoke(
            {"messages": [("human", "My door code is yoghurt.")]},
            {"configurable": {"thread_id": "t9"}},
        )
    memory.flush()

    (found,) = memory.users().list()
    assert "yoghurt" in found.version.text
    with pytest.raises(ConfigurationError, match="threads without a user"):
        memory.load(str(found.user))
    with pytest.raises(ConfigurationError, match="threads without a user"):
        agent.invoke(
            {"messages": [("human", "hello")]},
            {"configurable": {"thread_id": "mine", "user_id": found.user}},
        )
    for user in ("thread t9", "t9", f" {found.user}", found.user.upper()):
        config = {"configurable": {"thread_id": f"of {user}", "user_id": user}}
        agent.invoke({"messages": [("human", "hello")]}, config)
        assert "yoghurt" not in str(model.heard[-1])


class BrokenStore(InMemoryStore):
    """Fails in whatever is asked of it."""

    def batch(self, ops):
        raise RuntimeError("The store is broken.")

    async def abatch(self, ops):
        raise RuntimeError("The store is broken.")


@pytest.mark.parametrize("within", [0, 1e6])
def test_nothing_that_fails_in_the_memory_ends_a_turn(within, monkeypatch):
    memory = ConversationMemory(store=BrokenStore(), window=1, remember_within=within)
    agent = agent_with(MemAgentMiddleware(memory), model=Agent())
    monkeypatch.setattr("memagent_graph.conversation.session.count_tokens", lambda message: 1 / 0)

    out = agent.invoke({"messages": [("human", "a"), ("ai", "b"), ("human", "c")]}, ANN)

    assert "noted" in out["messages"][-1].text


@HOSTS
def test_the_thread_keeps_all_and_the_model_sees_the_recent_messages(host):
    memory = ConversationMemory("extractive", window=4, store=InMemoryStore())
    agent = agent_with(MemAgentMiddleware(memory), model=(model := Agent()), host=host)
    for number in range(8):
        agent.invoke({"messages": [HumanMessage(f"I own boat {number}.", id=f"m{number}")]}, ANN)
        memory.flush()

    kept = agent.get_state(ANN).values["messages"]
    assert [m.id for m in kept if isinstance(m, HumanMessage)] == [f"m{n}" for n in range(8)]
    assert max(len(heard) for heard in model.heard) <= 9
    assert all(m.id in {k.id for k in kept} for m in model.heard[-1][1:])


@HOSTS
def test_the_thread_is_shortened_if_asked_to(host):
    memory = ConversationMemory("extractive", window=4, store=InMemoryStore())
    middleware = MemAgentMiddleware(memory, shorten_state=True)
    agent = agent_with(middleware, model=Agent(), host=host)
    for number in range(8):
        agent.invoke({"messages": [("human", f"I own boat {number}.")]}, ANN)
        memory.flush()

    assert len(agent.get_state(ANN).values["messages"]) <= 8


@HOSTS
def test_a_fork_sees_what_was_recent_where_it_begins(host):
    memory = ConversationMemory("extractive", window=4, store=InMemoryStore())
    agent = agent_with(MemAgentMiddleware(memory), model=(model := Agent()), host=host)
    for number in range(6):
        agent.invoke({"messages": [HumanMessage(f"I own boat {number}.", id=f"m{number}")]}, ANN)
        memory.flush()
    early = [s for s in agent.get_state_history(ANN) if not s.next and s.metadata["step"] > 0][-2]
    agent.invoke({"messages": [HumanMessage("I sold it.", id="fork")]}, early.config)
    memory.flush()

    assert [m.id for m in model.heard[-1] if isinstance(m, HumanMessage)][-1] == "fork"
    assert {m.id for m in model.heard[-1]}.isdisjoint({"m2", "m3", "m4", "m5"})
    assert "boat 5" in memory.load("ann")  # what another branch said is not forgotten
    assert "I sold it." in memory.load("ann")


def test_other_middleware_may_drop_the_messages_that_left_the_view():
    class Drops(AgentMiddleware):
        def before_model(self, state, runtime):
            stay = {m.id for m in view(state["messages"], state.get("memory_left"))}
            return {
                "messages": [RemoveMessage(m.id) for m in state["messages"] if m.id not in stay]
            }

    memory = ConversationMemory("extractive", window=4, store=InMemoryStore())
    for order in (1, -1):
        both = [MemAgentMiddleware(memory), Drops()][::order]
        agent = agent_with(*both, model=(model := Agent()))
        for number in range(8):
            agent.invoke({"messages": [("human", f"I own boat {number}.")]}, ANN)
            memory.flush()
        assert max(len(heard) for heard in model.heard) <= 10
        memory.forget("ann")


def test_a_pause_for_a_person_within_a_turn_changes_nothing():
    memory = ConversationMemory("extractive", window=2, store=InMemoryStore())
    pauses = HumanInTheLoopMiddleware(interrupt_on={"price": True})
    agent = agent_with(MemAgentMiddleware(memory), pauses, model=Agent())
    agent.invoke({"messages": [("human", "I own boat 1.")]}, ANN)
    done = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), ANN)
    memory.flush()

    assert [m.type for m in done["messages"]] == ["human", "ai", "tool", "tool", "ai"]
    assert "I own boat 1." in memory.load("ann")
