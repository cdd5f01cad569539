"""Questions over long conversations between two people, from a file in the format of LoCoMo."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from memagent_graph.evaluation.tasks.dialogue import Asked, DialogueTask, message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.evaluation.samples import Piece

_UNANSWERABLE = 5
"""LoCoMo's category of questions that the conversation does not answer."""
_TURN = re.compile(r"D\d+:\d+")
"""A turn's name; a few entries of the file's evidence hold several."""


class ConversationTask(DialogueTask):
    """LoCoMo (arXiv 2402.17753): two people, over months, and questions with short answers.

    Each turn has its session's date and what its picture shows. Questions that the conversation
    does not answer are left out.
    """

    benchmark = "LoCoMo"
    kind = "conversation"
    version = 2

    def ask(self, row: dict[str, Any], number: int) -> Iterator[Asked]:
        """All questions that have an answer in their conversation."""
        conversation = row["conversation"]
        known = {turn["dia_id"] for _, turn in _turns(conversation)}
        for asked in row["qa"]:
            evidence = known.intersection(_TURN.findall(" ".join(asked["evidence"])))
            if asked["category"] != _UNANSWERABLE and evidence:
                yield Asked(
                    asked["question"],
                    (str(asked["answer"]),),
                    partial(_pieces, conversation, frozenset(evidence)),
                    cluster=str(row.get("sample_id", number)),
                )


def _pieces(conversation: dict[str, Any], evidence: frozenset[str]) -> Iterator[Piece]:
    for date, turn in _turns(conversation):
        picture = turn.get("blip_caption")
        text = f"{turn['text']} (shows a picture: {picture})" if picture else turn["text"]
        yield message(date, turn["speaker"], text, evidence=turn["dia_id"] in evidence)


def _turns(conversation: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each turn with its session's date."""
    number = 1
    while (session := conversation.get(f"session_{number}")) is not None:
        date = conversation[f"session_{number}_date_time"]
        for turn in session:
            yield date, turn
        number += 1
