"""python examples/chat.py.

For builders of chatbots: a chat in the terminal that remembers who talks, across restarts. Say
something of yourself, stop it with an empty line, start it again. Set MEMAGENT_MODEL
(openai:gpt-4o, say) for a model that talks; without one it only listens. MEMAGENT_STORE names
where it remembers: an SQLite file in your data folder by default, or a redis:// address.
"""

from __future__ import annotations

import os
import sys

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph

from memagent_graph import ConversationMemory, ConversationState, ReplyNode
from memagent_graph.errors import ModelError
from memagent_graph.memory.stores import open_store
from memagent_graph.readers.resolve import resolve_model


def reply(state: ConversationState) -> ConversationState:
    """Answer from the messages, which are the recent ones with the memory."""
    if model is None:
        return {"messages": [AIMessage("I see.")]}
    return {"messages": [model.invoke(state["messages"])]}


named = os.environ.get("MEMAGENT_MODEL", "extractive")
# Small models in this process repeat themselves, some without an end, and take poor notes.
small = named.startswith("hf:")
limits = {"temperature": 0.7, "max_tokens": 256} if small else {}
model = None if named == "extractive" else resolve_model(named, **limits)
user = sys.argv[1] if len(sys.argv) > 1 else "me"

with open_store() as store:
    memory = ConversationMemory("extractive" if small else named, store=store)
    builder = StateGraph(ConversationState)
    builder.add_node("reply", ReplyNode(memory, reply))
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    graph = builder.compile(store=store)

    messages = []
    who = {"configurable": {"user_id": user, "thread_id": "terminal"}}
    print(f"Hello {user}. An empty line ends the chat. What I know of you:")
    print(memory.load(user) or "nothing")
    while line := sys.stdin.readline().strip():
        try:
            messages = graph.invoke({"messages": [*messages, ("human", line)]}, who)["messages"]
            print(messages[-1].text)
        except ModelError as error:
            print(error, "Say it again, or end the chat with an empty line.")
    memory.flush()  # before the store is closed
