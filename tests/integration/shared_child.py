"""Run as a process of its own: reads the folder's document into a store that others use as well."""

import asyncio
import json
import sys
from pathlib import Path

from fixed_readers import ChainReader

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.memory.stores import open_store


class Waiting(ChainReader):
    """Its fifth update ends when the test lets it: there is a file then."""

    async def update(self, step, *, config=None):
        update = await super().update(step, config=config)
        file = self.log.with_name("go on")
        while len(self.spans) == 5 and not file.exists():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.005)
        return update


def main(url, folder, log, *, delay=0.0, segments=1, waits=False, **asked):
    reader = (Waiting if waits else ChainReader)(delay, folder / log)
    config = ReadingConfig(chunk_tokens=40, segments=segments)
    with open_store(url) as store:
        agent = create_memagent(reader, config=config, store=store)
        out = agent.invoke({"question": "?", "document": folder / "document.txt", **asked})
    print(json.dumps({key: out[key] for key in ("answer", "usage", "version", "warnings")}))


if __name__ == "__main__":
    where, directory, name, options = sys.argv[1:]
    main(where, Path(directory), name, **json.loads(options))
