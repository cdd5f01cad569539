"""Attempts at the steps of readings, and the model calls made in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.models.generation import Generation

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
_SAMPLING_TOO = ("frequency_penalty", "presence_penalty", "repetition_penalty")
_WITHIN = ("sampling", "extra_body", "model_kwargs")
"""Parameters of chat models that hold more parameters."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a step of a reading.

    Attributes:
        replies: what models wrote in it.
    """

    replies: list[Call] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Call:
    """One call of a model.

    Attributes:
        attempt: in which it was made.
        sampling: as `sampling_of` tells.
        policy: version of the weights.
        part: which of several calls at once it belongs to.
        generation: there when it returned.
    """

    attempt: Attempt
    sampling: dict[str, float | int | None]
    policy: int
    part: object
    generation: Generation | None = None


def sampling_of(parameters: Mapping[str, Any]) -> dict[str, float | int | None]:
    """What shapes the sampling, of all that a chat model says about itself."""
    for name in _WITHIN:
        if isinstance(parameters.get(name), dict):
            parameters = {**parameters, **parameters[name]}
    names = (*_SAMPLING, *_SAMPLING_TOO)
    return {name: parameters[name] for name in names if name in parameters}
