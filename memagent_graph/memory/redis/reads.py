"""Get, search and list namespaces."""

from __future__ import annotations

from collections import deque
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from langgraph.store.base import Item, SearchItem

from memagent_graph.memory.redis import scripts
from memagent_graph.memory.redis.codec import bad_record
from memagent_graph.memory.redis.filters import matches
from memagent_graph.memory.redis.keys import bounds, decode, member_of, root_of
from memagent_graph.memory.redis.roots import forget_root, list_roots
from memagent_graph.memory.redis.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, SearchOp

    from memagent_graph.memory.redis.codec import Codec, Stored
    from memagent_graph.memory.redis.keys import Names
    from memagent_graph.memory.redis.steps import Steps

Namespace = tuple[str, ...]
Place = tuple[bytes, bytes]  # root and member: where an item is

_ROOTS_AT_ONCE = 64
_MEMBERS_AT_ONCE = 5_000
_VALUES_AT_ONCE = 500  # in a search with a filter
_NAMESPACES_AT_ONCE = 1_000
_KINDS_OF_NOTHING = (b"none", b"string")  # a string was put meanwhile
_NO_ITEM = "is not an item: another program wrote to its key in Redis. Delete it or write it again."


def get(names: Names, op: GetOp) -> Command:
    """Return the command of a get; `found` reads its reply."""
    root, member = root_of(op.namespace), member_of(op.namespace, op.key)
    item = names.item(root, member)
    if op.refresh_ttl:
        return Command(scripts.FETCH, (item, names.expiry(root)), (member,), of_item=True)
    return Command(None, (item,), ("GET",), of_item=True)


def found(codec: Codec, op: GetOp, reply: bytes | Exception | None) -> Item | None:
    """Return the item in the reply to `get`; None without one.

    Raises:
        BadRecordError: Something else is stored at its key.
    """
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

    Raises:
        BadRecordError: Something else is stored at the key of one of them.
    """
    hits: list[_Hit] = []
    skip, limit = op.offset, max(op.limit, 0)
    if op.namespace_prefix:
        roots = [root_of(op.namespace_prefix)]
    else:
        roots = yield from list_roots(names)
    low, high = bounds(op.namespace_prefix)
    ranges = deque((root, low) for root in roots)
    while ranges and len(hits) < limit:
        wanted = skip + limit - len(hits)
        size = _VALUES_AT_ONCE if op.filter else min(wanted, _MEMBERS_AT_ONCE)
        if skip and not op.filter and len(ranges) == 1:
            places = yield from _next_places(names, ranges, high, limit - len(hits), skip)
            skip = 0
        else:
            places = yield from _next_places(names, ranges, high, size)
        if not op.filter:
            # Skipped places are not read: an offset costs names, not values.
            skip, places = max(skip - len(places), 0), places[skip : skip + limit - len(hits)]
        for hit in (yield from _read(names, codec, places)):
            if op.filter and not matches(hit.stored.value, op.filter):
                continue
            if op.filter and skip:
                skip -= 1
            elif len(hits) < limit:
                hits.append(hit)
    if op.refresh_ttl:
        yield from _touch(names, hits)
    return [_search_item(hit) for hit in hits]


def _next_places(
    names: Names, ranges: deque[tuple[bytes, bytes]], high: bytes, size: int, skip: int = 0
) -> Steps[list[Place]]:
    """The next places in order, which are removed from `ranges`.

    `skip` places of the only range are not even listed.
    """
    window = list(islice(ranges, _ROOTS_AT_ONCE))
    commands = []
    for root, low in window:
        index = names.index(root)
        commands.append(Command(scripts.SWEEP, (index, names.expiry(root))))
        commands.append(Command(None, (index,), ("ZRANGEBYLEX", low, high, "LIMIT", skip, size)))
    replies = yield commands
    places: list[Place] = []
    for (root, _), members in zip(window, replies[1::2], strict=True):
        places += ((root, member) for member in members)
        ranges.popleft()
        if len(members) == size:  # there may be more, which come before the next root
            ranges.appendleft((root, b"(" + members[-1]))
            break
    return places


def _read(names: Names, codec: Codec, places: Sequence[Place]) -> Steps[list[_Hit]]:
    if not places:
        return []
    # One MGET per root: the keys of a command must be in one slot.
    groups = [(root, list(group)) for root, group in groupby(places, itemgetter(0))]
    replies = yield [
        Command(None, tuple(names.item(*place) for place in group), ("MGET",))
        for _, group in groups
    ]
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
        commands.append(Command(scripts.FORGET, (item, names.index(root)), (member,)))
        commands.append(Command(None, (item,), ("TYPE",)))
    replies = yield commands
    for place, kind in zip(lost, replies[1::2], strict=True):
        if kind not in _KINDS_OF_NOTHING:
            raise bad_record(*decode(*place), _NO_ITEM)


def _touch(names: Names, hits: Iterable[_Hit]) -> Steps[None]:
    commands = [
        Command(scripts.TOUCH, (names.item(root, member), names.expiry(root)), (member,))
        for (root, member), stored in hits
        if stored.expires
    ]
    if commands:
        yield commands


def _search_item(hit: _Hit) -> SearchItem:
    namespace, key = decode(*hit.place)
    return SearchItem(
        namespace=namespace,
        key=key,
        value=hit.stored.value,
        created_at=hit.stored.created_at,
        updated_at=hit.stored.updated_at,
    )


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
        sweeps = [Command(scripts.SWEEP, (names.index(root), names.expiry(root))) for root in left]
        swept = yield sweeps
        left = [
            root for root, count in zip(left, swept, strict=True) if count == scripts.SWEPT_BY_READS
        ]
    listed: dict[bytes, list[Namespace]] = {root: [] for root in roots}
    lows = dict.fromkeys(roots, low)
    while lows:
        pages = yield [
            Command(scripts.NAMESPACES, (names.index(root),), (start, high, _NAMESPACES_AT_ONCE))
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
