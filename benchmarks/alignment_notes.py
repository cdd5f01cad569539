"""Questions with known answers, chunks around them, and the notes that `alignment.py` aligns."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.evidence.statements import statements
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import TextSource
from memagent_graph.text.terms import terms
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    import random
    from pathlib import Path

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
    form: str


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


def lay(corpus: Corpus, item: Gold, rng: random.Random, other: Corpus | None = None) -> Laid:
    """A chunk around a gold paragraph; every second one from another file, if one is given."""
    count = len(corpus.paragraphs)
    texts: dict[int, str] = {item.paragraph: corpus.paragraphs[item.paragraph]}
    tokens = TOKENIZER.count(texts[item.paragraph])
    before, after = item.paragraph, item.paragraph
    while tokens < CHUNK_TOKENS and len(texts) < count:
        if rng.random() < 0.5:
            before -= 1
            number = before
        else:
            after += 1
            number = after
        text = corpus.paragraphs[number % count]
        if other and number % 2 != item.paragraph % 2:
            text = other.paragraphs[number % len(other.paragraphs)]
        texts[number] = text
        tokens += TOKENIZER.count(text)
    starts, parts, size = {}, [], 0
    for number in sorted(texts):
        starts[number] = size
        parts.append(texts[number])
        size += len(texts[number]) + 2
    text = "\n\n".join(parts)
    return Laid(Chunk(text, 0, len(text), tokens, TextSource(text)), starts)


_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
SMALL = _SMALL.split()
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


def reorder(text: str, _: random.Random, keep: str) -> str:
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


def spell(text: str, _: random.Random, __: str) -> str:
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
    made = [Note(how(text, rng, item.answer), [at], how.__name__) for how in (drop, reorder)]
    if (spelled := spell(text, rng, "")) != text:
        made.append(Note(spelled, [at], "spell"))
    near = [cut for cut in statements(corpus.paragraphs[item.paragraph]) if cut.start != start]
    own = [(item.paragraph, cut) for cut in near]
    far = rng.choice([number for number in laid.starts if number != item.paragraph])
    begin = laid.starts[far]
    stop = laid.chunk.text.find("\n\n", begin)
    away = [(far, cut) for cut in statements(laid.chunk.text[begin : stop if stop > 0 else None])]
    choice = [
        pair for pair in (own if own and rng.random() < 0.5 else away) if len(pair[1].text) > 20
    ]
    if choice:
        number, cut = rng.choice(choice)
        other = laid.within(number, [(cut.start, cut.end)])
        joint = "，" if is_han(text) else ", and "
        made.append(Note(text.rstrip(".。") + joint + cut.text, [at, other], "join"))
    return made


def asked(item: Gold, laid: Laid) -> Note:
    text = f"{item.question.rstrip('?？ ')} — {item.answer}"
    return Note(text, [laid.within(item.paragraph, item.spans)], "question")


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
