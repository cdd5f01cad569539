"""Questions over paragraphs from files of SQuAD, HotpotQA or Natural Questions, to a length.

MemAgent (arXiv 2507.02259) asks HotpotQA's questions over 50 to 6,400 numbered
paragraphs, made as RULER's task qa_2 is. Its samples are published as `eval_50.json` to
`eval_6400.json`; `ruler_hqa` reads these as they are, and makes others from files of questions.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import (
    Piece,
    Sample,
    Task,
    Unit,
    check_length,
    draw,
    file_digest,
    fill_document,
)
from memagent_graph.evaluation.tasks.haystack import essay
from memagent_graph.evaluation.tasks.ruler import PASSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}]', re.DOTALL)
"""A string of JSON, or where an object begins or ends."""


class Paragraph(NamedTuple):
    """A paragraph with its title, which is empty where the file has none."""

    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question that paragraphs answer.

    Attributes:
        text: the question.
        answers: right answers, any of which is enough.
        gold: the paragraphs that answer it.
        near: the benchmark's own distractors for this question.
        cluster: name that questions with a common gold paragraph share; empty if there are none.
    """

    text: str
    answers: tuple[str, ...]
    gold: tuple[Paragraph, ...]
    near: tuple[Paragraph, ...] = ()
    cluster: str = ""


def read_questions(file: Path) -> list[Question]:
    """All questions of a file, each once, in the file's order.

    A question that occurs twice gets the answers of both rows and the paragraphs of the first.

    Raises:
        ConfigurationError: The file cannot be read, or has another format.
    """
    try:
        rows = [read_row(file, span) for span in row_spans(file)]
        parse = next(parse for key, parse in _FORMATS.items() if key in rows[0])
        return _cluster(_join(question for row in rows for question in parse(row)))
    except (OSError, ValueError, LookupError, TypeError, StopIteration) as error:
        message = f"{file} is not a SQuAD, HotpotQA or Natural Questions file: {error!r}"
        raise ConfigurationError(message) from error


def distinct(paragraphs: Iterable[Paragraph]) -> list[Paragraph]:
    """The first paragraph of each text."""
    found: dict[str, Paragraph] = {}
    for paragraph in paragraphs:
        found.setdefault(paragraph.text, paragraph)
    return [*found.values()]


def same(question: str) -> str:
    """Normalize the spelling of a question: case and white space do not count."""
    return " ".join(question.casefold().split())


def row_spans(file: Path) -> list[tuple[int, int]]:
    """Return the span of each outermost object of a JSON or JSON Lines file, in bytes.

    The file is mapped, not read: it may be larger than memory.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file holds no object, or ends early.
    """
    with file.open("rb") as stream:
        content = mmap(stream.fileno(), 0, access=ACCESS_READ)
    depth = start = 0
    spans = []
    for token in _TOKEN.finditer(content):
        mark = content[token.start()]
        if mark == ord("{"):
            start = start if depth else token.start()
            depth += 1
        elif mark == ord("}"):
            depth -= 1
            if depth == 0:
                spans.append((start, token.end()))
    listed = content[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    if depth or not spans or (listed and not content[-64:].rstrip().endswith(b"]")):
        raise ValueError("it holds no object, or ends early")
    return spans


def read_row(file: Path, span: tuple[int, int]) -> dict[str, Any]:
    """The object at a place of a file, given as `row_spans` does.

    Raises:
        OSError: The file cannot be read.
        ValueError: The object is not JSON.
    """
    start, end = span
    with file.open("rb") as stream:
        stream.seek(start)
        row: dict[str, Any] = json.loads(stream.read(end - start))
    return row


def _squad(content: dict[str, Any]) -> Iterator[Question]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in asked["answers"]))
                if answers:
                    yield Question(
                        asked["question"], answers, (Paragraph("", paragraph["context"]),)
                    )


def _hotpot(asked: dict[str, Any]) -> Iterator[Question]:
    wanted = {title for title, _ in asked["supporting_facts"]}
    context = distinct(Paragraph(title, "".join(lines)) for title, lines in asked["context"])
    gold = tuple(paragraph for paragraph in context if paragraph.title in wanted)
    near = tuple(paragraph for paragraph in context if paragraph.title not in wanted)
    if gold:
        yield Question(asked["question"], (asked["answer"],), gold, near)


def _natural(asked: dict[str, Any]) -> Iterator[Question]:
    if asked["answers"]:
        gold = Paragraph(asked["title"], asked["text"])
        yield Question(asked["question"], tuple(asked["answers"]), (gold,))


_FORMATS = {"data": _squad, "supporting_facts": _hotpot, "text": _natural}
"""Parsers of formats, by a key that only this format has."""


def _join(questions: Iterable[Question]) -> list[Question]:
    """Each question once, with all its answers."""
    found: dict[str, Question] = {}
    for question in questions:
        first = found.setdefault(same(question.text), question)
        answers = tuple(dict.fromkeys(first.answers + question.answers))
        found[same(question.text)] = replace(first, answers=answers)
    return [*found.values()]


def _cluster(questions: list[Question]) -> list[Question]:
    """Name what questions share: a gold paragraph, also by way of a third question."""
    parents: dict[str, str] = {}

    def root(text: str) -> str:
        while (parent := parents.setdefault(text, text)) != text:
            text = parent
        return text

    for question in questions:
        for paragraph in question.gold:
            parents[root(paragraph.text)] = root(question.gold[0].text)
    sizes = Counter(root(question.gold[0].text) for question in questions)
    names = {text: f"paragraph {number}" for number, text in enumerate(sizes)}
    roots = [root(question.gold[0].text) for question in questions]
    return [
        replace(question, cluster=names[text]) if sizes[text] > 1 else question
        for question, text in zip(questions, roots, strict=True)
    ]


VERSION = 2
"""Version of the generator; a change of the samples for equal arguments increases it."""
TEMPLATE, ANSWER_TOKENS = PASSAGES.template(), PASSAGES.tokens


class QuestionFileTask(Task):
    """A file of questions with their paragraphs.

    Attributes:
        file: a file in a format that `read_questions` knows.
    """

    file: Path

    @cached_property
    def questions(self) -> list[Question]:
        """All questions of the file, each once."""
        return read_questions(self.file)

    @cached_property
    def paragraphs(self) -> list[Paragraph]:
        """All paragraphs of the file, each once."""
        return distinct(one for asked in self.questions for one in (*asked.gold, *asked.near))

    @cached_property
    def texts(self) -> list[str]:
        """Each question is asked once."""
        return [asked.text for asked in self.questions]


class QuestionTask(QuestionFileTask):
    """Questions over the paragraphs that answer them, among others of the file and then essays.

    The last of the others is cut to the document's length. No paragraph occurs twice: if the file
    has too few, and there are no essays, it is an error.

    Args:
        file: a file in the format of SQuAD, HotpotQA (distractor), or Natural Questions with
            passages: a JSON object a line with question, answers, title and text.
        essays: filler for lengths that the file's paragraphs do not reach.

    Raises:
        ConfigurationError: The file cannot be read.
    """

    def __init__(self, file: str | Path, essays: Source | None = None) -> None:
        self.file = Path(file)
        self.essays = essays
        self.name = f"qa_{self.file.stem}"

    @property
    def identity(self) -> str:
        """Identity of the generator, the file and the essays."""
        return f"questions {VERSION} {file_digest(self.file)} {self.essays and self.essays.digest}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        rng = random.Random(f"{self.name} {length} {index} {seed}")  # noqa: S311 - no secret
        question = self.questions[draw(self.name, len(self.texts), index, seed)]
        gold = [_line(paragraph) for paragraph in question.gold]
        needed = sum(tokenizer.count(f"\n\n{text}") for text in gold)
        check_length(self.name, length, needed)
        room = length - needed
        chosen: list[str] = []
        spare: list[str] = []
        for text in map(_line, others(question, self.paragraphs, rng)):
            cost = tokenizer.count(f"\n\n{text}")  # ahead, for blank lines cost more before text
            if cost <= room:
                chosen.append(f"{text}\n\n")
                room -= cost
            else:
                spare.append(f"{text}\n\n")
        if room > length // 100 and not spare and self.essays is None:
            message = (
                f"The paragraphs of {self.file.name} have {length - room:,} tokens, and {length:,} "
                "were asked for: name a folder of texts as filler (--essays)."
            )
            raise ConfigurationError(message)
        placed = [(rng.random(), Piece(f"{text}\n\n", evidence=True)) for text in gold]
        placed += [(rng.random(), Piece(text)) for text in chosen]
        state = rng.getstate()

        def pieces() -> Iterator[Piece]:
            fresh = random.Random()  # noqa: S311 - no secret
            fresh.setstate(state)
            filler = chain(spare, essay(self.essays, fresh) if self.essays else ())
            return fill_document(filler, placed, length, tokenizer.count)

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=question.text,
            answers=question.answers,
            metric="any",
            pieces=pieces,
            template=TEMPLATE,
            answer_tokens=ANSWER_TOKENS,
            cluster=question.cluster,
        )


def others(
    question: Question, paragraphs: list[Paragraph], rng: random.Random
) -> Iterator[Paragraph]:
    """Yield paragraphs that do not answer a question, in random order, its own distractors first.

    Args:
        question: the question whose gold paragraphs are left out.
        paragraphs: paragraphs of the whole file, each once.
        rng: source of the order.
    """
    gold = {paragraph.text for paragraph in question.gold}
    near = [paragraph for paragraph in question.near if paragraph.text not in gold]
    taken = gold | {paragraph.text for paragraph in near}
    far = [paragraph for paragraph in paragraphs if paragraph.text not in taken]
    yield from rng.sample(near, len(near))
    yield from rng.sample(far, len(far))


def _line(paragraph: Paragraph) -> str:
    return ": ".join(part for part in paragraph if part)


RULER_HQA_VERSION = 1
"""Version of the generator; a change of the samples for equal arguments increases it."""
_CLOSED = {"yes", "no"}
"""Answers that a paragraph does not give by holding the word."""


def ruler_hqa(file: str | Path) -> Task:
    """The task of a file: published samples of RULER-HQA, or questions to make samples of.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    path = Path(file)
    try:
        row = read_row(path, row_spans(path)[0])
    except (OSError, ValueError) as error:
        message = f"{file} cannot be read as JSON: {error}"
        raise ConfigurationError(message) from error
    return PublishedTask(path) if {"context", "input"} <= row.keys() else ParagraphTask(path)


class ParagraphTask(QuestionFileTask):
    """A question over exactly as many paragraphs as asked for.

    The paragraphs that answer stand at random places among the question's own distractors and
    then others of the file, none twice. RULER and MemAgent draw the others from all of the file;
    here those that hold the answer are left out, because each would be a second place to find it.
    The question's own distractors are HotpotQA's choice and stay.

    Args:
        file: a file in a format that `read_questions` knows.

    Raises:
        ConfigurationError: The file cannot be read, or has too few paragraphs.
    """

    unit: Unit = "paragraphs"

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        self.name = f"ruler_hqa_{self.file.stem}"

    @property
    def identity(self) -> str:
        """Identity of the generator and the file."""
        return f"ruler_hqa {RULER_HQA_VERSION} {file_digest(self.file)}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        rng = random.Random(f"{self.name} {length} {index} {seed}")  # noqa: S311 - no secret
        question = self.questions[draw(self.name, len(self.texts), index, seed)]
        if length < len(question.gold):
            message = f"{self.name} needs {len(question.gold)} paragraphs or more, not {length}."
            raise ConfigurationError(message)
        fitting = _filter(question, others(question, self.paragraphs, rng))
        chosen = [*islice(fitting, length - len(question.gold))]
        shown = [*question.gold, *chosen]
        if len(shown) < length:
            message = (
                f"{self.file.name} has {len(self.paragraphs):,} different paragraphs, "
                f"{len(shown):,} of them to ask {question.text!r} over, and {length:,} were asked "
                "for: ask for fewer, or take a longer file, such as HotpotQA's."
            )
            raise ConfigurationError(message)
        rng.shuffle(shown)

        def pieces() -> Iterator[Piece]:
            for number, paragraph in enumerate(shown, 1):
                yield Piece("\n\n" if number > 1 else "")
                text = "\n".join((f"Document {number}:", *filter(None, paragraph)))
                yield Piece(text, evidence=paragraph in question.gold)

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=question.text,
            answers=question.answers,
            metric="any",
            pieces=pieces,
            template=TEMPLATE,
            answer_tokens=ANSWER_TOKENS,
            cluster=question.cluster,
        )


class _ParagraphQuestion(NamedTuple):
    question: str
    answers: tuple[str, ...]
    span: tuple[int, int]


class PublishedTask(Task):
    """The samples of a file of MemAgent's, `eval_50.json` to `eval_6400.json`, as they are.

    Which of its paragraphs answer is not published: the samples have no evidence. A document is
    read from the file when it is asked for, so the file may be larger than memory.

    Args:
        file: a list of objects with input (the question), answers and context (the document).

    Raises:
        ConfigurationError: The file cannot be read.
    """

    unit: Unit = "whole"

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        self.name = f"ruler_hqa_{self.file.stem}"

    @cached_property
    def asked(self) -> list[_ParagraphQuestion]:
        """All questions of the file, each once."""
        try:
            found = [self._ask(span) for span in row_spans(self.file)]
        except (OSError, ValueError, LookupError, TypeError) as error:
            message = f"{self.file} is not a RULER-HQA file: {error!r}"
            raise ConfigurationError(message) from error
        return [*{same(asked.question): asked for asked in reversed(found)}.values()][::-1]

    @property
    def identity(self) -> str:
        """Identity of the reader and the file."""
        return f"ruler_hqa {RULER_HQA_VERSION} {file_digest(self.file)}"

    @cached_property
    def texts(self) -> list[str]:
        """Each question is asked once."""
        return [asked.question for asked in self.asked]

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample, of the length that the file has."""
        asked = self.asked[draw(self.name, len(self.texts), index, seed)]

        def pieces() -> Iterator[Piece]:
            yield Piece(read_row(self.file, asked.span)["context"])

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=asked.question,
            answers=asked.answers,
            metric="any",
            pieces=pieces,
            template=TEMPLATE,
            answer_tokens=ANSWER_TOKENS,
        )

    def _ask(self, span: tuple[int, int]) -> _ParagraphQuestion:
        row = read_row(self.file, span)
        if not isinstance(row["context"], str):
            message = (
                "its documents are numbers of HotpotQA's paragraphs; make them by "
                "ruler_hqa:hotpot_dev_distractor_v1.json"
            )
            raise TypeError(message)
        return _ParagraphQuestion(row["input"], tuple(row["answers"]), span)


def _filter(question: Question, candidates: Iterator[Paragraph]) -> Iterator[Paragraph]:
    """The candidates that hold no answer, as a word and in any case, and the question's own."""
    answers = [answer.casefold().strip() for answer in question.answers]
    words = "|".join(re.escape(answer) for answer in answers if answer and answer not in _CLOSED)
    holds = re.compile(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])") if words else None
    for paragraph in candidates:
        if paragraph in question.near or not (
            holds and holds.search("\n".join(paragraph).casefold())
        ):
            yield paragraph
