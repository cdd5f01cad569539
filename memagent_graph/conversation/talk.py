"""One conversation with one user: what of it is folded when, and what stays."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from langgraph.errors import GraphBubbleUp

from memagent_graph.conversation.messages import after, beyond, is_instruction, leaving
from memagent_graph.counted import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from memagent_graph.conversation.background import Backlog
    from memagent_graph.memory.personal import PersonalMemory

Remember = Literal["turn", "window", "end"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Talk:
    """A thread of a user.

    Attributes:
        thread: id of the thread.
        personal: the user's memory.
        backlog: the user's messages that wait to be folded.
        fold: function that folds those of some messages that are not folded yet, and returns their
            number.
        remember: time of folding, see `ConversationMemory`.
        within: seconds after a turn in which it is to be folded.
        window: most messages that stay.
        tokens: most tokens that stay.
    """

    thread: str
    personal: PersonalMemory
    backlog: Backlog
    fold: Callable[[Sequence[BaseMessage]], Awaitable[int]]
    remember: Remember
    within: float
    window: int
    tokens: int

    async def begin(self, messages: Sequence[BaseMessage]) -> None:
        """Fold the messages of the user's other threads when a thread starts.

        It takes `within` seconds at most, and goes on afterwards.
        """
        if self.remember == "turn" and not any(isinstance(m, AIMessage) for m in messages):
            await self.backlog.fold(self.within)

    def note(self, messages: Sequence[BaseMessage], folded: str | None, *, ended: bool) -> None:
        """Add new messages to those that wait to be folded.

        Args:
            messages: the conversation.
            folded: the id of the message that was folded last.
            ended: whether the last message is the reply; else the last turn is due later.
        """
        if self.remember == "window":
            return
        said = [m for m in after(messages, folded) if not is_instruction(m)]
        humans = [at for at, message in enumerate(said) if isinstance(message, HumanMessage)]
        closed = len(said) if ended or not humans else humans[-1]
        soon, late = self.within / 2, self.within  # the fold takes time, too
        if self.remember == "end":
            soon = late = math.inf
        waiting = ((soon if at < closed else late, message) for at, message in enumerate(said))
        self.backlog.add(self.thread, waiting, self.fold)

    async def shorten(
        self, messages: Sequence[BaseMessage], folded: str | None
    ) -> list[BaseMessage]:
        """The messages that stay: those beyond the window leave, once they are folded.

        What the background has not folded yet is folded here only if there is no room for it.
        When that fails, it is logged, and the messages stay.

        Args:
            messages: the conversation.
            folded: the id of the message that was folded last.
        """
        stay = [*messages]
        folding = self._beyond(stay)
        try:
            if folding and self.remember == "turn":
                new = after(stay, folded)
                done = {str(message.id) for message in stay[: len(stay) - len(new)]}
                if any(str(message.id) not in done for message in folding):
                    done.update(await self.personal.folded(self.thread))
                stay = _without(stay, leaving(folding, done))
                folding = self._beyond(stay)
                if folding and _tokens(stay) <= self.tokens:
                    self.backlog.hurry()
                    return stay
            if folding:
                await self.fold(folding)
                self.backlog.remove(self.thread, folding)
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - whatever failed, the conversation goes on
            what = counted(len(folding), "message")
            _log.warning("Folding %s failed, and the conversation keeps all: %s", what, error)
            return stay
        return _without(stay, folding)

    def _beyond(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return beyond(
            messages,
            window=self.window,
            tokens=self.tokens,
            count=lambda message: count_tokens_approximately([message]),
        )


def _without(messages: list[BaseMessage], gone: Sequence[BaseMessage]) -> list[BaseMessage]:
    ids = {message.id for message in gone}
    return [message for message in messages if message.id not in ids]


def _tokens(messages: Sequence[BaseMessage]) -> int:
    said = [message for message in messages if not is_instruction(message)]
    return sum(count_tokens_approximately([message]) for message in said)
