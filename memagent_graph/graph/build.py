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

from typing import TYPE_CHECKING, Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, Send, TracePolicy

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import TransientModelError
from memagent_graph.graph.compiled import (
    ReadingGraph,
    fold_node,
    question_node,
    text_node,
    waiting_node,
)
from memagent_graph.graph.nodes import (
    begin_question,
    begin_round,
    merge_memories,
    open_document,
    overwrite_memory,
    read_chunk,
    write_answer,
)
from memagent_graph.graph.reading import Reading, check_window
from memagent_graph.graph.state import (
    Answered,
    Fold,
    QuestionState,
    ReadingInput,
    ReadingOutput,
    ReadingState,
    Run,
    fold_name,
)
from memagent_graph.memory.items import NAMESPACE, check_namespace
from memagent_graph.readers.base import cannot_merge, merges
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.seams import as_kind
from memagent_graph.templates import replace_surrogates
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.language_models import BaseChatModel
    from langgraph.store.base import BaseStore
    from langgraph.types import Checkpointer

    from memagent_graph.evidence.verify import Verify
    from memagent_graph.graph.compiled import Questioning, Segmenting
    from memagent_graph.models.structured import ResponseFormat
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.tokens import TokenizerLike

    _Builder = StateGraph[ReadingState, Run, Any, Any]
    _Stops = tuple[list[str], list[str]]


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
    counter = None if tokenizer is None else load_tokenizer(tokenizer)
    reader = resolve_reader(
        model,
        config=config,
        prompts=prompts,
        tokenizer=counter,
        verify=verify,
        response_format=response_format,
    )
    check_window(reader.identity, config, question_tokens=0)
    if config.merges and not merges(reader):
        raise cannot_merge(reader)
    counter = counter or load_tokenizer(reader.identity.tokenizer)
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
    if reading.config.skim is None and not reading.config.update_gate:
        builder.add_edge("write_answer", END)
    else:  # what was skipped may be read after all
        builder.add_conditional_edges("write_answer", _until_it_stops, ["read_chunk", END])
    return steps


def _add_fold(builder: _Builder, reading: Reading, retry: RetryPolicy) -> None:
    traces = TracePolicy(process_inputs=_without_chunk, process_outputs=_without_chunk)
    builder.add_node("read_chunk", text_node(read_chunk, reading), trace_policy=traces)
    work = waiting_node(overwrite_memory, reading)
    builder.add_node("overwrite_memory", work, retry_policy=retry, trace_policy=traces)
    builder.add_edge("read_chunk", "overwrite_memory")


def _without_chunk(state: dict[str, Any]) -> dict[str, Any]:
    """Return what a trace keeps of a step; the trace of the model's call has the chunk's text."""
    return {key: value for key, value in state.items() if key != "chunk"}


def _first_step(state: ReadingState) -> str | list[Send]:
    questions = state.get("questions")
    if state["question"] or not questions:
        return _next_step(state)
    return [
        Send(
            "question",
            QuestionState(
                number=number,
                question=replace_surrogates(question),
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
