"""`memagent ask`: a question, files, an answer."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.answer import print_answer
from memagent_graph.cli.dry_run import (
    DryRun,
    PriceOption,
    Prices,
    Questions,
    TokensPerSecond,
    chosen_price,
    print_plan,
)
from memagent_graph.cli.options import (
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
    chosen_namespace,
    chosen_reader,
    chosen_segments,
)
from memagent_graph.cli.reporting import reporting
from memagent_graph.cli.resuming import is_unfinished, open_saver, thread_of
from memagent_graph.cli.shown import shown
from memagent_graph.counted import counted

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.compiled import ReadingGraph
    from memagent_graph.graph.state import ReadingInput, ReadingOutput
    from memagent_graph.text.opening import DocumentLike

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

_RESUMABLE = "memagent: stopped. To go on:\n  {command}"
_STORED = "memagent: stopped. What was read is in the store: the same command goes on there."
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
        int | None, typer.Option(help="Stop reading after this many model calls, and answer.")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Stop reading after this many seconds, and answer.")
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
        str | None, typer.Option(help="Name of a memory to continue, or to start.")
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
            "--restart", help="Ignore the stopped run in the checkpoint file, and start over."
        ),
    ] = False,
) -> None:
    """Replaced by `_EXAMPLES` below."""
    from memagent_graph.config import ReadingConfig
    from memagent_graph.graph.build import create_memagent
    from memagent_graph.memory.stores import open_store
    from memagent_graph.planning import plan
    from memagent_graph.text.opening import open_source

    sources = sources or []
    if bool(sources) == bool(memory):
        raise typer.BadParameter("Name either what to read (SOURCE...) or a stored --memory.")
    if dry_run and memory:
        raise typer.BadParameter("--dry-run needs something to read (SOURCE...).")
    if not dry_run and (questions != 1 or price or tokens_per_second):
        raise typer.BadParameter("--questions, --price and --tokens-per-second need --dry-run.")
    with reporting("memagent: stopped."), ExitStack() as stack:
        config = ReadingConfig(
            chunk_tokens=chunk_tokens,
            exact_cuts=exact_cuts,
            memory_tokens=memory_tokens,
            answer_tokens=answer_tokens,
            segments=chosen_segments(segments),
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
        reader = chosen_reader(
            model,
            base_url,
            prompts,
            tokenizer,
            config,
            verify=verify,
            response_format=response_format,
        )
        # Standard input is read here and not by the graph, whose threads Ctrl-C cannot stop.
        documents = [
            open_source(sys.stdin.buffer) if source == "-" else Path(source) for source in sources
        ]
        document: DocumentLike | None = documents[0] if len(documents) == 1 else documents or None
        if dry_run and document is not None:
            planned = plan(
                question,
                document,
                config,
                questions=questions,
                price=chosen_price(price, prices, model),
                tokens_per_second=tokens_per_second,
                tokenizer=tokenizer or reader.identity.tokenizer,
                concurrency=reader.concurrency,
            )
            print_plan(planned, as_json=as_json)
            return
        check_server(reader)
        saver = stack.enter_context(open_saver(checkpoint)) if checkpoint else None
        kept_in = stack.enter_context(open_store(store))
        agent = create_memagent(
            reader,
            config=config,
            tokenizer=tokenizer,
            checkpointer=saver,
            store=kept_in,
            namespace=chosen_namespace(namespace),
        )
        thread = thread_of(question, sources, reader, config, tokenizer, name, memory, namespace)
        asked: ReadingInput = {"question": question, "document": document, "memory_name": name}
        if memory:
            asked["version"] = memory
        going_on = saver is not None and not restart and is_unfinished(agent, thread)
        if going_on:
            print("memagent: going on with the stopped run.", file=sys.stderr)
        kept = kept_in is not None and reuse
        with reporting(_RESUMABLE if checkpoint else _STORED if kept else _LOST):
            output = _read(agent, None if going_on else asked, thread, document)
        print_answer(output, as_json=as_json, show_memory=show_memory)


ask.__doc__ = _EXAMPLES


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
            from memagent_graph.cli.progress import progress_bar

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
            if part["event"] == "opened" and part["skipped"]:
                why = "hidden, binary, or links out of the folder"
                files = counted(part["skipped"], "file")
                print(f"memagent: skipped {files} ({why}).", file=sys.stderr)
            elif part["event"] == "held":
                by = shown(part["by"], sys.stderr)
                print(f"memagent: paused, the memory is held by {by}.", file=sys.stderr)
            elif part["event"] == "released":
                how = " from the edited memory" if part["edited"] else ""
                print(f"memagent: reading on{how}.", file=sys.stderr)
            if show is not None:
                show(part)
    return output
