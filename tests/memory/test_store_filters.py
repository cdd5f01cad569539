from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

from memagent_graph.memory.redis.operations import matches

PLAIN = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", 0.5, 2.0])
NAME = st.sampled_from(["x", "y", "z"])
VALUE = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAME, inner, max_size=2),
    max_leaves=5,
)
OPERATOR = st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"])
WANTED = st.recursive(
    PLAIN | st.dictionaries(OPERATOR, PLAIN, min_size=1, max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAME, inner, max_size=2),
    max_leaves=5,
)


@given(st.dictionaries(NAME, VALUE, max_size=3), st.dictionaries(NAME, WANTED, max_size=2))
def test_a_filter_matches_what_it_matches_in_memory_unless_that_raises(value, wanted):
    store = InMemoryStore()
    store.put(("a",), "k", value)

    matched = matches(value, wanted)

    try:
        expected = bool(store.search(("a",), filter=wanted))
    except (TypeError, ValueError):
        return  # a bound on what is no number, where it knows no answer
    assert matched == expected


@pytest.mark.parametrize(
    ("value", "bound", "matched"),
    [
        (5, {"$gt": 4}, True),
        (5, {"$gt": 5}, False),
        (5, {"$gte": 5, "$lt": 6}, True),
        ("b", {"$gt": "a"}, True),
        ("2026-01-02", {"$lte": "2026-01-01"}, False),
        ("5", {"$gt": 4}, False),
        (5, {"$gt": "4"}, False),
        (None, {"$lt": 1}, False),
        ([5], {"$gt": 1}, False),
        ({}, {"$gte": {}}, False),
    ],
)
def test_bounds_order_numbers_with_numbers_and_text_with_text(value, bound, matched):
    assert matches({"x": value}, {"x": bound}) is matched


def test_a_missing_field_counts_as_null():
    assert matches({}, {"x": None})
    assert matches({}, {"x": {"$ne": 1}})
    assert not matches({}, {"x": {"$gt": 0}})


def test_an_unknown_operator_is_named():
    with pytest.raises(ValueError, match=r"\$like"):
        matches({"x": 1}, {"x": {"$like": 1}})
