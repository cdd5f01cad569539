"""How often the built-in reader still has the gold answer at the end, and prints it.

All paragraphs of a file are one document. An answer counts when any of the gold texts stands in
the memory, or in what is printed, whatever the case. HotpotQA's yes/no questions have no text to
quote: they count when all of their supporting sentences are there.
Files are looked for in the folder MEMAGENT_DATA; --misses lists what was not printed.

    MEMAGENT_DATA=... python benchmarks/extractive_recall.py
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from memagent_graph import create_memagent


class Item(NamedTuple):
    question: str
    answers: list[str]
    facts: list[str]
    """All must be there, in place of any of the answers."""


def squad(file: Path) -> tuple[str, list[Item]]:
    data = json.loads(file.read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in data for paragraph in article["paragraphs"]]
    items = [
        Item(qa["question"], [answer["text"] for answer in qa["answers"]], [])
        for paragraph in paragraphs
        for qa in paragraph["qas"]
    ]
    return "\n\n".join(paragraph["context"] for paragraph in paragraphs), items


def hotpot(file: Path) -> tuple[str, list[Item]]:
    data = json.loads(file.read_text("utf-8"))
    texts = dict.fromkeys("".join(lines) for item in data for _, lines in item["context"])
    items = []
    for item in data:
        context = dict(item["context"])
        facts = [context[title][line] for title, line in item["supporting_facts"]]
        unquotable = item["answer"] in {"yes", "no"}
        items.append(Item(item["question"], [item["answer"]], facts if unquotable else []))
    return "\n\n".join(texts), items


def has(text: str, item: Item) -> bool:
    flat = plain(text)
    if item.facts:
        return all(plain(fact) in flat for fact in item.facts)
    return any(plain(answer) in flat for answer in item.answers)


def plain(text: str) -> str:
    return " ".join(text.split()).lower()


def main(folder: Path, *, misses: bool) -> None:
    agent = create_memagent("extractive")
    heads = ("questions", "tokens", "in memory", "in answer", "tokens/s")
    print(f"{'file':<26} {' '.join(f'{head:>10}' for head in heads)}")
    for name, load in (
        ("xquad.en.json", squad),
        ("xquad.zh.json", squad),
        ("hotpotqa_distractor.json", hotpot),
    ):
        if not (folder / name).exists():
            print(f"{name:<26} not in {folder}: skipped")
            continue
        document, items = load(folder / name)
        kept = printed = 0
        started = time.perf_counter()
        for item in items:
            out = agent.invoke({"question": item.question, "document": document})
            kept += has(out["memory"], item)
            printed += has(out["answer"], item)
            if misses and not has(out["answer"], item):
                where = "MEMORY" if has(out["memory"], item) else "LOST"
                print(f"  {where} {item.question} | {item.answers} | {out['answer'][:300]}")
        seconds = time.perf_counter() - started
        tokens = out["usage"]["document_tokens"]
        print(
            f"{name:<26} {len(items):>10} {tokens:>10} {kept / len(items):>10.1%} "
            f"{printed / len(items):>10.1%} {tokens * len(items) / seconds:>10.0f}"
        )


if __name__ == "__main__":
    if "MEMAGENT_DATA" not in os.environ:
        sys.exit("Set MEMAGENT_DATA to the folder that has the files.")
    main(Path(os.environ["MEMAGENT_DATA"]), misses="--misses" in sys.argv)
