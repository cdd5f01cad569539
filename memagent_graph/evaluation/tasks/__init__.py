"""The tasks by name, what each needs, and how to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.tasks.dialogue import BeamTask, ConversationTask, LongMemEvalTask
from memagent_graph.evaluation.tasks.masked import MaskedTask
from memagent_graph.evaluation.tasks.probes import (
    NEEDLE_TASKS,
    CommonWordsTask,
    FrequentWordsTask,
    TrackingTask,
)
from memagent_graph.evaluation.tasks.questions import QuestionTask, ruler_hqa
from memagent_graph.evaluation.tasks.ruler import RulerFileTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from memagent_graph.evaluation.samples import Task
    from memagent_graph.text.source import Source


class Kind(NamedTuple):
    """A kind of task.

    Attributes:
        asks: topic of its questions, in a few words.
        needs: requirements: essays, a file and its origin; empty for none.
        make: function that makes a task from a file's name (empty if it takes none) and the essays.
    """

    asks: str
    needs: str
    make: Callable[[str, Source | None], Task]


def _needle(name: str, asks: str) -> Kind:
    needs = "" if name in ("niah_single_1", "niah_multikey_2", "niah_multikey_3") else "--essays"
    return Kind(asks, needs, lambda _, essays: NEEDLE_TASKS[name](essays))


_NEEDLES = {
    "niah_single_1": "a number in noise",
    "niah_single_2": "a number in essays",
    "niah_single_3": "a UUID in essays",
    "niah_multikey_1": "a number in essays, among three others",
    "niah_multikey_2": "a number among nothing but numbers",
    "niah_multikey_3": "a UUID among nothing but UUIDs",
    "niah_multivalue": "four numbers of one key in essays",
    "niah_multiquery": "the numbers of four keys in essays",
}
_GENERATED = {
    **{name: _needle(name, asks) for name, asks in _NEEDLES.items()},
    "vt": Kind("the variables that get a value over four hops", "", lambda *_: TrackingTask()),
    "cwe": Kind("the ten most common words of a list", "", lambda *_: CommonWordsTask()),
    "fwe": Kind("the three most frequent coded words", "", lambda *_: FrequentWordsTask()),
}
_FROM_FILES = {
    "qa:FILE": Kind(
        "questions over paragraphs", "a file of SQuAD, HotpotQA or Natural Questions", QuestionTask
    ),
    "ruler_hqa:FILE": Kind(
        "questions over 50 to 6,400 numbered paragraphs",
        "a file as of qa:FILE, or one of RULER-HQA",
        lambda file, _: ruler_hqa(file),
    ),
    "conversation:FILE": Kind(
        "questions over months of two people's talk",
        "locomo10.json (snap-research/locomo on GitHub)",
        lambda file, _: ConversationTask(file),
    ),
    "longmemeval:FILE": Kind(
        "questions over a user's sessions with an assistant",
        "longmemeval_s_cleaned.json (xiaowu0162/longmemeval-cleaned on the Hugging Face hub)",
        lambda file, _: LongMemEvalTask(file),
    ),
    "beam:FILE": Kind(
        "ten abilities over conversations of up to 10M tokens",
        "a split as JSONL (Mohammadta/BEAM or BEAM-10M on the Hugging Face hub)",
        lambda file, _: BeamTask(file),
    ),
    "masked:FILE": Kind(
        "what was masked in a sentence of your own documents",
        "a file, folder or glob of documents, without any labels",
        lambda file, _: MaskedTask(file),
    ),
    "ruler:FILE": Kind(
        "the samples of a file that RULER wrote, as they are",
        "a file of RULER samples",
        lambda file, _: RulerFileTask(file),
    ),
}
KINDS: dict[str, Kind] = {**_GENERATED, **_FROM_FILES}
"""Kinds of tasks by name; FILE stands for a path."""


def make_task(name: str, essays: Source | None = None) -> Task:
    """Make a task of its name.

    Args:
        name: one of `KINDS`, with a path in the place of FILE.
        essays: text of any kind, as haystack and filler.

    Raises:
        ConfigurationError: There is no such task, or it needs essays.
    """
    kind, colon, file = name.partition(":")
    found = KINDS.get(f"{kind}:FILE" if colon else kind)
    if found is None or (colon and not file):
        message = f"There is no task {name!r}. Choose from: {', '.join(KINDS)}."
        raise ConfigurationError(message)
    return found.make(file, essays)
