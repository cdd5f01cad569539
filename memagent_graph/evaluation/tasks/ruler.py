"""Samples that RULER's own generator wrote, asked as they are."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Piece, Sample, Task, Unit, draw, file_digest
from memagent_graph.evaluation.tasks.forms import NOISE, PASSAGES
from memagent_graph.evaluation.tasks.parsing import parse, statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.evaluation.tasks.parsing import Parts
    from memagent_graph.text.tokens import Tokenizer

VERSION = 1
"""Version of the generator; a change of the samples for equal arguments increases it."""
_UUID = 36
"""Characters of a UUID."""


@dataclass(frozen=True)
class _Row:
    task: str
    parts: Parts
    outputs: tuple[str, ...]


class RulerFileTask(Task):
    """The samples of a file, or those of one task in it; prompts are shown as they stand there.

    Args:
        file: lines of JSON with "input", "outputs" and, from newer generators, "answer_prefix".
        task: the task whose samples to ask, as `task_of` names it; empty for all.
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
        rows = _rows(self.file)
        return [place for place, task in rows if self.task in {"", task}]

    @property
    def identity(self) -> str:
        """Identity of the generator and the file."""
        return f"ruler {VERSION} {self.task} {file_digest(self.file)}"

    @property
    def count(self) -> int:
        """Each sample is asked once."""
        return len(self.places)

    @cached_property
    def texts(self) -> list[str]:
        """Questions, with the answers where all documents of a task are asked the same."""
        rows = map(self._read, self.places)
        return [
            " ".join((row.parts.question, *(() if row.parts.form is PASSAGES else row.outputs)))
            for row in rows
        ]

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample; the seed chooses which are asked first."""
        row = self._read(self.places[draw(self.name, self.count, index, seed)])
        form = row.parts.form
        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=row.parts.question,
            answers=row.outputs,
            metric="any" if form is PASSAGES else "all",
            pieces=lambda: _pieces(row),
            template=row.parts.template,
            answer_tokens=form.tokens,
        )

    def _read(self, place: tuple[int, int]) -> _Row:
        number, start = place
        with self.file.open("rb") as file:
            file.seek(start)
            return _row(self.file, number, file.readline())


def ruler_tasks(file: str | Path) -> list[RulerFileTask]:
    """One task for each that a file has samples of, in the file's order.

    Raises:
        ConfigurationError: The file cannot be read, or a line is not a sample of RULER.
    """
    return [RulerFileTask(file, task) for task in dict.fromkeys(t for _, t in _rows(Path(file)))]


def task_of(parts: Parts) -> str:
    """Return the name of the RULER task of a prompt, by its form; "qa" for both of these."""
    if parts.form.kind != "niah":
        return parts.form.kind
    document = parts.document
    needles = [*statements("niah", document)]
    keys = Counter(needle.subject for needle in needles)
    if " all the " in parts.question:
        return "niah_multivalue" if parts.fields["query"] in keys else "niah_multiquery"
    if document.count("\n") + 1 == len(needles) > 1:
        return f"niah_multikey_{3 if len(needles[0].subject) == _UUID else 2}"
    if len(keys) > 1:
        return "niah_multikey_1"
    noisy = document.count(NOISE) > 1
    return f"niah_single_{1 if noisy else 3 if len(needles[0].value) == _UUID else 2}"


def _rows(file: Path) -> Iterator[tuple[tuple[int, int], str]]:
    """Number, first byte and task of each line."""
    start = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield (number, start), _row(file, number, line).task
                start += len(line)
    except OSError as error:
        message = f"{file} cannot be read: {error}"
        raise ConfigurationError(message) from error


def _row(file: Path, number: int, line: bytes) -> _Row:
    where = f"{file}, line {number}"
    try:
        row = json.loads(line)
        prompt, outputs = row["input"] + row.get("answer_prefix", ""), row["outputs"]
        answers = tuple(str(output) for output in outputs)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{where} is not a sample of RULER: {error!r}"
        raise ConfigurationError(message) from error
    parts = parse(prompt)
    if parts is None or not answers:
        message = (
            f"{where} has a prompt that is not RULER's own, or no outputs. Generate the file with "
            "RULER's default templates and `--model_template_type base`."
        )
        raise ConfigurationError(message)
    return _Row(str(row.get("task") or task_of(parts)), parts, answers)


def _pieces(row: _Row) -> Iterator[Piece]:
    kind, document, end = row.parts.form.kind, row.parts.document, 0
    for found in statements(kind, document):
        if (found.value if kind == "niah" else found.subject) in row.outputs:
            yield Piece(document[end : found.start])
            yield Piece(document[found.start : found.end], evidence=True)
            end = found.end
    yield Piece(document[end:])
