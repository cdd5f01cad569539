"""A reading as one node of another graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage, convert_to_messages
from langchain_core.messages.content import Citation
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import Command

from memagent_graph.errors import ConfigurationError, QuestionError, SourceChangedError
from memagent_graph.evidence.places import Evidence, Memory
from memagent_graph.evidence.statements import notes
from memagent_graph.evidence.support import cite
from memagent_graph.graph.build import create_memagent
from memagent_graph.graph.state import Run
from memagent_graph.seams import RunnableCallable, channels_of, runtime_of, with_checkpointer
from memagent_graph.text.source import parts_with_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import RunnableConfig
    from langgraph.types import Checkpointer
    from typing_extensions import Unpack

    from memagent_graph.graph.build import AgentOptions, ReadingGraph
    from memagent_graph.graph.state import ReadingInput
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.source import Source

Update = dict[str, object]
"""An update of the host's state."""
Key = str | Callable[[Any], Any]
"""A key or attribute of the host's state, or a function that returns the value from it."""


class MemAgentNode(RunnableCallable):
    """Reads the document in the host's state and writes the answer into it.

    The host sees the reading's events in `stream_mode="custom"`, its state with
    `subgraphs=True`, and its checkpoints if the host has a checkpointer. A document that the
    host keeps in its state as text is stored in each of the host's checkpoints; a `Path` is not.

    Args:
        model: a chat model, a model string or a `Reader`, as for `create_memagent`.
        question: key of the question in the host's state, or a function of the state. Of a list of
            messages, the text of the last human message is the question.
        document: key of the document, or a function of the state.
        answer: key for the answer, which is an object if there is a `response_format`. Under a key
            with messages, `"messages"` for example, the answer is appended as an AIMessage, whose
            text has citations as LangChain's annotations. Or a
            function that takes the reading's output (the fields of `ReadingOutput`) and returns an
            update of the host's state, or a `Command` that also says where the host continues.
        memory: key for the final memory; None leaves it out.
        evidence: key for the evidence; None leaves it out.
        usage: key for the usage; None leaves it out.
        checkpointer: checkpointer of the reading; the host's by default, and False for none.
        options: all others of `create_memagent`: `config`, `store` (the host's by default),
            `namespace`, `prompts`, `tokenizer`, `verify`, `response_format`, `schema`,
            `interrupt_before`, `interrupt_after`, and `name`, which is the node's.

    Raises:
        ConfigurationError: When the node is called, before anything is read: the state has not got
            one of these keys.

    Examples:
        >>> from typing import TypedDict
        >>> from langgraph.graph import START, StateGraph
        >>> from memagent_graph import MemAgentNode
        >>> class Review(TypedDict, total=False):
        ...     query: str
        ...     contract: str
        ...     finding: str
        >>> builder = StateGraph(Review)
        >>> read = MemAgentNode(question="query", document="contract", answer="finding")
        >>> graph = builder.add_node("read", read).add_edge(START, "read").compile()
        >>> asked = {"query": "Who signed the lease?", "contract": "Ann signed the lease."}
        >>> graph.invoke(asked)["finding"]
        'Ann signed the lease.'
    """

    agent: ReadingGraph

    def __init__(
        self,
        model: str | BaseChatModel | Reader | None = None,
        *,
        question: Key = "question",
        document: Key = "document",
        answer: str | Callable[[dict[str, Any]], Update | Command[Any]] = "answer",
        memory: str | None = None,
        evidence: str | None = None,
        usage: str | None = None,
        checkpointer: Checkpointer = None,
        **options: Unpack[AgentOptions],
    ) -> None:
        agent = create_memagent(model, **options)
        wanted = {"memory": memory, "evidence": evidence, "usage": usage}
        written = {**wanted, "answer": None if callable(answer) else answer}

        def ask(state: object, config: RunnableConfig) -> tuple[ReadingInput, Run]:
            channels = channels_of(config)
            for argument, key in written.items():
                if channels and key is not None and key not in channels:
                    raise _no_key(argument, key, state, channels)  # it would be dropped
            asked = _question_of(_value(state, "question", question, channels))
            text = _value(state, "document", document, channels)
            host = runtime_of(config) or Runtime()  # without a graph, as tests call a node
            task = host.execution_info.task_id if host.execution_info else ""
            return {"question": asked}, Run(text, write=host.stream_writer, task=task, host=config)

        result = "answer" if options.get("response_format") is None else "structured_response"

        def update_of(
            output: dict[str, Any], run: Run, config: RunnableConfig
        ) -> Update | Command[Any]:
            update = {key: output[name] for name, key in wanted.items() if key is not None}
            channels = channels_of(config)
            if callable(answer):
                return _with_update(answer(output), update, output["answer"], channels)
            if answer == "messages" or getattr(channels.get(answer), "operator", 0) is add_messages:
                return {**update, answer: [_message_of(output, run)]}
            return {**update, answer: output[result]}

        lend = partial(with_checkpointer, checkpointer=checkpointer)

        # Closures over `agent`, not methods: LangGraph looks for subgraphs in closures.
        def read(state: object, config: RunnableConfig) -> Update | Command[Any]:
            asked, run = ask(state, config)
            return update_of(agent.invoke(asked, lend(config), context=run), run, config)

        async def aread(state: object, config: RunnableConfig) -> Update | Command[Any]:
            asked, run = ask(state, config)
            output = await agent.ainvoke(asked, lend(config), context=run)
            return update_of(output, run, config)

        super().__init__(read, aread, name=agent.name, trace=False)
        self.agent = agent


def _value(state: object, argument: str, key: Key, channels: Mapping[str, object]) -> Any:
    if callable(key):
        return key(state)
    try:
        return state[key] if isinstance(state, Mapping) else getattr(state, key)
    except (KeyError, AttributeError) as error:
        raise _no_key(argument, key, state, channels) from error


def _message_of(output: Mapping[str, Any], run: Run) -> AIMessage:
    """Return the answer with its citations, as LangChain annotates text.

    What no single statement of the answer rests on is a citation of the whole answer.
    """
    answer, cited = output["answer"], [Evidence(**item) for item in output["citations"]]
    if not cited:
        return AIMessage(answer, id=run.message_id)
    memory = Memory(output["memory"], tuple(Evidence(**item) for item in output["evidence"]))
    spans = [
        (note.start, note.end, item)
        for note in notes(answer)
        for item in cite(note.text, memory)
        if item in cited
    ]
    placed = {item for *_, item in spans}
    spans += [(0, len(answer), item) for item in cited if item not in placed]
    source = run.cutter.source if run.cutter is not None else None
    annotations = [_annotate(start, end, item, source) for start, end, item in spans]
    content: dict[str, Any] = {"type": "text", "text": answer, "annotations": annotations}
    return AIMessage([content], id=run.message_id)


def _annotate(start: int, end: int, item: Evidence, source: Source | None) -> Citation:
    """Return a citation of a part of the answer; its extras are the place in the source."""
    cited, url = item.text, None
    with suppress(SourceChangedError):
        if source is not None:
            cited = source.read(item.start, item.end - item.start) or cited
            parts = parts_with_offsets(source, item.start, item.end)
            url = next((part.uri for part, _ in parts), None)
    place = {name: value for name, value in asdict(item).items() if value is not None}
    citation = Citation(type="citation", title=item.source, cited_text=cited, extras=place)
    citation |= {"start_index": start, "end_index": end}
    return citation if url is None else {**citation, "url": url}


def _with_update(
    made: object, update: Update, answer: str, channels: Mapping[str, object]
) -> Update | Command[Any]:
    """Return what a function made of the reading's output, with an update added."""
    given: Any = dict(made.update or {}) if isinstance(made, Command) else made
    elsewhere = isinstance(made, Command) and made.graph is not None
    wrong = "" if isinstance(given, Mapping) else type(given).__name__
    if channels and not (wrong or elsewhere) and (unknown := given.keys() - channels.keys()):
        wrong = f"an update of {_names(unknown)}"
    if wrong:
        message = (
            f"MemAgentNode(answer=...): the function returned {wrong}; return an update of the "
            f"state's keys ({_names(channels)}) or a Command. The answer was: {answer}"
        )
        raise ConfigurationError(message)
    update = {**update, **given}
    return replace(made, update=update) if isinstance(made, Command) else update


def _no_key(
    argument: str, key: str, state: object, channels: Mapping[str, object]
) -> ConfigurationError:
    given = state if isinstance(state, Mapping) else getattr(state, "__dict__", {})
    reason = f"the state has no such key: name one of its own, or add {key!r} to it"
    if key in channels:
        reason = "it has no value: give it one in the input, or in an earlier node"
    keys = f"The state's keys: {_names(channels)}; with a value: {_names(given)}."
    return ConfigurationError(f"MemAgentNode({argument}={key!r}): {reason}. {keys}")


def _names(keys: Iterable[str]) -> str:
    return ", ".join(sorted(repr(key) for key in keys)) or "none"


def _question_of(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    messages = convert_to_messages([message for message in value if not isinstance(message, str)])
    said = [message for message in messages if isinstance(message, HumanMessage)]
    if not said:
        raise QuestionError("The messages have no human message, whose text is the question.")
    return said[-1].text
