"""The tasks by name, and how to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.tasks.conversation import ConversationTask
from memagent_graph.evaluation.tasks.needle import NEEDLE_TASKS
from memagent_graph.evaluation.tasks.questions import QuestionTask
from memagent_graph.evaluation.tasks.tracking import TrackingTask
from memagent_graph.evaluation.tasks.words import CommonWordsTask, FrequentWordsTask

if TYPE_CHECKING:
    from memagent_graph.evaluation.samples import Task
    from memagent_graph.text.source import Source

TASK_NAMES = (*NEEDLE_TASKS, "vt", "cwe", "fwe", "qa:FILE", "conversation:FILE")


def make_task(name: str, essays: Source | None = None) -> Task:
    """Make a task of its name.

    Args:
        name: one of `TASK_NAMES`; "qa:FILE" reads a SQuAD or HotpotQA file,
            "conversation:FILE" one of LoCoMo.
        essays: text of any kind, as haystack and filler.

    Raises:
        ConfigurationError: There is no such task, or it needs essays.
    """
    if name in NEEDLE_TASKS:
        return NEEDLE_TASKS[name](essays)
    if name == "vt":
        return TrackingTask()
    if name == "cwe":
        return CommonWordsTask()
    if name == "fwe":
        return FrequentWordsTask()
    if name.startswith("qa:"):
        return QuestionTask(name.removeprefix("qa:"), essays)
    if name.startswith("conversation:"):
        return ConversationTask(name.removeprefix("conversation:"))
    message = f"There is no task {name!r}. Choose of: {', '.join(TASK_NAMES)}."
    raise ConfigurationError(message)
