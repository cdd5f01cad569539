"""Samples of RULER from files: its own generator's, and those that MemAgent published.

A prompt of RULER's (NVIDIA/RULER, Apache-2.0; arXiv 2404.06654) is a document between an
instruction and a question. What opens and closes them is known here; the rest stays as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Sample, Task, Unit, draw, file_digest
from memagent_graph.evaluation.tasks.questions import ANSWER_TOKENS, TEMPLATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.text.tokens import Tokenizer


class _Form(NamedTuple):
    """Words around the document in the prompts of a kind of task.

    Attributes:
        task: name of the kind.
        begins: the first words of the instruction.
        ends: the last words of the instruction.
        link: what follows the document.
        asks: the words before the question, from the link on.
        tokens: the longest answer.
    """

    task: str
    begins: str
    ends: str
    link: str
    asks: str
    tokens: int


_QUESTION = "\nQuestion: "
_FORMS = (
    _Form("niah", "A special magic ", "afterwards.\n", "\nWhat ", "\n", 128),
    _Form("niah", "Some special magic ", "afterwards.\n", "\nWhat ", "\n", 128),
    _Form("vt", "Memorize and track ", "following text.\n\n", _QUESTION, _QUESTION, 30),
    _Form("cwe", "Below is a numbered list ", "most often.\n", _QUESTION, _QUESTION, 120),
    _Form("fwe", "Read the following coded ", "coded words. ", _QUESTION, _QUESTION, 50),
    _Form("qa", "Answer the question ", "documents.\n\n", "\n\nAnswer the ", _QUESTION, 32),
)

RULER_VERSION = 2
"""Version of the samples; a change for the same file increases it."""


@dataclass(frozen=True)
class _RulerRow:
    task: str
    document: str
    question: str
    answers: tuple[str, ...]
    template: str
    tokens: int
    passages: bool


class RulerFileTask(Task):
    """The samples of a file, or those of one task in it; prompts are shown as they stand there.

    Args:
        file: lines of JSON: RULER's with "input", "outputs" and, from newer generators,
            "answer_prefix" and "task"; or MemAgent's with "input", "answers" and "context".
        task: the task whose samples to ask; empty for all.
    """

    unit: Unit = "whole"

    def __init__(self, file: str | Path, task: str = "") -> None:
        self.file = Path(file)
        self.task = task
        self.name = f"ruler_{task or self.file.stem}"

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Line number and first byte of each sample: the samples stay in the file.

        Raises:
            ConfigurationError: The file cannot be read, or a line is not a sample of RULER.
        """
        return [place for place, row in _rows(self.file) if self.task in {"", row.task}]

    @property
    def identity(self) -> str:
        """Identity of the samples and the file."""
        return f"ruler {RULER_VERSION} {self.task} {file_digest(self.file)}"

    @property
    def count(self) -> int:
        """Each sample is asked once."""
        return len(self.places)

    @cached_property
    def texts(self) -> list[str]:
        """Questions with their answers: all documents of a task may be asked the same."""
        return [" ".join((row.question, *row.answers)) for row in map(self._read, self.places)]

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample; the seed chooses which are asked first."""
        row = self._read(self.places[draw(self.name, self.count, index, seed)])
        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=row.question,
            answers=row.answers,
            metric="any" if row.passages else "all",
            pieces=lambda: iter([row.document]),
            template=row.template,
            answer_tokens=row.tokens,
        )

    def _read(self, place: tuple[int, int]) -> _RulerRow:
        number, start = place
        with self.file.open("rb") as file:
            file.seek(start)
            return _row(self.file, number, file.readline())


def ruler_tasks(file: str | Path) -> list[RulerFileTask]:
    """One task for each that a file has samples of, in the file's order.

    Raises:
        ConfigurationError: The file cannot be read, or a line is not a sample of RULER.
    """
    tasks = dict.fromkeys(row.task for _, row in _rows(Path(file)))
    return [RulerFileTask(file, task) for task in tasks]


def _rows(file: Path) -> Iterator[tuple[tuple[int, int], _RulerRow]]:
    """Number and first byte of each line, and its sample."""
    start = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield (number, start), _row(file, number, line)
                start += len(line)
    except OSError as error:
        message = f"{file} cannot be read: {error}"
        raise ConfigurationError(message) from error


def _row(file: Path, number: int, line: bytes) -> _RulerRow:
    where = f"{file}, line {number}"
    try:
        row = json.loads(line)
        if "context" in row:
            return _RulerRow(
                str(row.get("task") or file.stem),
                "".join(row["context"]),
                row["input"],
                tuple(row["answers"]),
                TEMPLATE,
                ANSWER_TOKENS,
                passages=True,
            )
        answers = tuple(str(output) for output in row["outputs"])
        found = _split(row, row["input"], answers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{where} is not a sample of RULER: {error!r}. Write one sample a line."
        raise ConfigurationError(message) from error
    if found is None or not answers:
        message = (
            f"{where} has a prompt that is not RULER's own, or no outputs. Generate the file with "
            "RULER's default templates and `--model_template_type base`."
        )
        raise ConfigurationError(message)
    return found


def _split(row: dict[str, Any], prompt: str, answers: tuple[str, ...]) -> _RulerRow | None:
    """Take a prompt apart; None if it has no form of RULER's."""
    form = next((form for form in _FORMS if prompt.startswith(form.begins)), None)
    if form is None or form.ends not in prompt:
        return None
    instruction = prompt[: prompt.index(form.ends) + len(form.ends)]
    start = prompt.rindex(instruction) + len(instruction)  # behind the example that some tasks show
    end = prompt.rfind(form.link)
    asked = prompt.find(form.asks, end) + len(form.asks)
    if not start <= end < asked:
        return None
    template = f"{prompt[:start]}{{memory}}{prompt[end:asked]}{{question}}"
    return _RulerRow(
        str(row.get("task") or form.task),
        prompt[start:end],
        prompt[asked:],
        answers,
        template + row.get("answer_prefix", ""),
        form.tokens,
        passages=form.task == "qa",
    )
