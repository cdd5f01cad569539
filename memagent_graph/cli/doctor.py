"""`memagent doctor`: is everything there that a reading needs, and what to do if not."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli import checks
from memagent_graph.cli.checks import Check
from memagent_graph.cli.options import (
    AnswerTokens,
    BaseUrl,
    ChunkTokens,
    MemoryTokens,
    Model,
    Namespace,
    Store,
    TokenizerFile,
    chosen_namespace,
)
from memagent_graph.cli.reporting import reporting
from memagent_graph.cli.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.config import ReadingConfig

_COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}
_NO_MODEL = "Name a model with --model or MEMAGENT_MODEL; the built-in one understands nothing."


def doctor(
    model: Model = None,
    base_url: BaseUrl = None,
    store: Store = None,
    namespace: Namespace = None,
    chunk_tokens: ChunkTokens = 5000,
    memory_tokens: MemoryTokens = 1024,
    answer_tokens: AnswerTokens = 1024,
    tokenizer: TokenizerFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the checks as one JSON document.")
    ] = False,
) -> None:
    """Check the model, its server, the store and the GPU.

    Options are those of `memagent ask`. Exit code 1 when something would keep a reading from
    running.
    """
    from memagent_graph.config import ReadingConfig

    with reporting("memagent: stopped."):
        config = ReadingConfig(
            chunk_tokens=chunk_tokens, memory_tokens=memory_tokens, answer_tokens=answer_tokens
        )
        place = chosen_namespace(namespace)
        found = []
        for check in _examine(model, base_url, store, place, tokenizer, config):
            found.append(check)
            if not as_json:
                _show(check)
    failed = any(check.status == "fail" for check in found)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [asdict(c) for c in found]}, indent=2))
    if failed:
        raise typer.Exit(1)


def _examine(
    model: str | None,
    base_url: str | None,
    store: str | None,
    namespace: tuple[str, ...],
    tokenizer: str | None,
    config: ReadingConfig,
) -> Iterator[Check]:
    from memagent_graph.readers.resolve import EXTRACTIVE

    name = model or EXTRACTIVE
    if name == EXTRACTIVE:
        yield Check("model", "warn", f"{name}, built in", _NO_MODEL)
    else:
        yield from _examine_model(name, base_url, tokenizer, config)
    yield checks.store(store, namespace)
    yield checks.gpu(wanted=name.startswith(("vllm:", "hf:")))
    yield checks.extras()


def _examine_model(
    name: str, base_url: str | None, tokenizer: str | None, config: ReadingConfig
) -> Iterator[Check]:
    from memagent_graph.errors import MemAgentError, ModelError
    from memagent_graph.models.endpoint import ChatEndpoint
    from memagent_graph.readers.chat import ChatReader
    from memagent_graph.readers.resolve import resolve_reader
    from memagent_graph.sync import wait_for

    try:
        reader = resolve_reader(name, config=config, base_url=base_url)
    except MemAgentError as error:
        yield Check("model", "fail", str(error), "See `memagent ask --help` for what names one.")
        return
    yield Check("model", "ok", name)
    if isinstance(reader, ChatReader):
        if isinstance(reader.model, ChatEndpoint):
            server = list(checks.endpoint(reader.model))
            yield from server
            if server[0].status == "fail":
                return
        try:
            wait_for(reader.prepare())
        except ModelError as error:
            yield Check("name", "fail", str(error), "Name one of these with --model openai:NAME.")
            return
    yield checks.context(reader, config)
    yield checks.tokenizer(tokenizer, reader, exact=True)
    yield wait_for(checks.call(reader))


def _show(check: Check) -> None:
    word = typer.style(f"{check.status:4}", fg=_COLOURS[check.status], bold=True)
    typer.echo(f"{word}  {check.name:9}  {_one_line(check.text)}")
    if check.fix:
        typer.echo(f"{'':17}{_one_line(check.fix)}")


def _one_line(text: str) -> str:
    return shown(" ".join(text.split()))
