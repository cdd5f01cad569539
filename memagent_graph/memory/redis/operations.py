"""Get, search, list, put, delete and conditional writes, and a batch of them."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.redis import layout
from memagent_graph.memory.redis.layout import (
    Wire,
    as_stored,
    bad_record,
    bounds,
    decode,
    member_of,
    root_of,
    run_script,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from langgraph.store.base import MatchCondition, Op

    from memagent_graph.memory.redis.layout import Codec, Names, Steps, Stored, Vector
    from memagent_graph.memory.store import Given

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(value: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    """Whether every field of `wanted` matches the one in `value`; a missing field counts as null.

    Numbers are compared with numbers, and text with text.
    """
    return all(_matches(value.get(name), field) for name, field in wanted.items())


def _matches(value: object, wanted: object) -> bool:
    if isinstance(wanted, dict):
        if any(name.startswith("$") for name in wanted):
            return all(_compare(value, name, bound) for name, bound in wanted.items())
        return isinstance(value, dict) and matches(value, wanted)
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(map(_matches, value, wanted))
        )
    return bool(value == wanted)


def _compare(value: object, name: str, bound: object) -> bool:
    if name == "$eq":
        return bool(value == bound)
    if name == "$ne":
        return bool(value != bound)
    if name not in _ORDERS:
        message = f"Unsupported operator: {name}. Use one of $eq $ne $gt $gte $lt $lte."
        raise ValueError(message)
    alike = any(isinstance(value, kind) and isinstance(bound, kind) for kind in (str, int | float))
    return alike and _ORDERS[name](value, bound)


Namespace = tuple[str, ...]
Place = tuple[bytes, bytes]  # root and member: where an item is

MOST_COMPARED = 10_000
"""Items that are compared with a query, at most."""
_AT_ONCE = 100  # in a script, during which the server does nothing else
_ROOTS_AT_ONCE = 64
_MEMBERS_AT_ONCE = 5_000
_VALUES_AT_ONCE = 500  # in a search with a filter
_NAMESPACES_AT_ONCE = 1_000
_KINDS_OF_NOTHING = (b"none", b"string")  # a string was put meanwhile
_NO_ITEM = "is not an item: another program wrote to its key in Redis. Delete it or write it again."


def _fetch(names: Names, ops: Iterable[GetOp]) -> list[Wire]:
    """Return the commands of gets, in order; `item_of` reads a part of their replies each."""
    commands = []
    for root, group in groupby(ops, lambda op: root_of(op.namespace)):
        while some := [*islice(group, _AT_ONCE)]:
            members = [member_of(op.namespace, op.key) for op in some]
            keys = (names.expiry(root), *(names.item(root, member) for member in members))
            touched = (
                member if op.refresh_ttl else b"" for op, member in zip(some, members, strict=True)
            )
            commands.append(run_script(layout.FETCH, keys, *touched, items=len(some)))
    return commands


def item_of(codec: Codec, op: GetOp, reply: bytes | Exception | None) -> Item | None:
    """Return the item in the reply to a get; None without one."""
    if reply is None:
        return None
    if isinstance(reply, Exception):
        raise bad_record(op.namespace, op.key, _NO_ITEM) from reply
    stored = codec.decode(reply, op.namespace, op.key)
    return Item(
        value=stored.value,
        key=op.key,
        namespace=op.namespace,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
    )


class _Hit(NamedTuple):
    place: Place
    stored: Stored


def search(names: Names, codec: Codec, op: SearchOp) -> Steps[list[SearchItem]]:
    """Return items in or under a namespace, ordered by the bytes of root, namespace and key.

    A search takes two round trips; with a filter, two for each 500 items looked at. Items that the
    server evicted are removed from the index.
    """
    hits = yield from _collect(names, codec, op)
    if op.refresh_ttl:
        yield from _touch(names, hits)
    return [_search_item(hit) for hit in hits]


def find(
    names: Names, codec: Codec, op: SearchOp, vector: Vector | None
) -> Steps[list[SearchItem]]:
    """Return the items in or under a namespace that match a query best, the best first.

    They are compared by the query's embedding or, without one, by its words.
    """
    from memagent_graph.memory.redis.rank import rank_by_vectors, rank_by_words

    hits = yield from _collect(names, codec, op._replace(offset=0, limit=MOST_COMPARED + 1))
    if len(hits) > MOST_COMPARED:
        message = (
            f"RedisStore compares a query with {MOST_COMPARED:,} items at most, and there are more "
            f"below {op.namespace_prefix!r}: search a narrower namespace, filter, or use a store "
            "with an index on the server, such as LangGraph's PostgresStore."
        )
        raise ConfigurationError(message)
    ranked: Sequence[tuple[int, float | None]]
    if vector is None:
        ranked = rank_by_words((hit.stored.value for hit in hits), op.query or "")
    else:
        ranked = rank_by_vectors([hit.stored.vectors for hit in hits], vector)
    best = ranked[op.offset : op.offset + max(op.limit, 0)]
    if op.refresh_ttl:
        yield from _touch(names, [hits[number] for number, _ in best])
    return [_search_item(hits[number], score) for number, score in best]


def _collect(names: Names, codec: Codec, op: SearchOp) -> Steps[list[_Hit]]:
    """The items of a search, in the order of their names."""
    hits: list[_Hit] = []
    skip, limit = op.offset, max(op.limit, 0)
    if op.namespace_prefix:
        roots = [root_of(op.namespace_prefix)]
    else:
        roots = yield from list_roots(names)
    low, high = bounds(op.namespace_prefix)
    ranges = deque((root, low) for root in roots)
    while ranges and len(hits) < limit:
        wanted = limit - len(hits)
        size = _VALUES_AT_ONCE if op.filter else min(skip + wanted, _MEMBERS_AT_ONCE)
        places = yield from _next_places(names, ranges, high, size)
        if not op.filter:
            # Skipped places are not read: an offset costs names, not values.
            skip, places = max(skip - len(places), 0), places[skip : skip + wanted]
        for hit in (yield from _read(names, codec, places)):
            if op.filter and not matches(hit.stored.value, op.filter):
                continue
            if op.filter and skip:
                skip -= 1
            elif len(hits) < limit:
                hits.append(hit)
    return hits


def _next_places(
    names: Names, ranges: deque[tuple[bytes, bytes]], high: bytes, size: int
) -> Steps[list[Place]]:
    """The next places in order, which are removed from `ranges`."""
    window = list(islice(ranges, _ROOTS_AT_ONCE))
    commands = []
    for root, low in window:
        index = names.index(root)
        commands.append(run_script(layout.SWEEP, (index, names.expiry(root))))
        commands.append(Wire(index, ("ZRANGEBYLEX", index, low, high, "LIMIT", 0, size)))
    replies = yield commands
    places: list[Place] = []
    for (root, _), members in zip(window, replies[1::2], strict=True):
        places += ((root, member) for member in members)
        ranges.popleft()
        if len(members) == size:  # there may be more, which come before the next root
            ranges.appendleft((root, b"(" + members[-1]))
            break
    return places


def list_places(names: Names, namespace: Namespace) -> Steps[list[tuple[Namespace, str]]]:
    """Return the places of all items in and below a namespace, which is not the empty one."""
    low, high = bounds(namespace)
    ranges = deque([(root_of(namespace), low)])
    listed: list[Place] = []
    while ranges:
        listed += yield from _next_places(names, ranges, high, _MEMBERS_AT_ONCE)
    return [decode(*place) for place in listed]


def _read(names: Names, codec: Codec, places: Sequence[Place]) -> Steps[list[_Hit]]:
    if not places:
        return []
    # One MGET per root: the keys of a command must be in one slot.
    groups = [(root, list(group)) for root, group in groupby(places, itemgetter(0))]
    keys = [[names.item(*place) for place in group] for _, group in groups]
    replies = yield [Wire(some[0], ("MGET", *some)) for some in keys]
    values = [value for reply in replies for value in reply]
    hits, lost = [], []
    for place, value in zip(places, values, strict=True):
        if value is None:
            lost.append(place)
        else:
            hits.append(_Hit(place, codec.decode(value, *decode(*place))))
    if lost:
        yield from _forget(names, lost)
    return hits


def _forget(names: Names, lost: Sequence[Place]) -> Steps[None]:
    """Remove items that the server evicted from the index; MGET returns nil for other types too."""
    commands = []
    for root, member in lost:
        item = names.item(root, member)
        commands.append(run_script(layout.FORGET, (item, names.index(root)), member))
        commands.append(Wire(item, ("TYPE", item)))
    replies = yield commands
    for place, kind in zip(lost, replies[1::2], strict=True):
        if kind not in _KINDS_OF_NOTHING:
            raise bad_record(*decode(*place), _NO_ITEM)


def _touch(names: Names, hits: Iterable[_Hit]) -> Steps[None]:
    commands = [
        run_script(layout.TOUCH, (names.expiry(root), names.item(root, member)), member)
        for (root, member), stored in hits
        if stored.expires
    ]
    if commands:
        yield commands


def _search_item(hit: _Hit, score: float | None = None) -> SearchItem:
    namespace, key = decode(*hit.place)
    return SearchItem(
        namespace=namespace,
        key=key,
        value=hit.stored.value,
        created_at=hit.stored.created_at,
        updated_at=hit.stored.updated_at,
        score=score,
    )


# KEYS roots, ARGV roots: adds them. A key of another type, left by another program, is replaced.
_REGISTER = """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'set' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
for _, root in ipairs(ARGV) do redis.call('SADD', KEYS[1], root) end
"""


def register(names: Names, roots: Iterable[bytes]) -> list[Wire]:
    """Return the commands that add roots to the set; they go out with the writes and follow them.

    They go out with every write: one that is left out because the set has the root already would
    have to know of servers that lost their data, lost replies, and roots that others removed.
    """
    found = sorted(roots)
    return [run_script(_REGISTER, (names.roots,), *found)] if found else []


def list_roots(names: Names) -> Steps[list[bytes]]:
    """Return all roots, in order."""
    (members,) = yield [Wire(names.roots, ("SMEMBERS", names.roots))]
    return sorted(members)


def forget_root(names: Names, root: bytes) -> Steps[None]:
    """Remove a root from the set, unless something has been put under it meanwhile."""
    # A writer adds the root after the item. So either the item is seen here, or the writer adds
    # the root later.
    yield [Wire(names.roots, ("SREM", names.roots, root))]
    (exists,) = yield [Wire(names.index(root), ("EXISTS", names.index(root)))]
    if exists:
        yield register(names, [root])


def list_namespaces(names: Names, op: ListNamespacesOp) -> Steps[list[Namespace]]:
    """Return the namespaces that have an item, sorted.

    This costs one step in the index per namespace, and two round trips per 64 roots.
    """
    conditions = op.match_conditions or ()
    literal = max((_literal(condition) for condition in conditions), key=len, default=())
    if literal:
        roots = [root_of(literal)]
    else:
        roots = yield from list_roots(names)
    listed: set[Namespace] = set()
    for start in range(0, len(roots), _ROOTS_AT_ONCE):
        window = roots[start : start + _ROOTS_AT_ONCE]
        found = yield from _namespaces(names, window, *bounds(literal))
        for root, namespaces in found.items():
            if not namespaces and len(literal) <= 1:
                yield from forget_root(names, root)
            listed.update(
                namespace[: op.max_depth]
                for namespace in namespaces
                if all(_meets(namespace, condition) for condition in conditions)
            )
    return sorted(listed)[op.offset : op.offset + op.limit]


def _namespaces(
    names: Names, roots: Sequence[bytes], low: bytes, high: bytes
) -> Steps[dict[bytes, list[Namespace]]]:
    """The namespaces in a range of the indexes of some roots."""
    left = roots
    while left:
        sweeps = [
            run_script(layout.SWEEP, (names.index(root), names.expiry(root))) for root in left
        ]
        swept = yield sweeps
        left = [
            root for root, count in zip(left, swept, strict=True) if count == layout.SWEPT_BY_READS
        ]
    listed: dict[bytes, list[Namespace]] = {root: [] for root in roots}
    lows = dict.fromkeys(roots, low)
    while lows:
        pages = yield [
            run_script(layout.NAMESPACES, (names.index(root),), start, high, _NAMESPACES_AT_ONCE)
            for root, start in lows.items()
        ]
        more: dict[bytes, bytes] = {}
        for root, starts in zip(lows, pages, strict=True):
            listed[root] += (decode(root, start)[0] for start in starts)
            if len(starts) == _NAMESPACES_AT_ONCE:
                more[root] = b"(" + starts[-1] + b"\xff"
        lows = more
    return listed


def _literal(condition: MatchCondition) -> Namespace:
    """The labels with which every match begins."""
    if condition.match_type != "prefix":
        return ()
    path = condition.path
    return path[: path.index("*")] if "*" in path else path


def _meets(namespace: Namespace, condition: MatchCondition) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    labels = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return all(wanted in ("*", label) for label, wanted in zip(labels, path, strict=True))


_MILLISECONDS = 60_000  # in a minute, the unit of times to live
_NOTHING = b""  # the body of an item to delete


def _put(names: Names, codec: Codec, ops: Iterable[PutOp]) -> list[Wire]:
    """Return the commands that set items, or delete those whose value is None."""
    commands = []
    for root, group in groupby(ops, lambda op: root_of(op.namespace)):
        while some := [*islice(group, _AT_ONCE)]:
            keys, arguments = _write(names, codec, root, some)
            commands.append(run_script(layout.PUT, keys, *arguments, items=len(some)))
    return commands


def commit(names: Names, codec: Codec, ops: Sequence[PutOp], given: Given) -> Steps[bool]:
    """Carry out `ops`, in the order of `arrange`, if all items are as given; return whether.

    The server compares bytes, but a value can have several forms (another order of keys, other
    encrypted bytes). If the bytes differ, values are compared here, and the server is asked again
    with the bytes that it has.
    """
    places = [*given, *((op.namespace, op.key) for op in ops)]
    root = root_of(places[0][0])
    (index, expiry, *items), arguments = _write(names, codec, root, ops)
    # If the reply is lost after the write, the receipt shows the repeat that it was done.
    receipt = names.receipt(root, uuid4().hex)
    checked = [names.item(root, member_of(*place)) for place in given]
    keys = (index, expiry, receipt, *checked, *items)
    expected = list(given.values())
    wanted = [_form(codec, value) for value in expected]
    registers = register(names, [root] if any(op.value is not None for op in ops) else [])
    while True:
        script = run_script(layout.COMMIT, keys, len(wanted), *wanted, *arguments)
        reply, *_ = yield [script, *registers]
        if not isinstance(reply, list):
            return bool(reply)
        for place, content in reply:
            value, stored = expected[place], codec.decode(content, *places[place])
            if not isinstance(value, Mapping) or stored.value != as_stored(value):
                return False
            wanted[place] = stored.body


def _write(
    names: Names, codec: Codec, root: bytes, ops: Sequence[PutOp]
) -> tuple[tuple[bytes, ...], tuple[bytes | int, ...]]:
    members = [member_of(op.namespace, op.key) for op in ops]
    keys = (names.index(root), names.expiry(root), *(names.item(root, one) for one in members))
    arguments: list[bytes | int] = []
    for op, member in zip(ops, members, strict=True):
        if op.value is not None and not op.namespace:
            raise InvalidNamespaceError("Namespace cannot be empty.")  # as `put` says
        body = _NOTHING if op.value is None else codec.encode(op.value)
        milliseconds = 0 if op.ttl is None else max(1, round(op.ttl * _MILLISECONDS))
        arguments += (member, milliseconds, body)
    return keys, tuple(arguments)


def _form(codec: Codec, value: Mapping[str, object] | EllipsisType | None) -> bytes:
    if value is None:
        return layout.ABSENT
    return layout.PRESENT if isinstance(value, EllipsisType) else codec.encode(value)


def batch(
    names: Names, codec: Codec, ops: Iterable[Op], vectors: Mapping[str, Vector] | None = None
) -> Steps[list[Result]]:
    """Carry out operations: reads do not see the batch's writes; the last put of a key wins."""
    results: list[Result] = []
    gets: list[tuple[int, GetOp]] = []
    puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
    for op in ops:
        validate_op_namespace(op)
        result: Result = None
        if isinstance(op, SearchOp) and op.query:
            result = list((yield from find(names, codec, op, (vectors or {}).get(op.query))))
        elif isinstance(op, SearchOp):
            result = list((yield from search(names, codec, op)))
        elif isinstance(op, ListNamespacesOp):
            result = yield from list_namespaces(names, op)
        elif isinstance(op, GetOp):
            gets.append((len(results), op))
        elif isinstance(op, PutOp):
            puts[op.namespace, op.key] = op
        else:
            message = f"Unknown operation: {op!r}"
            raise ValueError(message)
        results.append(result)
    # Gets come first: a server carries out a connection's commands in order.
    fetches = _fetch(names, (op for _, op in gets))
    commands = [*fetches, *_put(names, codec, puts.values())]
    if commands:
        written = {root_of(op.namespace) for op in puts.values() if op.value is not None}
        replies = yield [*commands, *register(names, written)]
        found = chain.from_iterable(replies[: len(fetches)])
        for (place, op), reply in zip(gets, found, strict=True):
            results[place] = item_of(codec, op, reply)
    return results
