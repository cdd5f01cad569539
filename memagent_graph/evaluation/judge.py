"""A model that judges answers by a sample's criteria."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from langchain_core.messages import HumanMessage

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ModelError
from memagent_graph.models.failures import repeat
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.completion import find_boxed, take_reply

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from memagent_graph.evaluation.samples import Criterion, Sample

_ATTEMPTS = 2
"""Replies to one question that are read before the judge is given up."""
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
        grades = [await self._ask(criterion, answer) for criterion in sample.criteria]
        return sum(grades) / len(grades)

    async def _ask(self, criterion: Criterion, answer: str) -> float:
        prompt = [HumanMessage(criterion.prompt(answer))]
        text = ""
        for _ in range(_ATTEMPTS):
            _, text = await repeat(lambda _: take_reply(self.model.ainvoke(prompt)), self.config)
            try:
                return criterion.grade(text)
            except ValueError:
                continue
        message = (
            f"The judge's reply is not a grade, twice; choose a model that follows instructions. "
            f"It said: {text[:_SHOWN]!r}"
        )
        raise ModelError(message)


_KEYS = ("verdict", "answer", "score", "grade", "correct")
_LABEL = r"\b(?:verdict|answer|score|grade|correct)\b[\"'*_\s]*(?::|=|\bis\b)[\"'*_\s]*"
_YES_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_LABELLED_YES_NO = re.compile(rf"{_LABEL}(yes|no|true|false)\b", re.IGNORECASE)
_FIRST_YES_NO = re.compile(r"\W*(yes|no|true|false)\b", re.IGNORECASE)
_NUMBER = r"(?<![\d.,/-])(\d+(?:\.\d+)?|\.\d+)(?:\s*/\s*1(?:\.0+)?)?(?![\d/%]|\.\d)"
_NUMBERS = re.compile(_NUMBER)
_LABELLED_NUMBER = re.compile(_LABEL + _NUMBER, re.IGNORECASE)
_LIST = re.compile(r"\[[\s\d,]*\]")


def read_verdict(reply: str) -> float:
    r"""1 for yes and 0 for no, from a bare word, JSON, `\boxed{}`, a label or a sentence.

    Raises:
        ValueError: It says neither, or both.
    """
    text = _essence(reply)
    labelled = _LABELLED_YES_NO.findall(text)
    first = _FIRST_YES_NO.match(text)
    if labelled or first:
        word = labelled[-1] if labelled else first[1] if first else ""
        return float(word.lower() in ("yes", "true"))
    said = {word.lower() for word in _YES_NO.findall(text)}
    if len(said) != 1:
        message = f"Neither yes nor no: {reply!r}"
        raise ValueError(message)
    return float(said == {"yes"})


def read_grade(reply: str) -> float:
    r"""A number from 0 to 1, from a bare number, JSON, `\boxed{}` or a label ("Score: 0.5").

    Raises:
        ValueError: There is none, it is beyond that range, or there are several.
    """
    text = _essence(reply)
    found = _LABELLED_NUMBER.findall(text)[-1:] or list(dict.fromkeys(_NUMBERS.findall(text)))
    if len(found) != 1 or not 0 <= float(found[0]) <= 1:
        message = f"No grade between 0 and 1: {reply!r}"
        raise ValueError(message)
    return float(found[0])


def read_order(reply: str) -> list[int]:
    r"""Numbers in order, from the last list in brackets, or from nothing but numbers.

    Raises:
        ValueError: There is none.
    """
    text = find_boxed(reply)
    lists = _LIST.findall(text)
    listed = lists[-1] if lists else text
    if not lists and re.search(r"[^\d\s,;>-]", text):
        message = f"No list of numbers: {reply!r}"
        raise ValueError(message)
    return [int(number) for number in re.findall(r"\d+", listed)]


def _essence(reply: str) -> str:
    """Return the content of the box, or of a known key in a JSON object, or else the reply."""
    text = find_boxed(reply)
    try:
        found = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return text
    if isinstance(found, dict):
        return next((str(found[key]) for key in _KEYS if key in found), text)
    return text
