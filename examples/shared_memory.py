"""python examples/shared_memory.py [redis://HOST:PORT/0].

Three processes share one memory. The first reads a log into it, the second follows it live, the
third answers another question from it without reading anything. Without a Redis URL they meet in
an SQLite file.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.memory.bank import MemoryBank, diff
from memagent_graph.memory.stores import open_store

NAME = "ship's log"
LOG = """The Marguerite left Bergen on Monday with a cargo of dried cod.

On Tuesday the cook, Anders Lie, fell ill and the mate took over the galley.

Nothing was seen on Wednesday but rain.

On Thursday the pump failed and was mended with a boot.

The Marguerite reached Hull on Saturday and sold the cod at a loss.
"""


def say(line: str) -> None:
    """Print a line in one piece: three processes write to the same terminal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def read(where: str) -> None:
    """The agent that reads."""
    with open_store(where) as store:
        agent = create_memagent(config=ReadingConfig(chunk_tokens=45), store=store)
        asked = {"question": "What happened to the Marguerite, her cargo and her cook?"}
        out = agent.invoke({**asked, "document": LOG, "memory_name": NAME})
    say(f"reader: read {out['usage']['document_tokens']} tokens")


async def follow(where: str) -> None:
    """The agent that follows what the first one learns, and stops at the end of the log."""
    with open_store(where) as store:
        before = None
        say("follower: ready")
        async for version in MemoryBank(store).watch(NAME, after="0"):
            for line in diff(before, version) if before else version.text.splitlines():
                if not line.startswith("  "):
                    say(f"follower: chunk {version.step}: {line}")
            before = version
            if version.document.end == version.document.length:
                return


def answer(where: str) -> None:
    """The agent that has never seen the log."""
    with open_store(where) as store:
        agent = create_memagent(store=store)
        out = agent.invoke({"question": "Where was the cod sold?", "version": NAME})
    say(f"other agent: {out['answer'].splitlines()[0]}")
    say(f"other agent: {out['usage']['calls']} call")


def main(where: str) -> None:
    """Start the three, each as a process of its own."""

    def start(role: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, where, role])

    follower = start("follow")
    start("read").wait()
    follower.wait()
    start("answer").wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case [where, "read"]:
            read(where)
        case [where, "follow"]:
            asyncio.run(follow(where))
        case [where, "answer"]:
            answer(where)
        case [where]:
            main(where)
        case _:
            with tempfile.TemporaryDirectory() as folder:
                main(str(Path(folder, "memories.sqlite")))
