"""The reports of engines and servers on a reply, in one format for all."""

from __future__ import annotations

import re
from math import isfinite
from typing import Literal, TypedDict


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


Ending = Literal["cut off", "refused", "failed"]
_REFUSED = re.compile(
    r"filter|safety|refus|block|prohibit|spii|recitation|guardrail|sensitive|toxic|moderat|violat"
)
_CUT_OFF = re.compile(r"length|max_\w*tokens?|limit|truncat|context_window|not_finished")
_FAILED = re.compile(
    r"error|fail|abort|cancel|interrupt|timeout|overload|unavailable|malformed|insufficient|^other"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def ending_of(finish_reason: str | None) -> Ending | None:
    """Return what a finish reason means if the reply is not whole; None if it is.

    Each provider has words of its own: "length", "max_tokens" (Anthropic), "MAX_TOKENS" (Gemini,
    Cohere), "model_length" (Mistral), "token_limit" (watsonx), "model_context_window_exceeded";
    "content_filter", "SAFETY", "RECITATION" (Gemini), "guardrail_intervened" (Bedrock), "sensitive"
    (Zhipu); "error" (OpenRouter), "network_error" (Zhipu), "insufficient_system_resource"
    (DeepSeek), "abort" (vLLM, SGLang), "ERROR" (Cohere).

    Args:
        finish_reason: why the reply ended, in the server's words.
    """
    if not finish_reason:
        return None
    words = re.sub(r"\W+", "_", _CAMEL.sub("_", finish_reason)).lower()
    if _REFUSED.search(words):
        return "refused"
    if "rate_limit" not in words and _CUT_OFF.search(words):
        return "cut off"
    return "failed" if "rate_limit" in words or _FAILED.search(words) else None


def count_of(value: object) -> int | None:
    """Return a number of tokens that a server reports; None if it is not one.

    Some servers send floats or strings.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if isfinite(number) and number >= 0 else None
