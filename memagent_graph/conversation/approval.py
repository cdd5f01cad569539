"""Ask in a graph whether what was learned of a user may be remembered."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangGraph reads the annotation
from langgraph.runtime import Runtime  # noqa: TC002 - LangGraph reads the annotation
from langgraph.types import interrupt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memagent_graph.conversation.node import RememberingState  # noqa: TC001 - as above
from memagent_graph.conversation.proposal import Decision, decide
from memagent_graph.conversation.session import Speakers, UserOf
from memagent_graph.errors import ConfigurationError, MemoryNotFoundError
from memagent_graph.seams import RunnableCallable
from memagent_graph.sync import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.proposal import Proposal

_BY = "review"
"""`MemoryChange.by` of what was decided in a graph."""
_TYPED = "response_schema" in signature(interrupt).parameters
"""Whether LangGraph shows the schema of a reply to clients, and validates the reply."""


class Review(BaseModel):
    """The reply to the interrupt of an `ApprovalNode`; what it does not name waits on.

    Attributes:
        accept: ids of the proposals, or of single changes, to accept.
        refuse: ids of those to refuse.
    """

    model_config = ConfigDict(extra="forbid")

    accept: list[str] = Field(default_factory=list)
    refuse: list[str] = Field(default_factory=list)


class ApprovalNode(RunnableCallable):
    """Interrupts the graph if something waits for the approval of its user.

    The interrupt's value is `{"proposals": [{"id": ..., "at": ..., "changes": [{"id": ...,
    "remove": [...], "add": [...]}]}]}`. Resume with `Command(resume={"accept": [...], "refuse":
    [...]})`, which takes ids of proposals and of changes. A reply with another form, or with an id
    that does not wait, decides nothing: the graph is interrupted again, with the reason in
    `"error"`; LangGraph releases that validate replies raise instead.

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
        >>> [change["add"] for change in proposal["changes"]]
        [['My sister breeds goats.']]
    """

    def __init__(
        self, memory: ConversationMemory[Any], *, user: UserOf | None = None, strict: bool = False
    ) -> None:
        speakers = Speakers(user, strict=strict)

        def find(state: Any, config: RunnableConfig, runtime: Runtime[Any]) -> str:
            known = state if isinstance(state, dict) else vars(state)
            return speakers.of(runtime, config, known.get("memory_user")).user

        async def aapprove(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            await areview(memory, find(state, config, runtime), runtime.store)
            return {}

        def approve(state: Any, config: RunnableConfig, runtime: Runtime[Any]) -> dict[str, object]:
            review(memory, find(state, config, runtime), runtime.store)
            return {}

        super().__init__(approve, aapprove, name="approve", trace=False)
        self._approve = approve

    def __call__(
        self, state: RememberingState, config: RunnableConfig, runtime: Runtime[Any]
    ) -> dict[str, object]:
        """Run the node. LangGraph learns from the annotations which keys the state needs."""
        return self._approve(state, config, runtime)


async def areview(memory: ConversationMemory[Any], user: str, store: BaseStore | None) -> None:
    """Interrupt the run if something waits for a user's approval, and decide as the reply says."""
    proposals = await memory.aproposals(user, store=store)
    if proposals:
        decision = _ask(proposals)
        await decide(memory.people.of(user, store), *decision, by=_BY)


def review(memory: ConversationMemory[Any], user: str, store: BaseStore | None) -> None:
    """Do what `areview` does; LangGraph's interrupt must be called in the node's own thread."""
    proposals = memory.proposals(user, store=store)
    if proposals:
        decision = _ask(proposals)
        wait_for(decide(memory.people.of(user, store), *decision, by=_BY))


def _ask(proposals: Sequence[Proposal]) -> Decision:
    shown: dict[str, object] = {"proposals": [*map(_show, proposals)]}
    while True:
        reply = interrupt(shown, response_schema=Review) if _TYPED else interrupt(shown)
        try:
            found = Review.model_validate(reply)
            decision = Decision(frozenset(found.accept), frozenset(found.refuse))
            decision.parts(proposals)
        except (ValidationError, ConfigurationError, MemoryNotFoundError) as error:
            shown["error"] = str(error)
        else:
            return decision


def _show(proposal: Proposal) -> dict[str, object]:
    changes = [
        {
            "id": one.id,
            "remove": [fact.text for fact in one.removed],
            "add": [fact.text for fact in one.added],
        }
        for one in proposal.changes
    ]
    return {
        "id": proposal.id,
        "at": proposal.at,
        "thread": proposal.thread,
        "changes": changes,
    }
