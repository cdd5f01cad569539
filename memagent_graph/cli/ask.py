"""`memagent ask` and `memagent batch`: a question and files, or many of both, and their answers."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from memagent_graph.cli.options import Keeps, Reads, check_server, find_missing_store, takes_options
from memagent_graph.cli.terminal import mask_controls, report_errors, to_json, unwrap
from memagent_graph.errors import ConfigurationError, MemoryNotFoundError
from memagent_graph.evidence.places import Evidence
from memagent_graph.templates import plural
from memagent_graph.text.files import warn_of_path
from memagent_graph.text.source import is_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memagent_graph.batch import Result, Task
    from memagent_graph.graph.build import ReadingGraph
    from memagent_graph.graph.events import ChunkEvent, Event
    from memagent_graph.graph.state import ReadingInput, ReadingOutput
    from memagent_graph.planning import Plan
    from memagent_graph.text.files import DocumentLike

_LIMITS = {
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
    if why := _LIMITS.get(output["stopped"]):
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


_ASK = """Answer a question from files, folders or standard input.

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
    """Replaced by `_ASK` below."""
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


ask.__doc__ = _ASK


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


def read_task_file(file: Path, answered: set[str]) -> tuple[list[Task], int]:
    """Return the tasks that have no answer yet, and how many lines are no tasks.

    Each of these is reported on stderr.
    """
    tasks: list[Task] = []
    seen: set[str] = set()
    bad = 0
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            task = json.loads(line)
            name, given = str(task.setdefault("id", str(number))), task["document"]
            task["document"] = _document(given, file.parent)
            problem = f"the id {name!r} is there twice" if name in seen else ""
            seen.add(name)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            problem = str(error)
        if problem:
            bad += 1
            message = (
                f"memagent: error: {file}:{number} is not a task: {problem}. A task is a JSON "
                'object with `question` and `document`: text, or {"path": ...}, or a list of these.'
            )
            print(message, file=sys.stderr)
            continue
        if name not in answered:
            tasks.append(task)
    return tasks, bad


def _document(given: object, folder: Path) -> object:
    """A document as the graph takes it, its paths relative to the folder of the tasks."""
    match given:
        case str(text):
            warn_of_path(str(folder / text))
            return text
        case {"path": str(path)}:
            return {"path": str(folder / path)}
        case [_, *_]:
            return [_document(item, folder) for item in given]
    message = f"`document` is {given!r}"
    raise TypeError(message)


_BATCH = """Answer a file of questions, many at once.

With --out, the same command resumes a run that was stopped.

Each line of TASKS is one JSON object: `question`, `document`, and `id` if it has one. Other fields
are kept. A `document` is text, or `{"path": ...}`, a file, folder or glob relative to TASKS, or a
list of these. Tasks about one document that follow one another are read in one pass.

Examples:

\b
  memagent batch tasks.jsonl | jq .answer
  memagent batch tasks.jsonl --out results.jsonl --model openai:gpt-4o
  memagent batch tasks.jsonl --out results.jsonl --model vllm:MODEL

Each result is a JSON object on a line, as soon as it is done: the task's fields with `id`, and
`answer`, `memory`, `evidence`, `usage`, ... or else `error`. With --out, what has an answer there
is not asked again; what failed is. A line that is not a task is reported, and the others are
answered.

Exit codes: 0 all answered, 1 some failed, 2 wrong usage, 130 interrupted.
"""

_STOPPED = "memagent: stopped. The results so far are kept. To continue:\n  {command}"


@takes_options
def batch(
    tasks: Annotated[
        Path, typer.Argument(help="File of tasks, a JSON object on each line.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to add the results to; standard output by default."),
    ] = None,
    *,
    reads: Reads,
    concurrency: Annotated[int, typer.Option(help="Documents to read at once.")] = 64,
    response_format: Annotated[
        Path | None,
        typer.Option(help="File with the JSON schema of an object: the form of the answers."),
    ] = None,
    keeps: Keeps,
) -> None:
    """Replaced by `_BATCH` below."""
    from memagent_graph.batch import read_many
    from memagent_graph.graph.build import create_memagent
    from memagent_graph.memory.stores import open_store

    with report_errors("memagent: stopped." if out is None else _STOPPED):
        settings, place = reads.make_config(), keeps.place
        answered = set() if out is None else _mend(out)
        asked, bad = read_task_file(tasks, answered)
        if answered:
            print(f"memagent: {len(answered)} were answered before.", file=sys.stderr)
        failed = 0
        with (
            open_store(keeps.store) as kept_in,
            nullcontext(sys.stdout) if out is None else out.open("a", encoding="utf-8") as results,
        ):
            reader = reads.make_reader(settings, response_format=response_format)
            check_server(reader)
            agent = create_memagent(
                reader, config=settings, tokenizer=reads.tokenizer, store=kept_in, namespace=place
            )
            for result in read_many(
                agent, asked, concurrency=concurrency, progress=sys.stderr.isatty()
            ):
                failed += result.error is not None
                results.write(f"{to_json(_record(result))}\n")
                results.flush()
        counts = f"{len(asked) - failed} answered, {failed + bad} failed"
        print(f"memagent: {counts}.", file=sys.stderr)
    if failed or bad:
        raise typer.Exit(1)


batch.__doc__ = _BATCH


def _record(result: Result) -> dict[str, object]:
    kept = {key: value for key, value in result.task.items() if key != "document"}
    if result.output is None:
        return {**kept, "error": f"{type(result.error).__name__}: {result.error}"}
    return {**kept, **result.output, "seconds": round(result.seconds, 3)}


def _mend(file: Path) -> set[str]:
    """Ids of the results that have an answer; failures and a torn last line are taken out.

    A file of something else must not be lost.
    """
    if not file.exists():
        return set()
    lines = file.read_text("utf-8", errors="replace").splitlines()
    kept: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if "answer" in record:
                kept[str(record["id"])] = line
        except (ValueError, TypeError, KeyError) as error:
            if 1 < number == len(lines):  # torn by a crash
                break
            message = f"{file} contains lines that are not results: name a new file for --out."
            raise ConfigurationError(message) from error
    mended = file.with_name(f"{file.name}.mended")
    mended.write_text("".join(f"{line}\n" for line in kept.values()), "utf-8")
    mended.replace(file)
    return set(kept)
