"""Find the memory of each person, and their messages that wait in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from langgraph.store.memory import InMemoryStore

from memagent_graph.conversation.background import backlog_of
from memagent_graph.memory.guard import store_seconds
from memagent_graph.memory.personal import PersonalMemory
from memagent_graph.memory.records import check_namespace
from memagent_graph.memory.users import Users

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.background import Backlog


class People:
    """The people whom a `ConversationMemory` remembers; the arguments are the same.

    Attributes:
        namespace: labels of the memories in the store, below a label for each person.
        seen: backlogs of the people who were seen in this process.
    """

    def __init__(
        self,
        store: BaseStore | None,
        namespace: Sequence[str],
        *,
        keep_versions: int | None,
        keep_days: float | None,
        episode_tokens: int,
        episode_days: float | None,
        ttl: float | None,
    ) -> None:
        self.namespace = check_namespace(namespace)
        self.seen: WeakSet[Backlog] = WeakSet()
        self._store = store
        self._here: BaseStore | None = None
        self._keep_versions = keep_versions
        self._keep_days = keep_days
        self._episode_tokens = episode_tokens
        self._episode_days = episode_days
        self._ttl = ttl

    def of(self, user: str, store: BaseStore | None) -> PersonalMemory:
        """Return the memory of a person.

        Args:
            user: id of the person.
            store: store of the host graph, used if this memory has no store of its own.

        Raises:
            ConfigurationError: The user is empty.
        """
        return PersonalMemory(
            self._chosen(store),
            self.namespace,
            user,
            keep_versions=self._keep_versions,
            keep_days=self._keep_days,
            episode_tokens=self._episode_tokens,
            episode_days=self._episode_days,
            ttl=self._ttl,
            patience=store_seconds,
        )

    def users(self, store: BaseStore | None) -> Users:
        """Return all who are remembered; the store is as for `of`."""
        return Users(self._chosen(store), self.namespace, ttl=self._ttl)

    def backlog(self, user: str, store: BaseStore | None) -> Backlog:
        """Return the backlog of a person; the arguments are as for `of`."""
        bank = self.of(user, store).bank
        found = backlog_of(bank.store, bank.namespace)
        self.seen.add(found)
        return found

    def _chosen(self, store: BaseStore | None) -> BaseStore:
        chosen = self._store or store or self._here
        if chosen is None:
            chosen = self._here = InMemoryStore()
        return chosen
