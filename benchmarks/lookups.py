"""Look-ups with the built-in reader: how often the gold answer is kept, beside BM25.

    MEMAGENT_DATA=... python benchmarks/lookups.py recall|retrieval|skim [--questions N]

An answer counts when any of the gold texts stands in what is looked at, whatever the case.
HotpotQA's yes/no questions have no text to quote: they count when all of their supporting sentences
are there.

- `recall`: all paragraphs of a file are one document, and each question is asked of it.
- `retrieval`: the paragraphs are the corpus of the retriever that reads. BM25, as `memagent eval`
  has it, ranks passages of at most 200 words; as many of its best are taken as fill the tokens that
  the retriever returned, the last one cut. Of XQuAD each fourth question is asked, none of which
  rules were chosen on.
- `skim`: the passages of all sets are strewn over two novels, 1.04M tokens in all. All is read for
  each question, and again with `skim="lexical"`; BM25 ranks passages of at most 800 code points, of
  which the best fill 1,024 tokens, a memory. The settings of skimming were chosen on other
  questions. To read everything takes seconds a question: rows are kept in the file of --rows, and a
  run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from intervals import difference, in_percent
from measurement import append_row, print_head, print_row, read_rows

from memagent_graph import MemAgentRetriever, ReadingConfig, create_memagent
from memagent_graph.evaluation.methods import PassageSearch
from memagent_graph.text.chunks import passages
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENIZER = EstimatingTokenizer()
MEMORY_TOKENS = 1_024
PASSAGE_WORDS = 200
LENGTH = 4_300_000
"""Code points of the document that is skimmed: 1.04M tokens."""
REPORTED = {"nq": 200, "xquad": 200, "hotpotqa": 40}
"""Questions of each set that are skimmed for; the others are there to choose settings on."""


class Item(NamedTuple):
    question: str
    answers: list[str]
    facts: list[str]
    """All must be there, in place of any of the answers."""

    def is_in(self, text: str) -> bool:
        flat = plain(text)
        if self.facts:
            return all(plain(fact) in flat for fact in self.facts)
        return any(plain(answer) in flat for answer in self.answers)


Corpus = tuple[list[str], list[Item]]
"""The paragraphs of a file, and the questions."""


def plain(text: str) -> str:
    return " ".join(text.split()).lower()


def squad(file: Path) -> Corpus:
    data = json.loads(file.read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in data for paragraph in article["paragraphs"]]
    items = [
        Item(qa["question"], [answer["text"] for answer in qa["answers"]], [])
        for paragraph in paragraphs
        for qa in paragraph["qas"]
    ]
    return [paragraph["context"] for paragraph in paragraphs], items


def hotpot(file: Path) -> Corpus:
    data = json.loads(file.read_text("utf-8"))
    items = []
    for row in data:
        context = dict(row["context"])
        facts = [context[title][line] for title, line in row["supporting_facts"]]
        unquotable = row["answer"] in {"yes", "no"}
        items.append(Item(row["question"], [row["answer"]], facts if unquotable else []))
    texts = dict.fromkeys("".join(lines) for row in data for _, lines in row["context"])
    return [*texts], items


def natural(file: Path) -> Corpus:
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    texts = [f"{row['title']}. {row['text']}" for row in rows]
    return texts, [Item(row["question"], row["answers"], []) for row in rows]


def recall(data: Path, most: int, _: Path) -> None:
    agent = create_memagent("extractive")
    print_head("file", "questions", "in memory", "in answer")
    for name, load in (
        ("xquad.en.json", squad),
        ("xquad.zh.json", squad),
        ("hotpotqa_distractor.json", hotpot),
    ):
        paragraphs, items = load(data / name)
        asked, document = items[:most], "\n\n".join(paragraphs)
        outs = [agent.invoke({"question": one.question, "document": document}) for one in asked]
        shares = (
            in_percent([one.is_in(out[of]) for one, out in zip(asked, outs, strict=True)])
            for of in ("memory", "answer")
        )
        print_row(name, len(asked), *shares)


def retrieval(data: Path, most: int, _: Path) -> None:
    print_head("file", "questions", "tokens returned", "reading", "BM25")
    for name, load in (("xquad.en.json", squad), ("hotpotqa_distractor.json", hotpot)):
        paragraphs, items = load(data / name)
        asked = (items if load is hotpot else items[1::4])[:most]
        search = partial(best, *ranking([*pieces(paragraphs)]))
        retriever = MemAgentRetriever(
            corpus=paragraphs,
            k=len(paragraphs),
            config=ReadingConfig(memory_tokens=MEMORY_TOKENS),
            store=None,
        )
        rows = []
        for one in asked:
            text = "\n".join(found.page_content for found in retriever.invoke(one.question))
            tokens = TOKENIZER.count(text)
            rows.append((tokens, one.is_in(text), one.is_in(search(one.question, tokens))))
        tokens, ours, theirs = zip(*rows, strict=True)
        mean = f"{fmean(tokens):.0f}"
        print_row(name, len(asked), mean, in_percent(ours), in_percent(theirs))


def pieces(paragraphs: list[str]) -> Iterator[str]:
    """Each paragraph in pieces of at most `PASSAGE_WORDS` words."""
    for paragraph in paragraphs:
        words = paragraph.split()
        for start in range(0, len(words), PASSAGE_WORDS):
            yield " ".join(words[start : start + PASSAGE_WORDS])


def ranking(texts: list[str]) -> tuple[list[str], PassageSearch]:
    return texts, PassageSearch(texts)


def best(texts: list[str], search: PassageSearch, question: str, tokens: int) -> str:
    """The best passages by BM25 that fill so many tokens."""
    found: list[str] = []
    for number in search.rank(question):
        if TOKENIZER.count("\n".join(found)) >= tokens:
            break
        found.append(texts[number])
    text = "\n".join(found)
    return text[: TOKENIZER.prefix(text, tokens)]


def skim(data: Path, most: int, file: Path) -> None:
    corpora = {
        "nq": natural(data / "nq_open.jsonl"),
        "xquad": squad(data / "xquad.en.json"),
        "hotpotqa": hotpot(data / "hotpotqa_distractor.json"),
    }
    source = TextSource(strew(data, [text for texts, _ in corpora.values() for text in texts]))
    asked: dict[str, Item] = {}
    for number, (name, (_, items)) in enumerate(corpora.items()):
        # HotpotQA's file has two questions twice.
        chosen = [*{one.question: one for one in items}.values()] if name == "hotpotqa" else items
        random.Random(number).shuffle(chosen)
        asked |= {f"{name} {at}": one for at, one in enumerate(chosen[: min(REPORTED[name], most)])}
    search = partial(best, *ranking([text for _, text in passages(source)]))
    ways = {
        way: create_memagent("extractive", config=ReadingConfig(skim=how))
        for way, how in (("everything", None), ("skim", "lexical"))
    }
    rows = {(row["key"], row["way"]): row for row in read_rows(file)}
    for key, item in asked.items():
        for way, agent in ways.items():
            if (key, way) not in rows:
                out = agent.invoke({"question": item.question, "document": source})
                row = {"key": key, "way": way, "calls": out["usage"]["calls"]}
                rows[key, way] = row | {"kept": item.is_in(out["memory"])}
                append_row(file, rows[key, way])
    found = {key: item.is_in(search(item.question, MEMORY_TOKENS)) for key, item in asked.items()}
    names = ("", "questions", *ways, "BM25", "skim against everything, points")
    print_head(*names, "calls", "median", "fewer", "missed")
    for name in (*REPORTED, ""):
        keys = [key for key in asked if key.startswith(name)]
        before, after = ([rows[key, way] for key in keys] for way in ways)
        kept = [[float(row["kept"]) for row in of] for of in (before, after)]
        calls = [[row["calls"] for row in of] for of in (before, after)]
        missed = [
            full["kept"] and not one["kept"] and one["calls"] < full["calls"]
            for full, one in zip(before, after, strict=True)
        ]
        cells = [name or "all", str(len(keys)), *map(in_percent, kept)]
        cells += [in_percent([found[key] for key in keys]), difference(*kept)]
        cells += [f"{fmean(calls[1]):.1f}", f"{median(calls[1]):g}"]
        cells += [f"{sum(calls[0]) / sum(calls[1]):.1f}", in_percent(missed)]
        print_row(*cells)


def strew(data: Path, texts: list[str]) -> str:
    """The novels, with the passages strewn between their paragraphs."""
    novels = [(data / name).read_text("utf-8") for name in ("war_and_peace.txt", "moby-dick.txt")]
    texts = list(dict.fromkeys(texts))
    left = LENGTH - sum(len(text) + 2 for text in texts)
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", "\n\n".join(novels)):
        left -= len(paragraph) + 2
        if left < 0:
            break
        paragraphs.append(paragraph)
    drawn = random.Random(1)
    strewn = [(drawn.randrange(len(paragraphs)), text) for text in texts]
    return "\n\n".join(
        text for _, text in sorted([*enumerate(paragraphs), *strewn], key=lambda at: at[0])
    )


MEASURES: dict[str, Callable[[Path, int, Path], None]] = {
    "recall": recall,
    "retrieval": retrieval,
    "skim": skim,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--questions", type=int, default=10**6, help="of each set, at most")
    parser.add_argument("--rows", type=Path, default=Path("skim.jsonl"), help="file of `skim`")
    given: dict[str, Any] = vars(parser.parse_args())
    data = Path(os.environ["MEMAGENT_DATA"])
    MEASURES[given["measure"]](data, given["questions"], given["rows"])


if __name__ == "__main__":
    main()
