"""Questions over paragraphs, from files of SQuAD, HotpotQA or Natural Questions."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

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
