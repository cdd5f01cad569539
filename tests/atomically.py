"""The atomic operations of any store, each waited for: for tests that are not asynchronous."""

from langgraph.store.base import PutOp

from memagent_graph.memory.stores import atomic
from memagent_graph.sync import wait_for


def commit(store, puts, given, **options):
    return wait_for(atomic(store).acommit(puts, given=given, **options))


def compare_and_put(store, namespace, key, value, *, expected):
    """A commit of one item that depends on itself alone."""
    return commit(store, [PutOp(namespace, key, value)], {(namespace, key): expected})
