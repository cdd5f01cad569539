r"""Score an answer by the content of its box, not by the text around it.

The answer of a reply is what it boxes, or what follows its last "The answer is" or "Answer:", or
else all of it, up to the length that the task allows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.matching import (
    exact_match,
    normalized,
    substring_match,
    token_f1,
    without_latex,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.evaluation.samples import Sample
    from memagent_graph.text.tokens import Tokenizer

VERSION = 2
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


class Scores(NamedTuple):
    """The scores of a reply, each between 0 and 1.

    Attributes:
        score: score of the answer alone, by the task's metric.
        raw: score of the whole reply, as RULER compares: wanted strings may stand anywhere.
        exact_match: exact match of the answer, as SQuAD compares.
        f1: F1 of the answer's words, as SQuAD computes it.
    """

    score: float
    raw: float
    exact_match: float
    f1: float


def grade(
    reply: str, sample: Sample, tokenizer: Tokenizer, *, final: str | None = None
) -> tuple[str, Scores]:
    """Return the answer of a reply, and its scores.

    Where one answer is asked for, an answer that offers others beside it scores 0.

    Args:
        reply: the model's reply.
        sample: the sample.
        tokenizer: measures the answer.
        final: the reader's answer, without a box: the built-in reader's reply has places after the
            answer.
    """
    said = reply if final is None or _BOX in reply else final
    answer = final_answer(said, _lead(sample.template), one=sample.metric == "any")
    if sample.answer_tokens is not None:
        answer = answer[: tokenizer.prefix(answer, sample.answer_tokens)]
    single = sample.metric == "any" or len(sample.answers) == 1
    score = 0.0 if single and hedges(answer, sample.answers) else share(answer, sample)
    raw = substring_match(reply, sample.answers, sample.metric)
    return answer, Scores(
        score, raw, exact_match(answer, sample.answers), token_f1(answer, sample.answers)
    )


def share(text: str, sample: Sample) -> float:
    """The share of the wanted answers that a text holds, or whether it holds one, by the metric."""
    found = [holds(text, wanted) for wanted in sample.answers]
    if sample.metric == "any":
        return float(any(found))
    return sum(found) / len(found) if found else 0.0


def final_answer(reply: str, lead: str = "", *, one: bool = True) -> str:
    r"""Return the part of a reply that is its answer.

    Args:
        reply: the model's reply.
        lead: beginning of the answer in the task's own prompt, which a reply may repeat.
        one: whether one answer is asked for, which ends with its line.

    Returns:
        The last `\boxed{}`, with those next to it; else what follows the last announcement of an
        answer; else the whole reply.
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
        if not (_joined(answer, at) or _joined(answer, at + len(wanted))):
            return True
        at = answer.find(wanted, at + 1)
    return False


def hedges(answer: str, wanted: Sequence[str]) -> bool:
    """Whether an answer offers something else beside what is wanted.

    Parts joined by "or" or a slash are alternatives, of which each must be right; so is each of a
    list of nothing but numbers, and each long number or UUID.
    """
    right = {normalized(one) for one in wanted}
    if any(_OR.search(one) for one in wanted):
        return False
    if any(_offers(sentence, wanted) for sentence in _SENTENCE_END.split(answer)):
        return True
    items = [item for part in _LISTED.split(answer) if (item := normalized(part))]
    if len(items) > 1 and all(item.isdigit() for item in items):
        return not right.issuperset(items) and normalized(answer) not in right
    codes = {code.lower() for code in _CODE.findall(answer)}
    asked = {code.lower() for one in wanted for code in _CODE.findall(one)}
    return bool(asked) and not codes <= asked


def _offers(sentence: str, wanted: Sequence[str]) -> bool:
    """Whether a sentence has a right answer beside an alternative that is none."""
    parts = [part for part in _OR.split(_NO_CHOICE.sub(" ", sentence)) if normalized(part)]
    given = [[one for one in wanted if holds(part, one)] for part in parts]
    if not any(given) or all(given):
        return False
    longest = max(len(one) for right in given for one in right)
    return len(sentence) - longest <= _LONGEST_HEDGE


def _joined(text: str, at: int) -> bool:
    """Whether a word goes on at a place: not between signs of a script without spaces."""
    if not 0 < at < len(text):
        return False
    return _in_word(text[at - 1]) and _in_word(text[at])


def _in_word(sign: str) -> bool:
    return sign.isalnum() and not "\u3040" <= sign <= "\ud7ff"


def _lead(template: str | None) -> str:
    """Return the beginning of the answer in a template, after the question."""
    return (template or "").rpartition("{question}")[2].strip()


def _boxes(text: str) -> str:
    """The content of the last box, and of those before it with next to nothing between."""
    start = text.rfind(_BOX)
    content, _ = _content(text, start, len(text))
    while (before := text.rfind(_BOX, 0, start)) >= 0:
        other, end = _content(text, before, start)
        between = text[end:start]
        if len(between) > _BETWEEN_BOXES or "." in between or "\n\n" in between:
            break
        content, start = f"{other}{between}{content}", before
    return content.strip()


def _content(text: str, start: int, limit: int) -> tuple[str, int]:
    """Return the content of the box at `start`, with balanced braces, and its end."""
    first, depth = start + len(_BOX), 1
    for at in range(first, limit):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[first:at], at + 1
    return text[first:limit], limit
