"""A sample: a question, a document that is made while it is read, and what the answer must hold."""

from __future__ import annotations

import hashlib
import random
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from memagent_graph.errors import ConfigurationError
from memagent_graph.text.files import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

_THOUSAND, _MILLION = 2**10, 2**20
Unit = Literal["tokens", "whole"]
"""Unit of a length; "whole" documents have their own length, and are requested with 0."""


@dataclass(frozen=True)
class SampleQuestion:
    """A question with its right answers.

    Attributes:
        id: id within a run: task, length and index.
        task: the task's name.
        length: requested length of the document, in the task's unit.
        question: the question.
        answers: strings of a right answer.
        metric: whether the answer must hold "all" or "any" of them.
    """

    id: str
    task: str
    length: int
    question: str
    answers: tuple[str, ...]
    metric: Metric


@dataclass(frozen=True)
class Sample(SampleQuestion):
    """One question over one document.

    Attributes:
        pieces: function that makes the document anew with each call, in parts.
        template: the benchmark's own prompt, with the fields {memory}, for the document, and
            {question}; None if the benchmark has none.
        answer_tokens: the longest answer that counts; None for any length.
    """

    pieces: Callable[[], Iterator[str]]
    template: str | None = None
    answer_tokens: int | None = None

    def open(self) -> Source:
        """Return the document, in a temporary file: it takes no memory, however long it is."""
        return open_source(self.pieces())


class Task(ABC):
    """Makes samples.

    Attributes:
        name: name of the task.
        unit: unit of its lengths.
    """

    name: str
    unit: Unit = "tokens"

    @property
    @abstractmethod
    def identity(self) -> str:
        """Version of the generator and digests of its files, which change if the samples do."""

    @property
    def texts(self) -> Sequence[str] | None:
        """Text that identifies each question; None if there are any number of them."""
        return None

    @property
    def count(self) -> int | None:
        """Number of different samples of each length; None for any number."""
        return None if self.texts is None else len(self.texts)

    @abstractmethod
    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample; the same arguments make the same one, and another index another.

        Args:
            length: length of the document, in the task's unit: tokens to within 1%.
            index: index of the sample, from 0 to `count` - 1.
            seed: seed of the run; chooses the order of the questions.
            tokenizer: counts tokens.

        Raises:
            ConfigurationError: There is not enough text for that length, or no such sample.
        """


def file_digest(file: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror}."
        raise ConfigurationError(message) from error


def draw(task: str, count: int, index: int, seed: int) -> int:
    """Return the question at `index` of `count`, each of which occurs once, in the seed's order."""
    if index >= count:
        message = f"{task} has {count:,} different questions, not {index + 1:,}."
        raise ConfigurationError(message)
    return _order(task, count, seed)[index]


@lru_cache(maxsize=16)
def _order(task: str, count: int, seed: int) -> list[int]:
    return random.Random(f"{task} {seed}").sample(range(count), count)  # noqa: S311 - no secret


def check_length(task: str, length: int, least: int) -> None:
    """Raise `ConfigurationError` if a document of so many tokens is too short for a task."""
    if length < least:
        message = f"{task} needs documents of {least:,} tokens or more, not {length:,}."
        raise ConfigurationError(message)


def fill_document(
    filler: Iterable[str],
    inserts: Iterable[tuple[float, str]],
    length: int,
    count: Callable[[str], int],
) -> Iterator[str]:
    """A document of `length` tokens: parts of filler, with pieces put in at depths from 0 to 1.

    The last part of the filler is cut at a word.
    """
    waiting = sorted(inserts, key=lambda insert: insert[0])
    room = length - count("".join(text for _, text in waiting))
    used = 0
    for text in filler:
        while waiting and waiting[0][0] * room <= used:
            yield waiting.pop(0)[1]
        cost = count(text)
        if used + cost > room:
            share = max(0, len(text) * (room - used) // cost)
            yield text[: text.rfind(" ", 0, share) + 1]
            break
        yield text
        used += cost
    for _, piece in waiting:
        yield piece


def short(tokens: int) -> str:
    """A number of tokens as people say it: 8192 is "8K", and 3,670,016 "3.5M"."""
    if tokens >= _MILLION:
        return f"{tokens / _MILLION:.3g}M"
    return f"{tokens / _THOUSAND:.3g}K" if tokens >= _THOUSAND else str(tokens)


def parse_length(text: str) -> int:
    """The reverse of `short`: "8k" is 8192."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([km]?)", text.lower())
    unit = {"": 1, "k": _THOUSAND, "m": _MILLION}
    tokens = int(float(found[1]) * unit[found[2]]) if found else 0
    if not tokens:
        message = f"Lengths are numbers of tokens such as 8k,128k,3.5m, not {text!r}."
        raise ConfigurationError(message)
    return tokens


Metric = Literal["all", "any"]
"""Metric of several right answers: the share that is given, or whether any is."""
