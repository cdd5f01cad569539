"""Questions over long conversations, from a file in the format of LoCoMo."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Piece, Sample, Task, draw, file_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.text.tokens import Tokenizer

VERSION = 1
"""To be raised when samples of the same arguments become others."""
_UNANSWERABLE = 5
"""LoCoMo's category of questions that the conversation does not answer."""


@dataclass(frozen=True)
class _Asked:
    question: str
    answer: str
    evidence: frozenset[str]
    turns: list[tuple[str, str]]


class ConversationTask(Task):
    """A conversation, turn by turn with its dates, and a question about it.

    A conversation is as long as it is: one that has more tokens than asked for loses its oldest
    turns, but for those that the answer needs; one that has fewer stays short.

    Args:
        file: a list of conversations with questions, as LoCoMo's.

    Raises:
        ConfigurationError: The file cannot be read.
    """

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        self.name = f"conversation_{self.file.stem}"

    @cached_property
    def asked(self) -> list[_Asked]:
        """All questions of the file that have an answer in their conversation."""
        try:
            samples = json.loads(self.file.read_text("utf-8"))
            return [asked for sample in samples for asked in _questions(sample)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{self.file} is no file of LoCoMo: {error!r}"
            raise ConfigurationError(message) from error

    @property
    def identity(self) -> str:
        """Of the generator and the file."""
        return f"conversation {VERSION} {file_digest(self.file)}"

    @property
    def count(self) -> int:
        """Each question is asked once."""
        return len(self.asked)

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample; the seed chooses which questions are asked first."""
        asked = self.asked[draw(self.name, self.count, index, seed)]

        def pieces() -> Iterator[Piece]:
            over = sum(tokenizer.count(text) for _, text in asked.turns) - length
            for name, text in asked.turns:
                needed = name in asked.evidence
                if over > 0 and not needed:
                    over -= tokenizer.count(text)
                    continue
                yield Piece(text, evidence=needed)

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=asked.question,
            answers=(asked.answer,),
            metric="any",
            pieces=pieces,
        )


def _questions(sample: dict[str, Any]) -> Iterator[_Asked]:
    turns = [*_turns(sample["conversation"])]
    known = {name for name, _ in turns}
    for row in sample["qa"]:
        evidence = known.intersection(row["evidence"])
        if row["category"] != _UNANSWERABLE and evidence:
            yield _Asked(row["question"], str(row["answer"]), frozenset(evidence), turns)


def _turns(conversation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    number = 1
    while (session := conversation.get(f"session_{number}")) is not None:
        told = conversation[f"session_{number}_date_time"]
        for turn in session:
            yield turn["dia_id"], f"[{told}] {turn['speaker']}: {turn['text']}\n"
        number += 1
