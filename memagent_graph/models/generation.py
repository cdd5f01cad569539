"""What an engine says about one reply, in the same shape whichever engine it was."""

from __future__ import annotations

from typing import TypedDict


class Generation(TypedDict):
    """The entry `generation` in a reply's `response_metadata`.

    Attributes:
        prompt_token_ids: the prompt as the engine read it; None when it does not tell.
        token_ids: the completion as the engine wrote it, with the token that ended it; None
            when it does not tell.
        logprobs: natural logarithm of the probability of each completion token under the model
            itself, before temperature and nucleus; None when it was not asked for or not told.
        finish_reason: the engine's word for why it stopped ("stop", "length", ...).
        seconds: from the request to the end of the reply.
    """

    prompt_token_ids: list[int] | None
    token_ids: list[int] | None
    logprobs: list[float] | None
    finish_reason: str | None
    seconds: float
