"""Run as a process of its own: appends to a named memory in Redis, as the arguments say."""

import sys

from fixed_readers import ScriptedReader

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.redis import RedisStore
from memagent_graph.readers.base import Update


class ListReader(ScriptedReader):
    """Keeps a list: each chunk is one more line of it."""

    async def update(self, step, *, config=None):
        return Update(Memory(f"{step.memory.text}\n{step.chunk.text.strip()}".strip()))


def main(url: str, writer: str, count: str) -> None:
    config = ReadingConfig(memory_tokens=50_000)
    with RedisStore.from_url(url) as store:
        agent = create_memagent(ListReader(), config=config, store=store)
        for number in range(int(count)):
            text = f"writer {writer} item {number}"
            agent.invoke({"question": "?", "document": text, "memory_name": "shared"})


if __name__ == "__main__":
    main(*sys.argv[1:])
