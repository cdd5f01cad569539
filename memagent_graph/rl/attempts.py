"""Attempts of the graph's nodes, and the model calls made in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from memagent_graph.models.generation import Generation

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
_SAMPLING_TOO = ("frequency_penalty", "presence_penalty", "repetition_penalty")
_WITHIN = ("sampling", "extra_body", "model_kwargs")
"""Parameters of chat models that hold more parameters."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of a node.

    Attributes:
        run: its run id.
        node: its name.
        reading: run id of the graph.
        inputs: the state.
        metadata: of the run.
        replies: what models wrote in it.
    """

    run: UUID
    node: str
    reading: UUID
    inputs: dict[str, Any]
    metadata: dict[str, Any]
    replies: list[Call] = field(default_factory=list)

    def of_ours(self, outputs: dict[str, Any]) -> bool:
        """Whether this is the reading graph's node: other graphs may have one of that name."""
        if self.node == "open_document":
            return outputs.keys() >= {"progress", "source"}
        wanted = {"progress"} if self.node == "overwrite_memory" else {"answer", "response"}
        return "progress" in self.inputs and outputs.keys() >= wanted


@dataclass(slots=True, eq=False)
class Call:
    """One call of a model; `generation` is there when it returned."""

    attempt: Attempt
    sampling: dict[str, float | int | None]
    policy: int
    generation: Generation | None = None


def sampling_of(parameters: dict[str, Any]) -> dict[str, float | int | None]:
    """What shapes the sampling, of all that a chat model says about itself."""
    for name in _WITHIN:
        if isinstance(parameters.get(name), dict):
            parameters = parameters | parameters[name]
    names = (*_SAMPLING, *_SAMPLING_TOO)
    return {name: parameters[name] for name in names if name in parameters}
