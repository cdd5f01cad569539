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
"""Parameters of chat models that contain further parameters."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a step of a reading.

    Attributes:
        replies: the model calls that returned, in order.
    """

    replies: list[Call] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Call:
    """One call of a model.

    Attributes:
        attempt: the attempt that it was made in.
        sampling: its sampling parameters, as `sampling_of` returns them.
        policy: version of the weights.
        part: the one of several concurrent parts that it belongs to.
        generation: the engine's report; None until the call returned.
    """

    attempt: Attempt
    sampling: dict[str, float | int | None]
    policy: int
    part: object
    generation: Generation | None = None


def sampling_of(parameters: Mapping[str, Any]) -> dict[str, float | int | None]:
    """Return the sampling parameters among the parameters of a chat model's call."""
    for name in _WITHIN:
        if isinstance(parameters.get(name), dict):
            parameters = {**parameters, **parameters[name]}
    names = (*_SAMPLING, *_SAMPLING_TOO)
    return {name: parameters[name] for name in names if name in parameters}
