"""Build the LangGraph graph that reads a document.

START → open_document ─┬→ overwrite_memory ─┬→ overwrite_memory   more text
                       │                    └→ write_answer → END
                       ├→ fold (one for each segment) → merge_memories → write_answer → END
                       └→ question (one for each of several, with the same steps) → END

The graph of a fold has the node overwrite_memory alone, with the same function. From write_answer,
a reading goes back to it if there is something to read after all.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from langchain_core.documents import Document
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, GraphOutput, Send
from typing_extensions import TypedDict

from memagent_graph.config import LEXICAL, ReadingConfig
from memagent_graph.errors import ConfigurationError, MemAgentError, QuestionError
from memagent_graph.graph.fold import (
    after_search,
    first_step,
    make_node,
    next_step,
    overwrite_memory,
    until_it_stops,
)
from memagent_graph.graph.layers import add_layers
from memagent_graph.graph.nodes import (
    begin_question,
    merge_memories,
    open_document,
    search,
    write_answer,
)
from memagent_graph.graph.reading import Reading, check_window, fold_name
from memagent_graph.graph.state import (
    Answered,
    Fold,
    QuestionState,
    ReadingInput,
    ReadingOutput,
    ReadingState,
    Run,
)
from memagent_graph.memory.items import NAMESPACE, check_namespace
from memagent_graph.readers.base import cannot_merge, merges
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.seams import RunnableCallable, as_kind, checkpointer_of, runtime_of
from memagent_graph.sync import name_thread
from memagent_graph.text.chunks import cut_at_sentence
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.runtime import Runtime
    from langgraph.store.base import BaseStore
    from langgraph.types import Checkpointer

    from memagent_graph.evidence.support import Verify
    from memagent_graph.facts.rules import Facts
    from memagent_graph.graph.state import Changes
    from memagent_graph.models.structured import ResponseFormat, Shape
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.tokens import Tokenizer, TokenizerLike

    _Builder = StateGraph[ReadingState, Run, Any, Any]
    _Stops = tuple[list[str], list[str]]
    Questioning = CompiledStateGraph[ReadingState, Run, QuestionState, Answered]
    Segmenting = CompiledStateGraph[ReadingState, Run, Fold, Fold]


class ReadingOptions(TypedDict, total=False):
    """Options that `create_memagent` takes beside a model, and so all that make such a graph."""

    config: ReadingConfig | None
    store: BaseStore | None
    namespace: Sequence[str]
    prompts: Prompts | None
    tokenizer: TokenizerLike
    verify: Verify | None
    response_format: ResponseFormat | None


class AgentOptions(ReadingOptions, total=False):
    """Options that a node takes as well."""

    schema: type[Facts] | Facts | None
    interrupt_before: Sequence[str] | None
    interrupt_after: Sequence[str] | None
    name: str


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
    schema: type[Facts] | Facts | None = None,
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
            probability, 0 to 1, and may be asynchronous, or a decision model of LangChain.
            None goes by names and numbers.
        response_format: form of a chat model's answers: a pydantic model, a dataclass, a TypedDict,
            or the JSON schema of an object. They are in `structured_response`, and as JSON in
            `answer`. A reply that does not match is sent back once.
        schema: keep the memory as facts: `Facts` for any, or `Facts(Person, Company)` for those of
            pydantic models; `facts_of` returns them from the output. None for notes.
        interrupt_before: nodes to stop before, "overwrite_memory" for example.
        interrupt_after: nodes to stop after.
        name: the graph's name, also in its events.

    Returns:
        A compiled graph: `agent.invoke({"question": str, "document": document})` returns the
        fields of `ReadingOutput`; `{"questions": [str, ...], "document": document}` reads for all
        of them at once. A `str` document is text; a `Path` is a file or a folder.

    Raises:
        ConfigurationError: The budgets do not fit the model's context, there is no such model, the
            reader does not merge and there are several segments, it cannot keep facts,
            or LangGraph does not allow the namespace.

    Examples:
        >>> from memagent_graph import create_memagent
        >>> agent = create_memagent()  # the built-in reader; or "openai:gpt-4o", a chat model, ...
        >>> text = "It rained. " * 9000 + "The vault opens at 6:40."
        >>> out = agent.invoke({"question": "When does the vault open?", "document": text})
        >>> out["answer"], out["usage"]["calls"]
        ('The vault opens at 6:40.', 6)
    """
    config = ReadingConfig.model_validate(config or {})
    counter = None if tokenizer is None else load_tokenizer(tokenizer)
    reader = resolve_reader(
        model,
        config=config,
        prompts=prompts,
        tokenizer=counter,
        verify=verify,
        response_format=response_format,
    )
    if config.how == "auto" and config.skim is None and reader.shows_passages:
        config = config.model_copy(update={"skim": LEXICAL})
    if config.pictures:
        from memagent_graph.pictures import check_sight

        check_sight(getattr(reader, "model", None))
    cut: Callable[[str, int, Tokenizer], str] = cut_at_sentence
    if schema is not None:
        from memagent_graph.facts.reader import FactsReader, cut_facts, with_room

        reader = FactsReader(reader, schema, config=config, tokenizer=counter)
        config, cut = with_room(config, reader), cut_facts
    check_window(reader.identity, config, question_tokens=0)
    if config.merges and not merges(reader):
        raise cannot_merge(reader)
    counter = counter or load_tokenizer(reader.identity.tokenizer)
    own = check_namespace(namespace)
    reading = add_layers(Reading(name, reader, config, counter, store, own, cut))
    builder = StateGraph(
        ReadingState, context_schema=Run, input_schema=ReadingInput, output_schema=ReadingOutput
    )
    builder.add_node("open_document", make_node(open_document, reading))
    stops = list(interrupt_before or ()), list(interrupt_after or ())
    builder.add_node("question", question_node(_question_graph(reading, stops)))
    builder.add_edge(START, "open_document")
    builder.add_edge("question", END)
    steps = _add_steps(builder, reading, stops)
    builder.add_conditional_edges("open_document", _edge(first_step), [*steps, "question"])
    before, after = stops
    compiled = builder.compile(
        checkpointer, store=store, interrupt_before=before, interrupt_after=after, name=name
    )
    graph = as_kind(ReadingGraph, compiled)
    graph.shape = getattr(reader, "shape", None)
    return graph


def _question_graph(reading: Reading, stops: _Stops) -> Questioning:
    """The graph of one of several questions: the same steps without open_document."""
    builder = StateGraph(
        ReadingState, context_schema=Run, input_schema=QuestionState, output_schema=Answered
    )
    builder.add_node("begin_question", make_node(begin_question, reading))
    builder.add_edge(START, "begin_question")
    steps = _add_steps(builder, reading, stops)
    builder.add_conditional_edges("begin_question", _edge(next_step), steps)
    graph: Questioning = _compile("question", builder, stops)
    return graph


def _fold_graph(reading: Reading, stops: _Stops) -> Segmenting:
    builder = StateGraph(ReadingState, context_schema=Run, input_schema=Fold, output_schema=Fold)
    builder.add_node("overwrite_memory", make_node(overwrite_memory, reading))
    builder.add_edge(START, "overwrite_memory")
    builder.add_conditional_edges("overwrite_memory", _edge(until_it_stops), _AGAIN)
    graph: Segmenting = _compile("fold", builder, stops)
    return graph


def _compile(name: str, builder: _Builder, stops: _Stops) -> Any:
    """Compile a graph, with the interrupts whose nodes it has."""
    before, after = ([node for node in names if node in builder.nodes] for names in stops)
    return builder.compile(name=name, interrupt_before=before, interrupt_after=after)


_AGAIN = ["overwrite_memory", END]


def _add_steps(builder: _Builder, reading: Reading, stops: _Stops) -> list[str]:
    """Add the steps that read for a question and answer it; return those that can be first."""
    steps = ["overwrite_memory", "write_answer"]
    builder.add_node("overwrite_memory", make_node(overwrite_memory, reading))
    builder.add_conditional_edges("overwrite_memory", _edge(next_step), [*steps])
    if reading.config.merges:
        steps += ["fold", "merge_memories"]
        builder.add_node("fold", fold_node(_fold_graph(reading, stops)))
        builder.add_node("merge_memories", make_node(merge_memories, reading))
        builder.add_edge("fold", "merge_memories")
        builder.add_conditional_edges("merge_memories", _edge(next_step), ["fold", "write_answer"])
    builder.add_node("write_answer", make_node(write_answer, reading))
    # What was skipped, or was read since a version that a user edited, may be read after all.
    builder.add_conditional_edges("write_answer", _edge(until_it_stops), _AGAIN)
    if reading.searches:
        builder.add_node("search", make_node(search, reading))
        builder.add_conditional_edges("search", _edge(after_search), [*steps, END])
        steps.append("search")
    return steps


def _edge(choose: Callable[[Any], str | list[Send]]) -> RunnableCallable:
    """Return a conditional edge that async code follows at once: LangGraph's takes a thread."""

    async def from_async(state: Any) -> str | list[Send]:
        return choose(state)

    return RunnableCallable(choose, from_async, trace=False)


NO_LIMIT = 2**31
"""Recursion limit in supersteps: a reading ends with the document."""


def question_node(asking: Questioning) -> RunnableCallable:
    """Return a node that answers one of several questions; its failure does not end the others."""

    def record(state: QuestionState, output: Changes, error: MemAgentError | None) -> Changes:
        said, kind = (None, None) if error is None else (str(error), type(error).__name__)
        about = {"number": state["number"], "question": state["question"]}
        return {"answers": [{**about, "error": said, "error_type": kind, **output}]}

    return _subgraph_node("question", asking, record)


def fold_node(reading: Segmenting) -> RunnableCallable:
    """Return a node that reads one segment; if it fails, its question fails."""

    def record(state: Fold, after: Fold, error: MemAgentError | None) -> Changes:
        if error is not None:
            raise error
        return {"folds": {fold_name(state["scope"]): after}}

    return _subgraph_node("fold", reading, record)


def _subgraph_node(
    name: str, graph: Questioning | Segmenting, record: Callable[[Any, Any, Any], Changes]
) -> RunnableCallable:
    """Return a node that runs a graph with no limit to its steps, and records how it ended."""

    def sync(state: Any, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        config = {**config, "recursion_limit": NO_LIMIT}
        try:
            return record(state, graph.invoke(state, config, context=runtime.context), None)
        except MemAgentError as error:
            return record(state, {}, error)

    async def from_async(state: Any, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        config = {**config, "recursion_limit": NO_LIMIT}
        try:
            return record(state, await graph.ainvoke(state, config, context=runtime.context), None)
        except MemAgentError as error:
            return record(state, {}, error)

    return RunnableCallable(sync, from_async, name=name, trace=False)


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
        return self._shape(super().invoke(input, config, **options))

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> Any:
        """Read and answer from async code; see `invoke`."""
        return self._shape(await super().ainvoke(input, config, **options))

    def _shape(self, output: Any) -> Any:
        """The output, with answers as instances of the `response_format`."""
        if isinstance(output, GraphOutput):  # of `version="v2"`
            return replace(output, value=self._shape(output.value))
        if self.shape is None or not isinstance(output, dict):
            return output
        found = dict(output)
        if found.get("structured_response") is not None:
            found["structured_response"] = self.shape.load(found["structured_response"])
        if found.get("answers"):
            found["answers"] = [self._shape(record) for record in found["answers"]]
        return found

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **options: Any
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
        run = _new_run(config, options, options.get("stream_mode") or self.stream_mode)
        if saver is not None and run.document is None and _continues(input):
            _take_input(run, next(saver.list(_thread_of(config), filter=_FIRST, limit=1), None))
        input = _carry(input, run)
        yield from super().stream(input, config, **_with_run(options, run, saver))

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """Stream a reading from async code; see `stream`."""
        config, saver = self._lift(config)
        run = _new_run(config, options, options.get("stream_mode") or self.stream_mode)
        if saver is not None and run.document is None and _continues(input):
            found = saver.alist(_thread_of(config), filter=_FIRST, limit=1)
            saved = cast("AsyncGenerator[CheckpointTuple]", found)
            async with aclosing(saved):
                _take_input(run, await anext(saved, None))
        input = _carry(input, run)
        streamed = super().astream(input, config, **_with_run(options, run, saver))
        parts = cast("AsyncGenerator[Any]", streamed)
        async with aclosing(parts):
            async for part in parts:
                yield part

    def _lift(
        self, config: RunnableConfig | None
    ) -> tuple[RunnableConfig, BaseCheckpointSaver[Any] | None]:
        config = {**ensure_config(merge_configs(self.config, config)), "recursion_limit": NO_LIMIT}
        saver = checkpointer_of(self, config)
        if saver is not None and config.get("configurable", {}).get("thread_id") is None:
            message = 'Name a thread for the checkpointer: {"configurable": {"thread_id": "..."}}.'
            raise ConfigurationError(message)
        return config, saver


def _continues(input: object) -> bool:
    return input is None or isinstance(input, Command)


def _new_run(config: RunnableConfig, options: Mapping[str, Any], modes: Sequence[str]) -> Run:
    context, streams = options.get("context"), "custom" in modes
    if isinstance(context, Run):
        context.streams = streams
        return context
    run = Run(context.get("document") if isinstance(context, dict) else None, streams=streams)
    host = runtime_of(config)
    if host is not None and host.execution_info is not None:
        run.task = host.execution_info.task_id
        if config["configurable"].get("checkpoint_ns"):  # a node of its host, not a tool
            run.host = config
    if host is not None and not streams:
        run.write = host.stream_writer  # otherwise the host needs subgraphs=True to see events
    return run


def _carry(input: Any, run: Run) -> Any:
    """The input with its document moved to the run; plain documents also stay for checkpoints."""
    given = input.update if isinstance(input, Command) else input
    if not isinstance(given, dict):
        if _continues(input):
            return input
        form = '{"question": str, "document": ...}'
        message = f"The input of a reading is {form}, not {type(input).__name__}."
        raise QuestionError(message)
    fresh, document = _fresh(given), given.get("document")
    run.document = run.document if document is None else document
    if isinstance(input, Command):
        return input
    kept = {} if document is None else {"document": document if _plain(document) else None}
    return {**fresh, **input, **kept}


def _fresh(given: Mapping[str, object]) -> dict[str, object]:
    """Resets of channels that the thread's last run may have left."""
    if given.get("question") and given.get("questions") is not None:
        raise QuestionError('Ask either {"question": ...} or {"questions": [...]}.')
    if "questions" in given:
        return {"version": None, "question": ""}
    # With a question, `questions` is ignored; a channel that is not written is not checkpointed.
    return {"version": None} if given.get("question") else {"version": None, "questions": None}


def _with_run(
    options: dict[str, Any], run: Run, saver: BaseCheckpointSaver[Any] | None
) -> dict[str, Any]:
    chosen = {**options, "context": run}
    if saver is not None and chosen.get("durability") is None:
        chosen["durability"] = "sync"
    return chosen


def _thread_of(config: RunnableConfig) -> RunnableConfig:
    given = config["configurable"]
    place = {"thread_id": name_thread(given), "checkpoint_ns": given.get("checkpoint_ns", "")}
    return {"configurable": place}


_FIRST = {"source": "input"}
"""Metadata of the checkpoint that has a run's input; the newest is listed first."""


def _take_input(run: Run, saved: CheckpointTuple | None) -> None:
    """Give a resumed run what the checkpoints of its nodes do not have of its input."""
    if saved is not None:
        given = saved.checkpoint["channel_values"].get(START) or {}
        run.document, run.memory_name = given.get("document"), given.get("memory_name")


def _plain(document: object) -> bool:
    """Whether a checkpoint can keep this document: no streams and no other objects."""
    if isinstance(document, list | tuple):
        return all(map(_plain, document))
    return isinstance(document, str | bytes | PurePath | dict | Document)
