"""Run as a process of its own, to be killed: reads a file with a checkpointer, or goes on."""

import json
import sys
from pathlib import Path

from fixed_readers import ChainReader
from langgraph.checkpoint.sqlite import SqliteSaver

from memagent_graph import ReadingConfig, create_memagent

UNFINISHED = {"configurable": {"thread_id": "killed"}}


def main(folder: Path, delay: float, kind: str, mode: str) -> None:
    reader = ChainReader(delay=delay, log=folder / "updates.log")
    document = folder / "document.txt"
    asked = {"question": "?", "document": document if kind != "text" else document.read_text()}
    config = ReadingConfig(chunk_tokens=40)
    with SqliteSaver.from_conn_string(str(folder / "checkpoints.sqlite")) as saver:
        agent = create_memagent(reader, config=config, checkpointer=saver)
        out = agent.invoke(asked if mode == "start" else None, UNFINISHED)
    print(json.dumps(out["answer"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4])
