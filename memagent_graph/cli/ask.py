"""`memagent ask`: a question, files, an answer."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from memagent_graph.cli.options import Keeps, Reads, check_server, find_missing_store, takes_options
from memagent_graph.cli.terminal import mask_controls, report_errors, to_json, unwrap
from memagent_graph.errors import MemoryNotFoundError
from memagent_graph.evidence.places import Evidence
from memagent_graph.templates import plural
from memagent_graph.text.source import is_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memagent_graph.graph.build import ReadingGraph
    from memagent_graph.graph.events import ChunkEvent, Event
    from memagent_graph.graph.state import ReadingInput, ReadingOutput
    from memagent_graph.planning import Plan
    from memagent_graph.text.files import DocumentLike

_STOPPED = {
    "max_calls": "the budget of calls was spent",
    "deadline": "the time was up",
}


def print_answer(output: ReadingOutput, *, as_json: bool, show_memory: bool) -> None:
    """Print the answer with its places, or the whole output; warnings go to stderr."""
    if as_json:
        print(to_json(output, indent=2))
    else:
        _print_for_users(output, show_memory=show_memory)
    sys.stdout.flush()  # a full disk shows here, where it can be said in one line
    for warning in () if as_json else output["warnings"]:
        said = warning if warning.startswith("skipped ") else f"warning: {warning}"
        print(f"memagent: {said}", file=sys.stderr)
    sources = output.get("sources", ())
    read = sum(source["skipped"] is None for source in sources)
    if lost := sum(is_lost(source) for source in sources):
        print(f"memagent: read {read} of {plural(read + lost, 'document')}.", file=sys.stderr)
    if output.get("how") == "passages":
        searched = f"a search found the answer in {output['coverage']:.0%} of the document"
        print(f"memagent: {searched}; --set how=read reads all of it.", file=sys.stderr)
    if why := _STOPPED.get(output["stopped"]):
        covered = f"memagent: {output['coverage']:.0%} of the document was read: {why}."
        print(covered, file=sys.stderr)


def _print_for_users(output: ReadingOutput, *, show_memory: bool) -> None:
    print(output["answer"] or "")
    places = dict.fromkeys(Evidence(**item).place for item in output["citations"])
    for place in places:
        print(f"  at {place}")
    if show_memory:
        print(f"\nMemory:\n{output['memory']}")
    usage = output["usage"]
    print(
        f"[{output['reader']}: {plural(usage['document_tokens'], 'token')} in "
        f"{plural(usage['calls'], 'call')} and {usage['seconds']:.1f} s]"
    )


_NOTE = """
These are the most: each reply is counted as long as its budget. "If found" is the calls where the
words of the question lead to the answer. What the store has of earlier readings costs nothing
again. Calls repeated after errors come on top, and one for each memory that is over its budget."""


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a plan for people, or as one JSON document."""
    found = asdict(plan)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        if value is not None and name != "questions":
            label, tokens, _ = name.partition("_tokens")
            print(f"{label.replace('_', ' '):15}{value:>15,}{tokens.replace('_', ' ')}")
    print(_NOTE)


_EXAMPLES = """Answer a question from files, folders or standard input.

Examples:

\b
  memagent ask "Who signed the lease?" contract.pdf
  memagent ask "Where is the cache invalidated?" src/ --show-memory
  journalctl | memagent ask "Why did the disk fail?" - --json
  memagent ask "Who pays?" leases/ --dry-run
  memagent ask "What did they agree on?" minutes/*.md --model openai:gpt-4o

Exit codes: 0 answered, 1 an error said in one line, 2 wrong usage, 130 interrupted.
"""

_STORED = "memagent: stopped. What was read is in the store: the same command continues there."
_LOST = (
    "memagent: stopped, and what was read is lost. With a --store, and reuse, the same command "
    "continues."
)


@takes_options
def ask(
    question: Annotated[str, typer.Argument(help="Question to answer.", show_default=False)],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE",
            help="Files, folders or globs to read; - reads standard input.",
            show_default=False,
        ),
    ] = None,
    *,
    reads: Reads,
    response_format: Annotated[
        Path | None,
        typer.Option(help="File with the JSON schema of an object: the form of the answer."),
    ] = None,
    show_memory: Annotated[
        bool, typer.Option("--show-memory", help="Print the final memory.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the answer, with places, usage and memory, as one JSON document."
        ),
    ] = False,
    keeps: Keeps,
    name: Annotated[
        str | None,
        typer.Option(help="Name of a memory to continue, or to start."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Name or id of a stored memory to answer from, without reading."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the reading would cost, without reading.")
    ] = False,
) -> None:
    """Replaced by `_EXAMPLES` below."""
    from memagent_graph.graph.build import create_memagent
    from memagent_graph.memory.stores import open_store
    from memagent_graph.planning import plan
    from memagent_graph.text.files import open_source

    sources = sources or []
    if bool(sources) == bool(memory):
        raise typer.BadParameter("Name either what to read (SOURCE...) or a stored --memory.")
    if dry_run and memory:
        raise typer.BadParameter("--dry-run needs something to read (SOURCE...).")
    with report_errors("memagent: stopped."), ExitStack() as stack:
        settings = reads.make_config().or_auto()
        reader = reads.make_reader(settings, response_format=response_format)
        if not reader.shows_passages:  # the built-in reader reads
            settings = settings.model_copy(update={"how": "read"})
        # Standard input is read here and not by the graph, whose threads Ctrl-C cannot stop.
        documents: list[DocumentLike] = [
            open_source(sys.stdin.buffer) if source == "-" else Path(source) for source in sources
        ]
        document = documents[0] if len(documents) == 1 else documents or None
        if dry_run and document is not None:
            planned = plan(
                question,
                document,
                settings,
                tokenizer=reads.tokenizer or reader.identity.tokenizer,
                concurrency=reader.concurrency,
            )
            print_plan(planned, as_json=as_json)
            return
        if memory and (missing := find_missing_store(keeps.store)):
            message = f"There is no memory {memory!r}: the store {missing} does not exist."
            raise MemoryNotFoundError(message)
        check_server(reader)
        kept_in = stack.enter_context(open_store(keeps.store))
        agent = create_memagent(
            reader,
            config=settings,
            tokenizer=reads.tokenizer,
            store=kept_in,
            namespace=keeps.place,
        )
        asked: ReadingInput = {"question": question, "document": document, "memory_name": name}
        if memory:
            asked["version"] = memory
        kept = kept_in is not None and settings.reuse
        with report_errors(_STORED if kept else _LOST):
            output = _read(agent, asked, document)
        print_answer(output, as_json=as_json, show_memory=show_memory)


ask.__doc__ = _EXAMPLES


def _read(agent: ReadingGraph, asked: ReadingInput, document: DocumentLike | None) -> ReadingOutput:
    """Run the graph, with a progress bar where a person is watching."""
    output: ReadingOutput = {}
    with ExitStack() as stack:
        show = None
        if sys.stderr.isatty():
            show = stack.enter_context(progress_bar())
        for mode, part in agent.stream(
            asked,
            context={"document": document},
            stream_mode=["custom", "values"],
            output_keys=agent.output_channels,
        ):
            if mode == "values":
                output = part
                continue
            if part["event"] == "edited":
                print("memagent: reading on from the edited memory.", file=sys.stderr)
            if show is not None:
                show(part)
    return output


_LONGEST_NAME = 24
_SUMMED: Final = ("chunk", "chunks", "position", "length", "tokens")
"""Counts that are summed over the segments of a document."""


_BAR = "{desc} {bar:24} {postfix} {rate_fmt} {remaining}"


@contextmanager
def progress_bar() -> Iterator[Callable[[Event], None]]:
    """Show a bar on stderr that is gone at the end; yields what takes the reading's events."""
    from tqdm import tqdm

    with tqdm(
        desc="reading", unit=" tokens", bar_format=_BAR, file=unwrap(sys.stderr), leave=False
    ) as bar:
        folds: dict[str, ChunkEvent] = {}  # the last event of each
        length = 0

        def show(event: Event) -> None:
            nonlocal length
            if event["event"] == "opened":
                length = event["length"]
            if event["event"] != "chunk":
                return
            folds[event["fold"]] = event
            read = {key: sum(fold[key] for fold in folds.values()) for key in _SUMMED}
            name = Path(event["source"]).name or event["source"]
            shown = mask_controls(name)[:_LONGEST_NAME]  # the bar must stay on one line
            bar.set_description_str(f"reading {shown}", refresh=False)
            bar.total = round(read["tokens"] * length / max(1, read["position"]))
            bar.update(read["tokens"] - bar.n)
            chunks = read["chunks"] * length / max(1, read["length"])
            bar.set_postfix_str(f"chunk {read['chunk']} of about {chunks:.0f}")

        yield show
    # The bar leaves a carriage return: what is printed next should not seem to follow one.
    print("\x1b[K", end="", file=unwrap(sys.stderr), flush=True)
