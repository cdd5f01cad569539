"""A reading in this process that reads a chunk when a test lets it, and can be edited meanwhile."""

import asyncio

from fixed_readers import ChainReader, numbered

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.graph.versions import Chain

PATIENT = 300
"""Seconds in which a test's other party comes to where it is waited for."""
TEXT = numbered(60)
SMALL = ReadingConfig(chunk_tokens=40)


class Gated(ChainReader):
    """Reads a chunk each time it may; keeps what each was read from."""

    def __init__(self):
        super().__init__()
        self.may = asyncio.Semaphore(0)
        self.memories = []
        self.waits = 0

    async def update(self, step, *, config=None):
        self.waits += 1
        try:
            await self.may.acquire()
        finally:
            self.waits -= 1
        self.memories.append(step.memory.text)
        return await super().update(step, config=config)

    def read_all(self):
        for _ in range(1000):
            self.may.release()


class Reading:
    """A reading in this process, with its events."""

    def __init__(self, store, reader, config=SMALL, saver=None, resume=False, **asked):
        self.reader, self.events, self.out = reader, [], {}
        self._agent = create_memagent(reader, config=config, store=store, checkpointer=saver)
        self._asked = None if resume else {"question": "?", "document": TEXT, **asked}
        self.task = asyncio.ensure_future(self._run())

    async def _run(self):
        thread = {"configurable": {"thread_id": "1"}}
        parts = self._agent.astream(self._asked, thread, stream_mode=["custom", "values"])
        async for mode, part in parts:
            if mode == "custom":
                self.events.append(part)
            else:
                self.out = part

    def told(self, kind):
        return [event for event in self.events if event["event"] == kind]

    async def read(self, chunks):
        """Let it read so many chunks more, and wait until it has."""
        wanted = len(self.told("chunk")) + chunks
        for _ in range(chunks):
            self.reader.may.release()
        await until(lambda: len(self.told("chunk")) >= wanted)

    async def stop(self):
        """Cancel it, as Ctrl-C does, and wait until nothing of it is left."""
        self.task.cancel()
        await asyncio.wait([self.task])
        await until(lambda: not abandoning())

    async def end(self):
        self.reader.read_all()
        await asyncio.wait_for(self.task, PATIENT)
        return self.out


def abandoning():
    """The tasks in which readings that were broken off leave the list."""
    own = Chain.abandon.__qualname__
    return [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == own]


async def until(condition):
    async with asyncio.timeout(PATIENT):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


async def under_way(reading, bank, chunks, memory=None):
    """The fold of a reading that has read so many chunks, and waits in the next."""
    await reading.read(chunks)
    await until(lambda: reading.reader.waits)
    (fold,) = await bank.aunder_way(memory)
    while fold.step < chunks:  # it is written while the next chunk is read
        (fold,) = await bank.aunder_way(memory)
    return fold


def alone(config=SMALL):
    reader = ChainReader()
    return create_memagent(reader, config=config).invoke({"question": "?", "document": TEXT})[
        "answer"
    ]
