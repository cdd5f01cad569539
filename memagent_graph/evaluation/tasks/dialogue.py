"""Questions over whole conversations: what the tasks of the field have in common."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Piece, Sample, Task, Unit, draw, file_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memagent_graph.evaluation.samples import Criterion
    from memagent_graph.text.tokens import Tokenizer


@dataclass(frozen=True)
class Asked:
    """A question over a conversation.

    Attributes:
        question: the benchmark's question.
        answers: strings of a right answer, or ideal answers for a judge.
        pieces: the conversation, message by message.
        cluster: the conversation's name; empty if no other question shares it.
        criteria: questions for a judge about an answer; none if the answers decide.
    """

    question: str
    answers: tuple[str, ...]
    pieces: Callable[[], Iterator[Piece]]
    cluster: str = ""
    criteria: tuple[Criterion, ...] = ()


class DialogueTask(Task):
    """A whole conversation, message by message with dates and speakers, and a question about it.

    Args:
        file: a file in the benchmark's own format, as JSON or JSONL.

    Attributes:
        benchmark: name of the benchmark, for errors.
        version: version of the generator; a change of the samples increases it.
    """

    unit: Unit = "whole"
    benchmark: ClassVar[str]
    kind: ClassVar[str]
    version: ClassVar[int] = 1

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        stem = self.file.stem
        self.name = stem if stem.startswith(self.kind) else f"{self.kind}_{stem}"

    @abstractmethod
    def ask(self, row: dict[str, Any], number: int) -> Iterable[Asked]:
        """The questions of the file's row of that number."""

    @cached_property
    def asked(self) -> list[Asked]:
        """All questions of the file.

        Raises:
            ConfigurationError: It cannot be read, is in another format, or has no questions.
        """
        if self.file.suffix == ".parquet":
            message = (
                f"{self.file} is Parquet, which is not read. Write it as JSONL first: "
                f"datasets.load_dataset('parquet', data_files='{self.file.name}', split='train')"
                f".to_json('{self.file.stem}.jsonl')"
            )
            raise ConfigurationError(message)
        try:
            rows = _rows(self.file)
            asked = [one for number, row in enumerate(rows) for one in self.ask(row, number)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            message = f"{self.file} is not a file of {self.benchmark}: {error!r}"
            raise ConfigurationError(message) from error
        if not asked:
            message = f"{self.file} has no questions in the format of {self.benchmark}."
            raise ConfigurationError(message)
        return asked

    @property
    def identity(self) -> str:
        """Identity of the generator and the file."""
        return f"{self.kind} {self.version} {file_digest(self.file)}"

    @cached_property
    def texts(self) -> list[str]:
        """Each question is asked once."""
        return [asked.question for asked in self.asked]

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample; the seed chooses which questions are asked first."""
        asked = self.asked[draw(self.name, len(self.texts), index, seed)]
        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=asked.question,
            answers=asked.answers,
            metric="any",
            pieces=asked.pieces,
            cluster=asked.cluster,
            criteria=asked.criteria,
        )


def message(date: str, speaker: str, text: str, *, evidence: bool = False) -> Piece:
    """A message as it stands in the document: its date, who wrote it, and what."""
    when = f"[{date}] " if date else ""
    return Piece(f"{when}{speaker}: {text.strip()}\n", evidence)


def _rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a JSON list, or of a file with one of them a line.

    Raises:
        ValueError: It is neither.
    """
    text = file.read_text("utf-8")
    if text.lstrip().startswith("["):
        rows: list[dict[str, Any]] = json.loads(text)
        return rows
    return [json.loads(line) for line in text.splitlines() if line.strip()]
