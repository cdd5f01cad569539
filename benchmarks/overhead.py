"""What the library itself costs, each time against a peer of the same run.

    MEMAGENT_DATA=... python benchmarks/overhead.py call|graph|reply [--rounds 5]

- `call`: processor time of a call with all checks, against a bare loop over the `openai` SDK.
  32 documents of 10 chunks are read at once from a server that answers at once, in a process of its
  own. The bare loop encodes the document, decodes slices of token ids, fills in the prompt, and
  asks. Both have the SDK's client, the tokenizer, the prompts and the number of calls in common.
- `graph`: processor time of a chunk, against an empty LangGraph loop. The reader returns at once
  and the chunks are small, so that what is timed is the state machine.
- `reply`: an agent with the middleware, a scripted model and a real Redis, against the same agent
  without it, by the clock; the turns of both take turns, while folds run in the background.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from itertools import count
from multiprocessing import Pipe, Process
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from measurement import seconds_of

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.evidence.places import Memory
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Step, Update
from memagent_graph.templates import ANSWER_PROMPT, UPDATE_PROMPT

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from multiprocessing.connection import Connection

    from langchain_core.runnables import Runnable
    from tokenizers import Tokenizer

    from memagent_graph import MemAgentMiddleware
    from memagent_graph.graph.build import ReadingGraph

QUESTION = "Who comes to the house, and why?"


@contextmanager
def server(text: str, seconds: float = 0.0) -> Iterator[str]:
    """The URL of a server in a process of its own; each reply is another 800 characters."""
    ours, theirs = Pipe()
    process = Process(target=serve, args=(text, seconds, theirs), daemon=True)
    process.start()
    yield ours.recv()
    process.kill()
    process.join()


def serve(text: str, seconds: float, ready: Connection) -> None:
    from servers.openai_server import OpenAIServer

    number = count()

    def reply(_: dict[str, Any]) -> str:
        time.sleep(seconds)
        begin = 997 * next(number) % max(len(text) - 800, 1)
        return text[begin : begin + 800]

    found = OpenAIServer(reply)
    found.models = []  # no window is known, so that no prompt is counted against it
    ready.send(found.base_url)


def novel() -> str:
    return Path(os.environ["MEMAGENT_DATA"], "war_and_peace.txt").read_text("utf-8")


def show(what: str, ours: list[float], theirs: list[float], unit: str) -> None:
    """Print medians, and that of the ratios of the rounds."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    low, high = min(ratios), max(ratios)
    print(
        f"{what:<32} {median(ours):8.2f} {unit}, against {median(theirs):8.2f}: "
        f"{median(ratios):.2f} times ({low:.2f} to {high:.2f})",
        flush=True,
    )


# A call

DOCUMENTS, CHUNKS = 32, 10


def trained(text: str) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=64_000, initial_alphabet=letters, show_progress=False)
    backend.train_from_iterator(text.splitlines(keepends=True), trainer)
    return backend


def call(rounds: int) -> None:
    text = novel()
    backend = trained(text)
    with server(text) as url:
        for chunk_tokens in (5000, 512):
            texts = documents(text, backend, chunk_tokens)
            model = ChatEndpoint(model="small", base_url=url)
            config = ReadingConfig(chunk_tokens=chunk_tokens)
            agent = create_memagent(model, config=config, tokenizer=backend)
            pairs = [
                (cost(graph_calls(agent, texts)), cost(bare_calls(url, texts, backend, config)))
                for _ in range(rounds + 1)
            ]
            ours, theirs = zip(*pairs[1:], strict=True)  # the first warms up
            show(f"a call, {chunk_tokens:,} tokens a chunk", [*ours], [*theirs], "ms")


def documents(text: str, backend: Tokenizer, chunk_tokens: int) -> list[str]:
    """Stretches of `text`, each in so many chunks."""
    text += text
    ends = [end for _, end in backend.encode(text, add_special_tokens=False).offsets]
    size, step = CHUNKS * chunk_tokens * 93 // 100, len(ends) // 2 // DOCUMENTS
    return [text[ends[i * step] : ends[i * step + size]] for i in range(DOCUMENTS)]


async def bare_calls(url: str, texts: list[str], backend: Tokenizer, config: ReadingConfig) -> int:
    """Read with a loop; calls that it made."""
    from openai import AsyncOpenAI

    update, answer = UPDATE_PROMPT, ANSWER_PROMPT.replace("{}", "{{}}")
    calls = 0

    async def ask(prompt: str) -> str:
        nonlocal calls
        calls += 1
        reply = await client.chat.completions.create(
            model="small",
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=1024,
        )
        return reply.choices[0].message.content or ""

    async def read(text: str) -> str:
        ids = backend.encode(text, add_special_tokens=False).ids
        memory = ""
        for start in range(0, len(ids), config.chunk_tokens):
            chunk = backend.decode(ids[start : start + config.chunk_tokens])
            memory = await ask(
                update.format(question=QUESTION, memory=memory, chunk=chunk, words=750)
            )
        return await ask(answer.format(question=QUESTION, memory=memory))

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        await asyncio.gather(*map(read, texts))
    return calls


async def graph_calls(agent: ReadingGraph, texts: list[str]) -> int:
    """Read with the graph; calls that it made."""
    outs = await agent.abatch([{"question": QUESTION, "document": text} for text in texts])
    return sum(out["usage"]["calls"] for out in outs)


def cost(reading: Coroutine[Any, Any, int]) -> float:
    """Milliseconds of processor time for each call."""
    before = time.process_time()
    calls = asyncio.run(reading)
    return 1000 * (time.process_time() - before) / calls


# The graph

STEPS = 700


class InstantReader(Reader):
    """Returns the same memory each time."""

    identity = Identity("instant", "instant")

    async def update(self, step: Step, **_: Any) -> Update:
        return Update(Memory("memory"))

    async def merge(self, question: str, memories: Any, **_: Any) -> Merge:
        return Merge(Memory("memory"))

    async def respond(self, question: str, memory: Memory, **_: Any) -> Answer:
        return Answer("answer", "answer")


class Loop(TypedDict):
    step: int


def empty_loop() -> Any:
    """A loop of two nodes; asynchronous code follows its edge on the event loop."""
    from langgraph._internal._runnable import RunnableCallable

    def one(_: Loop) -> dict[str, int]:
        return {}

    def two(state: Loop) -> dict[str, int]:
        return {"step": state["step"] + 1}

    def choose(state: Loop) -> str:
        return "one" if state["step"] < STEPS else END

    def on_the_loop(function: Callable[[Loop], Any], **options: Any) -> Any:
        async def twin(state: Loop) -> Any:
            return function(state)

        return RunnableCallable(function, twin, **options)

    builder = StateGraph(Loop)
    builder.add_node("one", on_the_loop(one))
    builder.add_node("two", on_the_loop(two))
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    builder.add_conditional_edges("two", on_the_loop(choose, trace=False), ["one", END])
    return builder.compile()


def graph(rounds: int) -> None:
    text = "".join(f"Line {number:>6} of it.\n" for number in range(STEPS * 3))
    agent = create_memagent(InstantReader(), config=ReadingConfig(chunk_tokens=20))
    asked = {"question": "?", "document": text}
    chunks = agent.invoke(asked)["usage"]["calls"] - 1
    loop = empty_loop()
    from_start: Any = ({"step": 0}, {"recursion_limit": 10_000})

    def sync() -> tuple[float, float]:
        ours, theirs = (lambda: agent.invoke(asked)), (lambda: loop.invoke(*from_start))
        return 1000 * seconds_of(ours) / chunks, 1000 * seconds_of(theirs) / STEPS

    def in_async() -> tuple[float, float]:
        ours = 1000 * seconds_of(lambda: asyncio.run(agent.ainvoke(asked)))
        theirs = 1000 * seconds_of(lambda: asyncio.run(loop.ainvoke(*from_start)))
        return ours / chunks, theirs / STEPS

    for mode, pair in (("sync", sync), ("async", in_async)):
        ours, theirs = zip(*(pair() for _ in range(rounds)), strict=True)
        show(mode, [*ours], [*theirs], "ms a chunk")


# A reply with a memory

TURNS = 60
"""Of each round."""


def agent_with(*middleware: MemAgentMiddleware) -> Runnable[Any, Any]:
    """An agent that says the same at each turn."""
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    from memagent_graph.testing import ScriptedChatModel

    model = ScriptedChatModel("I see.")
    return create_agent(model, [], middleware=middleware, checkpointer=InMemorySaver())


def turn(agent: Runnable[Any, Any], number: int) -> float:
    """How long a turn takes, in milliseconds."""
    # A new thread every ten turns: without the middleware nothing leaves the window.
    config: Any = {"configurable": {"user_id": "ann", "thread_id": str(number // 10)}}
    said = {"messages": [("human", f"On day {number} I walked to the lake with my dog Pepper.")]}
    return 1000 * seconds_of(lambda: agent.invoke(said, config), time.perf_counter)


def reply(rounds: int) -> None:
    from servers.redis_server import RedisServer

    from memagent_graph import ConversationMemory, MemAgentMiddleware, RedisStore

    with tempfile.TemporaryDirectory() as folder:
        redis = RedisServer(Path(folder))
        try:
            with RedisStore.from_url(redis.url) as store:
                memory = ConversationMemory(store=store)
                plain, remembering = agent_with(), agent_with(MemAgentMiddleware(memory))
                pairs = [
                    (turn(remembering, number), turn(plain, number))
                    for number in range(rounds * TURNS)
                ]
                memory.flush()
                known = memory.load("ann")
        finally:
            redis.kill()
    ours, theirs = zip(*pairs, strict=True)
    show("a reply", [*ours], [*theirs], "ms")
    more = median(ours) - median(theirs)
    print(f"{more:.2f} ms more a reply; {len(known.split())} words are remembered")


MEASURES = {"call": call, "graph": graph, "reply": reply}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    MEASURES[given.measure](given.rounds)


if __name__ == "__main__":
    main()
