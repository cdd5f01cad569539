"""Questions over files in the formats of SQuAD and HotpotQA, their paragraphs among others."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from memagent_graph.evaluation.tasks.haystack import essay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

VERSION = 1
"""To be raised when samples of the same arguments become others."""


@dataclass(frozen=True)
class _Question:
    text: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    near: tuple[str, ...] = ()


class QuestionTask(Task):
    """The paragraphs that answer, among others of the file and then of the essays.

    The last of the others is cut where the document has its length. None is there twice: where
    the file has too few, and there are no essays, it is an error.

    Args:
        file: in the format of SQuAD v1.1 or of HotpotQA (distractor).
        essays: filler for lengths that the file's paragraphs do not reach.

    Raises:
        ConfigurationError: The file cannot be read.
    """

    def __init__(self, file: str | Path, essays: Source | None = None) -> None:
        self.file = Path(file)
        self.essays = essays
        self.name = f"qa_{self.file.stem}"

    @cached_property
    def questions(self) -> list[_Question]:
        """All questions of the file."""
        try:
            content = json.loads(self.file.read_text("utf-8"))
            return [*(_squad(content) if isinstance(content, dict) else _hotpot(content))]
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{self.file} is no file of SQuAD or HotpotQA: {error!r}"
            raise ConfigurationError(message) from error

    @cached_property
    def paragraphs(self) -> list[str]:
        """All paragraphs of the file, each once."""
        return [*dict.fromkeys(p for q in self.questions for p in (*q.gold, *q.near))]

    @property
    def identity(self) -> str:
        """Of the generator, the file and the essays."""
        return f"questions {VERSION} {file_digest(self.file)} {self.essays and self.essays.digest}"

    @property
    def count(self) -> int:
        """Each question is asked once."""
        return len(self.questions)

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        rng = random.Random(f"{self.name} {length} {index} {seed}")  # noqa: S311 - no secret
        question = self.questions[draw(self.name, self.count, index, seed)]
        gold = [f"{text}\n\n" for text in question.gold]
        needed = sum(tokenizer.count(f"\n\n{text}") for text in question.gold)
        check_length(self.name, length, needed)
        room = length - needed
        others = [text for text in self.paragraphs if text not in question.gold]
        rng.shuffle(others)
        near = [text for text in others if text in question.near]
        others = near + [text for text in others if text not in question.near]
        chosen: list[str] = []
        spare: list[str] = []
        for text in others:
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
        placed = [(rng.random(), Piece(text, evidence=True)) for text in gold]
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
        )


def _squad(content: dict[str, Any]) -> Iterator[_Question]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in asked["answers"]))
                if answers:
                    yield _Question(asked["question"], answers, (paragraph["context"],))


def _hotpot(content: list[dict[str, Any]]) -> Iterator[_Question]:
    for asked in content:
        wanted = {title for title, _ in asked["supporting_facts"]}
        texts = {title: f"{title}: {''.join(lines)}" for title, lines in asked["context"]}
        gold = tuple(text for title, text in texts.items() if title in wanted)
        near = tuple(text for title, text in texts.items() if title not in wanted)
        yield _Question(asked["question"], (asked["answer"],), gold, near)
