"""Memories of chatbots' users, side by side: LangMem, mem0, and ours.

All of them ask the scripted server of `peers.py` on its clock. Users talk at the same time, each in
two conversations of ten turns, half a minute apart; each tells eight things, and in the second
conversation three of them have changed. The scripted model notes every one of them, in the form
that the prompt asks for: what is compared is what each library does around it.

- LangMem: `create_memory_store_manager`, as in its quickstarts: awaited after each turn, or called
  in the background with the messages of a conversation when it has ended.
- mem0: `AsyncMemory`, `search` before each turn and `add` after it, with Qdrant in this process.
- ours: `prompt` and `observe`, folded after each turn in the background, or after a conversation.

LangMem and mem0 search by vectors: here of hashed words, so that no model is needed.

    python benchmarks/peers_conversations.py [--users 20 --read 10000 --write 80 --slots 64]

Each row is measured in a process of its own: seconds for which a turn waits for the memory; seconds
after the last message until all is remembered; calls; tokens read, and of them from the cache;
tokens written; tokens that a turn's prompt has of the memory; processor time of the client; what
its process grew by; facts that are in what is shown to the model when it is asked about them, and
how often with the outdated value as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import re
import resource
import subprocess
import sys
import time
from functools import partial
from itertools import chain, count
from math import inf, sqrt
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zlib import crc32

import virtual_clock
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.store.memory import InMemoryStore
from peers import TOKENS, Model, Server, Timing

from memagent_graph import ConversationMemory
from memagent_graph.conversation import backlog

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Iterator

    from langchain_core.runnables import Runnable

THINGS = ["bicycle", "lamp", "boat", "violin", "garden", "kettle", "printer", "tent"]
CHANGED = 3
TURNS, PAUSE = 10, 30.0
"""Turns of a conversation, and seconds between them."""
DIMENSIONS = 256
_FACT = re.compile(r"the code of my (\w+) is ([a-z]+-\d+)", re.IGNORECASE)
_NOTE = re.compile(r"The code of the user's (\w+) is ([a-z]+-\d+)\.")


class Chat(Protocol):
    """A chatbot's memory."""

    async def recall(self, user: str, said: list[BaseMessage]) -> str:
        """Return what is shown to the model of a user before a reply."""

    async def remember(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        """Take in a conversation, after a reply."""

    async def end(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        """Return when an ended conversation is remembered."""


def note(thing: str, value: str) -> str:
    return f"The code of the user's {thing} is {value}."


def write_notes(prompt: str) -> str:
    """Reply as our prompt asks: the notes with what is new, or "unchanged"."""
    before, _, said = prompt.partition("<conversation>")
    notes = dict(_NOTE.findall(before))
    new = dict(_FACT.findall(said))
    if not new:
        return "unchanged"
    return "\n".join(f"2026-03-05: {note(*fact)}" for fact in {**notes, **new}.items())


def write_mem0(prompt: str) -> str:
    """Reply as mem0's prompt asks: JSON with what the new messages add."""
    said = prompt.rpartition("## New Messages")[2]
    facts = [
        {"id": str(number), "text": note(*fact), "attributed_to": "user"}
        for number, fact in enumerate(_FACT.findall(said))
    ]
    return json.dumps({"memory": facts})


def write_langmem(prompt: str) -> str:
    """Reply as LangMem's prompt asks: calls of the tools that insert and patch memories."""
    known = {
        thing: (key, value)
        for key, thing, value in re.findall(
            r"<instance id=(\S+) [^>]*>\s*[^<]*?The code of the user's (\w+) is ([a-z]+-\d+)",
            prompt,
        )
    }
    calls: list[dict[str, Any]] = []
    for thing, value in dict(_FACT.findall(prompt.rpartition("<session_")[2])).items():
        key, old = known.get(thing, ("", ""))
        if not key:
            calls.append({"name": "Memory", "args": {"content": note(thing, value)}})
        elif old != value:
            patch = {"op": "replace", "path": "/content", "value": note(thing, value)}
            args = {"json_doc_id": key, "planned_edits": "replace it", "patches": [patch]}
            calls.append({"name": "PatchDoc", "args": args})
    return json.dumps(calls)


class Talker(Model):
    """The server as a chat model that can call tools, also from threads."""

    loop: Any

    def bind_tools(self, tools: Any, **_: Any) -> Runnable[Any, Any]:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools])

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **__: Any
    ) -> ChatResult:
        prompt = "\n".join(str(message.content) for message in messages)
        reply = self.server.from_thread(prompt, self.loop).result()
        return ChatResult(generations=[ChatGeneration(message=AIMessage(reply))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        tools: Any = None,
        **_: Any,
    ) -> ChatResult:
        if tools is None:
            return await super()._agenerate(messages)
        said = "\n".join(str(message.content) for message in messages)
        reply, *_ = await self.server.complete(f"{json.dumps(tools)}\n{said}")
        calls = [{**call, "id": f"call-{at}"} for at, call in enumerate(json.loads(reply))]
        message = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


class HashedWords(Embeddings):
    """Vectors of hashed words."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        found = [0.0] * DIMENSIONS
        for word in re.findall(r"\w+", text.lower()):
            found[crc32(word.encode()) % DIMENSIONS] += 1.0
        size = sqrt(sum(one * one for one in found)) or 1.0
        return [one / size for one in found]


class Ours:
    """This library; folded after each turn, or after a conversation."""

    def __init__(self, model: Talker, folder: str, *, each_turn: bool) -> None:
        backlog.monotonic = model.loop.time  # a turn is folded within seconds: of this clock
        self._memory = ConversationMemory(
            model, store=InMemoryStore(), remember_within=5.0 if each_turn else inf
        )

    async def recall(self, user: str, said: list[BaseMessage]) -> str:
        return "".join(str(one.content) for one in await self._memory.aprompt(user, about=said))

    async def remember(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        await self._memory.aobserve(said, user=user, thread=thread)

    async def end(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        await self._memory.aflush(user)


class LangMem:
    """LangMem's manager; awaited after each turn, or in the background after a conversation."""

    def __init__(self, model: Talker, folder: str, *, each_turn: bool) -> None:
        from langmem import create_memory_store_manager

        index: Any = {"dims": DIMENSIONS, "embed": HashedWords()}
        self._store = InMemoryStore(index=index)
        self._manager = create_memory_store_manager(
            model, namespace=("memories", "{user}"), store=self._store
        )
        self._each_turn = each_turn

    async def recall(self, user: str, said: list[BaseMessage]) -> str:
        found = await self._store.asearch(("memories", user), query=str(said[-1].content))
        return "\n".join(item.value["content"]["content"] for item in found)

    async def remember(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        if self._each_turn:
            await self._manage(user, said[-2:])

    async def end(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        if not self._each_turn:
            await self._manage(user, said)

    async def _manage(self, user: str, said: list[BaseMessage]) -> None:
        given: Any = {"messages": said}
        await self._manager.ainvoke(given, config={"configurable": {"user": user}})


class Mem0:
    """mem0; `add` awaited after each turn, or in the background after a conversation."""

    def __init__(self, model: Talker, folder: str, *, each_turn: bool) -> None:
        os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": folder}
        from mem0 import AsyncMemory
        from mem0.configs.base import MemoryConfig

        vectors = {"embedding_model_dims": DIMENSIONS, "path": f"{folder}/qdrant"}
        self._memory = AsyncMemory(
            MemoryConfig(
                llm={"provider": "langchain", "config": {"model": model}},
                embedder={"provider": "langchain", "config": {"model": HashedWords()}},
                vector_store={"provider": "qdrant", "config": vectors},
                history_db_path=f"{folder}/history.db",
            )
        )
        self._each_turn = each_turn

    async def recall(self, user: str, said: list[BaseMessage]) -> str:
        found = await self._memory.search(str(said[-1].content), filters={"user_id": user})
        return "\n".join(one["memory"] for one in found["results"])

    async def remember(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        if self._each_turn:
            await self._add(user, said[-2:])

    async def end(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        if not self._each_turn:
            await self._add(user, said)

    async def _add(self, user: str, said: list[BaseMessage]) -> None:
        roles = {"human": "user", "ai": "assistant"}
        given = [{"role": roles[one.type], "content": str(one.content)} for one in said]
        await self._memory.add(given, user_id=user)


class Way(NamedTuple):
    """A memory, and the script of its model."""

    make: Callable[[Talker, str], Chat]
    script: Callable[[str], str]


WAYS = {
    f"{name}, after each {'turn' if each_turn else 'conversation'}": Way(
        partial(make, each_turn=each_turn), script
    )
    for name, make, script in (
        ("LangMem", LangMem, write_langmem),
        ("mem0", Mem0, write_mem0),
        ("ours", Ours, write_notes),
    )
    for each_turn in (True, False)
}


def told(user: int) -> tuple[list[list[str]], dict[str, list[str]]]:
    """Return what a user says in two conversations, and the values of each thing in their order."""
    drawn = random.Random(user)
    syllables = [one + other for one in "bdfgklmnprstv" for other in "aeiou"]
    words = ["".join(drawn.choices(syllables, k=drawn.randrange(1, 4))) for _ in range(400)]
    values = {thing: [f"{drawn.choice(words)}-{drawn.randrange(100)}"] for thing in THINGS}
    for thing in THINGS[:CHANGED]:
        values[thing].append(f"{drawn.choice(words)}-{drawn.randrange(100)}")
    first = [(thing, found[0]) for thing, found in values.items()]
    second = [(thing, found[1]) for thing, found in values.items() if len(found) > 1]
    talks = []
    for facts in (first, second):
        said = [" ".join(drawn.choices(words, k=25)).capitalize() + "." for _ in range(TURNS)]
        for at, (thing, value) in zip(drawn.sample(range(TURNS), len(facts)), facts, strict=True):
            said[at] += f" By the way, the code of my {thing} is {value}."
        talks.append(said)
    return talks, values


def replies(user: int) -> Iterator[str]:
    drawn = random.Random(-user)
    for number in count():
        yield f"Here is reply {number}. " + " ".join(drawn.choices(THINGS, k=25))


async def talk(memory: Chat, user: int, waits: list[float], shown: list[int]) -> list[Task[None]]:
    """Have the conversations of a user, and return what still goes on in the background.

    Args:
        memory: the memory.
        user: number of the user.
        waits: gets the seconds for which each turn waits.
        shown: gets the tokens that each turn is shown.
    """
    background = []
    clock, answers = asyncio.get_running_loop().time, replies(user)
    await asyncio.sleep(random.Random(user).uniform(0.0, PAUSE))
    for number, turns in enumerate(told(user)[0]):
        said: list[BaseMessage] = []
        for text in turns:
            await asyncio.sleep(PAUSE)
            said.append(HumanMessage(text, id=f"{number}-{len(said)}"))
            began = clock()
            shown.append(TOKENS.count(await memory.recall(f"user{user}", said)))
            said.append(AIMessage(next(answers), id=f"{number}-{len(said)}"))
            await memory.remember(f"user{user}", f"talk{number}", said)
            waits.append(clock() - began)
        ended = memory.end(f"user{user}", f"talk{number}", said)
        background.append(asyncio.create_task(ended))
    return background


async def hold(way: Way, users: int, timing: Timing) -> dict[str, Any]:
    server = Server(timing, way.script)
    waits: list[float] = []
    shown: list[int] = []
    loop = asyncio.get_running_loop()
    with TemporaryDirectory() as folder:
        memory = way.make(Talker(server=server, loop=loop), folder)
        left = await asyncio.gather(*(talk(memory, user, waits, shown) for user in range(users)))
        ended = loop.time()
        await asyncio.gather(*chain.from_iterable(left))
        settled = loop.time() - ended
        current = outdated = 0
        for user in range(users):
            for thing, values in told(user)[1].items():
                asked: list[BaseMessage] = [
                    HumanMessage(f"What is the code of my {thing}?", id="q")
                ]
                text = await memory.recall(f"user{user}", asked)
                current += values[-1] in text
                outdated += len(values) > 1 and values[0] in text
    return {
        "waits": sum(waits) / len(waits),
        "settled": settled,
        "calls": server.calls,
        "read": server.read,
        "hits": server.hits,
        "wrote": server.wrote,
        "shown": sum(shown) / len(shown),
        "own": server.own,
        "current": current / (users * len(THINGS)),
        "outdated": outdated / (users * CHANGED),
    }


def measure(name: str, users: int, timing: Timing) -> dict[str, Any]:
    """One row, in this process."""
    logging.disable(logging.WARNING)
    virtual_clock.run(hold(WAYS[name], 1, timing))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    found, _ = virtual_clock.run(hold(WAYS[name], users, timing))
    found["processor"] = time.process_time() - began - found["own"]
    found["grew"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--read", type=float, default=10_000.0, help="tokens read a second")
    parser.add_argument("--write", type=float, default=80.0, help="tokens written a second, a call")
    parser.add_argument("--slots", type=int, default=64, help="calls at once")
    parser.add_argument("--only", action="append", choices=WAYS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    timing = Timing(options.read, options.write, options.slots)
    if options.row:
        print(json.dumps(measure(options.row, options.users, timing)))
        return
    print(
        "| | a turn waits, s | all remembered after, s | calls | tokens read | cached | written | "
        "shown a turn | processor, s | MB | facts shown | outdated too |"
    )
    print("|" + "---|" * 12)
    flags = [f"--{name}={getattr(options, name)}" for name in ("users", "read", "write", "slots")]
    for name in options.only or WAYS:
        command = [sys.executable, __file__, *flags, "--row", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {name} | {done.stderr.strip().splitlines()[-1][:90]} |", flush=True)
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        cells = [f"{row['waits']:.2f}", f"{row['settled']:.1f}"]
        cells += [f"{row[key]:,.0f}" for key in ("calls", "read", "hits", "wrote", "shown")]
        cells += [f"{row['processor']:.2f}", f"{row['grew']:.0f}"]
        cells += [f"{row['current']:.0%}", f"{row['outdated']:.0%}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
