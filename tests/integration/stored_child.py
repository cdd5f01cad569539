"""Run as a process of its own, to be killed: reads into a store, with or without a checkpointer."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from fixed_readers import ChainReader, chain
from langgraph.checkpoint.sqlite import SqliteSaver

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.stores import open_store
from memagent_graph.readers.base import Merge

ONE = {"question": "Who is the heron of pier seven?"}
MODES = {
    "plain": (ONE, {}),
    "segments": (ONE, {"segments": 4}),
    "skim": (ONE, {"skim": "lexical"}),
    "questions": ({"questions": ["Who came?", "Who left?", "Who stayed?"]}, {}),
    "named": ({**ONE, "memory_name": "diary"}, {}),
}
THREAD = {"configurable": {"thread_id": "killed"}}


class LoggedReader(ChainReader):
    def note(self, what: str) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{what}\n")

    async def merge(self, question, memories, *, config=None):
        self.note("merge")
        return Merge(Memory(chain("merge", "".join(memory.text for memory in memories))))

    async def respond(self, question, memory, *, config=None):
        self.note("answer")
        return await super().respond(question, memory, config=config)


class FatalStore(RedisStore):
    calls = fatal = 0

    def end(self) -> None:
        FatalStore.calls += 1
        if FatalStore.calls == FatalStore.fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    async def abatch(self, ops):
        found = await super().abatch(ops)
        self.end()
        return found

    async def acommit(self, *arguments, **options):
        found = await super().acommit(*arguments, **options)
        self.end()
        return found


def read(mode, document, store=None, saver=None, *, log=None, delay=0.0, resumes=True):
    asked, settings = MODES[mode]
    config = ReadingConfig(chunk_tokens=40, **settings)
    reader = LoggedReader(delay=delay, log=log)
    agent = create_memagent(reader, config=config, store=store, checkpointer=saver)
    thread = None if saver is None else THREAD
    resumed = resumes and saver is not None and agent.get_state(thread).values
    out = agent.invoke(None if resumed else {**asked, "document": document}, thread)
    if out.get("answers"):
        return [record["answer"] for record in out["answers"]]
    return [out["answer"]]


def main(mode: str, where: str, folder: Path, saves: str, delay: float, fatal: int) -> None:
    FatalStore.fatal = fatal
    with contextlib.ExitStack() as opened:
        store = FatalStore.from_url(where) if fatal else open_store(where)
        found = opened.enter_context(store)
        saver = None
        if saves != "nothing":
            file = str(folder / "checkpoints.sqlite")
            saver = opened.enter_context(SqliteSaver.from_conn_string(file))
        options = {"log": folder / "calls.log", "delay": delay, "resumes": saves == "resumes"}
        answers = read(mode, (folder / "document.txt").read_text(), found, saver, **options)
    print(json.dumps([answers, FatalStore.calls]))


if __name__ == "__main__":
    mode, where, directory, saves, seconds, fatal = sys.argv[1:]
    main(mode, where, Path(directory), saves, float(seconds), int(fatal))
