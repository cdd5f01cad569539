"""Several questions about one document, read in one pass, each with an outcome of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from langchain_core.runnables.config import merge_configs

from memagent_graph.errors import MemAgentError, QuestionError, error_of
from memagent_graph.graph.nodes import CALLS_EACH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.compiled import ReadingGraph

Outcome = dict[str, Any] | Exception
"""The fields of `ReadingOutput`, or why there are none."""


async def read_together(
    agent: ReadingGraph,
    questions: Sequence[str],
    document: object,
    config: RunnableConfig | None = None,
) -> list[Outcome]:
    """Read a document once for several questions, each with the budget that it has alone.

    Args:
        agent: made by `create_memagent`, without a checkpointer.
        questions: the questions.
        document: the document, as the graph takes it.
        config: configuration of the run.

    Returns:
        The outcome of each question, in order. One that fails does not fail the others.
    """
    config = merge_configs(config, {"configurable": {CALLS_EACH: True}})
    outcomes: dict[int, Outcome] = {}
    while left := [number for number in range(len(questions)) if number not in outcomes]:
        asked = [questions[number] for number in left]
        try:
            found = await _read(agent, asked, document, config)
        except QuestionError as error:  # nothing was read yet: ask the others
            refused = [number for number in left if questions[number] == error.question]
            outcomes |= dict.fromkeys(refused or left, error)
        except MemAgentError as error:
            outcomes |= dict.fromkeys(left, error)
        else:
            outcomes |= zip(left, found, strict=True)
    return [outcomes[number] for number in range(len(questions))]


async def _read(
    agent: ReadingGraph, questions: list[str], document: object, config: RunnableConfig | None
) -> list[Outcome]:
    reading: Any = agent
    context = {"document": document}
    alone = len(questions) == 1
    asked = {"question": questions[0]} if alone else {"questions": questions}
    try:
        output = await reading.ainvoke(asked, config, context=context)
    except MemAgentError:
        raise
    except Exception as error:  # noqa: BLE001 - a reader's own, which ends the whole pass
        if alone:
            return [error]
        each = (read_together(agent, [question], document, config) for question in questions)
        return [outcome for [outcome] in await asyncio.gather(*each)]
    return [output] if alone else [outcome_of(record) for record in output["answers"]]


def outcome_of(record: Mapping[str, Any]) -> Outcome:
    """Convert the record of one of several questions to its outcome, as if asked alone.

    Args:
        record: the fields of `QuestionAnswer`.
    """
    if record["error"] is not None:
        return error_of(record["error_type"], record["error"])
    return {key: value for key, value in record.items() if key not in _OF_SEVERAL}


_OF_SEVERAL = {"number", "question", "error", "error_type"}
"""Fields of a record that exist because there are several."""


def can_join(task: Mapping[str, object]) -> bool:
    """Whether a task asks one question about a document, and nothing else that the graph knows."""
    if not isinstance(task, Mapping) or _OF_ITS_OWN & task.keys():
        return False
    return isinstance(task.get("question"), str) and task.get("document") is not None


def is_same_document(task: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether two tasks can be read in one pass."""
    if not (can_join(task) and can_join(other)):
        return False
    one, two = task["document"], other["document"]
    plain = isinstance(one, str | bytes | PurePath | dict | list | tuple)
    return one is two or (plain and type(one) is type(two) and one == two)


_OF_ITS_OWN = {"questions", "version", "memory_name"}
"""Keys of a task that is read alone."""
