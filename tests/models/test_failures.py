from __future__ import annotations

import pytest
from langchain_core.exceptions import ContextOverflowError, ModelRateLimitError

from memagent_graph.errors import (
    ContextLengthError,
    EmptyReplyError,
    ModelError,
    RefusalError,
    TransientModelError,
)
from memagent_graph.models.failures import model_error


class Response:
    def __init__(self, headers):
        self.headers = headers


class ProviderError(Exception):
    """Shaped like the errors of the SDKs that we do not import."""

    def __init__(self, message="", status=None, code=None, headers=()):
        super().__init__(message)
        self.status_code = status
        self.code = code
        self.response = Response(dict(headers))


class BotocoreError(Exception):
    response = {"ResponseMetadata": {"HTTPStatusCode": 503}}


MORE_THAN_THE_WINDOW = (
    "max_tokens=99999 cannot be greater than max_model_len=max_total_tokens=2048. "
    "Please request fewer output tokens."
)


class ReadTimeoutError(Exception):
    pass


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 8192 tokens."),
        (400, "The decoder prompt (length 9000) is longer than the maximum model length of 8192"),
        (400, "the request exceeds the available context size"),
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (400, "input length and `max_tokens` exceed context limit: 199000 + 4096 > 200000"),
        (400, "The input token count (70000) exceeds the maximum number of tokens allowed"),
        (400, "Input is too long for requested model"),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 4096"),
        (429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000"),
        (413, "Payload Too Large"),
        (None, "Token indices: context length exceeded"),
    ],
)
def test_a_prompt_that_does_not_fit_is_known_in_every_provider_s_words(status, message):
    assert type(model_error(ProviderError(message, status))) is ContextLengthError


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProviderError("slow down", 429), TransientModelError),
        (ProviderError("You exceeded your current quota", 429, 429), TransientModelError),
        (ProviderError("You exceeded it", 429, "insufficient_quota"), ModelError),
        (ProviderError("pay first", 402), ModelError),
        (ProviderError("overloaded", 529), TransientModelError),
        (ProviderError("engine died", None, "500"), TransientModelError),
        (ProviderError("no", 400, "content_filter"), RefusalError),
        (ProviderError("bad field", 400), ModelError),
        (ProviderError(MORE_THAN_THE_WINDOW, 400), ModelError),
        (BotocoreError(), TransientModelError),
        (ReadTimeoutError(), TransientModelError),
        (TimeoutError(), TransientModelError),
        (ConnectionResetError(), TransientModelError),
        (OSError("network is down"), TransientModelError),
        (FileNotFoundError("adapter"), ModelError),
        (OSError("certificate verify failed"), ModelError),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), TransientModelError),
        (ContextOverflowError("x"), ContextLengthError),
        (ModelRateLimitError("x"), TransientModelError),
        (EmptyReplyError("x"), EmptyReplyError),
        (ValueError("a bug"), ModelError),
    ],
)
def test_each_failure_has_one_type(error, expected):
    assert type(model_error(error)) is expected


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Fri, 01 Jan 2010 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_the_wait_that_a_server_asks_for_may_be_seconds_milliseconds_or_a_date(headers, seconds):
    found = model_error(ProviderError("slow down", 429, headers=headers))

    assert isinstance(found, TransientModelError)
    assert found.retry_after == seconds


def test_the_reason_behind_an_error_is_told():
    error = ProviderError("Connection error.", 503)
    error.__cause__ = OSError("name or service not known")

    assert "name or service not known" in str(model_error(error))
