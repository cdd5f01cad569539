r"""A sample: a question, a document made while it is read, what the answer must hold, and scores.

An answer is scored by the content of its box, not by the text around it. The answer of a reply is
what it boxes, or what follows its last "The answer is" or "Answer:", or else all of it, up to the
length that the task allows.
"""

from __future__ import annotations

import hashlib
import random
import re
import string
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple

from memagent_graph.errors import ConfigurationError
from memagent_graph.models.reply import in_box
from memagent_graph.text.files import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

_THOUSAND, _MILLION = 2**10, 2**20
Unit = Literal["tokens", "whole"]
"""Unit of a length; "whole" documents have their own length, and are requested with 0."""
Metric = Literal["all", "any"]
"""Metric of several right answers: the share that is given, or whether any is."""


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


SCORES = 3
"""Version of the scores; a change that scores the same reply otherwise increases it."""

_BOX = "\\boxed{"
_BETWEEN_BOXES = 16
"""Code points between two boxes that are one answer: "A or B", or a list."""
_ANNOUNCED = re.compile(
    r"\b(?:final |correct )?answer\b(?:\*{0,2}:\*{0,2}|\*{0,2} (?:is|are)\b:?)", re.IGNORECASE
)
_OR = re.compile(r"\b(?:or|versus|vs)\b|(?<!\d)/|/(?!\d)|或|还是", re.IGNORECASE)
_NO_CHOICE = re.compile(
    r"\b(?:more or less|or (?:so|more|less|fewer|not|thereabouts))\b", re.IGNORECASE
)
_LISTED = re.compile(r"[,;\n]|\band\b|\bor\b")
_SENTENCE_END = re.compile(r"(?<=\w\w\w[.!?])\s+|[\n。！？]")
_LONGEST_HEDGE = 60
"""Code points beside the right answer: a longer sentence with an "or" quotes or explains."""
_CODE = re.compile(r"(?<![\w-])(?:\d{5,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![\w-])")
"""Values of which a sentence hardly ever needs two: long numbers and UUIDs."""


@dataclass(frozen=True)
class Grade:
    """The answer of a reply, and its scores, each between 0 and 1.

    Attributes:
        answer: the part of the reply that counts as the answer; None without a reply.
        score: score of the answer alone, by the task's metric.
        raw_score: score of the whole reply, as RULER compares: wanted strings may stand anywhere.
    """

    answer: str | None = None
    score: float = 0.0
    raw_score: float = 0.0


def grade(reply: str, sample: Sample, tokenizer: Tokenizer, *, final: str | None = None) -> Grade:
    """Grade a reply.

    Where one answer is asked for, an answer that offers others beside it scores 0. The reader's own
    answer is `final`: the built-in reader's reply has places after it.
    """
    said = reply if final is None or _BOX in reply else final
    lead = (sample.template or "").rpartition("{question}")[2].strip()
    answer = final_answer(said, lead, one=sample.metric == "any")
    if sample.answer_tokens is not None:
        answer = answer[: tokenizer.prefix(answer, sample.answer_tokens)]
    single = sample.metric == "any" or len(sample.answers) == 1
    score = 0.0 if single and hedges(answer, sample.answers) else share(answer, sample)
    return Grade(
        answer,
        score,
        raw_score=substring_match(reply, sample.answers, sample.metric),
    )


def share(text: str, sample: Sample) -> float:
    """The share of the wanted answers that a text holds, or whether it holds one, by the metric."""
    return share_of([holds(text, wanted) for wanted in sample.answers], sample.metric)


def final_answer(reply: str, lead: str = "", *, one: bool = True) -> str:
    r"""Return the part of a reply that is its answer.

    The last `\boxed{}`, with those next to it; else what follows the last announcement of an
    answer; else the whole reply. A reply may repeat the `lead`, the beginning of the answer in the
    task's own prompt. If `one` answer is asked for, it ends with its line.
    """
    if _BOX in reply:
        return without_latex(_boxes(reply))
    announced = [*_ANNOUNCED.finditer(reply)]
    text = reply[announced[-1].end() :] if announced else reply
    if lead and lead in reply:
        text = reply.rpartition(lead)[2]
    elif announced and one:
        text = next((line for line in text.splitlines() if line.strip()), "")
    return without_latex(text).strip(" \n*")


def holds(answer: str, wanted: str) -> bool:
    """Whether `wanted` stands in an answer, in any case, and not within a longer word."""
    answer, wanted = answer.lower(), wanted.strip().lower()
    at = answer.find(wanted)
    while wanted and at >= 0:
        if not (_continues_word(answer, at) or _continues_word(answer, at + len(wanted))):
            return True
        at = answer.find(wanted, at + 1)
    return False


def hedges(answer: str, wanted: Sequence[str]) -> bool:
    """Whether an answer offers something else beside what is wanted.

    Parts joined by "or" or a slash are alternatives, of which each must be right; so is each of a
    list of nothing but numbers, and each long number or UUID.
    """
    right = {normalize(one) for one in wanted}
    if any(_OR.search(one) for one in wanted):
        return False
    if any(_offers(sentence, wanted) for sentence in _SENTENCE_END.split(answer)):
        return True
    items = [item for part in _LISTED.split(answer) if (item := normalize(part))]
    if len(items) > 1 and all(item.isdigit() for item in items):
        return not right.issuperset(items) and normalize(answer) not in right
    codes = {code.lower() for code in _CODE.findall(answer)}
    asked = {code.lower() for one in wanted for code in _CODE.findall(one)}
    return bool(asked) and not codes <= asked


def _offers(sentence: str, wanted: Sequence[str]) -> bool:
    """Whether a sentence has a right answer beside an alternative that is none."""
    parts = [part for part in _OR.split(_NO_CHOICE.sub(" ", sentence)) if normalize(part)]
    given = [[one for one in wanted if holds(part, one)] for part in parts]
    if not any(given) or all(given):
        return False
    longest = max(len(one) for right in given for one in right)
    return len(sentence) - longest <= _LONGEST_HEDGE


def _continues_word(text: str, at: int) -> bool:
    """Whether a word continues at a place: not between signs of a script without spaces."""
    if not 0 < at < len(text):
        return False
    return _in_word(text[at - 1]) and _in_word(text[at])


def _in_word(sign: str) -> bool:
    return sign.isalnum() and not "\u3040" <= sign <= "\ud7ff"


def _boxes(text: str) -> str:
    """The content of the last box, and of those before it with next to nothing between."""
    start = text.rfind(_BOX)
    content = in_box(text, start)
    while (before := text.rfind(_BOX, 0, start)) >= 0:
        other = in_box(text[:start], before)
        between = text[before + len(_BOX) + len(other) + 1 : start]
        if len(between) > _BETWEEN_BOXES or "." in between or "\n\n" in between:
            break
        content, start = f"{other}{between}{content}", before
    return content.strip()


_Z = 1.96
"""Standard deviations to either side of the mean that hold 95%."""


class Mean(NamedTuple):
    """A mean with its 95% interval."""

    value: float
    low: float
    high: float


def mean_score(scores: Sequence[float]) -> Mean:
    """The mean of independent scores between 0 and 1, with Wilson's 95% interval.

    This is made for zeros and ones; for scores in between, whose variance is smaller, it is wide.

    Raises:
        ValueError: There are no scores.
    """
    mean, n, z = fmean(scores), len(scores), _Z
    centre = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * sqrt(max(0.0, mean * (1 - mean)) / n + z**2 / (4 * n * n)) / (1 + z**2 / n)
    # Rounding takes an end past 0, past 1, and where all scores are 0 or 1, past the mean.
    return Mean(mean, max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half)))


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def substring_match(answer: str, wanted: Sequence[str], metric: Metric = "all") -> float:
    """Return the share of wanted strings that occur in the answer in any case, as RULER scores.

    With the metric "any", whether one does.
    """
    return share_of([one.lower() in answer.lower() for one in wanted], metric)


def share_of(found: Sequence[bool], metric: Metric) -> float:
    """Return the share of the wanted answers that were found or, for "any", whether one was."""
    return float(any(found)) if metric == "any" else sum(found) / max(1, len(found))


def exact_match(answer: str, wanted: Iterable[str]) -> float:
    """Whether the answer is one of the wanted, as SQuAD compares."""
    return float(any(normalize(answer) == normalize(one) for one in wanted))


def normalize(text: str) -> str:
    """Lower case, without punctuation and English articles, words one space apart."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def without_latex(text: str) -> str:
    r"""A text without LaTeX's `\text{}`, spaces, escapes and a pair of dollars around it."""
    text = _WRAPPED.sub(r"\1", text).replace("\\%", "%").replace("\\$", "$").replace("{,}", ",")
    text = _FRACTION.sub(r"\1/\2", re.sub(r"\\[,;! ]", " ", text)).strip()
    return text[1:-1].strip() if re.fullmatch(r"\$[^$]+\$", text) else text
