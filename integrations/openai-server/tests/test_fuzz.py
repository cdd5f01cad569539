"""Whatever the schemas of the bodies allow, and what they do not, is never a 500."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memagent_openai_server.chat import PASSED
from memagent_openai_server.requests import ChatRequest
from memagent_openai_server.responses import ResponseRequest

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SCHEMAS = {CHAT: ChatRequest.model_json_schema(), RESPONSES: ResponseRequest.model_json_schema()}
MANY = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TEXT_OF = st.characters(exclude_categories=["Cs"])
TEXT = st.text(TEXT_OF, max_size=30)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def valid(schema: dict, defs: dict) -> st.SearchStrategy:  # noqa: C901 - a list of kinds
    """What a schema allows, of the kinds that ours have."""
    if "$ref" in schema:
        return valid(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return st.one_of([valid(each, defs) for each in schema["anyOf"]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "string":
        return st.text(TEXT_OF, min_size=schema.get("minLength", 0), max_size=60)
    if kind == "integer":
        return st.integers(schema.get("minimum"), schema.get("maximum"))
    if kind == "array":
        least = schema.get("minItems", 0)
        return st.lists(valid(schema["items"], defs), min_size=least, max_size=least + 3)
    if kind == "object" and "properties" in schema:
        fields = {name: valid(each, defs) for name, each in schema["properties"].items()}
        required = {name: fields.pop(name) for name in schema.get("required", ())}
        found = st.fixed_dictionaries(required, optional=fields)
        if schema.get("additionalProperties") is True:
            return st.tuples(st.dictionaries(TEXT, JSON, max_size=2), found).map(_joined)
        return found
    if kind == "object":
        values = schema.get("additionalProperties")
        values = valid(values, defs) if isinstance(values, dict) else JSON
        return st.dictionaries(TEXT, values, max_size=3)
    return {"boolean": st.booleans(), "null": st.none()}.get(kind, JSON)


def _joined(two: tuple[dict, dict]) -> dict:
    return two[0] | two[1]


def of_schema(path: str) -> st.SearchStrategy:
    """Bodies that are valid, for the model that is there."""
    schema = SCHEMAS[path]
    fields = {**schema["properties"], "model": {"const": "extractive"}}
    return valid({**schema, "properties": fields}, schema["$defs"])


@st.composite
def broken(draw, path: str) -> dict:
    """Valid bodies of which some fields were replaced, dropped or added."""
    fields = dict(draw(of_schema(path)))
    for name in draw(st.lists(st.sampled_from([*SCHEMAS[path]["properties"], "odd"]))):
        if draw(st.booleans()):
            fields[name] = draw(JSON)
        else:
            fields.pop(name, None)
    return fields


@pytest.fixture(scope="module")
def client(shared):
    with httpx.Client(base_url=shared.url, timeout=240) as found:
        yield found


POSTS = [*SCHEMAS, *PASSED]
PATHS = [*POSTS, "/v1/models", "/health", "/version", "/metrics"]


def check(found: httpx.Response) -> None:
    assert found.status_code < 500, found.text
    if found.status_code >= 400:
        assert found.json()["error"]["message"]
    elif found.headers["content-type"].startswith("text/event-stream"):
        assert "internal_error" not in found.text


@pytest.mark.slow
@pytest.mark.parametrize("path", [*SCHEMAS])
def test_no_valid_body_is_a_500(client, path):
    @MANY
    @given(of_schema(path))
    def post(body):
        check(client.post(path, json=body))

    post()


@pytest.mark.slow
@pytest.mark.parametrize("path", [*SCHEMAS])
def test_no_body_that_is_nearly_valid_is_a_500(client, path):
    @MANY
    @given(broken(path))
    def post(body):
        check(client.post(path, json=body))

    post()


@pytest.mark.slow
@pytest.mark.parametrize("path", POSTS)
def test_no_json_at_all_is_a_500(client, path):
    @MANY
    @given(JSON)
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
