"""Build the LangGraph graph that reads a document.

START → open_document ─┬→ read_chunk → overwrite_memory ─┬→ read_chunk            more text
                       │                                 └→ write_answer → END    done
                       ├→ fold (one for each segment) → merge_memories ─┬→ write_answer → END
                       │       ↑                                        │
                       │       └───────────── begin_round ←─────────────┘  next round
                       └→ question (one for each of several, with the same steps) → END

The graph of a fold has the nodes read_chunk and overwrite_memory, with the same functions.
"""

from __future__ import annotations

from contextlib import aclosing
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from langchain_core.documents import Document
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, RetryPolicy, Send

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import QuestionError, TransientModelError
from memagent_graph.graph.beginning import begin_question, begin_round, open_document
from memagent_graph.graph.faces import NO_LIMIT, fold_node, question_node, text_node, waiting_node
from memagent_graph.graph.nodes import merge_memories, overwrite_memory, read_chunk, write_answer
from memagent_graph.graph.reading import Reading, check_window
from memagent_graph.graph.records import Fold, fold_name
from memagent_graph.graph.state import (
    Answered,
    QuestionState,
    ReadingInput,
    ReadingOutput,
    ReadingState,
    Run,
)
from memagent_graph.memory.records import NAMESPACE, check_namespace
from memagent_graph.readers.base import cannot_merge, merges
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.seams import as_kind, checkpointer_of, runtime_of
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.store.base import BaseStore
    from langgraph.types import Checkpointer

    from memagent_graph.graph.faces import Questioning, Segmenting
    from memagent_graph.models.structured import ResponseFormat, Shape
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Reader
    from memagent_graph.readers.verifying import Verify
    from memagent_graph.text.tokens import TokenizerLike

    _Builder = StateGraph[ReadingState, Run, Any, Any]
    _Stops = tuple[list[str], list[str]]

_THREADS = 256
"""Most threads in which synchronous code reads for several questions at once."""


class ReadingGraph(CompiledStateGraph[ReadingState, Run, ReadingInput, ReadingOutput]):
    """A compiled graph that reads documents of any length, as `create_memagent` returns it.

    It differs from its base class in three things. The recursion limit is lifted, because callers
    cannot do so: langchain-core sets 25 in `batch` and `|`, even over `with_config`. The document
    is in the run's context, so that checkpoints do not contain it. And with a checkpointer, every
    step is saved before the next begins, unless the caller sets another `durability`.
    """

    def __init__(self, *, shape: Shape | None = None, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.shape = shape

    def invoke(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Read and answer; arguments are those of `stream`, and the result is `ReadingOutput`."""
        return self._shaped(super().invoke(input, config, **options))

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> Any:
        """Read and answer from async code; see `invoke`."""
        return self._shaped(await super().ainvoke(input, config, **options))

    def _shaped(self, output: Any) -> Any:
        """The output, with answers as instances of the `response_format`."""
        if self.shape is None or not isinstance(output, dict):
            return output
        found = dict(output)
        if found.get("structured_response") is not None:
            found["structured_response"] = self.shape.load(found["structured_response"])
        if found.get("answers"):
            found["answers"] = [self._shaped(record) for record in found["answers"]]
        return found

    def stream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Stream a reading; arguments are those of `CompiledStateGraph.stream`.

        Args:
            input: `{"question": str, "document": ...}`, or None to continue a stopped run.
            config: the run's config; with a checkpointer it names a `thread_id`.
            options: among them `context={"document": ...}`, which keeps the document out of
                the input, and so out of the first checkpoint.
        """
        config, saver = self._lift(config)
        if config.get("max_concurrency") is None:  # the default is the size of the thread pool
            config["max_concurrency"] = _THREADS
        run = _new_run(config, options)
        if saver is not None and run.document is None and _continues(input):
            run.document = _document_of(
                next(saver.list(_thread_of(config), filter=_FIRST, limit=1), None)
            )
        input = _carry(input, run)
        yield from super().stream(input, config, **_chosen(options, run, saver))

    async def astream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Stream a reading from async code; see `stream`."""
        config, saver = self._lift(config)
        run = _new_run(config, options)
        if saver is not None and run.document is None and _continues(input):
            saved = cast(
                "AsyncGenerator[CheckpointTuple]",
                saver.alist(_thread_of(config), filter=_FIRST, limit=1),
            )
            async with aclosing(saved):
                run.document = _document_of(await anext(saved, None))
        input = _carry(input, run)
        parts = cast(
            "AsyncGenerator[Any]", super().astream(input, config, **_chosen(options, run, saver))
        )
        async with aclosing(parts):
            async for part in parts:
                yield part

    def _lift(
        self, config: RunnableConfig | None
    ) -> tuple[RunnableConfig, BaseCheckpointSaver[Any] | None]:
        config = {**ensure_config(merge_configs(self.config, config)), "recursion_limit": NO_LIMIT}
        return config, checkpointer_of(self, config)


def create_memagent(
    model: str | BaseChatModel | Reader | None = None,
    *,
    config: ReadingConfig | None = None,
    store: BaseStore | None = None,
    namespace: Sequence[str] = NAMESPACE,
    checkpointer: Checkpointer = None,
    prompts: Prompts | None = None,
    tokenizer: TokenizerLike = None,
    verify: Verify | None = None,
    response_format: ResponseFormat | None = None,
    interrupt_before: Sequence[str] | None = None,
    interrupt_after: Sequence[str] | None = None,
    name: str = "memagent",
) -> ReadingGraph:
    """Create a graph that reads a document chunk by chunk and answers from its memory.

    Args:
        model: a chat model, a model string such as `"vllm:Qwen/Qwen2.5-7B-Instruct"` or
            `"openai:gpt-4o"`, or a `Reader`. None takes `MEMAGENT_MODEL`, otherwise the built-in
            `"extractive"` reader, which needs no model.
        config: budgets and switches of the reading.
        store: store for memories, shared with other runs and agents.
        namespace: labels of the memories in the store; agents with the same labels share them. A
            Redis Cluster keeps everything under one first label on one node: begin with the tenant.
        checkpointer: makes runs resumable: after a crash or an interrupt, `agent.invoke(None,
            config)` continues at the chunk where the run stopped.
        prompts: prompts for a chat model; the library's own by default.
        tokenizer: counts tokens and cuts chunks: a `tokenizers.Tokenizer`, a hub id, a folder
            or a tokenizer.json. None takes the reader's own, otherwise an estimate.
        verify: decides which statements of a chat model's memory are supported, if the document has
            a passage for them: a function that takes passage and statement and returns a
            probability, 0 to 1, and may be asynchronous, or `"cross-encoder/<hub id or folder>"`.
            None goes by names and numbers.
        response_format: form of a chat model's answers: a pydantic model, a dataclass, a TypedDict,
            or the JSON schema of an object. They are in `structured_response`, and as JSON in
            `answer`. A reply that does not match is sent back once.
        interrupt_before: nodes to stop before, "overwrite_memory" for example.
        interrupt_after: nodes to stop after.
        name: the graph's name, also in its events.

    Returns:
        A compiled graph: `agent.invoke({"question": str, "document": document})` returns the
        fields of `ReadingOutput`; `{"questions": [str, ...], "document": document}` reads for all
        of them at once. A `str` document is text; a `Path` is a file or a folder.

    Raises:
        ConfigurationError: The budgets do not fit the model's context, there is no such model, the
            reader does not merge and there are several segments or rounds, or LangGraph does not
            allow the namespace.

    Examples:
        >>> from memagent_graph import create_memagent
        >>> agent = create_memagent()  # the built-in reader; or "openai:gpt-4o", a chat model, ...
        >>> text = "It rained. " * 9000 + "The vault opens at 6:40."
        >>> out = agent.invoke({"question": "When does the vault open?", "document": text})
        >>> out["answer"], out["usage"]["calls"]
        ('The vault opens at 6:40.', 6)
    """
    config = config or ReadingConfig()
    reader = resolve_reader(
        model,
        config=config,
        prompts=prompts,
        tokenizer=tokenizer,
        verify=verify,
        response_format=response_format,
    )
    check_window(reader.identity, config, question_tokens=0)
    if config.merges and not merges(reader):
        raise cannot_merge(reader)
    counter = load_tokenizer(tokenizer or reader.identity.tokenizer)
    reading = Reading(name, reader, config, counter, store, check_namespace(namespace))
    retry = RetryPolicy(
        initial_interval=config.retry_interval,
        max_interval=60.0,
        max_attempts=config.max_attempts,
        retry_on=TransientModelError,
    )
    builder = StateGraph(
        ReadingState, context_schema=Run, input_schema=ReadingInput, output_schema=ReadingOutput
    )
    builder.add_node("open_document", waiting_node(open_document, reading))
    stops = list(interrupt_before or ()), list(interrupt_after or ())
    builder.add_node("question", question_node(_question_graph(reading, retry, stops)))
    builder.add_edge(START, "open_document")
    builder.add_edge("question", END)
    steps = _add_steps(builder, reading, retry, stops)
    builder.add_conditional_edges("open_document", _first_step, [*steps, "question"])
    compiled = builder.compile(
        checkpointer,
        store=store,
        interrupt_before=stops[0],
        interrupt_after=stops[1],
        name=name,
    )
    graph = as_kind(ReadingGraph, compiled)
    graph.shape = getattr(reader, "shape", None)
    return graph


def _question_graph(reading: Reading, retry: RetryPolicy, stops: _Stops) -> Questioning:
    """The graph of one of several questions: the same steps without open_document."""
    builder = StateGraph(
        ReadingState, context_schema=Run, input_schema=QuestionState, output_schema=Answered
    )
    builder.add_node("begin_question", waiting_node(begin_question, reading))
    builder.add_edge(START, "begin_question")
    steps = _add_steps(builder, reading, retry, stops)
    builder.add_conditional_edges("begin_question", _next_step, steps)
    before, after = _known(builder, stops)
    return builder.compile(name="question", interrupt_before=before, interrupt_after=after)


def _fold_graph(reading: Reading, retry: RetryPolicy, stops: _Stops) -> Segmenting:
    """The graph of one segment."""
    builder = StateGraph(ReadingState, context_schema=Run, input_schema=Fold, output_schema=Fold)
    builder.add_edge(START, "read_chunk")
    _add_fold(builder, reading, retry)
    builder.add_conditional_edges("overwrite_memory", _until_it_stops, ["read_chunk", END])
    before, after = _known(builder, stops)
    return builder.compile(name="fold", interrupt_before=before, interrupt_after=after)


def _known(builder: _Builder, stops: _Stops) -> _Stops:
    """The interrupts whose nodes a graph has."""
    before, after = ([name for name in names if name in builder.nodes] for names in stops)
    return before, after


def _add_steps(builder: _Builder, reading: Reading, retry: RetryPolicy, stops: _Stops) -> list[str]:
    """Add the steps that read for a question and answer it; return those that can be first."""
    steps = ["read_chunk", "write_answer"]
    _add_fold(builder, reading, retry)
    builder.add_conditional_edges("overwrite_memory", _next_step, [*steps])
    if reading.config.merges:
        steps += ["fold", "merge_memories"]
        builder.add_node("fold", fold_node(_fold_graph(reading, retry, stops)))
        builder.add_node("merge_memories", waiting_node(merge_memories, reading))
        builder.add_edge("fold", "merge_memories")
        if reading.config.rounds == 1:
            builder.add_conditional_edges("merge_memories", _next_step, ["fold", "write_answer"])
        else:
            builder.add_node("begin_round", waiting_node(begin_round, reading))
            after = ["fold", "begin_round", "write_answer"]
            builder.add_conditional_edges("merge_memories", _after_merge, after)
            builder.add_conditional_edges("begin_round", _next_step, ["fold", "merge_memories"])
    builder.add_node("write_answer", waiting_node(write_answer, reading), retry_policy=retry)
    if reading.config.skim is None:
        builder.add_edge("write_answer", END)
    else:  # if the answer is not found, skipped chunks are read after all
        builder.add_conditional_edges("write_answer", _until_it_stops, ["read_chunk", END])
    return steps


def _add_fold(builder: _Builder, reading: Reading, retry: RetryPolicy) -> None:
    builder.add_node("read_chunk", text_node(read_chunk, reading))
    work = waiting_node(overwrite_memory, reading)
    builder.add_node("overwrite_memory", work, retry_policy=retry)
    builder.add_edge("read_chunk", "overwrite_memory")


def _first_step(state: ReadingState) -> str | list[Send]:
    questions = state.get("questions")
    if state["question"] or not questions:
        return _next_step(state)
    return [
        Send(
            "question",
            QuestionState(
                number=number,
                question=question,
                source={**state["source"], "fold": fold_name(number)},
                version=state.get("version"),
            ),
        )
        for number, question in enumerate(questions)
    ]


def _next_step(state: ReadingState) -> str | list[Send]:
    if folds := state.get("folds"):
        going = (fold for fold in folds.values() if not fold["progress"]["stopped"])
        return [Send("fold", fold) for fold in going] or "merge_memories"
    return "write_answer" if state["progress"]["stopped"] else "read_chunk"


def _after_merge(state: ReadingState) -> str | list[Send]:
    folds = state.get("folds", {}).values()
    going = [Send("fold", fold) for fold in folds if not fold["progress"]["stopped"]]
    return going or ("write_answer" if state["progress"]["stopped"] else "begin_round")


def _until_it_stops(state: ReadingState) -> str:
    return END if state["progress"]["stopped"] else "read_chunk"


def _continues(input: object) -> bool:
    return input is None or isinstance(input, Command)


def _new_run(config: RunnableConfig, options: Mapping[str, Any]) -> Run:
    context = options.get("context")
    if isinstance(context, Run):
        return context
    run = Run(document=context.get("document")) if isinstance(context, dict) else Run()
    host = runtime_of(config)
    if host is not None and host.execution_info is not None:
        run.task = host.execution_info.task_id
        if config["configurable"].get("checkpoint_ns"):  # a node of its host, not a tool
            run.host = config
    if host is not None and "custom" not in (options.get("stream_mode") or ()):
        run.write = host.stream_writer  # otherwise the host needs subgraphs=True to see events
    return run


def _carry(input: Any, run: Run) -> Any:
    """The input with its document moved to the run; plain documents also stay for checkpoints."""
    given = input.update if isinstance(input, Command) else input
    if not isinstance(given, dict):
        if input is None or isinstance(input, Command):
            return input
        message = (
            'The input of a reading is {"question": str, "document": ...}, not '
            f"{type(input).__name__}."
        )
        raise QuestionError(message)
    fresh = _fresh(given)
    if given.get("document") is None:
        return input if isinstance(input, Command) else {**fresh, **input}
    run.document = given["document"]
    if isinstance(input, Command):
        return input
    return {**fresh, **input, "document": run.document if _plain(run.document) else None}


def _fresh(given: Mapping[str, object]) -> dict[str, object]:
    """Resets of channels that the thread's last run may have left."""
    if given.get("question") and given.get("questions") is not None:
        raise QuestionError('Ask either {"question": ...} or {"questions": [...]}.')
    if "questions" in given:
        return {"version": None, "question": ""}
    # With a question, `questions` is ignored; a channel that is not written is not checkpointed.
    return {"version": None} if given.get("question") else {"version": None, "questions": None}


def _chosen(
    options: dict[str, Any], run: Run, saver: BaseCheckpointSaver[Any] | None
) -> dict[str, Any]:
    chosen = {**options, "context": run}
    if saver is not None and chosen.get("durability") is None:
        chosen["durability"] = "sync"
    return chosen


def _thread_of(config: RunnableConfig) -> RunnableConfig:
    """The config that finds the checkpoints of a run."""
    keys = ("thread_id", "checkpoint_ns")
    place = {key: config["configurable"].get(key, "") for key in keys}
    return {"configurable": place}


_FIRST = {"source": "input"}
"""Metadata of the checkpoint that has a run's input; the newest is listed first."""


def _document_of(saved: CheckpointTuple | None) -> object:
    if saved is None:
        return None
    return (saved.checkpoint["channel_values"].get(START) or {}).get("document")


def _plain(document: object) -> bool:
    """Whether a checkpoint can keep this document: no streams and no other objects."""
    if isinstance(document, list | tuple):
        return all(map(_plain, document))
    return isinstance(document, str | bytes | PurePath | dict | Document)
