"""Options that several commands have; the reader and the store that they choose."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import sys
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer

from memagent_graph.cli.terminal import report_errors
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.sync import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.users import Users
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.readers.base import Reader

_LONGEST_LOOK = 2.0
"""Seconds in which a server should list its models."""
_NO_MODEL = (
    "memagent: no model was named, so the built-in extractive reader quotes what fits the "
    "question; it understands nothing. Name a model with --model or MEMAGENT_MODEL."
)


def parse_fields(file: Path | None, named: list[str] | None) -> dict[str, Any]:
    """Return the fields of a file, if there is one, and in their place those of --set, in YAML."""
    import yaml

    from memagent_graph.config import fields_from_file

    parsed = fields_from_file(file) if file else {}
    for given in named or ():
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
    """Fail at once if a model's server cannot be reached; a reading would try many times first.

    The caller is the model, or the reader that asks it.
    """
    if "memagent_graph.models.endpoint" not in sys.modules:  # which takes most of a second
        return
    from memagent_graph.models.endpoint import ChatEndpoint
    from memagent_graph.models.failures import is_unreachable

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


def parse_object(text: str, wanted: str) -> dict[str, Any]:
    """Parse a JSON object; if it is none, the error says what was wanted."""
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    raise ConfigurationError(wanted)


@dataclass(frozen=True)
class Reads:
    """The options of what reads, for a command with `takes_options`."""

    model: Annotated[
        str | None,
        typer.Option(
            envvar="MEMAGENT_MODEL",
            help="Model to read with: extractive, openai:MODEL, vllm:MODEL, hf:MODEL, or a name "
            "that LangChain's init_chat_model knows.",
        ),
    ] = None
    base_url: Annotated[
        str | None,
        typer.Option(help="URL of an OpenAI-compatible server; OPENAI_BASE_URL by default."),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="YAML or JSON file with fields of ReadingConfig, such as `chunk_tokens: 2000`.",
        ),
    ] = None
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Field of ReadingConfig, such as segments=auto. Repeat it for more.",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer that counts: a tokenizer.json, its folder or a hub id."),
    ] = None
    prompts: Annotated[
        Path | None, typer.Option(help="JSON or YAML file with the prompts `update` and `answer`.")
    ] = None

    def make_config(self, **fields: object) -> ReadingConfig:
        """Make a config of these fields; those of --config replace them, and those of --set all."""
        from memagent_graph.config import ReadingConfig

        return ReadingConfig.model_validate(fields | parse_fields(self.config, self.fields))

    def make_reader(
        self,
        config: ReadingConfig,
        *,
        model_args: str | None = None,
        response_format: Path | None = None,
    ) -> Reader:
        """Make the reader that the options name; on a terminal, say so when they name none.

        The model's arguments are JSON; the response format is a file.
        """
        from memagent_graph.prompts import Prompts
        from memagent_graph.readers.resolve import EXTRACTIVE, resolve_reader

        if self.model is None and sys.stderr.isatty():
            print(_NO_MODEL, file=sys.stderr)
        options = shape = None
        if model_args:
            example = "'{\"max_model_len\": 8192}'"
            wanted = f"--model-args is a JSON object such as {example}, not {model_args!r}."
            options = parse_object(model_args, wanted)
        if response_format:
            shape = parse_object(
                response_format.read_text("utf-8"),
                f"{response_format} does not hold a JSON schema: --response-format names a file "
                "with a JSON object.",
            )
        reader = resolve_reader(
            self.model,
            config=config,
            prompts=Prompts.from_file(self.prompts) if self.prompts else None,
            tokenizer=self.tokenizer,
            base_url=self.base_url,
            options=options,
            response_format=shape,
        )
        if self.base_url and reader.identity.name == EXTRACTIVE:
            raise ConfigurationError("--base-url needs a model: --model openai:MODEL.")
        return reader


@dataclass(frozen=True)
class Keeps:
    """The options of where memories are, for a command with `takes_options`."""

    store: Annotated[
        str | None,
        typer.Option(
            envvar="MEMAGENT_STORE",
            help="Where to keep memories for the next time: a Redis URL, an SQLite file or none. "
            "By default a file in your data folder.",
        ),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(
            help="Labels under which the store keeps memories, with / between them: ann/memagent. "
            "Other namespaces are invisible.  [default: memagent]",
        ),
    ] = None

    @property
    def place(self) -> tuple[str, ...]:
        """The namespace that --namespace names."""
        from memagent_graph.memory.items import NAMESPACE, check_namespace

        labels = self.namespace
        return NAMESPACE if labels is None else check_namespace(tuple(labels.split("/")))

    @contextmanager
    def open_users(self, *, create: bool = False) -> Iterator[Users]:
        """Open the users of a chatbot and their memories; a store that is not there is empty."""
        from langgraph.store.memory import InMemoryStore

        from memagent_graph.conversation.users import Users
        from memagent_graph.memory.stores import open_store

        with report_errors("memagent: stopped."):
            missing = None if create else find_missing_store(self.store)
            with nullcontext(InMemoryStore()) if missing else open_store(self.store) as found:
                if found is None:
                    message = "There are no memories in the store 'none': name one with --store."
                    raise ConfigurationError(message)
                yield Users(found, self.place)
            if missing:  # an error says enough by itself
                message = f"memagent: there is no store {missing} yet; the first reading makes it."
                print(message, file=sys.stderr)


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the records among its parameters."""
    hints = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    options = []
    for name, own in signature(command).parameters.items():
        parts = get_type_hints(records[name], include_extras=True) if name in records else {}
        options += [
            Parameter(part, Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for part, hint in parts.items()
        ] or [own.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name])]

    def run(**given: Any) -> None:
        for name, kind in records.items():
            given[name] = kind(**{part.name: given.pop(part.name) for part in fields(kind)})
        command(**given)

    run.__signature__ = Signature(options)  # type: ignore[attr-defined] # which typer reads
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run


Named: TypeAlias = Annotated[
    str | None,
    typer.Argument(help="A memory's name or a version's id; not needed with --user."),
]
User: TypeAlias = Annotated[
    str | None,
    typer.Option("--user", help="User of a chatbot: the memory of this user."),
]


def name_for(reference: str | None) -> str:
    """Return the reference that a command was given; without one, raise `ConfigurationError`."""
    if reference is None:
        message = (
            "Which memory? Name one (`memagent memory list` lists them), or a user with --user "
            "(`memagent memory users` lists them)."
        )
        raise ConfigurationError(message)
    return reference


def bank_of(users: Users, user: str | None) -> MemoryBank:
    """Return the memories of a namespace, or of one user of a chatbot there."""
    from memagent_graph.memory.bank import MemoryBank

    return MemoryBank(users.store, users.namespace) if user is None else users.of(user).bank


def find_missing_store(store: str | None) -> Path | None:
    """Return the SQLite file of a store, if it does not exist."""
    from memagent_graph.memory.stores import sqlite_file

    file = sqlite_file(store)
    return None if file is None or file.exists() else file


def operator() -> str:
    """Return the name of who runs this command, for the line of what they change."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # this user has no name
        return f"uid {os.getuid()}"
