"""Tools with which an agent looks after the memory of the user who talks to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import (
    BaseTool,
    StructuredTool,
    ToolException,
    create_schema_from_function,
)
from langgraph.prebuilt import ToolRuntime  # noqa: TC002 - LangChain reads the annotation

from memagent_graph.conversation.messages import stamp
from memagent_graph.conversation.node import Thread
from memagent_graph.conversation.prompt import render_recalled
from memagent_graph.conversation.proposal import propose_edit
from memagent_graph.conversation.session import Talk
from memagent_graph.conversation.thread import (
    Speaker,
    Speakers,
    UserOf,
    access_of,
    in_context,
    read_channel,
)
from memagent_graph.errors import MemAgentError
from memagent_graph.memory.items import label
from memagent_graph.seams import runs_of
from memagent_graph.sync import wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.conversation.memory import ConversationMemory

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

    def run(**given: Any) -> str:
        return wait_for(arun(**given))

    return StructuredTool.from_function(
        run,
        arun,
        name=name,
        description=description,
        args_schema=create_schema_from_function(name, work),
        handle_tool_error=True,
    )
