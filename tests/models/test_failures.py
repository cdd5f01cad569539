import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core import exceptions
from langchain_core.exceptions import ContextOverflowError, ModelRateLimitError

from memagent_graph.errors import (
    BadRequestError,
    ContextLengthError,
    EmptyReplyError,
    ModelError,
    RefusalError,
    TransientModelError,
)
from memagent_graph.models.failures import model_error, reply_error, words_of

NAMES = ["error", "message", "detail", "loc", "msg", "code", "base_resp", "status_code", "metadata"]


class ProviderError(Exception):
    """Shaped like the errors of the SDKs that we do not import."""

    def __init__(self, message="", status=None, code=None, headers=()):
        super().__init__(message)
        self.status_code = status
        self.code = code
        self.response = SimpleNamespace(headers=dict(headers))


class BotocoreError(Exception):
    response = {"ResponseMetadata": {"HTTPStatusCode": 503}}


MORE_THAN_THE_WINDOW = (
    "max_tokens=99999 cannot be greater than max_model_len=max_total_tokens=2048. "
    "Please request fewer output tokens."
)


class ReadTimeoutError(Exception):
    pass


ROWS = Path(__file__).with_name("too_long.txt").read_text("utf-8").splitlines()
TOO_LONG = [row.split("\t", 1) for row in ROWS if not row.startswith("#")]
"""What servers say of a prompt that is too long, with the status that they say it with."""


@pytest.mark.parametrize(("status", "message"), TOO_LONG)
def test_a_prompt_that_does_not_fit_is_known_in_every_provider_s_words(status, message):
    error = ProviderError(message, None if status == "None" else int(status))

    assert type(model_error(error)) is ContextLengthError


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "max_tokens is too large: 8192. This model supports at most 4096 completion tokens"),
        (400, "Range of max_tokens should be [1, 2048]"),
        (400, "`max_new_tokens` must be <= 512. Given: 1024"),
        (400, "Invalid 'user': string too long. Expected a string with maximum length 64"),
        (400, "Rate limit reached: too many tokens per minute"),
        (429, "Too many tokens, please wait before trying again."),
        (400, "The model `x` does not exist"),
        (400, "image exceeds 5 MB maximum"),
        (401, "The token limit of this key"),
        (404, "no such model: long context"),
        (400, "请求频率超过限制"),
        (400, "max_tokens: 9000 > 4096, which is the maximum allowed number of output tokens"),
        (400, "Your request exceeds your monthly spending limit"),
        (400, "Invalid 'messages[0].name': string too long"),
        (402, "You requested up to 8000 tokens, but can only afford 6437 tokens"),
        (503, "The prompt is too long a wait"),
        (400, "Unexpected token at position 1234, line 567"),
    ],
)
def test_other_limits_are_not_taken_for_that_of_the_prompt(status, message):
    assert not isinstance(model_error(ProviderError(message, status)), ContextLengthError)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "ThrottlingException: Too many tokens, please wait.", TransientModelError),
        (500, "message queue limit exceeded", TransientModelError),
        (500, "request timed out: took too long", TransientModelError),
        (504, "The request took too long to process", TransientModelError),
        (529, "Overloaded: too many concurrent requests exceed the limit", TransientModelError),
        (400, "Unsupported value: 'temperature' does not support 0.0", ModelError),
        (400, "messages: at least one message is required", ModelError),
        (400, "tools[0].function.name is invalid", ModelError),
        (400, "The model `x` does not exist", ModelError),
        (400, "Invalid role: developer", ModelError),
        (400, "Incorrect API key provided", ModelError),
    ],
)
def test_a_busy_server_is_tried_again_and_a_rejected_request_is_not(status, message, kind):
    found = model_error(ProviderError(message, status))

    assert type(found) is kind
    assert message in str(found)


BODIES = [
    {"error": {"message": "No seats."}},
    {"error": {"type": "x", "message": None, "detail": "No seats."}},
    {"error": None, "message": "No seats."},
    {"detail": {"msg": "No seats."}},
    {"detail": [{"loc": ["body", "seats"], "msg": "No seats.", "input": 0}]},
    {"detail": ["No seats."]},
    {"errors": [{"code": "x", "message": "No seats."}]},
    {"base_resp": {"status_code": 2013, "status_msg": "No seats."}},
    {"fault": {"faultstring": "No seats.", "id": "1"}},
    {"error": {"message": '{"error": {"message": "No seats."}}', "code": 400}},
    {"error": {"message": "Failed", "metadata": {"raw": '{"message": "No seats."}'}}},
    [{"error": {"code": 400, "message": "No seats."}}],
    {"error": "invalid_request", "error_description": "No seats."},
    'data: {"error": {"message": "No seats."}}',
    "No seats.",
    "<html><head><title>400</title><style>p {}</style></head><body><p>No seats.</p></body></html>",
]


@pytest.mark.parametrize("body", BODIES)
def test_an_error_says_what_the_server_said_whatever_the_shape_of_its_body(body):
    text = body if isinstance(body, str) else json.dumps(body)

    said = words_of(text)

    assert "No seats." in said
    assert not {"{", "<", "None"} & set(said.split())


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner),
        max_leaves=10,
    )
)
def test_any_body_is_read_without_a_fault(body):
    assert isinstance(words_of(body), str)
    assert isinstance(words_of(json.dumps(body)), str)
    assert isinstance(reply_error({"error": body}), ModelError | None)


LONG = {"message": "maximum context length is 4096 tokens", "code": 400}
LIMIT = {"status_code": 1039, "status_msg": "token limit"}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"error": LONG}, ContextLengthError),
        ({"error": {"message": "slow down", "code": 429}}, TransientModelError),
        ({"error": "upstream died"}, TransientModelError),
        ({"error": {"message": "bad field", "code": "400"}}, BadRequestError),
        ({"error": {"message": "no", "code": 400, "type": "content_filter"}}, RefusalError),
        ({"error": {"message": "no", "code": "insufficient_quota"}}, ModelError),
        ({"choices": None, "base_resp": LIMIT}, ContextLengthError),
        ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, ModelError),
        ({"base_resp": {"status_code": 1026, "status_msg": "input new_sensitive"}}, RefusalError),
        ({"base_resp": {"status_code": 1002, "status_msg": "rate limit"}}, TransientModelError),
        ({"detail": "no seats left"}, TransientModelError),
    ],
)
def test_an_error_in_place_of_a_completion_is_known(reply, expected):
    assert type(reply_error(reply)) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProviderError("slow down", 429), TransientModelError),
        (ProviderError("You exceeded your current quota", 429, 429), TransientModelError),
        (ProviderError("You exceeded it", 429, "insufficient_quota"), ModelError),
        (ProviderError("overloaded", 529), TransientModelError),
        (ProviderError("engine died", None, "500"), TransientModelError),
        (ProviderError("no", 400, "content_filter"), RefusalError),
        (ProviderError("bad field", 400), BadRequestError),
        (ProviderError("bad field", 422), BadRequestError),
        (ProviderError(MORE_THAN_THE_WINDOW, 400), ModelError),
        (BotocoreError(), TransientModelError),
        (ReadTimeoutError(), TransientModelError),
        (TimeoutError(), TransientModelError),
        (OSError("network is down"), TransientModelError),
        (FileNotFoundError("adapter"), ModelError),
        (OSError("certificate verify failed"), ModelError),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), TransientModelError),
        (ContextOverflowError("x"), ContextLengthError),
        (ModelRateLimitError("x"), TransientModelError),
        (EmptyReplyError("x"), EmptyReplyError),
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


@pytest.mark.parametrize(
    ("name", "ours", "words"),
    [
        ("ModelInvalidRequestError", BadRequestError, "400"),
        ("ModelAuthenticationError", ModelError, "refused the credentials"),
        ("ModelNotFoundError", ModelError, "does not know this model"),
        ("ModelRateLimitError", TransientModelError, "429"),
        ("ModelAPIError", TransientModelError, "500"),
        ("ModelTimeoutError", TransientModelError, "cannot be reached"),
        ("ContextOverflowError", ContextLengthError, "too long"),
        ("ModelRefusalError", RefusalError, "refused"),
    ],
)
def test_an_exception_of_langchain_without_a_status_is_classified_by_its_kind(name, ours, words):
    kind = getattr(exceptions, name, None)
    if kind is None:
        pytest.skip(f"this langchain-core has no {name}")

    found = model_error(type("Theirs", (kind,), {})("no"))

    assert type(found) is ours
    assert words in str(found)
