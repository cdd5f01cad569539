"""Ask in a graph whether what was learned of a user may be remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangGraph reads the annotation
from langgraph.runtime import Runtime  # noqa: TC002 - LangGraph reads the annotation
from langgraph.types import interrupt
from pydantic import ValidationError

from memagent_graph.conversation.node import RememberingState  # noqa: TC001 - as above
from memagent_graph.conversation.proposal import Decision, change_proposals, list_proposals
from memagent_graph.conversation.session import Speaker, Speakers, UserOf
from memagent_graph.conversation.user_memory import AnonymousUser
from memagent_graph.errors import ConfigurationError, MemoryConflictError, MemoryNotFoundError
from memagent_graph.seams import RunnableCallable, is_answered
from memagent_graph.sync import to_sync

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.memory import ConversationMemory

_BY = "review"
"""`MemoryChange.by` of what was decided in a graph."""
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
        user: function of the run's runtime and config that returns the id of the user, as for
            `ConversationNode`.
        strict: whether a run without a user is an error; otherwise its thread has a memory.

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

        async def aapprove(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            known = (state if isinstance(state, dict) else vars(state)).get("memory_user") or ""
            speaker = speakers.of(runtime, config, known)
            await Approval(memory, speaker, runtime.store, is_answered(config), known).review()
            return {}

        approve = to_sync(aapprove)
        super().__init__(approve, aapprove, name="approve", trace=False)
        self._approve = approve

    def __call__(
        self, state: RememberingState, config: RunnableConfig, runtime: Runtime[Any]
    ) -> dict[str, object]:
        """Run the node. LangGraph learns from the annotations which keys the state needs."""
        return self._approve(state, config, runtime)


class Approval(NamedTuple):
    """The approval of what waits for a user, in a run.

    Attributes:
        memory: the memory of the users.
        speaker: user and thread of the run.
        store: store of the host graph.
        answered: whether the run was resumed with a reply.
        known: id of the user in the thread's state, whose turn may be resumed by another; "" if
            only the user of the run may.
    """

    memory: ConversationMemory[Any]
    speaker: Speaker
    store: BaseStore | None
    answered: bool
    known: str = ""

    async def review(self) -> None:
        """Interrupt the run if something new waits, and decide as the reply says."""
        shown = await self._begin()
        while shown is not None:
            reply = interrupt(shown, response_schema=Decision.model_json_schema())
            shown = await self._decide(reply)

    async def _begin(self) -> dict[str, object] | None:
        """Return what to ask; None for nothing. A reply is always taken."""
        personal, thread = self.memory.people.of(self.speaker.user, self.store), self.speaker.thread
        new = {one.id for one in await list_proposals(personal) if thread not in one.asked}
        if not new and not self.answered:
            return None
        if not self.answered:
            await change_proposals(
                personal,
                lambda one: replace(one, asked=(*one.asked, thread)) if one.id in new else one,
            )
        return await self._show()

    async def _show(self) -> dict[str, object]:
        waiting = await list_proposals(self.memory.people.of(self.speaker.user, self.store))
        shown = [
            {
                "id": p.id,
                "at": p.at,
                "thread": p.thread,
                "memory": p.version.text,
                "changes": str(p),
            }
            for p in waiting
        ]
        return {"proposals": shown}

    async def _decide(self, reply: object) -> dict[str, object] | None:
        """Decide as a reply says; return what to ask again if it cannot be carried out."""
        try:
            decision = Decision.model_validate(reply)
            if decision.ids:
                user = await self._find_user({*decision.ids})
                await self.memory.decide(user, decision, self.store, by=_BY)
        except _REFUSED as error:
            return {**await self._show(), "error": str(error)}
        return None

    async def _find_user(self, ids: set[str]) -> str:
        """Return the user for whom proposals wait: that of the run, or of the resumed turn."""
        for user in (self.speaker.user, AnonymousUser.restore(self.known)):
            personal = user and self.memory.people.of(user, self.store)
            if personal and ids <= {one.id for one in await list_proposals(personal)}:
                return user
        message = (
            f"Not all of {', '.join(sorted(ids))} wait for {self.speaker.user!r}: they were "
            "decided or forgotten, or the interrupted run has another user, whose id must resume "
            "it."
        )
        raise MemoryNotFoundError(message)
