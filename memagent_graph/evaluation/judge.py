"""A model that judges answers by a sample's criteria."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ModelError, ResponseFormatError
from memagent_graph.models.failures import repeat
from memagent_graph.models.structured import call_constrained, constraint, fill, shape_of
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.completion import take_reply

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage

    from memagent_graph.evaluation.samples import Criterion, Sample

_SHOWN = 200
"""Characters of an unreadable reply that an error quotes."""


class Judge:
    """Asks a model for each criterion of a sample whether an answer meets it.

    It is shown the question, the right answer and the given one, but not who answered.

    Args:
        model: any LangChain chat model, with its own sampling.
        config: number of attempts of a call, and the pause between them.

    Attributes:
        identity: name and fingerprint of its model.
    """

    def __init__(self, model: BaseChatModel, config: ReadingConfig | None = None) -> None:
        self.model = model
        self.config = config or ReadingConfig()
        about = ChatReader(model, config=self.config).identity
        self.identity = f"{about.name} {about.fingerprint}"

    async def grade(self, sample: Sample, answer: str) -> float:
        """Return the mean over the sample's criteria, from 0 to 1.

        Raises:
            ModelError: The model cannot be reached, or two of its replies cannot be read.
            ValueError: The sample has no criteria.
        """
        if not sample.criteria:
            message = f"{sample.id} has no criteria: it is scored without a judge."
            raise ValueError(message)
        grades = [await self._ask(criterion, answer) for criterion in sample.criteria]
        return sum(grades) / len(grades)

    async def _ask(self, criterion: Criterion, answer: str) -> float:
        shape = shape_of(criterion.schema)
        held = constraint(self.model, shape)

        async def ask(messages: list[BaseMessage]) -> tuple[AIMessage, str]:
            def call(more: dict[str, Any]) -> Awaitable[tuple[AIMessage, str]]:
                return take_reply(self.model.ainvoke(messages, **more))

            return await repeat(lambda _: call_constrained(call, held), self.config)

        try:
            filled = await fill(shape, criterion.prompt(answer), ask)
        except ResponseFormatError as error:
            message = (
                "The judge's reply is not a grade, twice; choose a model that follows "
                f"instructions. It said: {error.reply[:_SHOWN]!r}"
            )
            raise ModelError(message) from error
        return criterion.grade(filled.plain)
