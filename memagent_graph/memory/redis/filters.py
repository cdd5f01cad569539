"""Match values against filters, as LangGraph's `InMemoryStore` does.

Where that store raises, because a field is missing, null or of another type than the bound, the
item just does not match.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(value: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    """Whether every field of `wanted` matches the one in `value`.

    A missing field counts as null. Numbers are compared with numbers, and text with text.

    Raises:
        ValueError: An operator is not one of $eq $ne $gt $gte $lt $lte.
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
