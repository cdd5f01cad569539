"""Ask a chat model for a value of a given shape, with a second call to correct its reply."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableBinding, RunnableSequence
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from memagent_graph import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

ResponseFormat = type[Any] | Mapping[str, Any]
"""A pydantic model, a dataclass, a TypedDict, or a JSON schema of an object."""
Ask = Callable[[list[BaseMessage], dict[str, Any]], Awaitable[tuple[AIMessage, str]]]
"""Sends messages to a model, with call options, and returns its reply and the text of that."""

_INSTRUCTIONS = """

Reply with one JSON object and nothing else: no explanation, no code fence. It must match this \
JSON schema:

{schema}
"""
_REPAIR = """\
That is not the JSON object that was asked for: {problem}
Reply with the corrected JSON object and nothing else.
"""
_LONGEST_REPLY = 8000
"""Characters of a wrong reply that the model is shown again."""
_MOST_PROBLEMS = 5
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_REFERENCE = re.compile(r'"\$ref": "([^"]*)"')
_UNNAMED = re.compile(r"[^\w-]+", re.ASCII)

_log = logging.getLogger(__name__)


def _refuse(name: str) -> float:
    message = f"{name} is not JSON."
    raise ValueError(message)


_DECODER = json.JSONDecoder(parse_constant=_refuse)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a reply.

    Attributes:
        name: of the characters that servers allow: letters, digits, "_", "-".
        schema: JSON schema of an object.
        adapter: validates JSON and makes the value; None if the shape is a JSON schema.
    """

    name: str
    schema: Mapping[str, Any]
    adapter: TypeAdapter[Any] | None = None

    @property
    def choices(self) -> frozenset[str]:
        """The strings that the schema offers to choose from."""
        return frozenset(_choices(self.schema))

    def load(self, plain: Mapping[str, Any]) -> Any:
        """Return the value of JSON types: an instance of the class, or `plain` itself.

        Raises:
            ValueError: `plain` does not match; the message says where.
        """
        if self.adapter is not None:
            return _validate(self.adapter, plain)
        problems = _problems(self.schema, plain)
        if problems:
            raise ValueError("; ".join(problems))
        return plain

    def parse(self, text: str) -> dict[str, Any]:
        """Return the last JSON object in a reply's text that matches the shape.

        Text around it, code fences and trailing commas are tolerated.

        Raises:
            ValueError: No object matches; the message says what is wrong.
        """
        problem = "there is no JSON object in it."
        for found in _objects(text):
            try:
                self.load(found)
            except ValueError as error:
                problem = str(error)
            else:
                return found
        raise ValueError(problem)


def _choices(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        schema = {str(number): part for number, part in enumerate(schema)}
    if not isinstance(schema, dict):
        return
    offered = [*schema["enum"]] if isinstance(schema.get("enum"), list) else []
    yield from (value for value in [*offered, schema.get("const")] if isinstance(value, str))
    for part in schema.values():
        yield from _choices(part)


def shape_of(response_format: ResponseFormat) -> Shape:
    """Return the shape that a caller asks for.

    Raises:
        ConfigurationError: It is no `ResponseFormat`, or has no schema of an object.
    """
    if isinstance(response_format, Mapping):
        _check_schema(response_format)
        return Shape(_name(response_format.get("title")), dict(response_format))
    if not isinstance(response_format, type):
        message = (
            "response_format= takes a pydantic model, a dataclass, a TypedDict or a JSON schema, "
            f"not {type(response_format).__name__}."
        )
        raise errors.ConfigurationError(message)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(response_format)
        schema = adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        message = (
            f"{response_format.__name__} cannot be expressed as a JSON schema; use types that JSON "
            f"has. {error}"
        )
        raise errors.ConfigurationError(message) from error
    _check_object(schema)
    return Shape(_name(response_format.__name__), schema, adapter)


async def fill(
    shape: Shape, prompt: str, ask: Ask, held: dict[str, Any]
) -> tuple[dict[str, Any], list[AIMessage]]:
    """Ask a model for a value, and once more, saying what is wrong, if its reply does not match.

    The schema is appended to the prompt, and `held`, the options of `constraint`, go with each
    call. Returns the value in JSON types, and the replies.

    Raises:
        ResponseFormatError: Neither reply matches.
    """
    schema = json.dumps(shape.schema, ensure_ascii=False)
    messages: list[BaseMessage] = [HumanMessage(prompt + _INSTRUCTIONS.format(schema=schema))]
    replies: list[AIMessage] = []
    while True:
        reply, text = await call_constrained(partial(ask, messages), held)
        replies.append(reply)
        try:
            return shape.parse(text), replies
        except ValueError as error:
            if len(replies) > 1:
                message = (
                    f"The model did not answer in the shape of {shape.name} in two attempts: "
                    f"{error} Simplify response_format, or use a stronger model."
                )
                raise errors.ResponseFormatError(message, reply=text) from error
            wrong = HumanMessage(_REPAIR.format(problem=error))
            messages = [*messages, AIMessage(text[:_LONGEST_REPLY]), wrong]


def constraint(model: BaseChatModel, shape: Shape) -> dict[str, Any]:
    """Return the call options that constrain a model's output to a shape; {} if there are none.

    The model's method `constraint` is used if it has one, or else `with_structured_output`, if that
    supports JSON schemas.
    """
    found = getattr(model, "constraint", None)
    if callable(found):
        return dict(found(shape.name, shape.schema))
    if type(model).with_structured_output is BaseChatModel.with_structured_output:
        return {}
    schema = {"title": shape.name, "description": "", **shape.schema}
    try:
        bound = model.with_structured_output(schema, method="json_schema")
    except (NotImplementedError, TypeError, ValueError):  # it does not support JSON schemas
        return {}
    first = bound.first if isinstance(bound, RunnableSequence) else None
    options = dict(first.kwargs) if isinstance(first, RunnableBinding) else {}
    return {} if "tools" in options else options


async def call_constrained(
    call: Callable[[dict[str, Any]], Awaitable[T]], held: dict[str, Any]
) -> T:
    """Make a call with the options of `constraint`, or without them if the model refuses them.

    Options that are refused are removed from `held`, so that they are not sent again.
    """
    if not held:
        return await call({})
    try:
        return await call(held)
    except (
        errors.TransientModelError,
        errors.ContextLengthError,
        errors.RefusalError,
        errors.EmptyReplyError,
    ):
        raise
    except errors.ModelError as error:
        found = await call({})
        held.clear()
        _log.warning("The model refuses a JSON schema, so calls are made without one: %s", error)
        return found


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects in a text, from the last to the first."""
    for read in dict.fromkeys((text, _TRAILING_COMMA.sub("", text))):  # unchanged first
        found, at = [], read.find("{")
        while at >= 0:
            try:
                value, end = _DECODER.raw_decode(read, at)
            except (ValueError, RecursionError):
                end = at + 1
            else:
                found.append(value)
            at = read.find("{", end)
        yield from reversed(found)


def _validate(adapter: TypeAdapter[Any], plain: Mapping[str, Any]) -> Any:
    try:
        return adapter.validate_json(json.dumps(plain))
    except ValidationError as error:
        problems = [_at(item["loc"], item["msg"]) for item in error.errors()[:_MOST_PROBLEMS]]
        raise ValueError("; ".join(problems)) from error


def _problems(schema: Mapping[str, Any], plain: Mapping[str, Any]) -> list[str]:
    from jsonschema.validators import validator_for
    from referencing import Registry

    validator = validator_for(schema)(schema, registry=Registry())
    found = [*validator.iter_errors(plain)][:_MOST_PROBLEMS]
    return [_at(error.absolute_path, error.message) for error in found]


def _at(path: Sequence[str | int], message: str) -> str:
    where = ".".join(map(str, path))
    return f"{where}: {message}" if where else message


def _check_schema(schema: Mapping[str, Any]) -> None:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    reference = ""
    try:
        validator_for(schema).check_schema(schema)
        # The registry is empty, so that nothing is fetched from the network.
        resource = DRAFT202012.create_resource(dict(schema))
        resolver = Registry().with_resource("", resource).resolver()
        for reference in _REFERENCE.findall(json.dumps(schema)):
            resolver.lookup(reference)
    except SchemaError as error:
        message = f"response_format is not a JSON schema: {error.message}. Correct the schema."
        raise errors.ConfigurationError(message) from error
    except Unresolvable as error:
        message = (
            f"response_format refers to {reference!r}, which it does not contain: put the "
            'definition under "$defs" of the schema.'
        )
        raise errors.ConfigurationError(message) from error
    _check_object(schema)


def _check_object(schema: Mapping[str, Any]) -> None:
    if schema.get("type") != "object" and "$ref" not in schema:
        message = (
            'response_format must be an object, with "type": "object" in its schema: make a '
            "list or a single value a field of an object."
        )
        raise errors.ConfigurationError(message)


def _name(title: object) -> str:
    return _UNNAMED.sub("_", str(title or "answer"))[:64].strip("_") or "answer"
