"""Questions of a file, over its paragraphs and then essays, to a length in tokens."""

from __future__ import annotations

import random
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import (
    Piece,
    Sample,
    Task,
    check_length,
    draw,
    file_digest,
    filled,
)
from memagent_graph.evaluation.tasks.forms import PASSAGES
from memagent_graph.evaluation.tasks.haystack import essay
from memagent_graph.evaluation.tasks.question_files import Paragraph, distinct, read_questions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.evaluation.tasks.question_files import Question
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

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
            return filled(filler, placed, length, tokenizer.count)

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
