"""A parser that takes a prompt in RULER's form apart, official or generated here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from string import Formatter
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.evaluation.tasks.forms import FORMS, NEEDLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.evaluation.tasks.forms import Form, Kind


@dataclass(frozen=True)
class Parts:
    """A prompt of RULER's, taken apart.

    Attributes:
        form: form of the prompt.
        document: the document.
        question: the question.
        prefix: the beginning of the answer.
        head: the text before the document.
        answer: text after the prefix in an example; otherwise empty.
        fields: values of the form's fields.
        examples: prompts with their answers, in front of the instruction.
    """

    form: Form
    document: str
    question: str
    prefix: str
    head: str
    answer: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    examples: tuple[Parts, ...] = ()

    @property
    def template(self) -> str:
        """The prompt with {memory} and {question} in the places of these."""
        return f"{self.head}{{memory}}{self.form.link}{{question}}{self.prefix}"


def parse(prompt: str) -> Parts | None:
    """Take a prompt with its answer prefix apart; None if it has no form of RULER's."""
    for form in FORMS:
        parts = _parse(form, prompt)
        if parts is not None:
            return parts
    return None


def _parse(form: Form, prompt: str) -> Parts | None:
    opened = _read(form.instruction, prompt)
    if opened is None:
        return None
    fields, start = opened
    before = prompt[:start]
    *shown, last = prompt[start:].split(before) if form.gap else [prompt[start:]]
    examples = [_turn(form, before, body.removesuffix(form.gap), fields) for body in shown]
    asked = _turn(form, prompt[: len(prompt) - len(last)], last, fields)
    if asked is None or asked.answer or None in examples:
        return None
    return replace(asked, examples=tuple(one for one in examples if one))


def _turn(form: Form, head: str, body: str, fields: dict[str, str]) -> Parts | None:
    link = form.link + form.question.partition("{")[0]
    end = body.rfind(link)
    read = _read(f"{form.link}{form.question}{form.prefix}{{answer}}", body, max(end, 0), fields)
    if read is None:
        return None
    found = read[0]
    answer = found.pop("answer")
    question = form.question.format(**found)
    prefix = form.prefix.format(**found)
    return Parts(form, body[:end], question, prefix, head, answer, found)


def _read(
    pattern: str, text: str, start: int = 0, known: dict[str, str] | None = None
) -> tuple[dict[str, str], int] | None:
    """Return the values of a pattern's fields, and the end; None if the text has another form.

    The last field reaches to the end of the text, others to where the pattern goes on.
    """
    found, name = dict(known or {}), None
    for literal, following, *_ in Formatter().parse(pattern):
        end = text.find(literal, start) if name else start
        if end < 0 or not text.startswith(literal, end):
            return None
        if name and found.setdefault(name, text[start:end]) != text[start:end]:
            return None
        start, name = end + len(literal), following
    if name:
        found[name], start = text[start:], len(text)
    return found, start


class Statement(NamedTuple):
    """Something that a document says.

    Attributes:
        start: its first code point.
        end: one past its last.
        subject: a key, a variable, or a word.
        value: value of the key or variable; the number in a list.
    """

    start: int
    end: int
    subject: str
    value: str


def statements(kind: Kind, document: str) -> Iterator[Statement]:
    """Yield the statements of a document, in order: needles, assignments, or each of its words."""
    if kind == "niah":
        yield from _needles(document)
    elif kind == "cwe":
        yield from _listed(document)
    elif kind in {"vt", "fwe"}:
        start = 0
        for part in document.split("\n" if kind == "vt" else " "):
            subject, _, value = part.removeprefix("VAR ").partition(" = ")
            if kind == "fwe" or part.startswith("VAR "):
                yield Statement(start, start + len(part), subject, value.rstrip())
            start += len(part) + 1


def _needles(document: str) -> Iterator[Statement]:
    start = 0
    while (start := document.find(NEEDLE.partition("{")[0], start)) >= 0:
        read = _read(NEEDLE, document, start)
        if read is None:
            return
        fields, end = read
        yield Statement(start, end, fields["query"], fields["value"])
        start = end


def _listed(document: str) -> Iterator[Statement]:
    start = 0
    for number in count(1):
        after = document.find(f" {number + 1}. ", start)
        end = after if after >= 0 else len(document)
        place, _, word = document[start:end].partition(". ")
        yield Statement(start, end, word, place)
        if after < 0:
            return
        start = end + 1
