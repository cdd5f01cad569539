"""What tests of conversations share: models, agents and graphs with a memory, random turns."""

import asyncio
import operator
from itertools import count
from threading import Event
from typing import Annotated, TypedDict

from fixed_readers import ScriptedReader
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore

from memagent_graph import (
    ConversationMemory,
    ConversationNode,
    ConversationState,
    MemAgentMiddleware,
    ReadingConfig,
    ReplyNode,
)
from memagent_graph.errors import ModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.base import Update
from memagent_graph.testing import ScriptedChatModel

NEVER = {"remember_within": 1e6}
"""Nothing is folded in the background: a test says when."""
ROOMY = ReadingConfig(memory_tokens=10**6, chunk_tokens=10**5)
"""Nothing has to go for want of room."""


class Keeper(ScriptedReader):
    """Its memory is all that it read. Fails when told to; can wait, so that others overtake.

    Attributes:
        asked: set with the first update.
        may_reply: what updates wait for.
        loops: the event loops that it was called on.
    """

    def __init__(self, fails=lambda: False, wait=lambda: 0.0):
        super().__init__()
        self.fails, self.wait, self.loops = fails, wait, set()
        self.asked, self.may_reply = Event(), Event()
        self.may_reply.set()

    async def update(self, step, *, config=None):
        self.loops.add(asyncio.get_running_loop())
        self.asked.set()
        await asyncio.sleep(self.wait())
        if not self.may_reply.is_set():
            await asyncio.to_thread(self.may_reply.wait, 60)
        if self.fails():
            raise ModelError("The model is away.")
        self.calls.append(step.chunk.text)
        return Update(Memory(step.memory.text + step.chunk.text))


def new_memory(model="extractive", **options):
    """A memory that folds when a test says so."""
    return ConversationMemory(model, store=InMemoryStore(), **{**NEVER, **options})


def of(user, thread="t", **more):
    """The config of a run of a user."""
    return {"configurable": {"user_id": user, "thread_id": thread, **more}}


def say(graph, text, config, how="sync", **message):
    """A turn of a graph or an agent."""
    return run(graph, {"messages": [HumanMessage(text, **message)]}, config, how)


def run(graph, given, config, how="sync"):
    if how == "async":
        return asyncio.run(graph.ainvoke(given, config))
    return graph.invoke(given, config)


def dated(text, day="2026-03-05", key=None, **fields):
    """A message that was said on a day."""
    return HumanMessage(text, id=key, additional_kwargs={"told_at": day}, **fields)


def calling(name, key="1", **args):
    """A reply that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": key}])


def agent_with(memory, *before, model=None, after=(), **options):
    """An agent that remembers; `options` of `create_agent`."""
    options.setdefault("middleware", [*before, MemAgentMiddleware(memory), *after])
    options.setdefault("checkpointer", InMemorySaver())
    return create_agent(model or ScriptedChatModel("Noted."), **options)


class Added(TypedDict, total=False):
    """A state that gives messages no ids, and has no other key."""

    messages: Annotated[list[AnyMessage], operator.add]


def note(_):
    return {"messages": [AIMessage("Noted.")]}


def answer_with(model):
    """A node that calls a model with the messages of its state."""
    return lambda state: {"messages": [model.invoke(state["messages"])]}


def graph_around(
    memory, reply=note, state=ConversationState, checkpointer=None, *, behind=None, **node
):
    """A graph whose node `reply` has a memory, with a node `behind` it."""
    builder = StateGraph(state).add_node("reply", ReplyNode(memory, reply, **node))
    builder.add_edge(START, "reply")
    if behind:
        builder.add_node("behind", behind).add_edge("reply", "behind")
    return builder.compile(InMemorySaver() if checkpointer is None else checkpointer)


def graph_with(
    memory,
    reply=note,
    state=ConversationState,
    checkpointer=None,
    store=None,
    *,
    behind=True,
    **node,
):
    """A graph that remembers before its node `reply` and, if `behind`, after it.

    Args:
        node: options of `ConversationNode`.
    """
    builder = StateGraph(state).add_node("remember", ConversationNode(memory, **node))
    builder.add_node("reply", reply).add_edge(START, "remember").add_edge("remember", "reply")
    if behind:
        builder.add_node("note", ConversationNode(memory, **node)).add_edge("reply", "note")
    saver = InMemorySaver() if checkpointer is None else checkpointer
    return builder.compile(saver, store=store)


def prompted(memory, about, user="ann"):
    """What a model is told of a user who says something."""
    return "".join(message.text for message in memory.prompt(user, about=about))


def recall(memory, user, about):
    """All that a model is told of a user, once what waited is folded."""
    memory.flush()
    return memory.load(user) + prompted(memory, about, user)


def known_of(memory, *words):
    """Which of the words are known of each of two users."""
    return {
        user: words_in(recall(memory, user, ", ".join(words)), *words) for user in ("ann", "bo")
    }


def words_in(text, *words):
    """Those of the words that stand in a text."""
    return [word for word in words if word in text]


def dump(store):
    """All that a store holds."""
    items = store.search((), limit=10_000)
    return "\n".join(sorted(repr((item.namespace, item.key, item.value)) for item in items))


_number = count()


def _id():
    return f"m{next(_number)}"


@st.composite
def turns(draw, most=12):
    """Turns up to a point at which the model is called: lists of messages, each with an id."""
    found = []
    for _ in range(draw(st.integers(1, most))):
        turn = []
        if draw(st.booleans()) and draw(st.booleans()):
            turn.append(SystemMessage(f"system {_id()}", id=_id()))
        turn.append(HumanMessage(f"human {_id()} says something.", id=_id()))
        for _ in range(draw(st.integers(0, 3))):
            turn += _tools(draw)
        found.append(turn)
        if draw(st.booleans()) or len(found) < most:
            found[-1].append(AIMessage(f"reply {_id()}", id=_id()))
    if isinstance(found[-1][-1], AIMessage):  # a model is called after a human or a tool
        found[-1].pop()
    return found


def _tools(draw):
    ids = [_id() for _ in range(draw(st.integers(1, 3)))]
    calls = [{"name": "look", "args": {"q": one}, "id": one} for one in ids]
    messages = [AIMessage(draw(st.sampled_from(["", "Let me look."])), tool_calls=calls, id=_id())]
    for one in draw(st.permutations(ids)):
        status = draw(st.sampled_from(["success", "error"]))
        text = f"result {_id()}" * draw(st.integers(1, 9))
        messages.append(ToolMessage(text, tool_call_id=one, status=status, name="look", id=_id()))
        if draw(st.integers(0, 9)) == 0:
            messages.append(SystemMessage(f"system {_id()}", id=_id()))
    return messages


def is_valid(messages) -> bool:
    """Whether a strict server takes them: it begins with a human, and every call is answered,
    by its own results, before anything else is said."""
    said = [message for message in messages if not isinstance(message, SystemMessage)]
    if not said or not isinstance(said[0], HumanMessage):
        return False
    open_calls = set()
    for message in said:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                return False
            open_calls.remove(message.tool_call_id)
        elif open_calls:
            return False
        elif isinstance(message, AIMessage):
            open_calls = {call["id"] for call in message.tool_calls}
    return not open_calls
