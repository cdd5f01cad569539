"""The tasks by name, and how to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.tasks.masked import MaskedTask
from memagent_graph.evaluation.tasks.questions import QuestionTask, RulerTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from memagent_graph.evaluation.samples import Task
    from memagent_graph.text.source import Source


KINDS: dict[str, Callable[[str, Source | None], Task]] = {
    "qa:FILE": QuestionTask,
    "masked:FILE": lambda file, _: MaskedTask(file),
    "ruler:FILE": lambda file, _: RulerTask(file),
}
"""What makes a task of each kind, by its name; FILE stands for a path."""


def make_task(name: str, essays: Source | None = None) -> Task:
    """Make a task of its name, one of `KINDS` with a path for FILE; essays fill its documents.

    Raises:
        ConfigurationError: There is no such task.
    """
    kind, _, file = name.partition(":")
    found = KINDS.get(f"{kind}:FILE")
    if found is None or not file:
        message = f"There is no task {name!r}. Choose from: {', '.join(KINDS)}."
        raise ConfigurationError(message)
    return found(file, essays)
