"""`memagent batch`: many questions and files, a line of JSON for each answer."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.options import Keeps, Reads, check_server, takes_options
from memagent_graph.cli.terminal import report_errors, to_json
from memagent_graph.errors import ConfigurationError
from memagent_graph.text.files import warn_of_path

if TYPE_CHECKING:
    from memagent_graph.batch import Result, Task


def read_task_file(file: Path, answered: set[str]) -> tuple[list[Task], int]:
    """Return the tasks that have no answer yet, and how many lines are no tasks.

    Each of these is reported on stderr.
    """
    tasks: list[Task] = []
    seen: set[str] = set()
    bad = 0
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            task = json.loads(line)
            name, given = str(task.setdefault("id", str(number))), task["document"]
            task["document"] = _document(given, file.parent)
            problem = f"the id {name!r} is there twice" if name in seen else ""
            seen.add(name)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            problem = str(error)
        if problem:
            bad += 1
            message = (
                f"memagent: error: {file}:{number} is not a task: {problem}. A task is a JSON "
                'object with `question` and `document`: text, or {"path": ...}, or a list of these.'
            )
            print(message, file=sys.stderr)
            continue
        if name not in answered:
            tasks.append(task)
    return tasks, bad


def _document(given: object, folder: Path) -> object:
    """A document as the graph takes it, its paths relative to the folder of the tasks."""
    match given:
        case str(text):
            warn_of_path(str(folder / text))
            return text
        case {"path": str(path)}:
            return {"path": str(folder / path)}
        case [_, *_]:
            return [_document(item, folder) for item in given]
    message = f"`document` is {given!r}"
    raise TypeError(message)


_EXAMPLES = """Answer a file of questions, many at once.

With --out, the same command resumes a run that was stopped.

Each line of TASKS is one JSON object: `question`, `document`, and `id` if it has one. Other fields
are kept. A `document` is text, or `{"path": ...}`, a file, folder or glob relative to TASKS, or a
list of these. Tasks about one document that follow one another are read in one pass.

Examples:

\b
  memagent batch tasks.jsonl | jq .answer
  memagent batch tasks.jsonl --out results.jsonl --model openai:gpt-4o
  memagent batch tasks.jsonl --out results.jsonl --model vllm:MODEL

Each result is a JSON object on a line, as soon as it is done: the task's fields with `id`, and
`answer`, `memory`, `evidence`, `usage`, ... or else `error`. With --out, what has an answer there
is not asked again; what failed is. A line that is not a task is reported, and the others are
answered.

Exit codes: 0 all answered, 1 some failed, 2 wrong usage, 130 interrupted.
"""

_STOPPED = "memagent: stopped. The results so far are kept. To continue:\n  {command}"


@takes_options
def batch(
    tasks: Annotated[
        Path, typer.Argument(help="File of tasks, a JSON object on each line.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to add the results to; standard output by default."),
    ] = None,
    *,
    reads: Reads,
    concurrency: Annotated[int, typer.Option(help="Documents to read at once.")] = 64,
    response_format: Annotated[
        Path | None,
        typer.Option(help="File with the JSON schema of an object: the form of the answers."),
    ] = None,
    keeps: Keeps,
) -> None:
    """Replaced by `_EXAMPLES` below."""
    from memagent_graph.batch import read_many
    from memagent_graph.graph.build import create_memagent
    from memagent_graph.memory.stores import open_store

    with report_errors("memagent: stopped." if out is None else _STOPPED):
        settings, place = reads.make_config(), keeps.place
        answered = set() if out is None else _mend(out)
        asked, bad = read_task_file(tasks, answered)
        if answered:
            print(f"memagent: {len(answered)} were answered before.", file=sys.stderr)
        failed = 0
        with (
            open_store(keeps.store) as kept_in,
            nullcontext(sys.stdout) if out is None else out.open("a", encoding="utf-8") as results,
        ):
            reader = reads.make_reader(settings, response_format=response_format)
            check_server(reader)
            agent = create_memagent(
                reader, config=settings, tokenizer=reads.tokenizer, store=kept_in, namespace=place
            )
            for result in read_many(
                agent, asked, concurrency=concurrency, progress=sys.stderr.isatty()
            ):
                failed += result.error is not None
                results.write(f"{to_json(_record(result))}\n")
                results.flush()
        counts = f"{len(asked) - failed} answered, {failed + bad} failed"
        print(f"memagent: {counts}.", file=sys.stderr)
    if failed or bad:
        raise typer.Exit(1)


batch.__doc__ = _EXAMPLES


def _record(result: Result) -> dict[str, object]:
    kept = {key: value for key, value in result.task.items() if key != "document"}
    if result.output is None:
        return {**kept, "error": f"{type(result.error).__name__}: {result.error}"}
    return {**kept, **result.output, "seconds": round(result.seconds, 3)}


def _mend(file: Path) -> set[str]:
    """Ids of the results that have an answer; failures and a torn last line are taken out.

    A file of something else must not be lost.
    """
    if not file.exists():
        return set()
    lines = file.read_text("utf-8", errors="replace").splitlines()
    kept: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if "answer" in record:
                kept[str(record["id"])] = line
        except (ValueError, TypeError, KeyError) as error:
            if 1 < number == len(lines):  # torn by a crash
                break
            message = f"{file} contains lines that are not results: name a new file for --out."
            raise ConfigurationError(message) from error
    mended = file.with_name(f"{file.name}.mended")
    mended.write_text("".join(f"{line}\n" for line in kept.values()), "utf-8")
    mended.replace(file)
    return set(kept)
