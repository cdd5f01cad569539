"""What remembering adds to a reply: an agent with the middleware, and the same agent without it.

    python benchmarks/reply_overhead.py

A scripted model, a real Redis server, one thread for each agent; the turns of both take turns. The
folds, by the built-in reader, run meanwhile.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from servers.redis_server import RedisServer

from memagent_graph import ConversationMemory, MemAgentMiddleware, RedisStore

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable

TURNS = 300


def agent_with(*middleware: MemAgentMiddleware) -> Runnable:
    """An agent that says the same at each turn."""
    model = GenericFakeChatModel(messages=(AIMessage("I see.") for _ in range(2 * TURNS)))
    return create_agent(model, [], middleware=middleware, checkpointer=InMemorySaver())


def milliseconds(agent: Runnable, number: int) -> float:
    """How long a turn takes."""
    # A new thread every ten turns: without the middleware nothing leaves the window.
    config = {"configurable": {"user_id": "ann", "thread_id": str(number // 10)}}
    said = {"messages": [("human", f"On day {number} I walked to the lake with my dog Pepper.")]}
    begun = perf_counter()
    agent.invoke(said, config)
    return 1000 * (perf_counter() - begun)


def main() -> None:
    """Print the medians, and the share of turns above 5 ms more than the median without."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            with RedisStore.from_url(server.url) as store:
                memory = ConversationMemory(store=store)
                plain, remembering = agent_with(), agent_with(MemAgentMiddleware(memory))
                without, with_it = [], []
                for number in range(TURNS):
                    without.append(milliseconds(plain, number))
                    with_it.append(milliseconds(remembering, number))
                memory.flush()
                known = memory.load("ann")
        finally:
            server.kill()
    before, after = statistics.median(without), statistics.median(with_it)
    slow = sum(each > before + 5 for each in with_it) / TURNS
    print(f"without {before:.2f} ms, with {after:.2f} ms: {after - before:.2f} ms more a reply")
    print(f"over 5 ms more: {slow:.0%} of {TURNS} turns, the {TURNS // 10} that wait for another")
    print(f"thread among them; {len(known.split())} words are remembered")


if __name__ == "__main__":
    main()
