"""python benchmarks/conversation_told.py [locomo] [beam]: what is told when a question comes.

Conversations of the LoCoMo file and of BEAM's in MEMAGENT_DATA are saved with the built-in reader;
then each question is what is said. Of how many questions are all source messages told? A message
is told by half if half of its content words stand in passages of it, each of them word for word,
and by its key if the sentence of it is told that has most words of the question and its answer.

Against BM25 with stems over whole messages, SummarizationMiddleware with the same extractor as its
summarizer, and the last messages: each with as many tokens, and without dates, which cost none.
For updates of BEAM: of those where the old or the new statement is told, how many tell the new one,
and of all, how many contexts have the value that its rubric asks for. For contradictions: how many
tell both sides.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, Any

from conversation_recall import COUNTER, text_of, told, turns
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.graph.message import add_messages

from memagent_graph import ConversationMemory, ReadingConfig
from memagent_graph.conversation.built_in import NewestReader
from memagent_graph.conversation.messages import SAID_AT, ConversationSource
from memagent_graph.evaluation.methods import PassageSearch
from memagent_graph.evaluation.scores import holds
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.base import Step
from memagent_graph.text.chunks import next_chunk
from memagent_graph.text.terms import content_terms, specific_terms, terms

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGETS = (1000, 1500, 2500)
OURS, BM25 = "ConversationMemory", "BM25 over messages"
SUMMARY, LAST = "SummarizationMiddleware", "last messages"
MARK = re.compile(r"->->\s*+\d[\d,\s]*+(?:N/A)?(?=\)?\s*+\Z)")
"""What BEAM's generator wrote at the end of messages."""
HARD = {1, 2, "multi_session_reasoning", "temporal_reasoning", "knowledge_update"}
"""Kinds of questions: over several sessions, on time, on updates."""
UNANSWERABLE = 5


@dataclass(frozen=True)
class Asked:
    question: str
    answer: str
    sources: list[BaseMessage]
    hard: bool
    kind: str = ""
    value: str = ""
    old: tuple[BaseMessage, ...] = ()
    new: tuple[BaseMessage, ...] = ()


def locomo(folder: Path) -> Iterator[tuple[list[BaseMessage], list[Asked]]]:
    for sample in json.loads((folder / "locomo.json").read_text("utf-8")):
        said = turns(sample["conversation"])
        known = {turn.id: turn.message for turn in said}
        asked = []
        for row in sample["qa"]:
            sources = [known[turn] for turn in row["evidence"] if turn in known]
            if row["category"] != UNANSWERABLE and sources:
                answer, hard = str(row.get("answer", "")), row["category"] in HARD
                asked.append(Asked(row["question"], answer, sources, hard))
        yield [turn.message for turn in said], asked


def beam(folder: Path) -> Iterator[tuple[list[BaseMessage], list[Asked]]]:
    for row in json.loads((folder / "beam_100k.json").read_text("utf-8")):
        known: dict[int, BaseMessage] = {}
        day = ""
        for turn in row["turns"]:
            if turn.get("time_anchor"):
                told_at = datetime.strptime(turn["time_anchor"], "%B-%d-%Y").replace(tzinfo=UTC)
                day = told_at.isoformat(timespec="minutes")
            kind = HumanMessage if turn["role"] == "user" else AIMessage
            text = MARK.sub("", turn["content"]).rstrip()
            known[turn["id"]] = kind(
                text, id=str(turn["id"]), name=turn["role"], additional_kwargs={SAID_AT: day}
            )
        asked = []
        for kind_, rows in row["questions"].items():
            for one in rows:
                ids = one.get("source_chat_ids")
                sources = [known[i] for i in dict.fromkeys(flat(ids)) if i in known]
                old, new = (
                    tuple(known[i] for i in flat(ids.get(key, []))) if isinstance(ids, dict) else ()
                    for key in ("original_info", "updated_info")
                )
                value = one["rubric"][0].partition("state: ")[2]
                keys = ("answer", "ideal_answer", "ideal_response", "ideal_summary")
                answer = next((str(one[key]) for key in keys if key in one), "")
                if sources:
                    asked.append(
                        Asked(
                            one["question"], answer, sources, kind_ in HARD, kind_, value, old, new
                        )
                    )
        yield [*known.values()], asked


def flat(ids: Any) -> list[int]:
    if isinstance(ids, dict | list):
        return [i for part in (ids.values() if isinstance(ids, dict) else ids) for i in flat(part)]
    return [] if ids is None else [ids]


def whole(messages: list[BaseMessage], order: list[int], budget: int) -> str:
    """As many messages as there is room for; one that is too long is passed over."""
    chosen = []
    for number in order:
        cost = COUNTER.count(text_of([messages[number]]))
        if cost <= budget:
            budget -= cost
            chosen.append(number)
    return text_of([messages[number] for number in sorted(chosen)])


def summarized(said: list[BaseMessage], budget: int) -> str:
    """Half of the budget for the summary, half for what was said last."""
    reader = NewestReader(ReadingConfig(memory_tokens=budget // 2))

    def extract(messages: list[BaseMessage]) -> str:
        memory, position = Memory(), 0
        for message in messages:  # the last summary is read like the others
            message.additional_kwargs.pop("lc_source", None)
        source = ConversationSource(messages)
        while chunk := next_chunk(source, position, tokenizer=COUNTER, chunk_tokens=5000):
            update = asyncio.run(reader.update(Step("", memory, chunk)))
            memory, position = update.memory or memory, chunk.end
        return memory.text

    middleware = SummarizationMiddleware(
        FakeListChatModel(responses=["never asked"]),
        trigger=("tokens", max(4 * budget, 5000)),
        keep=("tokens", budget // 2),
        token_counter=lambda messages: COUNTER.count(text_of([*messages])),
        summarizer=extract,
    )
    messages: Any = []
    for message in said:
        messages = add_messages(messages, [message.model_copy(deep=True)])
        change = middleware.before_model({"messages": messages}, None)
        if change:
            messages = add_messages(messages, change["messages"])
    summary, rest = messages[0], [*messages[1:]]
    room = budget - COUNTER.count(text_of([summary]))
    return text_of([summary]) + whole(rest, [*range(len(rest))][::-1], room)


def are_told(asked: list[BaseMessage], question: Asked, context: str) -> tuple[bool, bool]:
    """Whether all of these messages are told: by half, by their key."""
    lines = re.sub(r"\n\s+", " ", context).splitlines()
    everything = " ".join(context.split())
    wanted = set(content_terms(f"{question.question} {question.answer}"))
    half, key = [], []
    for message in asked:
        text = " ".join(str(message.content).split())
        said = [line.partition(": ")[2] or line for line in lines]
        pieces = [piece for line in said for piece in line.split("[…]")]
        own = {
            term
            for piece in (" ".join(piece.split()) for piece in pieces)
            if piece and piece in text
            for term in terms(piece)
        }
        content = set(specific_terms(text)) or set(terms(text))
        half.append(2 * len(content & own) >= len(content))
        key.append(" ".join(told(str(message.content), wanted).split()) in everything)
    return all(half), all(key)


def contexts(
    messages: list[BaseMessage], asked: list[Asked], budget: int
) -> Iterator[tuple[str, Asked, str]]:
    config = ReadingConfig(memory_tokens=budget)
    memory = ConversationMemory("extractive", remember_within=1e6, config=config)
    memory.save(messages, user="both", thread="one")
    passages = PassageSearch([text_of([message]) for message in messages])
    summary = summarized(messages, budget)
    last = whole(messages, [*range(len(messages))][::-1], budget)
    for one in asked:
        (prompt,) = memory.prompt("both", about=one.question)
        yield OURS, one, re.sub(r"(?s)^.*?<memory>\n|</?(?:memory|passages)>\n", "", prompt.text)
        yield BM25, one, whole(messages, passages.rank(one.question), budget)
        yield SUMMARY, one, summary
        yield LAST, one, last


def interval(differences: list[int]) -> str:
    """Mean of paired differences with its 95% bootstrap interval, in points."""
    draw = Random(0)
    means = sorted(mean(draw.choices(differences, k=len(differences))) for _ in range(2000))
    return f"{100 * mean(differences):+.1f} [{100 * means[50]:+.1f}, {100 * means[1949]:+.1f}]"


def main() -> None:
    folder = Path(os.environ["MEMAGENT_DATA"])
    for name, load in (("locomo", locomo), ("beam", beam)):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        for budget in BUDGETS:
            report(name, budget, [c for row in load(folder) for c in contexts(*row, budget)])


def report(name: str, budget: int, found: list[tuple[str, Asked, str]]) -> None:
    by: dict[str, list[tuple[Asked, bool, bool, int]]] = {}
    updates: dict[str, list[bool]] = {}
    for method, one, text in found:
        row = (one, *are_told(one.sources, one, text), COUNTER.count(text))
        by.setdefault(method, []).append(row)
        if one.new:
            old, new = (
                any(are_told([message], one, text)[1] for message in part)
                for part in (one.old, one.new)
            )
            updates.setdefault(method, []).extend([new] if old or new else [])
    for method, rows in by.items():
        hard = [row for row in rows if row[0].hard]
        figures = [
            f"{mean(row[at] for row in some):6.1%}" for some in (rows, hard) for at in (1, 2)
        ]
        pairs = [
            interval([ours[at] - other[at] for ours, other in pairs_])
            for pairs_ in ([*zip(by[OURS], rows, strict=True)],)
            for pairs_ in (pairs_, [pair for pair in pairs_ if pair[0][0].hard])
            for at in (1, 2)
        ]
        updated = updates.get(method, [])
        values = [holds(text, row.value) for way, row, text in found if way == method and row.new]
        opposed = [row[2] for row in rows if row[0].kind == "contradiction_resolution"]
        print(
            f"{name} {budget:5} | {method:23} | {mean(row[3] for row in rows):5.0f} tokens",
            "all: half, key",
            *figures[:2],
            "hard: half, key",
            *figures[2:],
            f"new {sum(updated)} of {len(updated)}",
            f"values {sum(values)} of {len(values)}, both sides {sum(opposed)} of {len(opposed)}",
            "" if method == OURS else f"ours ahead by {', '.join(pairs)}",
            sep=" | ",
            flush=True,
        )


if __name__ == "__main__":
    main()
