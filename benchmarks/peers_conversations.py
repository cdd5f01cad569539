"""Memories of chatbots' users, side by side: LangMem, mem0, and ours.

All of them ask the scripted server of `peers.py` on its clock. Users talk at the same time, each in
two conversations of ten turns, half a minute apart; each tells eight things, and in the second
conversation three of them have changed. The scripted model notes every one of them, in the form
that the prompt asks for: what is compared is what each library does around it.

- LangMem: `create_memory_store_manager`, as in its quickstarts, awaited after each turn.
- mem0: `AsyncMemory`, `search` before each turn and `add` after it, with Qdrant in this process.
- ours: `prompt` and `observe`, folded after each turn in the background.

LangMem and mem0 search by vectors: here of hashed words, so that no model is needed.

    python benchmarks/peers_conversations.py [--users 20] [--only NAME]

Each row is measured in a process of its own: seconds for which a turn waits for the memory; calls;
tokens read and written; tokens that a turn's prompt has of the memory; facts that are in what is
shown to the model when it is asked about them, and how often with the outdated value as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
from itertools import chain, count
from math import sqrt
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zlib import crc32

import virtual_clock
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.store.memory import InMemoryStore
from peers import TOKENS, Model, Server, Timing, arguments, rows

from memagent_graph import ConversationMemory
from memagent_graph.conversation import backlog

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Iterator

    from langchain_core.runnables import Runnable

THINGS = ["bicycle", "lamp", "boat", "violin", "garden", "kettle", "printer", "tent"]
CHANGED = 3
TIMING = Timing(read=10_000.0, write=80.0, slots=64)
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

    async def end(self, user: str) -> None:
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


class Ours(Chat):
    """This library, folded after each turn."""

    def __init__(self, model: Talker, folder: str) -> None:
        backlog.monotonic = model.loop.time  # a turn is folded within seconds: of this clock
        self._memory = ConversationMemory(model, store=InMemoryStore(), remember_within=5.0)

    async def recall(self, user: str, said: list[BaseMessage]) -> str:
        return "".join(str(one.content) for one in await self._memory.aprompt(user, about=said))

    async def remember(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        await self._memory.aobserve(said, user=user, thread=thread)

    async def end(self, user: str) -> None:
        await self._memory.aflush(user)


class LangMem(Chat):
    """LangMem's manager, awaited after each turn."""

    def __init__(self, model: Talker, folder: str) -> None:
        from langmem import create_memory_store_manager

        index: Any = {"dims": DIMENSIONS, "embed": HashedWords()}
        self._store = InMemoryStore(index=index)
        self._manager = create_memory_store_manager(
            model, namespace=("memories", "{user}"), store=self._store
        )

    async def recall(self, user: str, said: list[BaseMessage]) -> str:
        found = await self._store.asearch(("memories", user), query=str(said[-1].content))
        return "\n".join(item.value["content"]["content"] for item in found)

    async def remember(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        given: Any = {"messages": said[-2:]}
        await self._manager.ainvoke(given, config={"configurable": {"user": user}})


class Mem0(Chat):
    """mem0; `add` is awaited after each turn."""

    def __init__(self, model: Talker, folder: str) -> None:
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

    async def recall(self, user: str, said: list[BaseMessage]) -> str:
        found = await self._memory.search(str(said[-1].content), filters={"user_id": user})
        return "\n".join(one["memory"] for one in found["results"])

    async def remember(self, user: str, thread: str, said: list[BaseMessage]) -> None:
        roles = {"human": "user", "ai": "assistant"}
        given = [{"role": roles[one.type], "content": str(one.content)} for one in said[-2:]]
        await self._memory.add(given, user_id=user)


class Way(NamedTuple):
    """A memory, and the script of its model."""

    make: Callable[[Talker, str], Chat]
    script: Callable[[str], str]


WAYS = {
    "LangMem": Way(LangMem, write_langmem),
    "mem0": Way(Mem0, write_mem0),
    "ours": Way(Ours, write_notes),
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
        ended = memory.end(f"user{user}")
        background.append(asyncio.create_task(ended))
    return background


async def hold(way: Way, users: int) -> dict[str, str]:
    """Have all conversations, and return the cells of a row."""
    server = Server(TIMING, way.script)
    waits: list[float] = []
    shown: list[int] = []
    loop = asyncio.get_running_loop()
    with TemporaryDirectory() as folder:
        memory = way.make(Talker(server=server, loop=loop), folder)
        left = await asyncio.gather(*(talk(memory, user, waits, shown) for user in range(users)))
        await asyncio.gather(*chain.from_iterable(left))
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
        "a turn waits, s": f"{sum(waits) / len(waits):.2f}",
        "calls": f"{server.calls:,}",
        "tokens read": f"{server.read:,}",
        "written": f"{server.wrote:,}",
        "shown a turn": f"{sum(shown) / len(shown):,.0f}",
        "facts shown": f"{current / (users * len(THINGS)):.0%}",
        "outdated too": f"{outdated / (users * CHANGED):.0%}",
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--users", type=int, default=20)
    options = parser.parse_args()
    if options.row:
        logging.disable(logging.WARNING)
        found, _ = virtual_clock.run(hold(WAYS[options.row], options.users))
        print(json.dumps(found))
        return
    rows(WAYS, __file__, options)


if __name__ == "__main__":
    main()
