"""Run as a process of its own: reads the folder's document."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from doubles import ChainReader

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


def read(url: str, folder: Path, log: str) -> None:
    reader = Waiting(log=folder / log)
    with open_store(url) as store:
        agent = create_memagent(reader, config=ReadingConfig(chunk_tokens=40), store=store)
        asked = {"question": "?", "document": folder / "document.txt"}
        for out in agent.stream(asked, stream_mode="values"):
            if "progress" in out:  # read here or taken over
                (folder / f"{log} step").write_text(str(out["progress"]["step"]))
    print(json.dumps({key: out[key] for key in ("answer", "usage", "version", "warnings")}))


if __name__ == "__main__":
    where, folder, name = sys.argv[1:]
    read(where, Path(folder), name)
