"""Run as a process of its own: reads into a store in Redis, as the arguments say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from doubles import ChainReader
from langgraph.store.base import BaseStore

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.redis import RedisStore
from memagent_graph.readers.base import Answer, Identity, Reader, Update

CHUNKED = ReadingConfig(chunk_tokens=40)


class ListReader(Reader):
    """Keeps a list: each chunk is one more line of it."""

    identity = Identity("list", "list-1")

    async def update(self, step, *, config=None):
        return Update(Memory(f"{step.memory.text}\n{step.chunk.text.strip()}".strip()))

    async def respond(self, question, memory, *, config=None):
        return Answer(memory.text, memory.text)


class Forgetful(BaseStore):
    """The same store without its compare-and-put, to prove that the test can fail."""

    def __init__(self, store: RedisStore) -> None:
        self.inner = store

    def batch(self, ops):
        return self.inner.batch(ops)

    async def abatch(self, ops):
        return await self.inner.abatch(ops)


def read(url: str, folder: Path, delay: float, segments: int) -> str:
    reader = ChainReader(delay=delay, log=folder / "updates.log")
    with RedisStore.from_url(url) as store:
        config = CHUNKED.model_copy(update={"segments": segments})
        agent = create_memagent(reader, config=config, store=store)
        return agent.invoke({"question": "?", "document": folder / "document.txt"})["answer"]


def append(url: str, writer: int, count: int, plain: bool) -> None:
    config = ReadingConfig(memory_tokens=50_000)
    with RedisStore.from_url(url) as store:
        agent = create_memagent(
            ListReader(), config=config, store=Forgetful(store) if plain else store
        )
        for number in range(count):
            text = f"writer {writer} item {number}"
            agent.invoke({"question": "?", "document": text, "memory_name": "shared"})


if __name__ == "__main__":
    mode, url, *rest = sys.argv[1:]
    if mode == "read":
        print(json.dumps(read(url, Path(rest[0]), float(rest[1]), int(rest[2]))))
    else:
        append(url, int(rest[0]), int(rest[1]), plain=mode == "plain")
