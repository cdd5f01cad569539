"""Run as a process of its own: reads the folder's document into a store that others use as well."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from doubles import ChainReader

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.memory.stores import open_store


def main(url: str, folder: Path, log: str, delay: float, **asked: str) -> None:
    reader = ChainReader(delay=delay, log=folder / log)
    with open_store(url) as store:
        agent = create_memagent(reader, config=ReadingConfig(chunk_tokens=40), store=store)
        out = agent.invoke({"question": "?", "document": folder / "document.txt", **asked})
    told = {key: out[key] for key in ("answer", "stopped", "usage", "version", "warnings")}
    print(json.dumps({**told, "answers": reader.answers}))


if __name__ == "__main__":
    where, directory, name, seconds, *named = sys.argv[1:]
    asked = {"memory_name": named[0]} if named else {}
    main(where, Path(directory), name, float(seconds), **asked)
