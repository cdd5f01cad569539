"""python examples/deep_agent.py.

For users of deepagents (pip install deepagents): an agent whose user's memory is a folder of files,
and that asks a file which is longer than its window. It runs offline with a scripted model; set
MEMAGENT_MODEL (openai:gpt-4o, say) for one that decides by itself.
"""

from __future__ import annotations

import os

from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, StateBackend
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory
from memagent_graph.conversation.files import MemoryBackend, create_file_reading_tool
from memagent_graph.testing import ScriptedChatModel, call_tool

store = InMemoryStore()
named = os.environ.get("MEMAGENT_MODEL", "extractive")
memory = ConversationMemory(named, store=store)
memory.save([("human", "I live in Husum.")], user="ann", thread="monday")

script = [
    call_tool("read_file", file_path="/memories/notes.md"),
    call_tool(
        "edit_file",
        file_path="/memories/notes.md",
        old_string="I live in Husum.",
        new_string="I live in Kiel.",
    ),
    call_tool("ask_file", path="/log.txt", question="Which door was open?"),
    "Noted: you live in Kiel. The north door was open.",
]
backend = CompositeBackend(
    StateBackend(), routes={"/memories/": MemoryBackend(memory, editable=True)}
)
agent = create_deep_agent(
    ScriptedChatModel(*script) if named == "extractive" else named,
    tools=[create_file_reading_tool(backend, named)],
    backend=backend,
)

lines = [f"Round {n}: all doors were shut." for n in range(9_000)]
lines[4_321] = "Round 4321: the north door was open."
files = {"/log.txt": {"content": "\n".join(lines), "encoding": "utf-8"}}
out = agent.invoke(
    {"messages": [("human", "I moved to Kiel. Which door was open?")], "files": files},
    {"configurable": {"user_id": "ann", "thread_id": "tuesday"}},
)
for message in out["messages"]:
    if message.type == "tool":
        print(f"{message.name}: {message.text.strip()}")
print(out["messages"][-1].text)
print(memory.load("ann"))
