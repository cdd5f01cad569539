"""`memagent doctor`: is everything there that a reading needs, and what to do if not."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from memagent_graph.cli.options import Keeps, Reads, check_server, takes_options
from memagent_graph.cli.terminal import report_errors
from memagent_graph.errors import ConfigurationError, MemAgentError, ModelError, TransientModelError
from memagent_graph.sync import wait_for
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langgraph.store.base import BaseStore

    from memagent_graph.config import ReadingConfig
    from memagent_graph.models.endpoint import ChatEndpoint
    from memagent_graph.readers.base import Reader

_KEEPS = ("noeviction", "volatile-")  # policies of Redis that leave what has no time to live
_QUESTION, _MEMORY = "What does the sign say?", "The sign on the door says: open."


@dataclass(frozen=True, slots=True)
class Check:
    """The finding about a subject, and the next step; with "fail", no reading would run."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


def check_endpoint(model: ChatEndpoint) -> Iterator[Check]:
    """The server, and whether it has the model. Yields nothing more once it cannot be reached."""
    key = "with a key" if model.api_key else "without a key"
    try:
        model.check_key()
    except ModelError as error:
        text, _, fix = str(error).partition(": ")
        yield Check("endpoint", "fail", text, fix[:1].upper() + fix[1:])
        return
    try:
        served = model.models()
    except TransientModelError as error:
        fix = "Start the server, or correct --base-url or OPENAI_BASE_URL."
        yield Check("endpoint", "fail", f"{model.base_url}: {error}", fix)
        return
    except ModelError as error:  # some serve models and do not list them
        fix = "Check OPENAI_API_KEY and that the base URL ends in /v1, unless the call below works."
        yield Check("endpoint", "warn", f"{model.base_url} lists no models: {error}", fix)
        return
    models = plural(len(served), "model")
    yield Check("endpoint", "ok", f"{model.base_url} answers {key}, {models}")
    if model.model in served:
        yield Check("name", "ok", f"the server has {model.model}")
    else:
        names = ", ".join(list(served)[:10]) or "none"
        fix = f"Name one of these with --model openai:NAME: {names}."
        yield Check("name", "warn", f"the server does not list {model.model}", fix)


def check_context(reader: Reader, config: ReadingConfig) -> Check:
    """Whether the budgets fit the model's context."""
    from memagent_graph.graph.reading import check_window

    holds, needed = reader.identity.window_tokens, config.window_tokens
    if holds is None:
        fix = f"See the model's description: its context must hold {needed} tokens."
        return Check("context", "warn", f"the budgets need {needed} tokens; not reported", fix)
    try:
        check_window(reader.identity, config, question_tokens=1)
    except ConfigurationError as error:
        text, _, fix = str(error).partition(". ")
        return Check("context", "fail", text, fix)
    text = f"the model holds {holds} tokens, the budgets need {needed}"
    if holds < needed:
        longest = config.question_tokens - needed + holds
        fix = f"Keep questions under {longest} tokens, or lower chunk_tokens."
        return Check("context", "warn", text, fix)
    return Check("context", "ok", text)


def check_tokenizer(spec: str | None, reader: Reader) -> Check:
    """Check how tokens are counted; an estimate is a warning."""
    from memagent_graph.text.tokens import EstimatingTokenizer, load_tokenizer

    try:
        found = load_tokenizer(spec or reader.identity.tokenizer)
    except ConfigurationError as error:
        text, _, fix = str(error).partition(" Name ")
        return Check("tokenizer", "fail", text, f"Name {fix}")
    if isinstance(found, EstimatingTokenizer):
        fix = "Name the model's with --tokenizer: a tokenizer.json, its folder or a hub id."
        return Check("tokenizer", "warn", "tokens are estimated, chunks are not exact", fix)
    return Check("tokenizer", "ok", found.name)


async def check_call(reader: Reader) -> Check:
    """One short answer from the model, by the way that a reading takes."""
    from memagent_graph.evidence.places import Memory

    started = perf_counter()
    try:
        answer = await reader.respond(_QUESTION, Memory(_MEMORY))
    except MemAgentError as error:
        return Check("call", "fail", str(error), "The message above says what to change.")
    seconds = perf_counter() - started
    tokens = f"{plural(answer.usage.input_tokens, 'token')} in, {answer.usage.output_tokens} out"
    return Check("call", "ok", f"answered in {seconds:.1f} s, {tokens}")


def check_store(where: str | None, namespace: tuple[str, ...]) -> Check:
    """Whether a store takes an item below `namespace`, gives it back and forgets it."""
    from memagent_graph.memory.stores import open_store

    place, key, value = (*namespace, "doctor"), "check", {"written": "by memagent doctor"}
    started = perf_counter()
    try:
        with open_store(where) as found:
            if found is None:
                fix = "Leave --store and MEMAGENT_STORE out, or name a Redis URL or a file."
                return Check("store", "warn", "none: nothing that is read is kept", fix)
            found.put(place, key, value)
            item = found.get(place, key)
            found.delete(place, key)
            kind = type(found).__name__
            risk, cure = _risk(found)
    except (MemAgentError, OSError) as error:
        fix = "Start the server or correct --store or MEMAGENT_STORE; --store none does without."
        return Check("store", "fail", str(error), fix)
    if item is None or item.value != value:
        fix = "Name another one with --store."
        return Check("store", "fail", f"{kind} did not give back what it was given", fix)
    milliseconds = 1000 * (perf_counter() - started)
    text = f"{kind} writes and reads, {milliseconds:.0f} ms"
    if risk:
        return Check("store", "warn", f"{text}, but {risk}", cure)
    return Check("store", "ok", text)


def _risk(store: BaseStore) -> tuple[str, str]:
    """Return how a Redis server may lose data, and a remedy; both empty if no risk is known."""
    from memagent_graph.memory.redis import RedisStore

    settings = store.server_settings() if isinstance(store, RedisStore) else {}
    cures = {}
    policy = settings.get("maxmemory-policy", "noeviction")
    if settings.get("maxmemory", "0") != "0" and not policy.startswith(_KEEPS):
        risk = f"the server evicts memories when it is full (maxmemory-policy {policy})"
        cures[risk] = "maxmemory-policy noeviction"
    if settings.get("save") == "" and settings.get("appendonly") == "no":
        cures["the server forgets them when it restarts (no persistence)"] = "appendonly yes"
    fix = f"Set {' and '.join(cures.values())} in the server's configuration." if cures else ""
    return " and ".join(cures), fix


_COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}
_NO_MODEL = "Name a model with --model or MEMAGENT_MODEL; the built-in one understands nothing."


@takes_options
def doctor(
    *,
    reads: Reads,
    keeps: Keeps,
    exam: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Give this model 30 small tasks, and suggest settings."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the checks as one JSON document.")
    ] = False,
) -> None:
    """Check the model, its server, and the store.

    Options are those of `memagent ask`. Exit code 1 when something would keep a reading from
    running, or when a model that is examined does not read well enough.
    """
    with report_errors("memagent: stopped."):
        if exam is not None:
            passed = _give_exam(exam, reads.base_url, as_json=as_json)
        else:
            found = []
            for check in _examine(reads, keeps):
                found.append(check)
                if not as_json:
                    _show(check)
            passed = all(check.status != "fail" for check in found)
            if as_json:
                print(json.dumps({"ok": passed, "checks": [asdict(c) for c in found]}, indent=2))
    if not passed:
        raise typer.Exit(1)


def _give_exam(name: str, base_url: str | None, *, as_json: bool) -> bool:
    from memagent_graph.evaluation.exam import examine
    from memagent_graph.readers.resolve import resolve_model

    model = resolve_model(name, base_url=base_url, temperature=0.0)
    check_server(model)
    report = wait_for(examine(model))
    if as_json:
        table = {skill: [*marks] for skill, marks in report.table.items()}
        found = {"reads": report.reads, "keeps": report.keeps}
        print(json.dumps({**found, "skills": table, "settings": report.settings}))
        return report.reads
    for skill, (right, count) in report.table.items():
        typer.echo(f"{skill:16}{right} of {count}")
    settings = ", ".join(f"{key}={value!r}" for key, value in report.settings.items())
    typer.echo(f"settings: {f'ReadingConfig({settings})' if settings else 'the defaults'}")
    typer.echo(f"It {'can' if report.keeps else 'cannot'} keep the memory of a conversation.")
    if not report.reads:
        typer.echo("This model does not read well enough: take a larger one.")
    return report.reads


def _examine(reads: Reads, keeps: Keeps) -> Iterator[Check]:
    from memagent_graph.readers.resolve import EXTRACTIVE

    settings, place = reads.make_config(), keeps.place
    name = reads.model or EXTRACTIVE
    if name == EXTRACTIVE:
        yield Check("model", "warn", f"{name}, built in", _NO_MODEL)
    else:
        yield from _examine_model(name, reads, settings)
    yield check_store(keeps.store, place)


def _examine_model(name: str, reads: Reads, config: ReadingConfig) -> Iterator[Check]:
    from memagent_graph.models.endpoint import ChatEndpoint
    from memagent_graph.readers.chat import ChatReader
    from memagent_graph.readers.resolve import resolve_reader

    try:
        reader = resolve_reader(name, config=config, base_url=reads.base_url)
    except MemAgentError as error:
        yield Check("model", "fail", str(error), "See `memagent ask --help` for what names one.")
        return
    yield Check("model", "ok", name)
    if isinstance(reader, ChatReader):
        if isinstance(reader.model, ChatEndpoint):
            server = list(check_endpoint(reader.model))
            yield from server
            if server[0].status == "fail":
                return
        try:
            wait_for(reader.prepare())
        except ModelError as error:
            yield Check("name", "fail", str(error), "Name one of these with --model openai:NAME.")
            return
    yield check_context(reader, config)
    yield check_tokenizer(reads.tokenizer, reader)
    yield wait_for(check_call(reader))


def _show(check: Check) -> None:
    word = typer.style(f"{check.status:4}", fg=_COLOURS[check.status], bold=True)
    typer.echo(f"{word}  {check.name:9}  {' '.join(check.text.split())}")
    if check.fix:
        typer.echo(f"{'':17}{' '.join(check.fix.split())}")
