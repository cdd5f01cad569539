"""Several operations of LangGraph's at once."""

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

from memagent_graph.memory.redis import reads, writes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from langgraph.store.base import Op

    from memagent_graph.memory.redis.codec import Codec
    from memagent_graph.memory.redis.keys import Names
    from memagent_graph.memory.redis.steps import Steps


def batch(names: Names, codec: Codec, ops: Iterable[Op]) -> Steps[list[Result]]:
    """Results in the order of `ops`; reads see nothing of the writes, the last put of a key wins.

    Raises:
        ValueError: One is no operation of a store.
    """
    results: list[Result] = []
    gets: list[tuple[int, GetOp]] = []
    puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
    for op in ops:
        validate_op_namespace(op)
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
    # In this order: a server carries out one connection's commands as they come.
    commands = [reads.get(names, op) for _, op in gets]
    commands += (writes.put(names, codec, op) for op in puts.values())
    commands += writes.register(names, puts.values())
    if commands:
        replies = yield commands
        for (place, op), reply in zip(gets, replies, strict=False):  # the puts' replies say nothing
            results[place] = reads.found(codec, op, reply)
    return results
