"""The report of an engine on a reply, in one format for all engines."""

from __future__ import annotations

from typing import TypedDict


class Generation(TypedDict):
    """The entry `generation` in a reply's `response_metadata`.

    Attributes:
        prompt_token_ids: the prompt's tokens; None if not reported.
        token_ids: the completion's tokens, including the one that ended it; None if not reported.
        logprobs: natural logarithm of each completion token's probability under the model, before
            temperature and top-p; None if not requested or not reported.
        finish_reason: why the engine stopped, in its own words ("stop", "length", ...).
        seconds: time from the request to the end of the reply, in seconds.
    """

    prompt_token_ids: list[int] | None
    token_ids: list[int] | None
    logprobs: list[float] | None
    finish_reason: str | None
    seconds: float
