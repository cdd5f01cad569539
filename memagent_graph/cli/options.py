"""Options that several commands have, and the reader that they choose."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

if TYPE_CHECKING:
    from memagent_graph.config import ReadingConfig
    from memagent_graph.readers.base import Reader

Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="MEMAGENT_MODEL",
        help="extractive, openai:MODEL, vllm:MODEL, hf:MODEL, or a name that LangChain's "
        "init_chat_model knows.",
    ),
]
BaseUrl: TypeAlias = Annotated[
    str | None, typer.Option(help="Of an OpenAI-compatible server; or OPENAI_BASE_URL.")
]
ModelArgs: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Arguments of the model, as JSON: '{\"max_model_len\": 131072}'."),
]
ChunkTokens: TypeAlias = Annotated[int, typer.Option(help="Longest chunk, in tokens.")]
Segments: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NUMBER|auto|chunks",
        help="Parts of the document that are read at once, at most; auto goes by its length and "
        "the model, chunks makes one of each chunk.",
    ),
]
MemoryTokens: TypeAlias = Annotated[int, typer.Option(help="Longest memory, in tokens.")]
AnswerTokens: TypeAlias = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
TokenizerFile: TypeAlias = Annotated[
    str | None, typer.Option("--tokenizer", help="A tokenizer.json, its folder or a hub id.")
]
PromptsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--prompts", help="JSON file with the prompts `update` and `answer`."),
]
Verify: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="cross-encoder/MODEL, a hub id or a folder: decides which statements of the memory "
        "the text supports."
    ),
]
Unsupported: TypeAlias = Annotated[
    Literal["keep", "drop"],
    typer.Option(help="What becomes of statements that the text does not support."),
]
Store: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="MEMAGENT_STORE",
        help="Where memories are kept for the next time: a Redis URL, an SQLite file "
        "(by default one in your data folder), or none.",
    ),
]
Reuse: TypeAlias = Annotated[
    bool,
    typer.Option("--reuse/--no-reuse", help="Take over what the store has of earlier readings."),
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="MEMAGENT_NAMESPACE",
        help="Where in the store: labels with / between them, such as ann/memagent. "
        "Memories of other namespaces are not seen. [default: memagent]",
    ),
]

_NO_MODEL = (
    "memagent: no model was named, so the built-in extractive reader quotes what fits the "
    "question; it understands nothing. Name a model with --model or MEMAGENT_MODEL."
)


def chosen_reader(
    model: str | None,
    base_url: str | None,
    prompts: Path | None,
    tokenizer: str | None,
    config: ReadingConfig,
    model_args: str | None = None,
    verify: str | None = None,
) -> Reader:
    """Make the reader that the options name, and say so when they name none.

    Raises:
        MemAgentError: There is no such model, prompts file or tokenizer, or the model's arguments
            are no JSON object.
    """
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.resolve import EXTRACTIVE, resolve_reader

    if model is None:
        print(_NO_MODEL, file=sys.stderr)
    reader = resolve_reader(
        model,
        config=config,
        prompts=Prompts.from_file(prompts) if prompts else None,
        tokenizer=tokenizer,
        verify=verify,
        base_url=base_url,
        options=_arguments(model_args) if model_args else None,
    )
    if base_url and reader.identity.name == EXTRACTIVE:
        raise ConfigurationError("--base-url needs a model: --model openai:MODEL.")
    return reader


def chosen_segments(given: str) -> int | Literal["auto", "chunks"]:
    """What --segments says.

    Raises:
        BadParameter: It is neither a number from 1 nor a word that is known.
    """
    match given:
        case "auto" | "chunks":
            return given
        case number if number.isdecimal() and int(number) > 0:
            return int(number)
    message = f"--segments is a number from 1, auto or chunks, not {given!r}."
    raise typer.BadParameter(message)


def chosen_namespace(labels: str | None) -> tuple[str, ...]:
    """Make the namespace that --namespace names.

    Raises:
        ConfigurationError: LangGraph does not allow it.
    """
    from memagent_graph.memory.records import NAMESPACE, check_namespace

    return NAMESPACE if labels is None else check_namespace(tuple(labels.split("/")))


def _arguments(text: str) -> dict[str, object]:
    from memagent_graph.errors import ConfigurationError

    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    message = f"--model-args is a JSON object such as '{{\"max_model_len\": 8192}}', not {text!r}."
    raise ConfigurationError(message)
