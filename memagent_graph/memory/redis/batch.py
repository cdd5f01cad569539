"""A batch of LangGraph's store operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph.store.base import (
    GetOp,
    ListNamespacesOp,
    PutOp,
    Result,
    SearchOp,
    validate_op_namespace,
)

from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.redis import reads, writes
from memagent_graph.memory.redis.keys import root_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from langgraph.store.base import Op

    from memagent_graph.memory.redis.codec import Codec
    from memagent_graph.memory.redis.keys import Names
    from memagent_graph.memory.redis.pipeline import Reply
    from memagent_graph.memory.redis.roots import KnownRoots
    from memagent_graph.memory.redis.steps import Steps


def batch(names: Names, codec: Codec, known: KnownRoots, ops: Iterable[Op]) -> Steps[list[Result]]:
    """Carry out operations, and return their results in order.

    Reads do not see the batch's writes; the last put of a key wins.

    Raises:
        ValueError: One is not a store operation.
        ConfigurationError: One needs a vector index.
    """
    results: list[Result] = []
    gets: list[tuple[int, GetOp]] = []
    puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
    for op in ops:
        validate_op_namespace(op)
        _refuse_vectors(op)
        result: Result = None
        if isinstance(op, SearchOp):
            result = list((yield from reads.search(names, codec, op)))
        elif isinstance(op, ListNamespacesOp):
            result = yield from reads.list_namespaces(names, op)
        elif isinstance(op, GetOp):
            gets.append((len(results), op))
        elif isinstance(op, PutOp):
            puts[op.namespace, op.key] = op
        else:
            message = f"Unknown operation: {op!r}"
            raise ValueError(message)  # noqa: TRY004 - as LangGraph's stores do
        results.append(result)
    # Gets come first: a server carries out a connection's commands in order.
    commands = [reads.get(names, op) for _, op in gets]
    commands += (writes.put(names, codec, op) for op in puts.values())
    if commands:
        written = {root_of(op.namespace) for op in puts.values() if op.value is not None}
        places = [root_of(op.namespace) for op in puts.values()]

        def emptied(replies: list[Reply]) -> set[bytes]:
            answers = replies[len(gets) : len(commands)]
            return {root for root, empty in zip(places, answers, strict=True) if empty}

        replies = yield from known.register(names, written, commands, emptied)
        for (place, op), reply in zip(gets, replies, strict=False):
            results[place] = reads.found(codec, op, reply)
    return results


def _refuse_vectors(op: Op) -> None:
    """Refuse queries: without an index, the result would be the first items by name."""
    if isinstance(op, SearchOp) and op.query:
        reason = "a search has query=. Search by namespace_prefix and filter"
    elif isinstance(op, PutOp) and op.index:
        reason = "a put names fields in index=. Leave it out"
    else:
        return
    message = (
        f"RedisStore has no vector index, and {reason}, or use a store with one, such as "
        "LangGraph's PostgresStore."
    )
    raise ConfigurationError(message)
