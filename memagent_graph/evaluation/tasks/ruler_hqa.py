"""RULER-HQA: a question over a number of paragraphs, in the form of MemAgent's evaluation.

MemAgent (arXiv 2507.02259) asks HotpotQA's questions over 50 to 6,400 numbered
paragraphs, made as RULER's task qa_2 is. Its samples are published as `eval_50.json` to
`eval_6400.json`; `ruler_hqa` reads these as they are, and makes others from files of questions.
"""

from __future__ import annotations

import random
import re
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Piece, Sample, Task, Unit, draw, file_digest
from memagent_graph.evaluation.tasks.question_files import (
    read_row,
    row_spans,
    same,
)
from memagent_graph.evaluation.tasks.questions import (
    ANSWER_TOKENS,
    TEMPLATE,
    QuestionFileTask,
    others,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.evaluation.tasks.question_files import Paragraph, Question
    from memagent_graph.text.tokens import Tokenizer

VERSION = 1
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
        return f"ruler_hqa {VERSION} {file_digest(self.file)}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        rng = random.Random(f"{self.name} {length} {index} {seed}")  # noqa: S311 - no secret
        question = self.questions[draw(self.name, len(self.texts), index, seed)]
        if length < len(question.gold):
            message = f"{self.name} needs {len(question.gold)} paragraphs or more, not {length}."
            raise ConfigurationError(message)
        fitting = _fitting(question, others(question, self.paragraphs, rng))
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


class _Asked(NamedTuple):
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
    def asked(self) -> list[_Asked]:
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
        return f"ruler_hqa {VERSION} {file_digest(self.file)}"

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

    def _ask(self, span: tuple[int, int]) -> _Asked:
        row = read_row(self.file, span)
        if not isinstance(row["context"], str):
            message = (
                "its documents are numbers of HotpotQA's paragraphs; make them by "
                "ruler_hqa:hotpot_dev_distractor_v1.json"
            )
            raise TypeError(message)
        return _Asked(row["input"], tuple(row["answers"]), span)


def _fitting(question: Question, candidates: Iterator[Paragraph]) -> Iterator[Paragraph]:
    """The candidates that hold no answer, as a word and in any case, and the question's own."""
    answers = [answer.casefold().strip() for answer in question.answers]
    words = "|".join(re.escape(answer) for answer in answers if answer and answer not in _CLOSED)
    holds = re.compile(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])") if words else None
    for paragraph in candidates:
        if paragraph in question.near or not (
            holds and holds.search("\n".join(paragraph).casefold())
        ):
            yield paragraph
