"""The tasks by name, what each needs, and how to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.tasks.benchmarks import dialogue_task, ruler_task
from memagent_graph.evaluation.tasks.masked import MaskedTask
from memagent_graph.evaluation.tasks.questions import QuestionTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from memagent_graph.evaluation.samples import Task
    from memagent_graph.text.source import Source


class Kind(NamedTuple):
    """A kind of task: the topic of its questions, the file that it needs, and what makes it."""

    asks: str
    needs: str
    make: Callable[[str, Source | None], Task]


KINDS = {
    "qa:FILE": Kind(
        "questions over paragraphs", "a file of SQuAD, HotpotQA or Natural Questions", QuestionTask
    ),
    "conversation:FILE": Kind(
        "questions over months of two people's talk",
        "locomo10.json (snap-research/locomo on GitHub)",
        lambda file, _: dialogue_task("conversation", file),
    ),
    "longmemeval:FILE": Kind(
        "questions over a user's sessions with an assistant",
        "longmemeval_s_cleaned.json (xiaowu0162/longmemeval-cleaned on the Hugging Face hub)",
        lambda file, _: dialogue_task("longmemeval", file),
    ),
    "beam:FILE": Kind(
        "ten abilities over conversations of up to 10M tokens",
        "a split as JSONL (Mohammadta/BEAM or BEAM-10M on the Hugging Face hub)",
        lambda file, _: dialogue_task("beam", file),
    ),
    "masked:FILE": Kind(
        "what was masked in a sentence of your own documents",
        "a file, folder or glob of documents, without any labels",
        lambda file, _: MaskedTask(file),
    ),
    "ruler:FILE": Kind(
        "the samples of a file that RULER wrote, as they are",
        "JSON Lines of RULER's generator, or MemAgent's (BytedTsinghua-SIA/hotpotqa on the hub)",
        lambda file, _: ruler_task(file),
    ),
}
"""Kinds of tasks by name; FILE stands for a path."""


def make_task(name: str, essays: Source | None = None) -> Task:
    """Make a task of its name.

    Args:
        name: one of `KINDS`, with a path in the place of FILE.
        essays: text of any kind, as haystack and filler.

    Raises:
        ConfigurationError: There is no such task.
    """
    kind, _, file = name.partition(":")
    found = KINDS.get(f"{kind}:FILE")
    if found is None or not file:
        message = f"There is no task {name!r}. Choose from: {', '.join(KINDS)}."
        raise ConfigurationError(message)
    return found.make(file, essays)
