"""The atomic operations of any store, each waited for: for tests that are not asynchronous."""

from __future__ import annotations

from langgraph.store.base import GetOp, PutOp

from memagent_graph.memory.items import atomic
from memagent_graph.sync import wait_for


def put_if_absent(store, namespace, key, value, *, also=(), ttl=..., **options):
    times = {} if ttl is ... else {"ttl": ttl}
    """A commit of a new item, and a look at the one that is there otherwise."""
    puts = [PutOp(namespace, key, value, **times), *also]
    if commit(store, puts, {(namespace, key): None}, **options):
        return value
    (item,) = wait_for(atomic(store).abatch([GetOp(namespace, key)]))
    return item.value


def commit(store, puts, given, **options):
    return wait_for(atomic(store).acommit(puts, given=given, **options))


def compare_and_put(store, namespace, key, value, *, expected):
    """A commit of one item that depends on itself alone."""
    return commit(store, [PutOp(namespace, key, value)], {(namespace, key): expected})
