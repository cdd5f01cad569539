"""`memagent ask`: a question, files, an answer."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.answer import print_answer
from memagent_graph.cli.checkpoints import open_checkpoints
from memagent_graph.cli.dry_run import print_plan
from memagent_graph.cli.options import (
    AnswerTokens,
    BaseUrl,
    ChunkTokens,
    MemoryTokens,
    Model,
    Namespace,
    PromptsFile,
    Reuse,
    Segments,
    Store,
    TokenizerFile,
    chosen_namespace,
    chosen_reader,
)
from memagent_graph.cli.reporting import reporting

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.graph.build import ReadingGraph
    from memagent_graph.graph.state import ReadingInput, ReadingOutput
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.opening import DocumentLike

_EXAMPLES = """Answer a question from files, folders or standard input.

**Examples**

    memagent ask "Who signed the lease?" contract.pdf

    memagent ask "Where is the cache invalidated?" src/ --show-memory

    journalctl | memagent ask "Why did the disk fail?" - --json

    memagent ask "What did they agree on?" minutes/*.md --model openai:gpt-4o

    memagent ask "Who is she?" novel.txt --checkpoint run.sqlite

**Exit codes**: 0 answered, 1 an error said in one line, 2 wrong usage, 130 interrupted.
"""

_RESUMABLE = "memagent: stopped. To go on:\n  {command}"
_STORED = "memagent: stopped. What was read is in the store: the same command goes on there."
_LOST = (
    "memagent: stopped, and what was read is lost. With --checkpoint FILE the same command goes "
    "on where it stopped."
)


def ask(
    question: Annotated[str, typer.Argument(help="What to find out.", show_default=False)],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE", help="Files, folders or globs; - is stdin.", show_default=False
        ),
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    chunk_tokens: ChunkTokens = 5000,
    memory_tokens: MemoryTokens = 1024,
    answer_tokens: AnswerTokens = 1024,
    segments: Segments = 1,
    max_calls: Annotated[
        int | None, typer.Option(help="Answer after this many model calls.")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Answer after this many seconds of reading.")
    ] = None,
    tokenizer: TokenizerFile = None,
    prompts: PromptsFile = None,
    show_memory: Annotated[
        bool, typer.Option("--show-memory", help="Print the final memory.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all there is as one JSON document.")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="SQLite file: the same command goes on where a stopped one was."),
    ] = None,
    store: Store = None,
    namespace: Namespace = None,
    reuse: Reuse = True,
    name: Annotated[
        str | None, typer.Option(help="Continue the memory of this name, or begin it.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Answer from this stored memory (a name or an id); read nothing."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would cost, and read nothing.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over, whatever the checkpoint file has.")
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
    with reporting("memagent: stopped."), ExitStack() as stack:
        config = ReadingConfig(
            chunk_tokens=chunk_tokens,
            memory_tokens=memory_tokens,
            answer_tokens=answer_tokens,
            segments=segments,
            max_calls=max_calls,
            deadline=deadline,
            reuse=reuse,
        )
        reader = chosen_reader(model, base_url, prompts, tokenizer, config)
        # Standard input is read here and not by the graph, whose threads Ctrl-C cannot stop.
        documents = [
            open_source(sys.stdin.buffer) if source == "-" else Path(source) for source in sources
        ]
        document: DocumentLike | None = documents[0] if len(documents) == 1 else documents or None
        if dry_run and document is not None:
            counter = tokenizer or reader.identity.tokenizer
            print_plan(plan(question, document, config, model, tokenizer=counter), as_json=as_json)
            return
        saver = stack.enter_context(open_checkpoints(checkpoint)) if checkpoint else None
        kept_in = stack.enter_context(open_store(store))
        agent = create_memagent(
            reader,
            config=config,
            tokenizer=tokenizer,
            checkpointer=saver,
            store=kept_in,
            namespace=chosen_namespace(namespace),
        )
        thread = _thread(question, sources, reader, config, tokenizer, name, memory, namespace)
        asked: ReadingInput = {"question": question, "document": document, "memory_name": name}
        if memory:
            asked["version"] = memory
        going_on = saver is not None and not restart and _unfinished(agent, thread)
        if going_on:
            print("memagent: going on with the stopped run.", file=sys.stderr)
        kept = kept_in is not None and reuse
        with reporting(_RESUMABLE if checkpoint else _STORED if kept else _LOST):
            output = _read(agent, None if going_on else asked, thread, document)
        print_answer(output, as_json=as_json, show_memory=show_memory)


ask.__doc__ = _EXAMPLES


def _thread(
    question: str,
    sources: list[str],
    reader: Reader,
    config: ReadingConfig,
    *others: str | None,
) -> RunnableConfig:
    """The same command is the same thread, and no other command is."""
    places = [name if name == "-" else str(Path(name).absolute()) for name in sources]
    who = [reader.identity.name, reader.identity.fingerprint]
    record = [question, places, *who, config.model_dump(), others]
    return {"configurable": {"thread_id": sha256(json.dumps(record).encode()).hexdigest()[:16]}}


def _unfinished(agent: ReadingGraph, thread: RunnableConfig) -> bool:
    state = agent.get_state(thread)
    return "progress" in state.values and state.values.get("answer") is None


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
                why = "hidden, not text, or links that lead away."
                print(f"memagent: left out {part['skipped']} files, {why}", file=sys.stderr)
            if show is not None:
                show(part)
    return output
