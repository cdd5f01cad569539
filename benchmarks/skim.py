"""What skimming keeps, and what it saves: questions among two novels, 1M tokens in all.

The passages of NQ, the paragraphs of XQuAD and those of HotpotQA are strewn over the novels, so
that they distract from each other. The built-in reader reads all of it for each question, and again
with `skim="lexical"`; a question counts when a gold answer stands in the memory (a yes/no question
of HotpotQA: when all of its supporting sentences do). BM25 with stems and stopwords ranks passages
of at most 800 code points, of which as many of the best are taken as fill 1,024 tokens, a memory.
The settings of skimming were chosen on other questions than these. RULER's samples are read in
chunks of 500 tokens; one counts when all of its outputs are in the memory.

    MEMAGENT_DATA=... python benchmarks/skim.py --kept everything.jsonl [--only everything]

Reading everything takes some seconds a question: what it found is kept in a file for the next time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
from collections import Counter
from functools import lru_cache
from math import log
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from extractive_recall import Item, has
from paired import compute_paired_interval

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.evaluation.methods import PassageSearch
from memagent_graph.evidence.places import Memory
from memagent_graph.evidence.statements import statements_of
from memagent_graph.graph.fold import advance
from memagent_graph.graph.layers import add_layers
from memagent_graph.graph.layers.skim import is_skimmed
from memagent_graph.graph.reading import Call, Reading
from memagent_graph.graph.state import (
    Progress,
    begin_fold,
    document_of,
    memory_of,
    reopen,
    whole_scope,
)
from memagent_graph.readers import extractive
from memagent_graph.readers.base import Step
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_graph.text.chunks import chunks, passages
from memagent_graph.text.source import Location, TextSource
from memagent_graph.text.terms import terms
from memagent_graph.text.tokens import EstimatingTokenizer

LENGTH = 4_300_000
"""Code points of the document: 1.04M tokens."""
CHECKED = 8
"""Questions that the graph is asked as well, in full."""
SKIM = ReadingConfig(skim="lexical")
MEMORY_TOKENS = 1024
REPORTED = {"nq": 200, "xquad": 200, "hotpotqa": 40}
"""Questions of each set; the others are there to choose settings on."""


class Asked(NamedTuple):
    key: str
    item: Item


def questions(folder: Path) -> tuple[list[str], dict[str, list[Item]]]:
    """All passages, and all questions by their set, in an order that is always the same."""
    nq = [json.loads(line) for line in (folder / "nq_open.jsonl").read_text("utf-8").splitlines()]
    xquad = json.loads((folder / "xquad.en.json").read_text("utf-8"))["data"]
    hotpot = json.loads((folder / "hotpotqa_distractor.json").read_text("utf-8"))
    paragraphs = [paragraph for article in xquad for paragraph in article["paragraphs"]]
    passages = [f"{record['title']}. {record['text']}" for record in nq]
    passages += [paragraph["context"] for paragraph in paragraphs]
    passages += ["".join(lines) for record in hotpot for _, lines in record["context"]]
    found = {"nq": [Item(record["question"], record["answers"], []) for record in nq]}
    found["xquad"] = [
        Item(asked["question"], [answer["text"] for answer in asked["answers"]], [])
        for paragraph in paragraphs
        for asked in paragraph["qas"]
    ]
    found["hotpotqa"] = []
    for record in hotpot:
        context = dict(record["context"])
        facts = [context[title][line] for title, line in record["supporting_facts"]]
        unquotable = record["answer"] in {"yes", "no"}
        item = Item(record["question"], [record["answer"]], facts if unquotable else [])
        if item not in found["hotpotqa"]:
            found["hotpotqa"].append(item)
    for number, items in enumerate(found.values()):
        random.Random(number).shuffle(items)
    return list(dict.fromkeys(passages)), found


def document(folder: Path, passages: list[str]) -> str:
    """The novels, with the passages strewn between their paragraphs."""
    texts = [(folder / name).read_text("utf-8") for name in ("war_and_peace.txt", "moby-dick.txt")]
    left = LENGTH - sum(len(passage) + 2 for passage in passages)
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", "\n\n".join(texts)):
        left -= len(paragraph) + 2
        if left < 0:
            break
        paragraphs.append(paragraph)
    drawn = random.Random(1)
    strewn = [(drawn.randrange(len(paragraphs)), passage) for passage in passages]
    after = [(number, paragraph) for number, paragraph in enumerate(paragraphs)]
    return "\n\n".join(text for _, text in sorted([*after, *strewn], key=lambda at: at[0]))


def in_turn(sets: dict[str, list[Item]]) -> list[Asked]:
    """The questions that are reported, of all sets in turn."""
    asked = [
        (number / REPORTED[name], Asked(f"{name} {number}", item))
        for name, items in sets.items()
        for number, item in enumerate(items[: REPORTED[name]])
    ]
    return [one for _, one in sorted(asked, key=lambda at: at[0])]


def remember_what_does_not_depend_on_the_question() -> None:
    """Cut and count each statement once for all questions: the memories are the same."""
    cut = lru_cache(1 << 10)(lambda chunk: list(statements_of(chunk)))
    extractive.statements_of = cut  # type: ignore[assignment]
    of_text = lru_cache(1 << 18)(lambda text: tuple(terms(text)))
    extractive.terms = lambda text: list(of_text(text))  # type: ignore[assignment]
    extractive._StatementScores = Index  # type: ignore[misc,assignment] # noqa: SLF001
    TextSource.locate = lambda source, _offset: Location(source.name, 1)  # type: ignore[method-assign]


@lru_cache(1 << 18)
def frequencies(words: tuple[str, ...]) -> Counter[str]:
    return Counter(words)


class Index:
    """The reader's BM25, for terms that are asked for rather than for all."""

    def __init__(self, meant: list[list[str]], k1: float, b: float) -> None:
        self._found = [frequencies(tuple(words)) for words in meant]
        lengths = np.array([len(words) for words in meant])
        self._k1, self._damp = k1, k1 * (1 - b + b * lengths / (sum(lengths) / len(meant)))

    def get_scores(self, wanted: list[str]) -> Any:
        scores, size = np.zeros(len(self._found)), len(self._found) + extractive._PRIOR  # noqa: SLF001
        for term in wanted:
            counts = np.array([found.get(term, 0) for found in self._found])
            n = int(np.count_nonzero(counts))
            idf = log(1 + (size - n + 0.5) / (n + 0.5)) if n else 0
            scores += idf * (counts * (self._k1 + 1) / (counts + self._damp))
        return scores


async def read_everything(source: TextSource, asked: list[Asked], kept: Path) -> None:
    """Read all chunks for each question, and write what the memory was in the end."""
    done = known(kept)
    reader = ExtractiveReader()
    cut = list(chunks(source, tokenizer=EstimatingTokenizer(), chunk_tokens=5000))
    for key, item in asked:
        if key in done:
            continue
        memory = Memory()
        for chunk in cut:
            update = await reader.update(Step(item.question, memory, chunk))
            memory = update.memory or memory
        answer = await reader.respond(item.question, memory)
        record = {
            "key": key,
            "kept": has(memory.text, item),
            "answered": has(answer.final, item),
            "calls": len(cut) + 1,
        }
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def known(kept: Path) -> dict[str, dict[str, Any]]:
    if not kept.exists():
        return {}
    records = map(json.loads, kept.read_text("utf-8").splitlines())
    return {record["key"]: record for record in records}


class Skimmed(NamedTuple):
    kept: bool
    calls: int
    fell_back: bool
    whole: bool
    """Whether the question is one that is not skimmed."""


async def skim(source: TextSource, asked: list[Asked]) -> dict[str, Skimmed]:
    """Read for each question by the graph's own steps, without LangGraph around them."""
    reading = add_layers(Reading("skim", ExtractiveReader(), SKIM, EstimatingTokenizer()))
    cut = {chunk.start: chunk for chunk in reading.chunks(source)}
    call = Call(reading)
    found: dict[str, Skimmed] = {}
    for key, item in asked:
        whole = not is_skimmed(SKIM, item.question)
        further: Progress | None = None
        scope, answers = whole_scope(source.length), 0
        fold = begin_fold(item.question, document_of(source), scope)
        while answers == 0 or further is not None:
            fold = {**fold, "progress": further or fold["progress"]}
            while not fold["progress"]["stopped"]:
                chunk = cut[fold["progress"]["position"]]
                fold = await advance(call, fold, chunk)
            answer = await reading.reader.respond(item.question, memory_of(fold))
            answers += 1
            further = None if answer.found else reopen(fold["progress"], source.length)
        calls = fold["progress"]["calls"] + answers
        found[key] = Skimmed(has(fold["memory"], item), calls, answers > 1, whole)
    return found


async def check(source: TextSource, asked: list[Asked], skimmed: dict[str, Skimmed]) -> None:
    """Compare with what the graph itself finds.

    Raises:
        AssertionError: It finds something else.
    """
    agent = create_memagent("extractive", config=SKIM)
    for key, item in asked:
        out = await agent.ainvoke({"question": item.question, "document": source})
        ours = skimmed[key]
        assert (has(out["memory"], item), out["usage"]["calls"]) == (ours.kept, ours.calls), key


def search(source: TextSource, asked: list[Asked]) -> dict[str, bool]:
    """Whether the answer is in the best passages by BM25 that fill a memory."""
    texts = [text for _, text in passages(source)]
    index, counter = PassageSearch(texts), EstimatingTokenizer()
    found = {}
    for key, item in asked:
        best: list[str] = []
        for number in index.rank(item.question):
            if counter.count("\n".join(best)) >= MEMORY_TOKENS:
                break
            best.append(texts[number])
        text = "\n".join(best)
        found[key] = has(text[: counter.prefix(text, MEMORY_TOKENS)], item)
    return found


def report(name: str, everything: list[Any], skimmed: list[Skimmed], bm25: list[bool]) -> None:
    before, after = [float(one["kept"]) for one in everything], [float(s.kept) for s in skimmed]
    low, high = compute_paired_interval(before, after)
    calls, all_calls = [one.calls for one in skimmed], [one["calls"] for one in everything]
    missed = [
        one
        for one, full in zip(skimmed, before, strict=True)
        if full and not one.kept and not one.fell_back
    ]
    n = len(skimmed)
    print(
        f"{name:<9} {n:>9} {sum(before) / n:>10.1%} {sum(after) / n:>8.1%} {sum(bm25) / n:>6.1%} "
        f"{100 * (sum(after) - sum(before)) / n:>+6.1f} [{100 * low:+.1f}, {100 * high:+.1f}] "
        f"{sum(calls) / n:>6.1f} {sum(calls) / sum(all_calls):>6.1%} "
        f"{sum(all_calls) / sum(calls):>5.1f} {sum(s.fell_back for s in skimmed) / n:>9.1%} "
        f"{sum(s.whole for s in skimmed) / n:>9.1%} {len(missed) / n:>12.1%}",
        flush=True,
    )


async def ruler(folder: Path) -> None:
    """RULER's samples with and without skimming."""
    tasks: dict[str, list[tuple[bool, bool, int, int]]] = {}
    ways = [
        create_memagent("extractive", config=ReadingConfig(chunk_tokens=500, skim=how))
        for how in (None, "lexical")
    ]
    for line in (folder / "ruler_8k.jsonl").read_text("utf-8").splitlines():
        sample = json.loads(line)
        document, question = split(sample["input"])
        asked = {"question": question, "document": document}
        outs = [await agent.ainvoke(asked) for agent in ways]
        kept = [
            all(output.lower() in out["memory"].lower() for output in sample["outputs"])
            for out in outs
        ]
        calls = [out["usage"]["calls"] for out in outs]
        tasks.setdefault(sample["task"], []).append((kept[0], kept[1], calls[0], calls[1]))
    print(f"\n{'RULER':<16} {'samples':>7} {'everything':>10} {'skimmed':>8} {'calls':>12}")
    for task, rows in tasks.items():
        full, some, calls, fewer = (sum(row[at] for row in rows) for at in range(4))
        n = len(rows)
        print(f"{task:<16} {n:>7} {full:>10} {some:>8} {calls / n:>6.1f} {fewer / n:>5.1f}")


def split(text: str) -> tuple[str, str]:
    """The document of a RULER sample, and its question, which comes last."""
    at = max(text.rfind("Question:"), text.rfind("What is the special"))
    at = max(at, text.rfind("What are all the special"))
    return text[:at], text[at:]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--only", choices=["everything", "ruler"])
    options = parser.parse_args()
    folder = Path(os.environ["MEMAGENT_DATA"])
    if options.only == "ruler":
        await ruler(folder)
        return
    texts, sets = questions(folder)
    source = TextSource(document(folder, texts))
    asked = in_turn(sets)
    remember_what_does_not_depend_on_the_question()
    await read_everything(source, asked, options.kept)
    if options.only:
        return
    everything = known(options.kept)
    asked = [one for one in asked if one.key in everything]
    started = perf_counter()
    skimmed, bm25 = await skim(source, asked), search(source, asked)
    await check(source, asked[:CHECKED], skimmed)
    heads = "set       questions everything  skimmed  BM25  difference [95%]     calls  share fewer"
    print(f"{heads} fell back not skimmed missed")
    for name in (*REPORTED, ""):
        keys = [key for key, _ in asked if key.startswith(name)]
        rows = ([of[key] for key in keys] for of in (everything, skimmed, bm25))
        report(name or "all", *rows)
    print(f"{perf_counter() - started:.0f} s for skimming and searching")
    await ruler(folder)


if __name__ == "__main__":
    asyncio.run(main())
