"""Samples of RULER from files: its own generator's, and those that MemAgent published.

A prompt of RULER's (NVIDIA/RULER, Apache-2.0; arXiv 2404.06654) is a document between an
instruction and a question. What opens and closes them is known here; the rest stays as it is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import FileTask, Sample
from memagent_graph.evaluation.tasks.questions import ANSWER_TOKENS, TEMPLATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memagent_graph.evaluation.samples import Metric


class _Form(NamedTuple):
    """Words around the document in the prompts of a kind of task; `tokens` of an answer at most.

    The instruction `begins` and `ends` so; the document ends with `link`, and the question `asks`
    from there on.
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


def ruler_tasks(file: str | Path) -> list[FileTask]:
    """One task for each that a file has samples of, in the file's order.

    Prompts are shown as they stand there; lines of JSON have RULER's "input", "outputs" and, from
    newer generators, "answer_prefix" and "task"; or MemAgent's "input", "answers" and "context".

    Raises:
        ConfigurationError: The file cannot be read, or a line is not a sample of RULER.
    """
    groups: defaultdict[str, list[Sample]] = defaultdict(list)
    for name, sample in _read(Path(file)):
        groups[name].append(sample)
    return [_task(Path(file), name, lambda group=group: group) for name, group in groups.items()]


def ruler_task(file: str | Path) -> FileTask:
    """One task of all samples of a file."""
    return _task(Path(file), "", lambda: [sample for _, sample in _read(Path(file))])


def _task(file: Path, name: str, read: Callable[[], list[Sample]]) -> FileTask:
    return FileTask(f"ruler_{name or file.stem}", f"ruler {RULER_VERSION} {name}", file, read)


def _read(file: Path) -> Iterator[tuple[str, Sample]]:
    """The task and the sample of each line; documents stay in the file."""
    start = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    name, _, sample = _parse(line, file, number)
                    pieces = partial(_document, file, number, start)
                    yield name, replace(sample, pieces=pieces)
                start += len(line)
    except OSError as error:
        message = f"{file} cannot be read: {error}"
        raise ConfigurationError(message) from error


def _document(file: Path, number: int, start: int) -> Iterator[str]:
    with file.open("rb") as lines:
        lines.seek(start)
        yield _parse(lines.readline(), file, number)[1]


def _parse(line: bytes, file: Path, number: int) -> tuple[str, str, Sample]:
    """Return a line's task, its document, and its sample without that."""
    where = f"{file}, line {number}"
    try:
        row = json.loads(line)
        if "context" in row:
            found = file.stem, "".join(row["context"]), row["input"], TEMPLATE, ANSWER_TOKENS
            answers, any_ = tuple(row["answers"]), True
        else:
            found = _split(row["input"], row.get("answer_prefix", ""))
            answers, any_ = tuple(map(str, row["outputs"])), found is not None and found[0] == "qa"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{where} is not a sample of RULER: {error!r}. Write one sample a line."
        raise ConfigurationError(message) from error
    if found is None or not answers:
        message = (
            f"{where} has a prompt that is not RULER's own, or no outputs. Generate the file with "
            "RULER's default templates and `--model_template_type base`."
        )
        raise ConfigurationError(message)
    name, document, question, template, tokens = found
    metric: Metric = "any" if any_ else "all"
    sample = Sample("", "", 0, question, answers, metric, lambda: iter(()), template, tokens)
    return str(row.get("task") or name), document, sample


def _split(prompt: str, prefix: str) -> tuple[str, str, str, str, int] | None:
    """Return the task of a prompt of RULER's, its document, question and template, and tokens."""
    form = next((form for form in _FORMS if prompt.startswith(form.begins)), None)
    if form is None or form.ends not in prompt:
        return None
    instruction = prompt[: prompt.index(form.ends) + len(form.ends)]
    start = prompt.rindex(instruction) + len(instruction)  # behind the example that some tasks show
    end = prompt.rfind(form.link)
    asked = prompt.find(form.asks, end) + len(form.asks)
    if not start <= end < asked:
        return None
    template = f"{prompt[:start]}{{memory}}{prompt[end:asked]}{{question}}{prefix}"
    return form.task, prompt[start:end], prompt[asked:], template, form.tokens
