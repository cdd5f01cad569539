r"""Score an answer by the content of its box, not by the text around it.

The answer of a reply is what it boxes, or what follows its last "The answer is" or "Answer:", or
else all of it, up to the length that the task allows. What no rule can grade, a model judges.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import combinations
from math import nan, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ModelError, ResponseFormatError
from memagent_graph.evaluation.samples import (
    exact_match,
    normalize,
    substring_match,
    token_f1,
    without_latex,
)
from memagent_graph.models.failures import repeat
from memagent_graph.models.structured import call_constrained, constraint, fill, shape_of
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.completion import take_reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage

    from memagent_graph.evaluation.samples import Criterion, Sample
    from memagent_graph.text.tokens import Tokenizer

VERSION = 3
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


_Z = 1.96
"""Standard deviations to either side of the mean that hold 95%."""


def interval(scores: Sequence[float], clusters: Sequence[str] = ()) -> tuple[float, float]:
    """Wilson's 95% interval around the mean of scores between 0 and 1.

    It is made for zeros and ones; for scores in between, whose variance is smaller, it is wide.
    Scores of one cluster, such as of questions about one conversation, are not independent: they
    count as fewer, by the design effect (Kish, Survey Sampling, 1965, section 5.4), and Student's
    quantile for the number of clusters takes the place of the normal one. A score whose cluster is
    empty is independent, as are all without `clusters`.

    Raises:
        ValueError: There are no scores.
    """
    if not scores:
        raise ValueError("There are no scores to average.")
    mean = fmean(scores)
    n, z = _independent(scores, clusters or [""] * len(scores))
    centre = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * sqrt(max(0.0, mean * (1 - mean)) / n + z**2 / (4 * n * n)) / (1 + z**2 / n)
    # Rounding takes an end past 0, past 1, and where all scores are 0 or 1, past the mean.
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def _independent(scores: Sequence[float], clusters: Sequence[str]) -> tuple[float, float]:
    """Return the number of independent scores that these are worth, and the quantile to use."""
    groups: dict[str | int, list[float]] = defaultdict(list)
    for number, (score, cluster) in enumerate(zip(scores, clusters, strict=True)):
        groups[cluster or number].append(score)
    n, count = len(scores), len(groups)
    if count == n:
        return n, _Z
    mean = fmean(scores)
    spread = sum((score - mean) ** 2 for score in scores) / (n - 1)
    least = n * n / sum(len(group) ** 2 for group in groups.values())  # all of a cluster alike
    worth = least
    if spread and count > 1:
        off = sum(sum(score - mean for score in group) ** 2 for group in groups.values())
        between = off * count / (count - 1) / n
        worth = n * spread / between if between else n
    return min(float(n), max(worth, least)), _student(count - 1)


class Mean(NamedTuple):
    """A mean with its 95% interval, whose ends are NaN where it is unknown."""

    value: float
    low: float
    high: float


def mean_score(scores: Sequence[float], clusters: Sequence[str] = ()) -> Mean:
    """The mean of scores between 0 and 1, with its `interval`."""
    low, high = interval(scores, clusters)
    return Mean(fmean(scores), low, high)


def mean_cost(values: Sequence[float]) -> Mean:
    """The mean of figures of 0 or more, with Student's interval; a single one's is unknown."""
    if not values:
        raise ValueError("There are no figures to average.")
    count, mean = len(values), fmean(values)
    if count == 1:
        return Mean(mean, nan, nan)
    half = _student(count - 1) * stdev(values, mean) / sqrt(count)
    return Mean(mean, max(0.0, mean - half), mean + half)


def _student(freedom: int) -> float:
    """The 97.5% quantile of Student's distribution for so many degrees of freedom."""
    return _STUDENT[max(0, min(freedom, len(_STUDENT)) - 1)]


_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179),
    *(2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064),
    *(2.060, 2.056, 2.052, 2.048, 2.045, 2.042, 1.96),
)
"""The 97.5% quantiles of Student's distribution for 1 to 30 degrees of freedom, and for many."""


def order_score(events: int, order: Sequence[int]) -> float:
    """Return Kendall's tau-b of the right order and the answer's, from 0 to 1: `(tau + 1) / 2`.

    As BEAM (arXiv 2510.27246, section 2.4, and its evaluator) ranks them: over the events and
    whatever else the answer lists; what one of the two lacks is tied there, last. So an answer
    that leaves events out, but adds none, loses little. Two cases have no tau there, or one that
    pays for nothing: an answer that lists no event at all scores 0, the only event there is 1.
    Events are numbered from 1; in the order, 0 is anything else.
    """
    if any(not 0 <= number <= events for number in order):
        message = f"There are events 1 to {events}, not all of {list(order)}."
        raise ValueError(message)
    place: dict[int, int] = {}
    extra = events
    for position, number in enumerate(order):
        known = number > 0 and number not in place
        extra += not known
        place[number if known else extra] = position
    if not any(number <= events for number in place):
        return 0.0
    items = range(1, extra + 1)
    right = [min(number, events + 1) for number in items]
    given = [place.get(number, extra + len(order)) for number in items]
    return (_tau_b(right, given) + 1) / 2


def _tau_b(one: Sequence[int], other: Sequence[int]) -> float:
    """Kendall's tau-b; 1 if there is only one item."""
    agree = apart_1 = apart_2 = 0
    for (a, b), (c, d) in combinations(zip(one, other, strict=True), 2):
        first, second = (a > c) - (a < c), (b > d) - (b < d)
        agree += first * second
        apart_1 += abs(first)
        apart_2 += abs(second)
    return agree / sqrt(apart_1 * apart_2) if apart_1 and apart_2 else 1.0


_SHOWN = 200
"""Characters of an unreadable reply that an error quotes."""


class Judge:
    """Asks a model for each criterion of a sample whether an answer meets it.

    It is shown the question, the right answer and the given one, but not who answered.

    Args:
        model: any LangChain chat model, with its own sampling.
        config: number of attempts of a call, and the pause between them.

    Attributes:
        identity: name and fingerprint of its model.
    """

    def __init__(self, model: BaseChatModel, config: ReadingConfig | None = None) -> None:
        self.model = model
        self.config = config or ReadingConfig()
        about = ChatReader(model, config=self.config).identity
        self.identity = f"{about.name} {about.fingerprint}"

    async def grade(self, sample: Sample, answer: str) -> float:
        """Return the mean over the sample's criteria, from 0 to 1.

        Raises:
            ModelError: The model cannot be reached, or two of its replies cannot be read.
            ValueError: The sample has no criteria.
        """
        if not sample.criteria:
            message = f"{sample.id} has no criteria: it is scored without a judge."
            raise ValueError(message)
        return fmean([await self._ask(criterion, answer) for criterion in sample.criteria])

    async def _ask(self, criterion: Criterion, answer: str) -> float:
        shape = shape_of(criterion.schema)
        held = constraint(self.model, shape)

        async def ask(messages: list[BaseMessage]) -> tuple[AIMessage, str]:
            def call(more: dict[str, Any]) -> Awaitable[tuple[AIMessage, str]]:
                return take_reply(self.model.ainvoke(messages, **more))

            return await repeat(lambda _: call_constrained(call, held), self.config)

        try:
            filled = await fill(shape, criterion.prompt(answer), ask)
        except ResponseFormatError as error:
            message = (
                "The judge's reply is not a grade, twice; choose a model that follows "
                f"instructions. It said: {error.reply[:_SHOWN]!r}"
            )
            raise ModelError(message) from error
        return criterion.grade(filled.plain)
