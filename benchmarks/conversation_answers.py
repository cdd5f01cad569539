"""python benchmarks/conversation_answers.py FILE --model MODEL: a model answers from contexts.

Questions of the LoCoMo and BEAM files in MEMAGENT_DATA, with the contexts of
`benchmarks/conversation_told.py`: the prompt of `ConversationMemory` (saved with the built-in
reader), BM25 over whole messages, a summary, and the last messages, with as many tokens each. The
score is LoCoMo's: F1 of the words of the answer. Each answer is a line of FILE, and is not asked
for again. FILE --report prints the table, with paired intervals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import defaultdict
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from conversation_told import OURS, beam, contexts, interval, locomo
from langchain_core.messages import HumanMessage
from local_models import recorded

from memagent_graph.evaluation.samples import token_f1
from memagent_graph.evaluation.scores import holds
from memagent_graph.models.resolve import resolve_model
from memagent_graph.readers.completion import find_boxed

ASK = """\
Below is what you remember of conversations, and a question.

<memory>
{context}
</memory>

<question>
{question}
</question>

Answer in a few words, from the memory alone. If it does not say, reply "not mentioned".
"""


def chosen(folder: Path, samples: int, budget: int) -> list[dict[str, Any]]:
    """Return the questions, each with the contexts by name."""
    rows = []
    for name, load in (("locomo", locomo), ("beam", beam)):
        found = []
        for number, (messages, asked) in enumerate(load(folder)):
            share = -(-samples // (5 if name == "locomo" else 10))
            some = Random(number).sample(asked, min(share, len(asked)))
            told: dict[str, dict[str, str]] = defaultdict(dict)
            for way, one, text in contexts(messages, some, budget):
                told[one.question][way] = text
            found += [
                {"set": name, "conversation": number, "question": one.question}
                | {"answer": one.answer, "contexts": told[one.question]}
                for one in some
            ]
        rows += found
    return rows


async def ask(given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    model = resolve_model(given.model, base_url=given.base_url, temperature=0.0, max_tokens=48)
    done = {(row["set"], row["question"], row["way"]) for row in recorded(given.file)}
    turns = asyncio.Semaphore(given.at_once)

    async def one(row: dict[str, Any], way: str) -> None:
        async with turns:
            context = row["contexts"][way]
            reply = await model.ainvoke(
                [HumanMessage(ASK.format(context=context, question=row["question"]))]
            )
        said = find_boxed(reply.text)
        out = {key: row[key] for key in ("set", "conversation", "question", "answer")}
        out |= {"way": way, "reply": said, "f1": token_f1(said, [row["answer"]])}
        with given.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(out, ensure_ascii=False) + "\n")

    jobs = [
        one(row, way)
        for row in rows
        for way in row["contexts"]
        if (row["set"], row["question"], way) not in done
    ]
    await asyncio.gather(*jobs)


def report(rows: list[dict[str, Any]]) -> None:
    by: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        by[row["set"], row["way"]][f"{row['conversation']} {row['question']}"] = row
    for (group, way), found in sorted(by.items()):
        ours = by[group, OURS]
        pairs = [ours[key]["f1"] - row["f1"] for key, row in found.items()]
        f1 = fmean(row["f1"] for row in found.values())
        has = fmean(holds(row["reply"], row["answer"]) for row in found.values())
        ahead = "" if way == OURS else f"ours ahead by {interval(pairs)}"
        print(f"{group} | {way} | {len(found)} | F1 {f1:.3f} | holds {has:.1%} | {ahead}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--base-url")
    parser.add_argument("--samples", type=int, default=50, help="questions of each set")
    parser.add_argument("--budget", type=int, default=1500, help="tokens of a context")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.report:
        report(recorded(given.file))
    elif given.model is None:
        parser.error("--model is missing")
    else:
        rows = chosen(Path(os.environ["MEMAGENT_DATA"]), given.samples, given.budget)
        asyncio.run(ask(given, rows))


if __name__ == "__main__":
    main()
