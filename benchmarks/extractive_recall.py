"""How often the built-in reader still has the gold answer at the end, and prints it.

All paragraphs of a file are one document. Files are looked for in the folder MEMAGENT_DATA.

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


def squad(file: Path) -> tuple[str, list[Item]]:
    data = json.loads(file.read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in data for paragraph in article["paragraphs"]]
    items = [
        Item(qa["question"], [answer["text"] for answer in qa["answers"]])
        for paragraph in paragraphs
        for qa in paragraph["qas"]
    ]
    return "\n\n".join(paragraph["context"] for paragraph in paragraphs), items


def hotpot(file: Path) -> tuple[str, list[Item]]:
    data = json.loads(file.read_text("utf-8"))
    texts = dict.fromkeys("".join(lines) for item in data for _, lines in item["context"])
    items = []
    for item in data:
        answers = [item["answer"]]
        if item["answer"] in ("yes", "no"):  # nothing to quote: its supporting facts must be there
            context = dict(item["context"])
            answers = [context[title][line].strip() for title, line in item["supporting_facts"]][:1]
        items.append(Item(item["question"], answers))
    return "\n\n".join(texts), items


def has(text: str, answers: list[str]) -> bool:
    flat = " ".join(text.split()).lower()
    return any(" ".join(answer.split()).lower() in flat for answer in answers)


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
            kept += has(out["memory"], item.answers)
            printed += has(out["answer"], item.answers)
            if misses and not has(out["answer"], item.answers):
                where = "MEMORY" if has(out["memory"], item.answers) else "LOST"
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
