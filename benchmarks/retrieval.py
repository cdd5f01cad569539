"""Answer recall of the retriever that reads, against BM25 passages, at equal returned tokens.

The paragraphs of a file are the corpus of both. The retriever reads it for each question with the
built-in reader. BM25 with stems and stopwords, as in `memagent eval --methods bm25`, ranks passages
of at most 200 words, and as many of its best are taken as fill the tokens that the retriever
returned for that question, the last one cut; so does BM25 over plain words, for comparison. A
question counts when a gold answer stands in what was returned; a yes/no question of HotpotQA when
all of its supporting sentences do.

    MEMAGENT_DATA=... python benchmarks/retrieval.py [--all]

Of XQuAD each fourth question is asked, none of which the retriever's rules were chosen on (those
were each twentieth from the first); with --all every one.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from extractive_recall import has, hotpot, squad
from rank_bm25 import BM25Okapi

from memagent_graph import MemAgentRetriever, ReadingConfig
from memagent_graph.evaluation.methods import PassageSearch
from memagent_graph.readers.extractive import rank
from memagent_graph.text.tokens import EstimatingTokenizer

PASSAGE_WORDS = 200
TOKENIZER = EstimatingTokenizer()
BUDGETS = (256, 512, 1024)


def passages(paragraphs: list[str]) -> list[str]:
    """Each paragraph in pieces of at most `PASSAGE_WORDS` words."""
    found = []
    for paragraph in paragraphs:
        words = paragraph.split()
        found += [
            " ".join(words[start : start + PASSAGE_WORDS])
            for start in range(0, len(words), PASSAGE_WORDS)
        ]
    return found


def terms(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def best_passages(order: list[int], texts: list[str], tokens: int) -> str:
    """The best passages that fill `tokens`."""
    found: list[str] = []
    for number in order:
        left = tokens - TOKENIZER.count("\n".join(found))
        if left <= 0:
            break
        found.append(texts[number][: TOKENIZER.prefix(texts[number], left)])
    return "\n".join(found)


def compare(name: str, document: str, items: list[Any]) -> None:
    paragraphs = document.split("\n\n")
    texts = passages(paragraphs)
    stems, words = PassageSearch(texts), BM25Okapi([terms(text) for text in texts])
    for budget in BUDGETS:
        retriever = MemAgentRetriever(
            corpus=paragraphs,
            k=len(paragraphs),
            config=ReadingConfig(memory_tokens=budget),
            store=None,
        )
        ours = theirs = plain = returned = 0
        for item in items:
            documents = retriever.invoke(item.question)
            text = "\n".join(found.page_content for found in documents)
            tokens = TOKENIZER.count(text)
            returned += tokens
            ours += has(text, item)
            order = stems.rank(item.question)
            theirs += has(best_passages(order, texts, tokens), item)
            order = rank(words.get_scores(terms(item.question)).tolist())
            plain += has(best_passages(order, texts, tokens), item)
        print(
            f"{name:<12} {len(items):>9} {budget:>7} {returned / len(items):>9.0f} "
            f"{ours / len(items):>8.1%} {theirs / len(items):>8.1%} {plain / len(items):>12.1%}",
            flush=True,
        )


def main(folder: Path, *, everything: bool) -> None:
    print(f"{'file':<12} {'questions':>9} {'budget':>7} {'returned':>9} {'reading':>8}", end="")
    print(f" {'BM25':>8} {'plain words':>12}")
    for name, load in (("xquad.en", squad), ("hotpotqa_distractor", hotpot)):
        document, items = load(folder / f"{name}.json")
        some = items if everything or load is hotpot else items[1::4]
        compare(name.split("_")[0], document, some)


if __name__ == "__main__":
    if "MEMAGENT_DATA" not in os.environ:
        sys.exit("Set MEMAGENT_DATA to the folder that has the files.")
    main(Path(os.environ["MEMAGENT_DATA"]), everything="--all" in sys.argv)
