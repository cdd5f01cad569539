"""How often a note is aligned with the sentence that it came from, and a wrong one is found.

    MEMAGENT_DATA=... python benchmarks/alignment.py [--limit N]

Documents are the paragraphs of a file in their order, so that neighbours are about the same thing;
a chunk is 5,000 tokens of them around the gold paragraph, which stands anywhere in it. Notes are

- `rewritten`: the gold sentence (the one that holds the answer) with a quarter of its words left
  out, with its clauses in another order, with its numbers in words, or joined to another sentence
  of the chunk;
- `question`: "<question without its question mark> — <answer>", a person's paraphrase.

The right sentence is cited when the evidence, one or two sentences, holds the answer (half of each
gold sentence, for rewritten ones). BM25 is given the same note and the same sentences, and as many
of them. A swapped note is one whose answer is replaced by that of another question: half of these
stand in the same chunk, half do not. A name is an answer with a capital (in Chinese: one whose
English twin has one), a number one that is or has a figure. Answers of which the sentence or the
question has all words are not swapped in.

Thresholds were chosen on the questions of even paragraphs; the others are reported.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from intervals import in_percent
from rank_bm25 import BM25Okapi

from memagent_graph.evidence.align import Aligned, align
from memagent_graph.evidence.places import Memory
from memagent_graph.evidence.statements import statements
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import TextSource
from memagent_graph.text.terms import terms
from memagent_graph.text.tokens import EstimatingTokenizer

CHUNK_TOKENS = 5_000
Span = tuple[int, int]


class Gold(NamedTuple):
    """A question, and where its answer stands."""

    question: str
    answer: str
    paragraph: int
    spans: list[Span]
    """Of the answer in the paragraph; any of them will do."""
    sentence: Span
    """That holds the first of them."""
    kind: str
    """Of the answer: name, number, or neither."""


class Note(NamedTuple):
    """A line of a memory, and what its evidence must hold."""

    text: str
    spans: list[list[Span]]
    """In the document: of each list one."""


class Corpus(NamedTuple):
    paragraphs: list[str]
    items: list[Gold]


def kind_of(answer: str) -> str:
    if re.search(r"\d", answer) or re.search(
        r"(?i)\b(two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|hundred)\b",
        answer,
    ):
        return "number"
    return "name" if re.match(r"(?:the |The )?[A-Z]", answer) and len(answer) > 1 else ""


def sentence_of(paragraph: str, start: int) -> Span:
    for cut in statements(paragraph):
        if start < cut.end:
            return cut.start, cut.end
    return 0, len(paragraph)


def gold(
    question: str, answer: str, paragraph: int, text: str, spans: list[Span], kind: str
) -> Gold:
    return Gold(question, answer, paragraph, spans, sentence_of(text, spans[0][0]), kind)


def everywhere(answer: str, text: str) -> list[Span]:
    return [match.span() for match in re.finditer(re.escape(answer), text)]


def squad(file: Path) -> Corpus:
    data = json.loads(file.read_text("utf-8"))["data"]
    twin = json.loads(file.with_name("xquad.en.json").read_text("utf-8"))["data"]
    kinds = {
        qa["id"]: kind_of(qa["answers"][0]["text"])
        for article in twin
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    }
    paragraphs, items = [], []
    for article in data:
        for paragraph in article["paragraphs"]:
            text = paragraph["context"]
            for qa in paragraph["qas"]:
                answer = qa["answers"][0]
                start, found = answer["answer_start"], answer["text"]
                spans = [(start, start + len(found)), *everywhere(found, text)]
                items.append(
                    gold(qa["question"], found, len(paragraphs), text, spans, kinds[qa["id"]])
                )
            paragraphs.append(text)
    return Corpus(paragraphs, items)


def hotpot(file: Path) -> Corpus:
    numbers: dict[str, int] = {}
    items = []
    for row in json.loads(file.read_text("utf-8")):
        context = dict(row["context"])
        for lines in context.values():
            numbers.setdefault("".join(lines), len(numbers))
        for title, line in row["supporting_facts"]:
            fact, text = context[title][line], "".join(context[title])
            at = fact.find(row["answer"])
            if row["answer"] not in {"yes", "no"} and at >= 0:
                start = len("".join(context[title][:line])) + at
                span = (start, start + len(row["answer"]))
                answer = row["answer"]
                items.append(
                    gold(row["question"], answer, numbers[text], text, [span], kind_of(answer))
                )
                break
    return Corpus(list(numbers), items)


def natural(file: Path) -> Corpus:
    paragraphs, items = [], []
    for line in file.read_text("utf-8").splitlines():
        row = json.loads(line)
        text = row["text"]
        for answer in row["answers"]:
            spans = everywhere(answer, text)
            if spans:
                items.append(
                    gold(row["question"], answer, len(paragraphs), text, spans, kind_of(answer))
                )
                break
        paragraphs.append(text)
    return Corpus(paragraphs, items)


FILES = {
    "xquad.en.json": squad,
    "xquad.zh.json": squad,
    "hotpotqa_distractor.json": hotpot,
    "nq_open.jsonl": natural,
}


class Laid(NamedTuple):
    """A chunk of paragraphs."""

    chunk: Chunk
    starts: dict[int, int]
    """Where each paragraph begins."""

    def within(self, paragraph: int, spans: list[Span]) -> list[Span]:
        begin = self.starts[paragraph]
        return [(begin + start, begin + end) for start, end in spans]


TOKENIZER = EstimatingTokenizer()


def lay(corpus: Corpus, item: Gold, rng: random.Random) -> Laid:
    """A chunk around a gold paragraph."""
    count = len(corpus.paragraphs)
    first = last = item.paragraph
    tokens = TOKENIZER.count(corpus.paragraphs[first])
    while tokens < CHUNK_TOKENS and last - first + 1 < count:
        if rng.random() < 0.5:
            added = first = first - 1
        else:
            added = last = last + 1
        tokens += TOKENIZER.count(corpus.paragraphs[added % count])
    starts, parts, size = {}, [], 0
    for number in range(first, last + 1):
        starts[number] = size
        parts.append(corpus.paragraphs[number % count])
        size += len(parts[-1]) + 2
    text = "\n\n".join(parts)
    return Laid(Chunk(text, 0, len(text), tokens, TextSource(text)), starts)


_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
SMALL = _ONES.split()
_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety"
TENS = _TENS.split()


def in_words(value: int) -> str:
    if value < 20:
        return SMALL[value]
    if value < 100:
        return TENS[value // 10] + (f"-{SMALL[value % 10]}" if value % 10 else "")
    for size, name in (
        (10**9, "billion"),
        (10**6, "million"),
        (1000, "thousand"),
        (100, "hundred"),
    ):
        if value >= size:
            rest = value % size
            joint = " and " if 0 < rest < 100 else " "
            return f"{in_words(value // size)} {name}" + (joint + in_words(rest) if rest else "")
    raise AssertionError(value)


def in_han(value: int) -> str:
    digits = "零一二三四五六七八九"
    if value >= 10_000:
        rest = value % 10_000
        return in_han(value // 10_000) + "万" + (in_han(rest) if rest else "")
    text, gap = "", False
    for size, sign in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = value // size % 10
        if digit:
            text += ("零" if gap and text else "") + digits[digit] + sign
            gap = False
        elif text:
            gap = True
    return text or "零"


def is_han(text: str) -> bool:
    return len(re.findall(r"[\u4e00-\u9fff]", text)) * 3 > len(text)


def drop(text: str, rng: random.Random, keep: str) -> str:
    """Leave out a quarter of the words, or pairs of characters, but not of what is kept."""
    head, found, tail = text.partition(keep)
    return " ".join([thin(head, rng), found, thin(tail, rng)]).strip()


def thin(text: str, rng: random.Random) -> str:
    if is_han(text):
        pieces = re.findall(r"[^\u4e00-\u9fff]+|[\u4e00-\u9fff]{1,2}", text)
        return "".join(piece for piece in pieces if rng.random() > 0.25)
    return " ".join(word for word in text.split() if rng.random() > 0.25)


def reorder(text: str, keep: str) -> str:
    """The latter half of the clauses first."""
    joint = "，" if is_han(text) else ", "
    clauses = re.split(r"[，；]|[,;] ", text.rstrip(".。"))
    if len(clauses) < 2:
        words = (
            re.findall(r"[^\u4e00-\u9fff]+|[\u4e00-\u9fff]", text) if is_han(text) else text.split()
        )
        half = len(words) // 2
        gap = "" if is_han(text) else " "
        clauses = [gap.join(words[:half]), gap.join(words[half:])]
    half = len(clauses) // 2
    moved = joint.join([*clauses[half:], *clauses[:half]])
    return moved if keep in moved else joint.join([text.rstrip(".。"), clauses[0]])


def spell(text: str) -> str:
    """Whole numbers in words."""
    words = in_han if is_han(text) else in_words
    return re.sub(
        r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\w.,]\d|\w)|(?<![\w.,:/–-])\d{1,7}(?![.,:/–-]?\w)",
        lambda match: words(int(match[0].replace(",", ""))),
        text,
    )


def rewritten(corpus: Corpus, item: Gold, laid: Laid, rng: random.Random) -> list[Note]:
    start, end = item.sentence
    text = " ".join(corpus.paragraphs[item.paragraph][start:end].split())
    if item.answer not in text:
        return []
    at = laid.within(item.paragraph, [item.sentence])
    made = [drop(text, rng, item.answer), reorder(text, item.answer)]
    if (spelled := spell(text)) != text:
        made.append(spelled)
    notes = [Note(one, [at]) for one in made]
    own = [
        (item.paragraph, cut)
        for cut in statements(corpus.paragraphs[item.paragraph])
        if cut.start != start
    ]
    far = rng.choice([number for number in laid.starts if number != item.paragraph])
    away = [(far, cut) for cut in statements(corpus.paragraphs[far % len(corpus.paragraphs)])]
    near = own if own and rng.random() < 0.5 else away
    if choice := [pair for pair in near if len(pair[1].text) > 20]:
        number, cut = rng.choice(choice)
        joint = "，" if is_han(text) else ", and "
        spans = [at, laid.within(number, [(cut.start, cut.end)])]
        notes.append(Note(text.rstrip(".。") + joint + cut.text, spans))
    return notes


def asked(item: Gold, laid: Laid) -> Note:
    text = f"{item.question.rstrip('?？ ')} — {item.answer}"
    return Note(text, [laid.within(item.paragraph, item.spans)])


def swap(
    text: str, item: Gold, corpus: Corpus, laid: Laid, rng: random.Random, *, near: bool
) -> str | None:
    """The note with its answer replaced by another of the same kind."""
    start, end = item.sentence
    sentence = corpus.paragraphs[item.paragraph][start:end]
    inside = {number % len(corpus.paragraphs) for number in laid.starts}
    said = {*terms(f"{sentence} {item.question}")}
    others = [
        other.answer
        for other in corpus.items
        if other.kind == item.kind
        and (other.paragraph in inside) == near
        and other.answer.lower() not in f"{sentence} {item.question}".lower()
        and (near == (other.answer in laid.chunk.text))
        and not {*terms(other.answer)} <= said
        and len(other.answer) < 40
    ]
    return text.replace(item.answer, rng.choice(others)) if others and item.answer in text else None


def holds(evidence: Span, gold_span: Span) -> bool:
    """Whether a sentence holds at least half of a span, or the other way round."""
    shared = min(evidence[1], gold_span[1]) - max(evidence[0], gold_span[0])
    return shared * 2 >= min(evidence[1] - evidence[0], gold_span[1] - gold_span[0])


def is_right(cited: list[Span], note: Note) -> bool:
    return all(any(holds(one, span) for one in cited for span in spans) for spans in note.spans)


def bm25(note: Note, laid: Laid, most: int) -> list[Span]:
    cuts = [*statements(laid.chunk.text)]
    index = BM25Okapi([terms(cut.text) or [""] for cut in cuts], k1=1.2, b=0.4)
    scores = index.get_scores(terms(note.text))
    order = sorted(range(len(cuts)), key=lambda number: -scores[number])
    return [(cuts[number].start, cuts[number].end) for number in order[:most]]


def measure(corpus: Corpus, items: list[Gold]) -> None:
    found: dict[str, list[float]] = defaultdict(list)
    for place, item in enumerate(items):
        rng = random.Random(place)
        laid = lay(corpus, item, rng)
        notes = [("rewritten", note) for note in rewritten(corpus, item, laid, rng)]
        for form, note in [*notes, ("question", asked(item, laid))]:
            aligned = align(note.text, Memory(), laid.chunk, item.question)
            cited = [(one.start, one.end) for one in aligned.memory.evidence]
            peer = bm25(note, laid, max(len(cited), 1))
            found[f"{form}: right sentence"].append(is_right(cited, note))
            found[f"{form}: right sentence, BM25"].append(is_right(peer, note))
            found[f"{form}: marked unsupported"].append(is_marked(aligned))
            wrong = swap(note.text, item, corpus, laid, rng, near=place % 2 == 0)
            if item.kind and wrong is not None:
                marked = is_marked(align(wrong, Memory(), laid.chunk, item.question))
                found[f"{form}, swapped: marked unsupported"].append(marked)
    for what, values in sorted(found.items()):
        print(f"  {what:<38} {in_percent(values)} of {len(values)}", flush=True)


def is_marked(aligned: Aligned) -> bool:
    return any(found.state == "unsupported" for found in aligned.notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--limit", type=int, help="questions of a file, at most")
    options = parser.parse_args()
    for name, load in FILES.items():
        corpus = load(Path(os.environ["MEMAGENT_DATA"], name))
        print(name)
        half = [item for item in corpus.items if item.paragraph % 2]
        measure(corpus, half[: options.limit])


if __name__ == "__main__":
    main()
