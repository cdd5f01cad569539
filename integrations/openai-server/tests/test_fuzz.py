"""Whatever the schemas of the bodies allow, and what they do not, is never a 500."""

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memagent_openai_server.chat import PASSED
from memagent_openai_server.requests import ChatRequest
from memagent_openai_server.responses import ResponseRequest

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
FIELDS = {CHAT: ChatRequest.model_fields, RESPONSES: ResponseRequest.model_fields}
MANY = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "file", "input_text", "refusal"])},
    optional={"text": TEXT, "image_url": JSON, "file": JSON, "file_data": TEXT},
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
    optional={
        "content": TEXT | st.none() | st.lists(PART, max_size=3),
        "name": TEXT,
        "tool_calls": st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2),
    },
)
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=4)


@st.composite
def nearly(draw, path: str) -> dict:
    """Conversations for the model that is there, with options of which some are of other kinds."""
    options = FIELDS[path].keys() - {"model", "messages", "input"}
    said = {"messages" if path == CHAT else "input": draw(MESSAGES)}
    chosen = st.sampled_from([*sorted(options), "odd"])
    values = st.booleans() | st.integers(1, 9) | TEXT | JSON
    return {"model": "extractive", **said, **draw(st.dictionaries(chosen, values, max_size=3))}


@pytest.fixture(scope="module")
def client(shared):
    with httpx.Client(base_url=shared.url, timeout=240) as found:
        yield found


POSTS = [*FIELDS, *PASSED]
PATHS = [*POSTS, "/v1/models", "/health", "/version", "/metrics"]


def check(found: httpx.Response) -> None:
    assert found.status_code < 500, found.text
    if found.status_code >= 400:
        assert found.json()["error"]["message"]
    elif found.headers["content-type"].startswith("text/event-stream"):
        assert "internal_error" not in found.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "bodies"),
    [*((path, nearly) for path in FIELDS), *((path, lambda _: JSON) for path in POSTS)],
    ids=lambda given: given if isinstance(given, str) else given.__name__.strip("<>"),
)
def test_no_body_that_is_nearly_valid_or_any_json_is_a_500(client, path, bodies):
    @MANY
    @given(bodies(path))
    def post(body):
        check(client.post(path, json=body))

    post()


def test_no_path_method_or_header_is_a_500(client):
    names = st.sampled_from([*PATHS, "/v1/responses/x", "/v1/models/x", "/"])
    methods = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "X"])
    values = st.binary(max_size=40).map(lambda raw: raw.translate(None, b"\r\n\0").strip())
    headers = st.dictionaries(
        st.sampled_from([b"authorization", b"x-memagent-session", b"content-type", b"accept"]),
        values,
    )

    @MANY
    @given(names, methods, headers, TEXT)
    def call(path, method, found, query):
        try:
            response = client.request(method, path, headers=found, params={"q": query})
        except httpx.LocalProtocolError:  # the client itself does not send it
            return
        assert response.status_code < 500

    call()
