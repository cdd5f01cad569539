"""`memagent memory catch-up`: fold what a killed chatbot left unfolded."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from memagent_graph.cli.options import BaseUrl, MemoryTokens, Model, Namespace, chosen_namespace
from memagent_graph.cli.options import Store as StoreOption
from memagent_graph.cli.reporting import reporting
from memagent_graph.cli.resuming import open_saver
from memagent_graph.counted import counted


def catch_up(
    checkpoints: Annotated[
        Path, typer.Argument(help="The SQLite file of the chatbot's checkpointer.", exists=True)
    ],
    model: Model = None,
    base_url: BaseUrl = None,
    memory_tokens: MemoryTokens = 1024,
    store: StoreOption = None,
    namespace: Namespace = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="The pydantic model of the profiles, if the chatbot keeps them. Modules are "
            "also looked for in this folder.",
        ),
    ] = None,
) -> None:
    """Fold messages that a killed chatbot left unfolded, each once.

    Give the model, the memory's size, the schema and the namespace of the chatbot. Exit code 1 when
    a thread could not be folded. For other checkpointers there is `catch_up` in
    `memagent_graph.conversation.catching_up`.
    """
    from memagent_graph.cli.options import chosen_reader
    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation import catching_up
    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.resolve import for_notes
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.memory.stores import open_store

    with (
        reporting("memagent: stopped."),
        open_store(store) as found,
        open_saver(checkpoints) as kept,
    ):
        if found is None:
            raise ConfigurationError("There are no memories in the store 'none'.")
        config = ReadingConfig(memory_tokens=memory_tokens)
        memory: ConversationMemory[Any] = ConversationMemory(
            for_notes(chosen_reader(model, base_url, None, None, config)),
            schema=str if schema is None else _imported(schema),
            store=found,
            config=config,
            namespace=chosen_namespace(namespace),
        )
        done = catching_up.catch_up(memory, kept)
    print(f"{counted(done.messages, 'message')} folded, of {counted(done.threads, 'thread')}")
    if done.failed:
        threads = counted(done.failed, "thread")
        print(f"memagent: {threads} could not be folded.", file=sys.stderr)
        raise typer.Exit(1)


def _imported(schema: str) -> type[Any]:
    """The class that --schema names.

    Raises:
        ConfigurationError: There is no such class.
    """
    from memagent_graph.errors import ConfigurationError

    module, _, name = schema.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: type[Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        message = (
            f"--schema is MODULE:CLASS, as my_chatbot.profiles:Profile, not {schema!r}: {error}"
        )
        raise ConfigurationError(message) from error
    return found
