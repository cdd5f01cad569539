"""`memagent ask`: a question, files, an answer."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from memagent_graph.cli.checkpoints import is_unfinished, open_saver, thread_of
from memagent_graph.cli.options import (
    COSTS,
    MEMORIES,
    READING,
    AnswerTokens,
    BaseUrl,
    ChunkTokens,
    ExactCuts,
    Exit,
    MemoryTokens,
    Model,
    Namespace,
    PromptsFile,
    Recalls,
    ResponseFormatFile,
    Reuse,
    Rounds,
    Segments,
    Skim,
    Store,
    TokenizerFile,
    Unsupported,
    UpdateGate,
    Verify,
    check_server,
    find_missing_store,
    make_reader,
    parse_namespace,
    parse_segments,
)
from memagent_graph.cli.terminal import mask_controls, report_errors, to_json, unwrap
from memagent_graph.evidence.places import Evidence
from memagent_graph.templates import plural
from memagent_graph.text.source import is_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.build import ReadingGraph
    from memagent_graph.graph.events import ChunkEvent, Event
    from memagent_graph.graph.state import ReadingInput, ReadingOutput
    from memagent_graph.planning import Plan
    from memagent_graph.text.files import DocumentLike

_STOPPED = {
    "max_calls": "the budget of calls was spent",
    "deadline": "the time was up",
    "done": "the reader had enough",
}


def print_answer(output: ReadingOutput, *, as_json: bool, show_memory: bool) -> None:
    """Print the answer with its places, or the whole output; warnings go to stderr.

    Args:
        output: the graph's output.
        as_json: print nothing but the output, as one JSON document.
        show_memory: print the final memory too.
    """
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
    if why := _STOPPED.get(output["stopped"]):
        covered = f"memagent: {output['coverage']:.0%} of the document was read: {why}."
        print(covered, file=sys.stderr)


def _print_for_users(output: ReadingOutput, *, show_memory: bool) -> None:
    print(output["answer"] or "")
    places = dict.fromkeys(Evidence(**item).place for item in output["citations"])
    for place in places:
        print(f"  at {place}")
    if show_memory:
        _print_memory(output["memory"])
    usage = output["usage"]
    print(
        f"[{output['reader']}: {plural(usage['document_tokens'], 'token')} in "
        f"{plural(usage['calls'], 'call')} and {usage['seconds']:.1f} s]"
    )


def _print_memory(memory: str) -> None:
    if not sys.stdout.isatty():
        print(f"\nMemory:\n{memory}")
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    Console(file=unwrap(sys.stdout)).print(
        Panel(Text(mask_controls(memory)), title="memory", title_align="left", border_style="dim")
    )


DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Print what the reading would cost, without reading.")
]
Questions: TypeAlias = Annotated[
    int, typer.Option(help="Number of questions to ask in one pass.", rich_help_panel=COSTS)
]
PriceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="IN,OUT",
        help="Dollars for a million tokens of prompts, and of replies.",
        rich_help_panel=COSTS,
    ),
]
Prices: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help='A JSON file of such prices: {"openai:MODEL": [IN, OUT]}.',
        rich_help_panel=COSTS,
    ),
]
TokensPerSecond: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="Tokens a second of one call, from its start, with other calls under way.",
        rich_help_panel=COSTS,
    ),
]

_TEXT = """\
document        {document_tokens:>14,} tokens
chunks read     {chunks:>14,} for each question
questions       {questions:>14,}
model calls     {calls:>14,} at most
prompt tokens   {prompt_tokens:>14,} at most
reply tokens    {reply_tokens:>14,} at most
longest window  {window_tokens:>14,} tokens at most
calls at once   {calls_at_once:>14,} at most
calls in a row  {chain_calls:>14,} at most
"""
_IF_FOUND = "if found        {calls_if_found:>14,} calls, where the words of the question lead\n"
_DOLLARS = "dollars         {:>14} at most\n"
_MINUTES = "minutes         {:>14} at most\n"
_NOTE = """
Each reply is counted as long as its budget. What the store has of earlier readings costs nothing
again. Calls repeated after errors come on top, and one for each memory that is over its budget."""


def find_price(
    price: str | None, prices: Path | None, model: str | None
) -> tuple[float, float] | None:
    """The price that --price names, or --prices for the model; None if neither does.

    Raises:
        ConfigurationError: It is not two numbers, or the file cannot be read.
    """
    from memagent_graph.errors import ConfigurationError

    if price is not None:
        return _pair(price.split(","), "--price")
    if prices is None or model is None:
        return None
    try:
        table = json.loads(prices.read_text("utf-8"))
    except (OSError, ValueError) as error:
        message = f"The prices in {prices} cannot be read: {error}"
        raise ConfigurationError(message) from error
    if not isinstance(table, dict):
        message = f'{prices} has no prices: {{"{model}": [2.5, 10]}} would be one.'
        raise ConfigurationError(message)
    if model not in table:
        print(f"memagent: {prices} has no price for {model!r}.", file=sys.stderr)
        return None
    return _pair(table[model], f"{prices}, {model!r}")


def _pair(given: Any, where: str) -> tuple[float, float]:
    from memagent_graph.errors import ConfigurationError

    try:
        prompts, replies = given
        return float(prompts), float(replies)
    except (TypeError, ValueError) as error:
        message = (
            f"{where}: a price is two numbers of dollars, for a million tokens of prompts and for "
            f"a million of replies, such as 2.5,10, not {given!r}."
        )
        raise ConfigurationError(message) from error


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a plan for people, or as one JSON document."""
    fields = plan.as_dict()
    if as_json:
        print(json.dumps(fields, indent=2))
        return
    text = _TEXT.format(**fields)
    if plan.calls_if_found is not None:
        text += _IF_FOUND.format(**fields)
    if plan.dollars is not None:
        text += _DOLLARS.format(_round(plan.dollars))
    if plan.minutes is not None:
        text += _MINUTES.format(_round(plan.minutes))
    print(text + _NOTE)


def _round(number: float) -> str:
    """Format a number with two decimals, or below 1 with two significant digits."""
    return f"{number:,.2f}" if number >= 1 else f"{number:.2g}"


_EXAMPLES = """Answer a question from files, folders or standard input.

Examples:

\b
  memagent ask "Who signed the lease?" contract.pdf
  memagent ask "Where is the cache invalidated?" src/ --show-memory
  journalctl | memagent ask "Why did the disk fail?" - --json
  memagent ask "Who pays?" leases/ --dry-run --price 2.5,10
  memagent ask "What did they agree on?" minutes/*.md --model openai:gpt-4o
  memagent ask "Who is she?" novel.txt --checkpoint run.sqlite

Exit codes: 0 answered, 1 an error said in one line, 2 wrong usage, 130 interrupted.
"""

_RESUMABLE = "memagent: stopped. To continue:\n  {command}"
_STORED = "memagent: stopped. What was read is in the store: the same command continues there."
_LOST = (
    "memagent: stopped, and what was read is lost. With --checkpoint FILE the same command goes "
    "on where it stopped."
)


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
    encoding: Annotated[
        str | None,
        typer.Option(
            help="Encoding of the text files, such as cp1252; found from their content by default.",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    chunk_tokens: ChunkTokens = 5000,
    exact_cuts: ExactCuts = False,
    memory_tokens: MemoryTokens = 1024,
    answer_tokens: AnswerTokens = 1024,
    segments: Segments = "1",
    rounds: Rounds = 1,
    skim: Skim = None,
    recalls: Recalls = 0,
    update_gate: UpdateGate = False,
    exit: Exit = "never",
    max_calls: Annotated[
        int | None,
        typer.Option(
            help="Stop reading after this many model calls, and answer.", rich_help_panel=READING
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            help="Stop reading after this many seconds, and answer.", rich_help_panel=READING
        ),
    ] = None,
    tokenizer: TokenizerFile = None,
    prompts: PromptsFile = None,
    unsupported: Unsupported = "keep",
    verify: Verify = None,
    response_format: ResponseFormatFile = None,
    show_memory: Annotated[
        bool, typer.Option("--show-memory", help="Print the final memory.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the answer, with places, usage and memory, as one JSON document."
        ),
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="SQLite file for checkpoints: the same command resumes a stopped run."),
    ] = None,
    store: Store = None,
    namespace: Namespace = None,
    reuse: Reuse = True,
    name: Annotated[
        str | None,
        typer.Option(help="Name of a memory to continue, or to start.", rich_help_panel=MEMORIES),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Name or id of a stored memory to answer from, without reading."),
    ] = None,
    dry_run: DryRun = False,
    questions: Questions = 1,
    price: PriceOption = None,
    prices: Prices = None,
    tokens_per_second: TokensPerSecond = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Ignore the stopped run in the checkpoint file, and start over.",
            rich_help_panel=MEMORIES,
        ),
    ] = False,
) -> None:
    """Replaced by `_EXAMPLES` below."""
    from memagent_graph.config import ReadingConfig
    from memagent_graph.errors import MemoryNotFoundError
    from memagent_graph.graph.build import create_memagent
    from memagent_graph.memory.stores import open_store
    from memagent_graph.planning import plan

    sources = sources or []
    if bool(sources) == bool(memory):
        raise typer.BadParameter("Name either what to read (SOURCE...) or a stored --memory.")
    if dry_run and memory:
        raise typer.BadParameter("--dry-run needs something to read (SOURCE...).")
    if not dry_run and (questions != 1 or price or tokens_per_second):
        raise typer.BadParameter("--questions, --price and --tokens-per-second need --dry-run.")
    with report_errors("memagent: stopped."), ExitStack() as stack:
        config = ReadingConfig(
            chunk_tokens=chunk_tokens,
            exact_cuts=exact_cuts,
            memory_tokens=memory_tokens,
            answer_tokens=answer_tokens,
            segments=parse_segments(segments),
            rounds=rounds,
            skim=skim,
            recalls=recalls,
            update_gate=update_gate,
            exit=exit,
            max_calls=max_calls,
            deadline=deadline,
            reuse=reuse,
            unsupported=unsupported,
        )
        reader = make_reader(
            model,
            base_url,
            prompts,
            tokenizer,
            config,
            verify=verify,
            response_format=response_format,
        )
        # Standard input is read here and not by the graph, whose threads Ctrl-C cannot stop.
        documents = [_open(source, encoding) for source in sources]
        document: DocumentLike | None = documents[0] if len(documents) == 1 else documents or None
        if dry_run and document is not None:
            planned = plan(
                question,
                document,
                config,
                questions=questions,
                price=find_price(price, prices, model),
                tokens_per_second=tokens_per_second,
                tokenizer=tokenizer or reader.identity.tokenizer,
                concurrency=reader.concurrency,
            )
            print_plan(planned, as_json=as_json)
            return
        if memory and (missing := find_missing_store(store)):
            message = f"There is no memory {memory!r}: the store {missing} does not exist."
            raise MemoryNotFoundError(message)
        check_server(reader)
        saver = stack.enter_context(open_saver(checkpoint)) if checkpoint else None
        kept_in = stack.enter_context(open_store(store))
        agent = create_memagent(
            reader,
            config=config,
            tokenizer=tokenizer,
            checkpointer=saver,
            store=kept_in,
            namespace=parse_namespace(namespace),
        )
        thread = thread_of(question, sources, reader, config, tokenizer, name, memory, namespace)
        asked: ReadingInput = {"question": question, "document": document, "memory_name": name}
        if memory:
            asked["version"] = memory
        going_on = saver is not None and not restart and is_unfinished(agent, thread)
        if going_on:
            print("memagent: continuing the stopped run.", file=sys.stderr)
        kept = kept_in is not None and reuse
        with report_errors(_RESUMABLE if checkpoint else _STORED if kept else _LOST):
            output = _read(agent, None if going_on else asked, thread, document)
        print_answer(output, as_json=as_json, show_memory=show_memory)


ask.__doc__ = _EXAMPLES


def _open(source: str, encoding: str | None) -> DocumentLike:
    from memagent_graph.text.files import open_source

    if source == "-":
        piped = sys.stdin.buffer
        return open_source(piped if encoding is None else piped.read(), encoding=encoding)
    return Path(source) if encoding is None else open_source(Path(source), encoding=encoding)


def _read(
    agent: ReadingGraph,
    asked: ReadingInput | None,
    thread: RunnableConfig,
    document: DocumentLike | None,
) -> ReadingOutput:
    """Run the graph, with a progress bar where a person is watching."""
    output: ReadingOutput = {}
    with ExitStack() as stack:
        show = None
        if sys.stderr.isatty():
            show = stack.enter_context(progress_bar())
        for mode, part in agent.stream(
            asked,
            thread,
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
_SUMMED: tuple[Literal["chunk", "chunks", "position", "length", "tokens"], ...]
_SUMMED = ("chunk", "chunks", "position", "length", "tokens")
"""Counts that are summed over the segments of a document."""


@contextmanager
def progress_bar() -> Iterator[Callable[[Event], None]]:
    """Show a bar on stderr that is gone at the end; yields what takes the reading's events."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("chunk {task.fields[chunk]} of {task.fields[chunks]}"),
        TextColumn("[dim]{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(file=unwrap(sys.stderr)), transient=True) as progress:
        task = progress.add_task("reading", total=None, chunk=0, chunks="?", rate="")
        begun: list[tuple[float, int]] = []
        folds: dict[str, ChunkEvent] = {}  # the last event of each

        def show(event: Event) -> None:
            if event["event"] == "opened":
                progress.update(task, description=_describe_reading(event), total=event["length"])
            elif event["event"] == "chunk":
                if any(fold["round"] < event["round"] for fold in folds.values()):
                    folds.clear()
                folds[event["fold"]] = event
                read = {key: sum(fold[key] for fold in folds.values()) for key in _SUMMED}
                begun.append((progress.get_time(), read["tokens"]))
                (since, first), (now, tokens) = begun[0], begun[-1]
                rate = f"{(tokens - first) / (now - since):,.0f} tokens/s" if now > since else ""
                known = progress.tasks[0].total  # a resumed run does not open its document anew
                total = known or read["length"]
                progress.update(
                    task,
                    description=_describe_reading(event),
                    total=total,
                    completed=read["position"],
                    chunk=read["chunk"],
                    chunks=f"about {read['chunks'] * total / read['length']:.0f}",
                    rate=rate,
                )

        yield show


def _describe_reading(event: Event) -> str:
    from rich.markup import escape

    name = Path(event["source"]).name or event["source"]
    if len(name) > _LONGEST_NAME:  # the bar must stay on one line
        name = name[: _LONGEST_NAME - 1] + "…"
    return f"reading {escape(mask_controls(name))}"
