"""Choose what is kept of messages word for word: the redacted text without banned statements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memagent_graph.conversation.rendering import word_for_word
from memagent_graph.conversation.salience import topics
from memagent_graph.memory.pages import Page
from memagent_graph.readers.statements import statements
from memagent_graph.text.terms import terms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from langchain_core.messages import BaseMessage

    from memagent_graph.conversation.redaction import Redact
    from memagent_graph.memory.pages import Said


@dataclass(frozen=True)
class Keeping:
    """Rules for what is kept of messages.

    Attributes:
        redact: function that each text passes through.
        never: description of what must not be kept: statements with one of its words are left out.
            If it has no word to match, nothing is kept.
    """

    redact: Redact
    never: str

    def said(self, messages: Iterable[BaseMessage], thread: str) -> list[Said]:
        """Return messages as they are kept; one of which nothing remains has no text.

        Args:
            messages: messages with ids.
            thread: id of their thread.
        """
        known = word_for_word(messages, thread, self.redact)
        return [replace(one, text=self._allowed(one.text)) for one in known]

    def clean(self, page: Page) -> Page:
        """Return a page without the statements that were banned after it was kept."""
        if not self.never.strip():
            return page
        said = [replace(one, text=self._allowed(one.text)) for one in page.said]
        return page if said == [*page.said] else Page(said)

    def allows(self, text: str) -> bool:
        """Whether nothing in a text is banned."""
        return self._allowed(text) == text

    def _allowed(self, text: str) -> str:
        if not self.never.strip():
            return text
        banned = topics(self.never)
        if not banned:
            return ""
        if banned.isdisjoint(terms(text)):
            return text
        left, end = "", 0
        for statement in statements(text):
            if not banned.isdisjoint(terms(statement.text)):
                left += text[end : statement.start]
                end = statement.end
        return (left + text[end:]).strip()
