"""A sample: a question, a document that is made while it is read, and what the answer must hold."""

from __future__ import annotations

import hashlib
import random
import re
import string
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

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
class Criterion:
    """One thing that a judge is asked about an answer; its reply, of the schema, has a grade."""

    prompt: Callable[[str], str]
    schema: dict[str, Any]
    grade: Callable[[dict[str, Any]], float]


@dataclass(frozen=True)
class Sample:
    """One question over one document.

    Attributes:
        id: id within a run: task, length and index.
        task: the task's name.
        length: requested length, in the task's unit.
        question: the question.
        answers: strings of a right answer.
        metric: whether the answer must hold "all" or "any" of them.
        pieces: function that makes the document anew with each call, in parts.
        template: the benchmark's own prompt, with the fields {memory}, for the document, and
            {question}; None if the benchmark has none.
        answer_tokens: the longest answer that counts; None for any length.
        cluster: name that related samples share, such as their conversation: their scores are not
            independent. Empty for an independent sample.
        criteria: questions for a judge model; their mean is the score.
    """

    id: str
    task: str
    length: int
    question: str
    answers: tuple[str, ...]
    metric: Metric
    pieces: Callable[[], Iterator[str]]
    template: str | None = None
    answer_tokens: int | None = None
    cluster: str = ""
    criteria: tuple[Criterion, ...] = ()

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


class FileTask(Task):
    """Asks what a file asks, each once, over documents as they are; `read` knows no places."""

    unit: Unit = "whole"

    def __init__(
        self, name: str, version: str, file: Path, read: Callable[[], list[Sample]]
    ) -> None:
        self.name, self.file, self._version, self._read = name, file, version, read

    @cached_property
    def _asked(self) -> list[Sample]:
        return self._read()

    @property
    def identity(self) -> str:
        """Identity of the generator and the file."""
        return f"{self._version} {file_digest(self.file)}"

    @cached_property
    def texts(self) -> list[str]:
        """Questions with their answers: all documents may be asked the same."""
        return [" ".join((sample.question, *sample.answers)) for sample in self._asked]

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample; the seed chooses which are asked first."""
        asked = self._asked[draw(self.name, len(self._asked), index, seed)]
        name = f"{self.name}/{length}/{index}"
        return replace(asked, id=name, task=self.name, length=length)


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
    units = {"k": _THOUSAND, "m": _MILLION}
    unit = units.get(text[-1:].lower(), 1)
    try:
        tokens = int(float(text[:-1] if unit > 1 else text) * unit)
    except ValueError:
        tokens = 0
    if tokens <= 0:
        message = f"Lengths are numbers of tokens such as 8k,128k,3.5m, not {text!r}."
        raise ConfigurationError(message)
    return tokens


Metric = Literal["all", "any"]
"""Metric of several right answers: the share that is given, or whether any is."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def substring_match(answer: str, wanted: Sequence[str], metric: Metric = "all") -> float:
    """Return the share of wanted strings that occur in the answer in any case, as RULER scores.

    With the metric "any", whether one does.
    """
    there = [one.lower() in answer.lower() for one in wanted]
    return float(any(there)) if metric == "any" else sum(there) / max(1, len(there))


def exact_match(answer: str, wanted: Iterable[str]) -> float:
    """Whether the answer is one of the wanted, as SQuAD compares."""
    return float(any(normalize(answer) == normalize(one) for one in wanted))


def token_f1(answer: str, wanted: Iterable[str]) -> float:
    """The best F1 of the answer's words with those of one of the wanted, as SQuAD computes it."""
    return max(
        (_f1(normalize(answer).split(), normalize(one).split()) for one in wanted), default=0.0
    )


def normalize(text: str) -> str:
    """Lower case, without punctuation and English articles, words one space apart."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def without_latex(text: str) -> str:
    r"""A text without LaTeX's `\text{}`, spaces, escapes and a pair of dollars around it."""
    text = _WRAPPED.sub(r"\1", text).replace("\\%", "%").replace("\\$", "$").replace("{,}", ",")
    text = _FRACTION.sub(r"\1/\2", re.sub(r"\\[,;! ]", " ", text)).strip()
    return text[1:-1].strip() if re.fullmatch(r"\$[^$]+\$", text) else text


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted))
