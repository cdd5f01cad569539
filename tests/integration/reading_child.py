"""Run as a process of its own, to be killed: reads a file with a checkpointer, or goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from doubles import ChainReader
from langgraph.checkpoint.sqlite import SqliteSaver

from memagent_graph import ReadingConfig, create_memagent

QUESTIONS = [f"What is number {number}?" for number in range(16)]
UNFINISHED = {"configurable": {"thread_id": "killed"}}


def main(folder: Path, delay: float, kind: str, mode: str) -> None:
    reader = ChainReader(delay=delay, log=folder / "updates.log")
    document = folder / "document.txt"
    asked = {"question": "?", "document": document if kind != "text" else document.read_text()}
    if kind == "questions":
        asked = {"questions": QUESTIONS, "document": document}
    config = ReadingConfig(chunk_tokens=40, segments=16 if kind == "segments" else 1)
    with SqliteSaver.from_conn_string(str(folder / "checkpoints.sqlite")) as saver:
        agent = create_memagent(reader, config=config, checkpointer=saver)
        out = agent.invoke(asked if mode == "start" else None, UNFINISHED)
    found = [record["answer"] for record in out["answers"]] if "answers" in out else out["answer"]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4])
