"""How often a note is aligned with the sentence that it came from, and a wrong one is found.

Documents are the paragraphs of a file in their order, so that neighbours are about the same thing;
a chunk is 5,000 tokens of them around the gold paragraph, which stands anywhere in it. Notes are

- the gold sentence (the one that holds the answer) with a quarter of its words left out, with its
  clauses in another order, with its numbers in words, or joined to another sentence of the chunk;
- "<question without its question mark> — <answer>": a person's paraphrase.

The right sentence is cited when the evidence, one or two sentences, holds the answer (half of each
gold sentence, for rewritten ones); "first alone" asks this of the first sentence. BM25 is given the
same note and the same sentences, and as many of them. A swapped note is the rewritten one whose
answer is replaced by that of another question: half of these stand in the same chunk, half do not.
A name is an answer with a capital (in Chinese: one whose English twin has one), a number one that
is or has a figure. Answers of which the sentence or the question has all words are not swapped in.

Thresholds were chosen on the questions of even paragraphs; the others are reported, unless --tune.
Files are looked for in the folder MEMAGENT_DATA.

    MEMAGENT_DATA=... python benchmarks/alignment.py
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from itertools import pairwise
from math import sqrt
from pathlib import Path

from alignment_notes import (
    FILES,
    TOKENIZER,
    Corpus,
    Gold,
    Laid,
    Note,
    Span,
    asked,
    lay,
    rewritten,
    swap,
    thin,
)
from rank_bm25 import BM25Okapi

from memagent_graph.evidence.align import align
from memagent_graph.evidence.places import Memory
from memagent_graph.evidence.statements import statements
from memagent_graph.text.terms import terms

MEMORY_TOKENS = 1_024


def holds(evidence: Span, gold_span: Span) -> bool:
    """Whether a sentence holds at least half of a span, or the other way round."""
    shared = min(evidence[1], gold_span[1]) - max(evidence[0], gold_span[0])
    return shared * 2 >= min(evidence[1] - evidence[0], gold_span[1] - gold_span[0])


def right(cited: list[Span], note: Note) -> bool:
    return all(any(holds(one, span) for one in cited for span in spans) for spans in note.spans)


def right_passage(cited: list[Span], note: Note, laid: Laid) -> bool:
    starts = sorted(laid.starts.values())

    def passage(at: int) -> int:
        return sum(start <= at for start in starts)

    gold_passages = [{passage(start) for start, _ in spans} for spans in note.spans]
    return all({passage(start) for start, _ in cited} & wanted for wanted in gold_passages)


def bm25_index(sentences: list[str]) -> BM25Okapi:
    return BM25Okapi([terms(text) or [""] for text in sentences], k1=1.2, b=0.4)


def bm25(note: Note, laid: Laid, most: int) -> list[Span]:
    cuts = [*statements(laid.chunk.text)]
    scores = bm25_index([cut.text for cut in cuts]).get_scores(terms(note.text))
    order = sorted(range(len(cuts)), key=lambda number: -scores[number])
    return [(cuts[number].start, cuts[number].end) for number in order[:most]]


def interval(right_ones: int, count: int) -> str:
    """A share with Wilson's 95% interval."""
    if not count:
        return "-"
    mean, z = right_ones / count, 1.96
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z * sqrt(mean * (1 - mean) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return f"{mean:.1%} ({centre - half:.1%} to {centre + half:.1%}) of {count}"


CITED = "sentences cited"


class Tally:
    """Counts by form of note and by what is counted."""

    def __init__(self, *, misses: bool) -> None:
        self.misses = misses
        self.hits: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, form: str, what: str, value: float) -> None:
        self.hits[form][what].append(value)

    def miss(self, note: str, cited: list[Span], laid: Laid, *, wanted: bool) -> None:
        if self.misses and not wanted:
            print("    MISS", note, [laid.chunk.text[start:end] for start, end in cited])

    def print(self) -> None:
        for form, counts in self.hits.items():
            print(f"  {form}")
            for what, values in counts.items():
                if what == CITED:
                    shown = f"{statistics.mean(values):.2f}"
                else:
                    shown = interval(round(sum(values)), len(values))
                print(f"    {what:<28} {shown}", flush=True)


def measure_right(laid: Laid, notes: list[Note], told: str, tally: Tally) -> None:
    for note in notes:
        aligned = align(note.text, Memory(), laid.chunk, told)
        cited = [(found.start, found.end) for found in aligned.memory.evidence]
        baseline = bm25(note, laid, max(len(cited), 1))
        marked = any(found.state == "unsupported" for found in aligned.notes)
        forms = ["questions"] if note.form == "question" else [note.form, "rewritten"]
        for form in forms:
            tally.add(form, "right passage", right_passage(cited, note, laid))
            tally.add(form, "right passage, BM25", right_passage(baseline, note, laid))
            tally.add(form, "right sentence", right(cited, note))
            tally.add(form, "right sentence, BM25", right(baseline, note))
            if note.form != "join":
                tally.add(form, "right sentence, first alone", right(cited[:1], note))
            if note.form == "question":
                labelled = note._replace(spans=[note.spans[0][:1]])
                tally.add(form, "right sentence, as labelled", right(cited, labelled))
            tally.add(form, "marked unsupported", marked)
            tally.add(form, CITED, len(cited))
        tally.miss(note.text, cited, laid, wanted=right(cited, note) and not marked)


def measure_swapped(
    corpus: Corpus,
    item: Gold,
    laid: Laid,
    notes: list[Note],
    told: str,
    tally: Tally,
    *,
    near: bool,
    rng: random.Random,
) -> None:
    for note in notes:
        wrong = swap(note.text, item, corpus, laid, rng, near=near)
        if wrong is None:
            continue
        aligned = align(wrong, Memory(), laid.chunk, told)
        found = any(each.state == "unsupported" for each in aligned.notes)
        form = "swapped questions" if note.form == "question" else "swapped"
        tally.add(form, "found", found)
        tally.add(form, f"found, {item.kind} {'in' if near else 'not in'} the chunk", found)
        tally.miss(wrong, [], laid, wanted=found or note.form == "question")


def measure(corpus: Corpus, options: argparse.Namespace, other: Corpus | None) -> None:
    tally = Tally(misses=options.misses)
    for place, item in enumerate(half(corpus, options)):
        rng = random.Random(place)
        laid = lay(corpus, item, rng, other)
        told = "" if options.no_question else item.question
        notes = [*rewritten(corpus, item, laid, rng), asked(item, laid)]
        measure_right(laid, notes, told, tally)
        if item.kind:
            near = place % 2 == 0
            measure_swapped(corpus, item, laid, notes, told, tally, near=near, rng=rng)
    tally.print()


def half(corpus: Corpus, options: argparse.Namespace) -> list[Gold]:
    """The questions of every second paragraph."""
    return [item for item in corpus.items if (item.paragraph % 2 == 0) == options.tune][
        : options.limit
    ]


def absent(corpus: Corpus, options: argparse.Namespace) -> None:
    """Notes of paragraphs that are not in the chunk: few should have evidence."""
    items = half(corpus, options)
    given = []
    for place, item in enumerate(items):
        away = items[(place + len(items) // 2) % len(items)]
        laid = lay(corpus, away, random.Random(place))
        if item.paragraph in {number % len(corpus.paragraphs) for number in laid.starts}:
            continue
        text = corpus.paragraphs[item.paragraph][slice(*item.sentence)].replace("\n", " ")
        given.append(bool(align(text, Memory(), laid.chunk, "").memory.evidence))
    print(f"  sentences of other paragraphs that got evidence: {interval(sum(given), len(given))}")


def speed(corpus: Corpus, rounds: int = 60) -> None:
    """Processor time of a chunk, with a memory of which a half or all is new."""
    spent = []
    for place in range(rounds):
        rng = random.Random(place)
        item = rng.choice(corpus.items)
        laid = lay(corpus, item, rng)
        cuts = [cut.text for cut in statements(laid.chunk.text)]
        rng.shuffle(cuts)
        memory = "\n".join(f"- {thin(text, rng)}" for text in cuts)
        memory = memory[: TOKENIZER.prefix(memory, MEMORY_TOKENS)]
        lines = memory.splitlines()
        before = Memory("\n".join(lines[: len(lines) // 2]))
        times = [time.process_time()]
        align(memory, before, laid.chunk, item.question)
        times.append(time.process_time())
        align(memory, Memory(), laid.chunk, item.question)
        times.append(time.process_time())
        index = bm25_index([cut.text for cut in statements(laid.chunk.text)])
        for line in lines:
            index.get_scores(terms(line))
        times.append(time.process_time())
        spent.append([(end - start) * 1000 for start, end in pairwise(times)])
    partly, full, peer = map(statistics.median, zip(*spent, strict=True))
    print(f"  {partly:.1f} ms a chunk with half of the memory new, {full:.1f} ms with all of it,")
    print(f"  {full / peer:.2f} times what BM25 takes for the same ({peer:.1f} ms)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", action="store_true", help="the half that thresholds came from")
    parser.add_argument("--misses", action="store_true", help="print each failure")
    parser.add_argument("--no-question", action="store_true", help="align without the question")
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=int, default=10**6)
    options = parser.parse_args()
    if "MEMAGENT_DATA" not in os.environ:
        sys.exit("Set MEMAGENT_DATA to the folder that has the files.")
    folder = Path(os.environ["MEMAGENT_DATA"])
    found = {name: load(folder / name) for name, load in FILES.items() if (folder / name).exists()}
    for name, corpus in found.items():
        others = {"": None}
        if name.startswith("xquad"):
            others["every second paragraph in the other language"] = found[
                "xquad.zh.json" if name == "xquad.en.json" else "xquad.en.json"
            ]
        for label, other in others.items():
            if options.only and options.only not in f"{name} {label}":
                continue
            print(f"{name} {label}")
            measure(corpus, options, other)
            if other is None:
                absent(corpus, options)
                speed(corpus)


if __name__ == "__main__":
    main()
