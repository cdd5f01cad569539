"""A reading whose sections are read when a test says so, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

from fixed_readers import ChainReader, numbered

from memagent_graph import ReadingConfig, create_memagent

SECONDS = 300
QUESTION = "Which number is the last?"


class Gated(ChainReader):
    """Keeps the memories that it was given; reads a section when the gate lets it."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.memories: list[str] = []

    async def update(self, step, *, config=None):
        self.memories.append(step.memory.text)
        assert await asyncio.to_thread(self.gate.acquire, timeout=SECONDS)
        return await super().update(step, config=config)

    def open(self, sections: int = 1000) -> None:
        self.gate.release(sections)


@contextmanager
def reading(store, **asked):
    """A reading under way; it ends with the block."""
    reader, out = Gated(), {}
    agent = create_memagent(reader, config=ReadingConfig(chunk_tokens=40), store=store)
    asked = {"question": QUESTION, "document": numbered(60), **asked}
    thread = threading.Thread(target=lambda: out.update(agent.invoke(asked)))
    thread.start()
    reader.out, reader.end = out, lambda: (reader.open(), thread.join(SECONDS))
    try:
        yield reader
    finally:
        reader.end()
        assert not thread.is_alive()
