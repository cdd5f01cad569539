import json
import socket
from dataclasses import dataclass
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, RootModel
from typing_extensions import TypedDict

from memagent_graph.errors import ConfigurationError, ModelError, ResponseFormatError
from memagent_graph.models.structured import constraint, fill, shape_of
from memagent_graph.testing import ScriptedChatModel


class Lease(BaseModel):
    tenant: str
    until: date | None = None


@dataclass
class Rent:
    amount: int


class Room(TypedDict):
    name: str


SCHEMA = {
    "title": "A lease!",
    "type": "object",
    "properties": {"tenant": {"type": "string"}, "rent": {"type": "integer"}},
    "required": ["tenant"],
}
LEASE = shape_of(Lease)
EDDA = {"tenant": "Edda", "until": "2031-05-01"}
REFUSAL = {"message": "This response_format type is unavailable now", "code": None}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def script(*replies):
    """What asks a model that replies so, and what it was asked."""
    asked, left = [], list(replies)

    async def ask(messages, options):
        asked.append(messages)
        text = left.pop(0)
        return AIMessage(text), text

    return ask, asked


@pytest.mark.slow
@given(
    st.dictionaries(st.text(), PLAIN, max_size=4), st.text(st.characters(exclude_characters="{}"))
)
def test_an_object_is_found_in_any_text_around_it(plain, prose):
    anything = shape_of({"type": "object"})

    for text in (
        f"{prose}{json.dumps(plain)}{prose}",
        f"```json\n{json.dumps(plain, indent=2, ensure_ascii=False)}\n```",
        f"\\boxed{{{json.dumps(plain)}}}",
    ):
        assert anything.parse(text) == plain


@pytest.mark.parametrize(
    "text",
    [
        'First I thought {"tenant": 7}, but: {"tenant": "Edda"}',
        'A draft is {"tenant": "Ida"}. The answer is {"tenant": "Edda"}.',
        '{"tenant": "Edda",\n}',
        '{"tenant": "Edda"} I left {until} out.',
    ],
)
def test_the_last_object_that_matches_is_taken(text):
    assert LEASE.parse(text) == {"tenant": "Edda"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Edda", "no JSON object"),
        ("", "no JSON object"),
        ('{"tenant": "Edda"', "no JSON object"),
        ('{"tenant": NaN}', "no JSON object"),
        ('{"tenant": 7}', "^tenant: Input should be a valid string$"),
        ('{"tenant": "Edda", "until": "soon"}', "^until: "),
        ('{"a":' * 5_000, "no JSON object"),
    ],
)
def test_what_does_not_match_says_where(text, problem):
    with pytest.raises(ValueError, match=problem):
        LEASE.parse(text)


@pytest.mark.parametrize(
    ("kind", "plain", "value"),
    [
        (Lease, EDDA, Lease(**EDDA)),
        (Rent, {"amount": 7}, Rent(7)),
        (Room, {"name": "attic"}, {"name": "attic"}),
        (SCHEMA, {"tenant": "Edda"}, {"tenant": "Edda"}),
    ],
)
async def test_a_value_is_of_the_kind_that_was_named(kind, plain, value):
    ask, asked = script(json.dumps(plain))

    shape = shape_of(kind)
    filled, replies = await fill(shape, "Who signed?", ask, {})

    assert (filled, len(replies)) == (plain, 1)
    assert shape.load(filled) == value
    assert type(shape.load(filled)) is type(value)
    assert asked[0][0].text.startswith("Who signed?")
    assert next(iter(plain)) in asked[0][0].text  # of the schema


async def test_a_reply_that_does_not_match_is_corrected_once_and_then_an_error():
    ask, asked = script("Edda, I think.", '{"tenant": "Edda"}')

    filled, replies = await fill(LEASE, "Who signed?", ask, {})

    assert LEASE.load(filled) == Lease(tenant="Edda")
    assert len(replies) == 2
    question, reply, wrong = asked[1]
    assert (question, reply.text) == (asked[0][0], "Edda, I think.")
    assert "no JSON object" in wrong.text
    ask, asked = script("Edda.", '{"tenant": null}')
    with pytest.raises(ResponseFormatError, match=r"shape of Lease.*tenant: ") as raised:
        await fill(LEASE, "Who signed?", ask, {})
    assert raised.value.reply == '{"tenant": null}'
    assert isinstance(raised.value, ModelError)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (7, "not int"),
        (list[str], "not GenericAlias|object"),
        (str, "must be an object"),
        (RootModel[list[str]], "must be an object"),
        ({"type": "array"}, "must be an object"),
        ({"type": "objekt"}, "not a JSON schema"),
        (socket.socket, "socket cannot be expressed as a JSON schema"),
    ],
)
def test_what_is_no_shape_of_an_object_is_refused(given, problem):
    with pytest.raises(ConfigurationError, match=problem):
        shape_of(given)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/x", "#/$defs/rent"])
def test_a_schema_that_refers_to_what_it_does_not_have_is_refused(reference):
    schema = {"type": "object", "properties": {"a": {"$ref": reference}}}

    with pytest.raises(ConfigurationError, match=reference.replace("$", r"\$")):
        shape_of(schema)


async def test_a_server_holds_its_model_to_the_schema(openai_server, model):
    shape = shape_of(SCHEMA)

    await model.ainvoke("Who signed?", **constraint(model, shape))
    await model.ainvoke("Who signed?")

    held, free = openai_server.requests
    shown = {"name": "A_lease", "schema": SCHEMA}
    assert held["response_format"] == {"type": "json_schema", "json_schema": shown}
    assert "response_format" not in free


async def test_a_server_that_knows_no_schemas_is_asked_without(openai_server, model):
    openai_server.script = [{"status": 400, "error": REFUSAL}]
    options = constraint(model, LEASE)

    first = await model.ainvoke("Who signed?", **options)
    await model.ainvoke("Who signed?", **options)

    assert first.text.startswith("memory")
    told = ["response_format" in request for request in openai_server.requests]
    assert told == [True, False, False]


async def test_a_response_format_of_the_callers_own_is_never_left_out(openai_server, model):
    openai_server.script = [{"status": 400, "error": REFUSAL}] * 2
    with pytest.raises(ModelError, match="unavailable"):
        await model.ainvoke("Who signed?", response_format={"type": "json_object"})
    assert len(openai_server.requests) == 1


def test_models_of_langchain_are_held_to_a_shape_as_they_can_be():
    openai = ChatOpenAI(model="small", base_url="http://localhost:1/v1", api_key="none")
    tools_only = ScriptedChatModel("{}")

    held = constraint(openai, LEASE)["response_format"]["json_schema"]

    assert held["schema"]["properties"].keys() == LEASE.schema["properties"].keys()
    assert constraint(tools_only, LEASE) == {}
