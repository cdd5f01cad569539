"""Tools with which an agent looks after the memory of its user, and a node that asks the user."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import (
    BaseTool,
    StructuredTool,
    ToolException,
    create_schema_from_function,
)
from langgraph.prebuilt import ToolRuntime  # noqa: TC002 - LangChain reads the annotation
from langgraph.runtime import Runtime  # noqa: TC002 - LangGraph reads the annotation
from langgraph.types import interrupt
from pydantic import ValidationError

from memagent_graph.conversation.messages import stamp
from memagent_graph.conversation.node import Thread
from memagent_graph.conversation.prompt import render_recalled
from memagent_graph.conversation.proposal import (
    Decision,
    change_proposals,
    list_proposals,
    propose_edit,
)
from memagent_graph.conversation.session import Talk
from memagent_graph.conversation.thread import (
    AnonymousUser,
    Speaker,
    Speakers,
    UserOf,
    access_of,
    in_context,
    read_channel,
)
from memagent_graph.errors import (
    ConfigurationError,
    MemAgentError,
    MemoryConflictError,
    MemoryNotFoundError,
)
from memagent_graph.memory.items import label
from memagent_graph.seams import RunnableCallable, is_answered, runs_of
from memagent_graph.sync import to_sync

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from langchain_core.runnables import RunnableConfig
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.proposal import Proposal

_REMEMBER = (
    "Remember a statement about the user beyond this conversation. Write one complete sentence "
    "that can be understood by itself, in the user's own words where you can."
)
_RECALL = "Look up what is remembered about the user. Returns notes and earlier messages."
_FORGET = (
    "Forget what is remembered about a subject, when the user asks for it. Name the subject in the "
    "words of what is remembered: statements that have all of them are deleted."
)
_FACTS = (
    "Look up facts about the user and what they told of. Give a subject by its name, a relation, "
    "or both; `at` is a day, month or year (2023-05-01, 2023-05 or 2023) at which they must hold, "
    "today by default. Returns one fact a line, with the day on which it was told."
)
_CORRECT = (
    "Correct what is remembered about the user. `wrong` names the old statement in its words; "
    "`right` is the whole new statement."
)


async def find_turn(
    memory: ConversationMemory[Any],
    speakers: Speakers,
    runtime: Any,  # of a tool or a node: a thread needs context and store alone
    config: RunnableConfig,
) -> Speaker:
    """Return whose turn calls a tool: the user's with whose run the last message came."""
    run = next(iter(runs_of(config)), None)
    said, known = (run and read_channel(run, name) for name in ("messages", "memory_user"))
    last = [one for one in said or () if isinstance(one, HumanMessage)][-1:]
    state = {"messages": last, "memory_user": known}
    return (await Thread(memory, speakers, state, runtime, config).open()).speaker


def create_memory_tools(
    memory: ConversationMemory[Any], *, user: UserOf | None = None, strict: bool = False
) -> list[BaseTool]:
    """Create the tools `remember`, `recall`, `forget` and `correct` for `create_agent`.

    The user is the one of the run, as for `MemAgentMiddleware`; the model cannot name one. The
    memory's own store is used, or else the agent's.

    Args:
        memory: the memory of the users.
        user: function of the run's runtime and config that returns the id of the user instead.
        strict: whether a run without a user is an error; otherwise its thread has a memory.

    Returns:
        The tools; of a memory with `read_only`, `recall` alone. A memory of facts has
        `look_up_facts` as well. An error of the model or the store is returned as the tool's
        message.

    Examples:
        >>> from memagent_graph import ConversationMemory, create_memory_tools
        >>> memory = ConversationMemory("openai:gpt-4o")
        >>> tools = create_memory_tools(memory)  # create_agent(..., tools=[*tools])
        >>> [tool.name for tool in tools]
        ['remember', 'recall', 'forget', 'correct']
    """
    speakers = Speakers(user, strict=strict)
    approves = memory.approves
    later = ", once it is approved." if approves else "."

    async def find_speaker(runtime: ToolRuntime) -> Speaker:
        return await find_turn(memory, speakers, runtime, runtime.config)

    async def remember(statement: str, runtime: ToolRuntime) -> str:
        memory.check_writable()
        user, thread = await find_speaker(runtime)
        said: Any = in_context(runtime.state, "messages") or ()
        calling = [str(one.id) for one in said[-1:]]
        # Servers use ids of calls again, and a step that failed is run again.
        key = label("\0".join([*calling, str(runtime.tool_call_id), statement]))
        noted = stamp([HumanMessage(statement, id=key)], user, memory.zone)
        talk = Talk(memory, user, f"tools of {thread}", runtime.store, runtime.config)
        await talk.note(noted, ended=True)
        return f"Remembered{later}"

    async def drop(subject: str, runtime: ToolRuntime, *, corrects: bool = False) -> list[str]:
        memory.check_writable()
        return await memory.people.drop_about(
            (await find_speaker(runtime)).user,
            subject,
            runtime.store,
            memory.form,
            by="assistant",
            corrects=corrects,
            propose=propose_edit if approves else None,
        )

    async def recall(about: str, runtime: ToolRuntime) -> str:
        user = (await find_speaker(runtime)).user
        text = render_recalled(*await memory.atold(user, about=about, store=runtime.store))
        return text or "Nothing is remembered."

    async def forget(subject: str, runtime: ToolRuntime) -> str:
        gone = await drop(subject, runtime)
        if not gone:
            return "No statement has all of these words: use those of what `recall` returns."
        return "\n".join([f"Forgotten{later[:-1]}:", *gone])

    async def correct(wrong: str, right: str, runtime: ToolRuntime) -> str:
        gone = await drop(wrong, runtime, corrects=True)
        done = await remember(right, runtime)
        return "\n".join([f"{done} In place of:", *(gone or ["nothing that was found"])])

    async def look_up_facts(
        runtime: ToolRuntime, subject: str = "", relation: str = "", at: str = ""
    ) -> str:
        from memagent_graph.facts.graph import describe_facts

        found = await memory.afacts(
            (await find_speaker(runtime)).user,
            subject=subject or None,
            relation=relation or None,
            at=at or None,
            store=runtime.store,
        )
        return describe_facts(found)

    known: list[tuple[Callable[..., Awaitable[str]], str]] = [(recall, _RECALL)]
    if not memory.read_only:
        known = [(remember, _REMEMBER), *known, (forget, _FORGET), (correct, _CORRECT)]
    known += [(look_up_facts, _FACTS)] if memory.form.facts else []
    return [_tool(work, description) for work, description in known]


_READING = {"recall", "look_up_facts"}
"""Tools that change nothing."""


def _tool(work: Callable[..., Awaitable[str]], description: str) -> BaseTool:
    """Make a tool of a coroutine function."""
    name = work.__name__

    async def arun(**given: Any) -> str:
        try:
            access = access_of(given["runtime"].config, given["runtime"].context)
            if not (access.reads if name in _READING else access.writes):
                what = "read" if name in _READING else "changed"
                message = f"In this run, the memory cannot be {what}."
                raise ToolException(message)
            return await work(**given)
        except MemAgentError as error:
            raise ToolException(str(error)) from error

    return StructuredTool.from_function(
        to_sync(arun),
        arun,
        name=name,
        description=description,
        args_schema=create_schema_from_function(name, work),
        handle_tool_error=True,
    )


_REFUSED = (ValidationError, ConfigurationError, MemoryConflictError, MemoryNotFoundError)
"""Errors of a reply that decides nothing, and can be given again."""


class ApprovalNode(RunnableCallable):
    """Interrupts the graph if something new waits for the approval of its user.

    The interrupt's value is `{"proposals": [{"id": ..., "at": ..., "thread": ..., "memory": ...,
    "changes": ...}]}`, with the whole new memory, and the lines of a diff. Resume with
    `Command(resume={"accept": [id], "refuse": [id], "edit": {id: text}})`. A reply with another
    form, or with an id that does not wait, decides nothing: the graph is interrupted again, with
    the reason in `"error"`.

    Each proposal interrupts a thread once. If a new message comes instead of a reply, the turn goes
    on, and the proposals wait. Nothing is folded for a review.

    The run may be resumed by another user if the thread's state has `memory_user`, as after a
    `ConversationNode`. Otherwise resume it with the `user_id` of the interrupted run.

    Args:
        memory: the memory of the users, with `approve=True`.
        user, strict: as for `ConversationNode`.

    Examples:
        >>> from langgraph.checkpoint.memory import InMemorySaver
        >>> from langgraph.graph import START, StateGraph
        >>> from memagent_graph import ApprovalNode, ConversationMemory, ConversationState
        >>> memory = ConversationMemory("openai:gpt-4o", approve=True)
        >>> _ = memory.save([("human", "My sister breeds goats.")], user="ann", thread="monday")
        >>> builder = StateGraph(ConversationState).add_node("approve", ApprovalNode(memory))
        >>> graph = builder.add_edge(START, "approve").compile(InMemorySaver())
        >>> config = {"configurable": {"user_id": "ann", "thread_id": "tuesday"}}
        >>> out = graph.invoke({"messages": [("human", "Good morning.")]}, config)
        >>> (proposal,) = out["__interrupt__"][0].value["proposals"]
        >>> proposal["changes"]
        '+ My sister breeds goats.'
    """

    def __init__(
        self, memory: ConversationMemory[Any], *, user: UserOf | None = None, strict: bool = False
    ) -> None:
        speakers = Speakers(user, strict=strict)

        async def approve(
            state: object, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            known: Any = in_context(state, "memory_user") or ""
            speaker = speakers.of(runtime, config, known)
            await review(memory, speaker, runtime.store, config, known)
            return {}

        super().__init__(to_sync(approve), approve, name="approve", trace=False)


async def review(
    memory: ConversationMemory[Any],
    speaker: Speaker,
    store: BaseStore | None,
    config: RunnableConfig,
    known: str = "",
) -> None:
    """Interrupt a run if something new waits for approval, and decide as the reply says.

    `known` is the user in the thread's state, whose turn another one may resume.
    """

    async def show(**more: str) -> dict[str, object]:
        shown = [
            {
                "id": one.id,
                "at": one.at,
                "thread": one.thread,
                "memory": one.version.text,
                "changes": str(one),
            }
            for one in await list_proposals(personal)
        ]
        return {"proposals": shown, **more}

    personal, answered = memory.people.of(speaker.user, store), is_answered(config)
    waiting = await list_proposals(personal)
    new = {one.id for one in waiting if speaker.thread not in one.asked}
    if new and not answered:

        def ask(one: Proposal) -> Proposal:
            asked = (*one.asked, speaker.thread)
            return replace(one, asked=asked) if one.id in new else one

        await change_proposals(personal, ask)
    shown = await show() if new or answered else None  # a reply is always taken
    while shown is not None:
        reply, shown = interrupt(shown, response_schema=Decision.model_json_schema()), None
        try:
            decision = Decision.model_validate(reply)
            if ids := {*decision.ids}:
                users = speaker.user, AnonymousUser.restore(known)
                user = await _find_decided(memory, users, store, ids)
                await memory.decide(user, decision, store, by="review")
        except _REFUSED as error:
            shown = await show(error=str(error))


async def _find_decided(
    memory: ConversationMemory[Any], users: Iterable[str], store: BaseStore | None, ids: set[str]
) -> str:
    """Return the user for whom proposals wait: that of the run, or of the resumed turn."""
    for user in filter(None, users):
        if ids <= {one.id for one in await list_proposals(memory.people.of(user, store))}:
            return user
    message = (
        f"Not all of {', '.join(sorted(ids))} wait for the user of the run: they were decided or "
        "forgotten, or the interrupted run has another user, whose id must resume it."
    )
    raise MemoryNotFoundError(message)
