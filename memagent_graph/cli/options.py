"""Options that several commands have; the reader and the store that they choose."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from memagent_graph.cli.terminal import report_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langgraph.store.base import BaseStore

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.users import Users
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.readers.base import Reader

Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="MEMAGENT_MODEL",
        help="Model to read with: extractive, openai:MODEL, vllm:MODEL, hf:MODEL, or a name that "
        "LangChain's init_chat_model knows.",
    ),
]
BaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(help="URL of an OpenAI-compatible server; OPENAI_BASE_URL by default."),
]
ModelArgs: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Arguments of the model as JSON, such as '{\"max_model_len\": 8192}'."),
]
ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="YAML or JSON file with fields of ReadingConfig, such as `chunk_tokens: 2000`.",
    ),
]
ConfigFields: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Field of ReadingConfig, such as segments=auto. Repeat it for more.",
    ),
]
ChunkTokens: TypeAlias = Annotated[int, typer.Option(help="Longest chunk, in tokens.")]
ExactCuts: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--exact-cuts",
        help="Cut after exactly --chunk-tokens tokens, as the paper does, rather than at the end "
        "of a paragraph, sentence, line or word.",
    ),
]
MemoryTokens: TypeAlias = Annotated[int, typer.Option(help="Longest memory, in tokens.")]
AnswerTokens: TypeAlias = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
TokenizerFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        help="Tokenizer that counts: a tokenizer.json, its folder or a hub id.",
    ),
]
PromptsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        help="JSON or YAML file with the prompts `update` and `answer`.",
    ),
]
ResponseFormatFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--response-format",
        help="File with the JSON schema of an object: the form of the answer.",
    ),
]
Store: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="MEMAGENT_STORE",
        help="Where to keep memories for the next time: a Redis URL, an SQLite file or none. "
        "By default a file in your data folder.",
    ),
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Labels under which the store keeps memories, with / between them: ann/memagent. "
        "Other namespaces are invisible.  [default: memagent]",
    ),
]

_LONGEST_LOOK = 2.0
"""Seconds in which a server should list its models."""
_NO_MODEL = (
    "memagent: no model was named, so the built-in extractive reader quotes what fits the "
    "question; it understands nothing. Name a model with --model or MEMAGENT_MODEL."
)


def make_reader(
    model: str | None,
    base_url: str | None,
    prompts: Path | None,
    tokenizer: str | None,
    config: ReadingConfig,
    model_args: str | None = None,
    response_format: Path | None = None,
) -> Reader:
    """Make the reader that the options name; on a terminal, say so when they name none.

    Raises:
        MemAgentError: There is no such model, prompts file or tokenizer, or the model's arguments
            or the response format are not a JSON object.
    """
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.resolve import EXTRACTIVE, resolve_reader

    if model is None and sys.stderr.isatty():
        print(_NO_MODEL, file=sys.stderr)
    reader = resolve_reader(
        model,
        config=config,
        prompts=Prompts.from_file(prompts) if prompts else None,
        tokenizer=tokenizer,
        base_url=base_url,
        options=_arguments(model_args) if model_args else None,
        response_format=_schema(response_format) if response_format else None,
    )
    if base_url and reader.identity.name == EXTRACTIVE:
        raise ConfigurationError("--base-url needs a model: --model openai:MODEL.")
    return reader


def make_config(file: Path | None, fields: list[str] | None) -> ReadingConfig:
    """Make the config of --config, with the fields of --set in place of those of the file.

    Raises:
        MemAgentError: The file cannot be read, or a field has no value.
        ValueError: A field is unknown or invalid.
    """
    from memagent_graph.config import ReadingConfig, fields_from_file

    given = fields_from_file(file) if file else {}
    return ReadingConfig.model_validate(given | parse_fields(fields))


def parse_fields(fields: list[str] | None) -> dict[str, Any]:
    """Parse the values of --set, which are YAML.

    Raises:
        ConfigurationError: One is not FIELD=VALUE.
    """
    import yaml

    from memagent_graph.errors import ConfigurationError

    parsed = {}
    for given in fields or ():
        name, found, value = given.partition("=")
        try:
            parsed[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            found = ""
        if not found:
            message = f"--set takes FIELD=VALUE, not {given!r}."
            raise ConfigurationError(message)
    return parsed


def check_server(caller: object) -> None:
    """Fail at once if a server cannot be reached; a reading would try many times first.

    Args:
        caller: the model on the server, or the reader that asks it.

    Raises:
        ModelError: No connection can be made to it, or there is no key for it.
    """
    if "memagent_graph.models.endpoint" not in sys.modules:  # which takes most of a second
        return
    from memagent_graph.errors import ModelError
    from memagent_graph.models.endpoint import ChatEndpoint
    from memagent_graph.models.failures import is_unreachable
    from memagent_graph.sync import wait_for

    model = caller if isinstance(caller, ChatEndpoint) else getattr(caller, "model", None)
    if not isinstance(model, ChatEndpoint):
        return
    try:
        wait_for(asyncio.wait_for(model.amodels(), _LONGEST_LOOK))
    except TimeoutError:  # it is slow, but may be there
        return
    except ModelError as error:
        if error.__cause__ is None:  # there is no key for it
            raise
        cause = error.__cause__
        if isinstance(cause, Exception) and is_unreachable(cause):
            fix = "Start the server, or correct --base-url or OPENAI_BASE_URL."
            message = f"{str(error).rstrip('.')}. {fix}"
            raise ModelError(message) from error


def parse_namespace(labels: str | None) -> tuple[str, ...]:
    """Make the namespace that --namespace names.

    Raises:
        ConfigurationError: LangGraph does not allow it.
    """
    from memagent_graph.memory.items import NAMESPACE, check_namespace

    return NAMESPACE if labels is None else check_namespace(tuple(labels.split("/")))


def _schema(file: Path) -> dict[str, object]:
    from memagent_graph.errors import ConfigurationError

    with suppress(ValueError):
        found = json.loads(file.read_text("utf-8"))
        if isinstance(found, dict):
            return found
    message = (
        f"{file} does not hold a JSON schema: --response-format names a file with a JSON object."
    )
    raise ConfigurationError(message)


def _arguments(text: str) -> dict[str, object]:
    from memagent_graph.errors import ConfigurationError

    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    message = f"--model-args is a JSON object such as '{{\"max_model_len\": 8192}}', not {text!r}."
    raise ConfigurationError(message)


Reference: TypeAlias = Annotated[str, typer.Argument(help="A memory's name or a version's id.")]
Named: TypeAlias = Annotated[
    str | None,
    typer.Argument(help="A memory's name or a version's id; not needed with --user."),
]
User: TypeAlias = Annotated[
    str | None,
    typer.Option("--user", help="User of a chatbot: the memory of this user."),
]
MemoryStore: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="MEMAGENT_STORE",
        help="A Redis URL or an SQLite file; by default a file in your data folder.",
    ),
]


@contextmanager
def open_users(
    store: str | None, namespace: str | None, *, create: bool = False
) -> Iterator[Users]:
    """Open the users of a chatbot and their memories.

    Args:
        store: see `open_store`.
        namespace: labels of the memories, with / between them.
        create: whether to create a store that does not exist; if not, there is nothing in it.
    """
    from memagent_graph.conversation.users import Users
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.memory.stores import open_store

    with report_errors("memagent: stopped."), ExitStack() as stack:
        found: BaseStore | None
        missing = None if create else find_missing_store(store)
        if missing:
            from langgraph.store.memory import InMemoryStore

            found = InMemoryStore()
        else:
            found = stack.enter_context(open_store(store))
        if found is None:
            message = "There are no memories in the store 'none': name another with --store."
            raise ConfigurationError(message)
        yield Users(found, parse_namespace(namespace))
        if missing:  # an error says enough by itself
            message = f"memagent: there is no store {missing} yet; the first reading makes it."
            print(message, file=sys.stderr)


def find_missing_store(store: str | None) -> Path | None:
    """Return the SQLite file of a store, if it does not exist."""
    from memagent_graph.memory.stores import sqlite_file

    file = sqlite_file(store)
    return None if file is None or file.exists() else file


def bank_of(users: Users, user: str | None) -> MemoryBank:
    """The memories of a namespace, or of one user of a chatbot there."""
    from memagent_graph.memory.bank import MemoryBank

    return MemoryBank(users.store, users.namespace) if user is None else users.of(user).bank


def name_for(reference: str | None, user: str | None) -> str:
    """The reference that a command was given; a user's own memory needs none.

    Raises:
        ConfigurationError: There is neither.
    """
    from memagent_graph.conversation.user_memory import MEMORY
    from memagent_graph.errors import ConfigurationError

    if reference is None and user is None:
        message = (
            "Which memory? Name one (`memagent memory list` lists them), or a user with --user "
            "(`memagent memory users` lists them)."
        )
        raise ConfigurationError(message)
    return reference or MEMORY


def operator() -> str:
    """Return the name of who runs this command, for the line of what they change."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # this user has no name
        return f"uid {os.getuid()}"
