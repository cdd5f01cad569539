"""python benchmarks/conversation_recall.py: long conversations, replayed message by message.

Conversations of the LoCoMo file in MEMAGENT_DATA. After the last message: of how many questions
is the evidence still there, in the memory or among the recent messages? Against LangChain's
SummarizationMiddleware, with the same extractor as its summarizer, and against keeping the last
messages, each with at most as many tokens. Evidence of a turn is there when the sentence of it
that has most words of the question and its answer is; "by whom" asks that it can be told who said
it, "half" for half of the turn's words.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.graph.message import add_messages

from memagent_graph import ConversationMemory, ReadingConfig
from memagent_graph.conversation.built_in import NewestReader
from memagent_graph.conversation.messages import SAID_AT, ConversationSource
from memagent_graph.evidence.places import Memory
from memagent_graph.evidence.statements import statements
from memagent_graph.readers.base import Step
from memagent_graph.text.chunks import next_chunk
from memagent_graph.text.terms import content_terms, terms
from memagent_graph.text.tokens import EstimatingTokenizer

WINDOW = 20
COUNTER = EstimatingTokenizer()
UNANSWERABLE = 5  # LoCoMo's category of questions that the conversation does not answer


@dataclass
class Turn:
    id: str
    message: HumanMessage


def turns(conversation: dict[str, Any]) -> list[Turn]:
    found = []
    number = 1
    while (session := conversation.get(f"session_{number}")) is not None:
        told = datetime.strptime(
            conversation[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y"
        ).replace(tzinfo=UTC)
        for turn in session:
            message = HumanMessage(
                turn["text"],
                id=turn["dia_id"],
                name=turn["speaker"],
                additional_kwargs={SAID_AT: told.isoformat(timespec="minutes")},
            )
            found.append(Turn(turn["dia_id"], message))
        number += 1
    return found


def text_of(messages: list[BaseMessage]) -> str:
    return "".join(f"{message.name or ''}: {message.content}\n" for message in messages)


def with_memory(said: list[Turn], budget: int) -> str:
    memory = ConversationMemory(
        "extractive", window=WINDOW, remember_within=1e6, config=ReadingConfig(memory_tokens=budget)
    )
    messages: list[BaseMessage] = []
    for turn in said:
        messages = memory.observe([*messages, turn.message], user="both", thread="one")
    return memory.load("both") + "\n" + text_of(messages)


def with_summary(said: list[Turn], budget: int) -> str:
    config = ReadingConfig(memory_tokens=budget)
    reader = NewestReader(config)

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
        trigger=("messages", WINDOW + 1),
        keep=("messages", WINDOW // 2),
        summarizer=extract,
    )
    messages: Any = []
    for turn in said:
        messages = add_messages(messages, [turn.message])
        change = middleware.before_model({"messages": messages}, None)
        if change:
            messages = add_messages(messages, change["messages"])
    return text_of(messages)


def trimmed(said: list[Turn], budget: int) -> str:
    kept: list[BaseMessage] = []
    for turn in reversed(said):
        budget -= COUNTER.count(text_of([turn.message]))
        if budget < 0:
            break
        kept.insert(0, turn.message)
    return text_of(kept)


def recall(sample: dict[str, Any], said: list[Turn], context: str) -> list[tuple[float, ...]]:
    """For each question the share of its evidence turns that are there, by each measure."""
    spoken = by_speaker(context)
    everything = "\n".join(spoken.values())
    found = {turn.id: turn.message for turn in said}
    scores = []
    for asked in sample["qa"]:
        evidence = [found[turn] for turn in asked["evidence"] if turn in found]
        if asked["category"] == UNANSWERABLE or not evidence:
            continue
        wanted = set(content_terms(f"{asked['question']} {asked.get('answer', '')}"))
        there = []
        for message in evidence:
            text = str(message.content)
            sentence = told(text, wanted)
            by_whom = sentence in spoken.get(str(message.name), "")
            there.append((sentence in everything, by_whom, share(text, everything) >= 1 / 2))
        scores.append(tuple(mean(column) for column in zip(*there, strict=True)))
    return scores


def by_speaker(context: str) -> dict[str, str]:
    """What is said to be whose, one line of text for each speaker."""
    found: dict[str, str] = {}
    speaker = ""
    for line in context.splitlines():
        named = re.match(r"@(\w+)$|(\w*): ", line)
        speaker = speaker if named is None else named[1] or named[2]
        said = line[named.end() :] if named else line
        found[speaker] = f"{found.get(speaker, '')} {' '.join(said.split())}"
    return found


def told(text: str, wanted: set[str]) -> str:
    return max(
        (statement.text for statement in statements(text)),
        key=lambda sentence: len(wanted & set(terms(sentence))),
    )


def share(text: str, context: str) -> float:
    sentences = [statement.text for statement in statements(text)]
    there = sum(len(sentence) for sentence in sentences if sentence in context)
    return there / sum(map(len, sentences))


def main() -> None:
    samples = json.loads((Path(os.environ["MEMAGENT_DATA"]) / "locomo.json").read_text("utf-8"))
    print("memory | kept by                 | context | evidence told | by whom | half there")
    for budget in (512, 1024, 2048):
        scores: dict[str, list[tuple[float, ...]]] = {}
        sizes: dict[str, list[int]] = {}
        for sample in samples:
            said = turns(sample["conversation"])
            ours = with_memory(said, budget)
            size = COUNTER.count(ours)
            summary = with_summary(said, budget)
            over = COUNTER.count(summary) - size
            if over > 0:
                summary = with_summary(said, budget - over)
            contexts = {
                "ConversationMemory": ours,
                "SummarizationMiddleware": summary,
                "last messages": trimmed(said, size),
            }
            for name, context in contexts.items():
                scores.setdefault(name, []).extend(recall(sample, said, context))
                sizes.setdefault(name, []).append(COUNTER.count(context))
        for name, rows in scores.items():
            told_, by_whom, half = (mean(column) for column in zip(*rows, strict=True))
            figures = f"{mean(sizes[name]):7.0f} | {told_:13.1%} | {by_whom:7.1%} | {half:10.1%}"
            print(f"{budget:6} | {name:23} | {figures}")


if __name__ == "__main__":
    main()
