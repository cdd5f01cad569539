"""The file of `memagent batch`: a task on each line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.batch import Task


def row(task: Task) -> dict[str, object]:
    """A task with plain values, for another machine: `text`, or files as `document`.

    All values of a column are of one kind: one file is a list, too.

    Raises:
        ConfigurationError: Its document is a list with text in it.
    """
    from memagent_graph.errors import ConfigurationError

    kept = {key: value for key, value in task.items() if key != "document"}
    match task["document"]:
        case str(text):
            return {**kept, "text": text}
        case {"path": path}:
            return {**kept, "document": [_resolved(path)]}
        case list(items) if all(isinstance(item, dict) for item in items):
            return {**kept, "document": [_resolved(item["path"]) for item in items]}
    message = f"Task {task['id']!r}: with --ray a list of documents is one of paths."
    raise ConfigurationError(message)


def _resolved(path: str) -> dict[str, str]:
    return {"path": str(Path(path).resolve())}


def read_task_file(file: Path, answered: set[str]) -> Iterator[Task]:
    """The tasks that have no answer yet, with their ids and documents.

    Raises:
        ConfigurationError: A line is not a task.
    """
    from memagent_graph.errors import ConfigurationError

    seen: set[str] = set()
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            task = json.loads(line)
            name = str(task.setdefault("id", str(number)))
            if "text" in task:
                raise ValueError("`text` is now `document`")  # noqa: TRY301 - as its other faults
            given = task["document"]
            task["document"] = _document(given, file.parent)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            message = (
                f"{file}:{number} is not a task: {error}. A task is a JSON object with "
                '`question` and `document`: text, or {"path": ...}, or a list of these.'
            )
            raise ConfigurationError(message) from error
        if name in seen:
            message = f"{file}:{number}: the id {name!r} is there twice."
            raise ConfigurationError(message)
        seen.add(name)
        if isinstance(given, str) and _names_file(given, file.parent):
            print(
                f"memagent: {file}:{number}: {given!r} is read as text. There is a file of that "
                f'name: {{"path": {json.dumps(given)}}} would read it.',
                file=sys.stderr,
            )
        if name not in answered:
            yield task


def _document(given: object, folder: Path) -> object:
    """A document as the graph takes it, its paths relative to the folder of the tasks."""
    if isinstance(given, list) and given:
        return [_single(item, folder) for item in given]
    return _single(given, folder)


def _single(given: object, folder: Path) -> str | dict[str, str]:
    match given:
        case str(text):
            return text
        case {"path": str(path)}:
            return {"path": str(folder / path)}
    message = f"`document` is {given!r}"
    raise TypeError(message)


def _names_file(text: str, folder: Path) -> bool:
    """Whether a text is the name of a file: somebody may have meant that."""
    try:
        return bool(text.strip()) and (folder / text).is_file()
    except (OSError, ValueError):  # too long, or not a name
        return False
