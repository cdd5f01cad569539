"""python benchmarks/replies.py FILE MODEL: record the notes and answers that a model replies.

Reads short documents (NQ passages among others, with and without the one that answers; XQuAD
paragraphs; HotpotQA) and conversations of MEMAGENT_DATA in several ways, with chunks of 250 tokens
and a memory of 128, and appends a JSON line for each call to FILE: the notes before it, the chunk,
the question, the reply; and one line for the end of each reading. The texts are not ours: FILE
stays out of the repository. A reading whose end FILE has is not repeated, so the same command
continues a run that was stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_graph import ConversationMemory, ReadingConfig, create_memagent
from memagent_graph.conversation.reader import NotesReader
from memagent_graph.errors import MemAgentError
from memagent_graph.models.resolve import resolve_model
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.completion import finish_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.evidence.places import Memory
    from memagent_graph.readers.base import Answer, Merge, Step, Update

WAYS = {
    "plain": {},
    "gate": {"update_gate": True},
    "segments": {"segments": 3},
}
BUDGETS = {"chunk_tokens": 250, "memory_tokens": 128, "answer_tokens": 64, "reuse": False}
SEED = 11

Work = Callable[[], Coroutine[Any, Any, dict[str, Any]]]
"""A reading that is yet to be done; returns how it ended."""

_call: ContextVar[dict[str, Any]] = ContextVar("call")
_keep: ContextVar[Callable[[dict[str, Any]], None]] = ContextVar("keep")


class Recorded(ChatReader):
    """Keeps each reply as the model wrote it, with what it was asked about."""

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        _call.set(
            {
                "kind": "update",
                "question": step.question,
                "old": [step.memory.text],
                "chunk": step.chunk.text,
                "shorter": step.shorter,
            }
        )
        return await super().update(step, config=config)

    async def merge(
        self,
        question: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        old = [memory.text for memory in memories]
        _call.set({"kind": "merge", "question": question, "old": old})
        return await super().merge(question, memories, config=config)

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        _call.set({"kind": "answer", "question": question, "old": [memory.text]})
        return await super().respond(question, memory, config=config)

    async def _ask(
        self, prompt: str, config: RunnableConfig | None, options: dict[str, Any]
    ) -> tuple[AIMessage, str]:
        message, text = await super()._ask(prompt, config, options)
        ended = {"reply": message.text, "finish_reason": finish_reason(message)}
        _keep.get()(_call.get() | ended)
        return message, text


class RecordedNotes(Recorded, NotesReader):
    """The same for notes on users."""


def documents(data: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield each document's name, text, question and answers: none if it does not hold them."""
    rows = [json.loads(line) for line in (data / "nq_open.jsonl").read_text("utf-8").splitlines()]
    random.Random(SEED).shuffle(rows)
    paragraphs = [
        (paragraph["context"], asked)
        for article in json.loads((data / "xquad.en.json").read_text("utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"][:1]
    ]
    hops = json.loads((data / "hotpotqa_distractor.json").read_text("utf-8"))
    for number, row in enumerate(rows):
        chance = random.Random(number)
        texts = [other["text"] for other in chance.sample(rows, 6) if other is not row][:5]
        absent = number % 4 == 3
        if not absent:
            texts.insert(chance.randrange(6), row["text"])
        text = "\n\n".join(texts)
        yield f"nq {number}", text, row["question"], [] if absent else row["answers"]
        if number < len(paragraphs):
            text = "\n\n".join(
                context for context, _ in paragraphs[max(0, number - 2) : number + 1]
            )
            asked = paragraphs[number][1]
            answers = [answer["text"] for answer in asked["answers"]]
            yield f"xquad {number}", text, asked["question"], answers
        if number < len(hops):
            hop = hops[number]
            text = "\n\n".join("".join(sentences) for _, sentences in hop["context"])
            yield f"hotpotqa {number}", text, hop["question"], [hop["answer"]]


def conversations(data: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the name and the messages of each session of a conversation."""
    for talk in json.loads((data / "locomo.json").read_text("utf-8")):
        told = talk["conversation"]
        for number in itertools.count(1):
            if f"session_{number}" not in told:
                break
            yield (
                f"locomo {talk['sample_id']} {number}",
                [
                    ("human" if turn["speaker"] == told["speaker_a"] else "ai", turn["text"])
                    for turn in told[f"session_{number}"]
                ],
            )


async def read(
    reader: Recorded, config: ReadingConfig, text: str, question: str, answers: list[str]
) -> dict[str, Any]:
    """Read a document, and return how that ended."""
    agent = create_memagent(reader, config=config)
    out = await agent.ainvoke({"question": question, "document": text})
    return {"answers": answers, "answer": out["answer"], "warnings": out["warnings"]}


async def fold(
    reader: Recorded, config: ReadingConfig, messages: list[tuple[str, str]]
) -> dict[str, Any]:
    """Fold a conversation six messages at a time, and return the memory."""
    memory = ConversationMemory(reader, config=config, episode_tokens=0)
    for start in range(0, len(messages), 6):
        await memory.asave(messages[start : start + 6], user="user", thread="thread")
    return {"memory": await memory.aload("user")}


def readings(make: Callable[..., Recorded], data: Path) -> Iterator[tuple[str, str, Work]]:
    """Yield way, name and work of each reading: a document in all ways, then a conversation."""
    configs = {way: ReadingConfig(**BUDGETS, **setting) for way, setting in WAYS.items()}
    readers = {way: make(Recorded, config=config) for way, config in configs.items()}
    folding = ReadingConfig(**BUDGETS, update_gate=True)
    notes = make(RecordedNotes, config=folding)
    talks = conversations(data)
    for name, text, question, answers in documents(data):
        for way, config in configs.items():
            yield way, name, partial(read, readers[way], config, text, question, answers)
        if talk := next(talks, None):
            yield "conversation", talk[0], partial(fold, notes, folding, talk[1])


def recorded(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none if there is no such file."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


async def run(file: Path, model: str, at_once: int, **options: Any) -> None:
    """Do the readings that the file does not have yet."""
    name = Path(model).name
    ends = [row for row in recorded(file) if row["kind"] == "end"]
    done = {(row["model"], row["way"], row["name"]) for row in ends}
    data = Path(os.environ["MEMAGENT_DATA"])
    chat = resolve_model(model, **options)

    def make(kind: type[Recorded], *, config: ReadingConfig) -> Recorded:
        return kind(chat, config=config, name=name)

    async def do(way: str, label: str, work: Work) -> None:
        calls = 0

        def keep(call: dict[str, Any]) -> None:
            nonlocal calls
            calls += 1
            row = {"model": name, "way": way, "name": label, **call}
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row, ensure_ascii=False) + "\n")

        _keep.set(keep)
        try:
            end = await work()
        except MemAgentError as error:
            if not calls:  # the model fails, not one of its replies
                raise
            end = {"error": f"{type(error).__name__}: {error}"}
        keep({"kind": "end", **end})

    running: set[asyncio.Task[None]] = set()
    for way, label, work in readings(make, data):
        if (name, way, label) in done:
            continue
        running.add(asyncio.create_task(do(way, label, work)))
        if len(running) == at_once:
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
    await asyncio.gather(*running)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[2])
    parser.add_argument("file", type=Path)
    parser.add_argument("model", help="model string, such as hf:FOLDER")
    parser.add_argument("--base-url", help="URL of the server of an openai: model")
    parser.add_argument("--at-once", type=int, default=8, help="readings at the same time")
    parser.add_argument("--temperature", type=float, default=0.0)
    given = parser.parse_args()
    asyncio.run(
        run(
            given.file,
            given.model,
            given.at_once,
            base_url=given.base_url,
            temperature=given.temperature,
        )
    )


if __name__ == "__main__":
    main()
