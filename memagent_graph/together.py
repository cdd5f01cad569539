"""Several questions about one document, read in one pass, each with an outcome of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import MemAgentError, QuestionError, error_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.build import ReadingGraph

Outcome = dict[str, Any] | Exception
"""The fields of `ReadingOutput`, or why there are none."""


async def read_together(
    agent: ReadingGraph,
    questions: Sequence[str],
    document: object,
    config: RunnableConfig | None = None,
) -> list[Outcome]:
    """Read a document once for several questions.

    Args:
        agent: made by `create_memagent`, without a checkpointer.
        questions: what to find out.
        document: what to read, as the graph takes it.
        config: of the run.

    Returns:
        What became of each question, in their order. One that fails does not fail the others.
    """
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
    """What became of one of several questions, as if it had been asked alone.

    Args:
        record: the fields of `QuestionAnswer`.
    """
    if record["error"] is not None:
        return error_of(record["error_type"], record["error"])
    return {key: value for key, value in record.items() if key not in _OF_SEVERAL}


_OF_SEVERAL = {"number", "question", "error", "error_type"}
"""What a record has because there are several."""
