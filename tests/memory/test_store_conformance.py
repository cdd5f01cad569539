"""`RedisStore` does what LangGraph's stores have in common, and is strict where they differ."""

import asyncio
import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from memagent_graph.memory.redis.operations import matches


class Asynchronous(BaseStore):
    """Sends what synchronous tests do through a store's asynchronous half."""

    supports_ttl, abatch = True, None

    def __init__(self, store):
        self._store, self.ttl_config = store, store.ttl_config
        self.loop = asyncio.new_event_loop()

    def batch(self, ops):
        return self.loop.run_until_complete(self._store.abatch(ops))

    def close(self):
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


@pytest.fixture(params=["synchronously", "asynchronously"])
def store(request, redis_store):
    if request.param == "synchronously":
        yield redis_store
    else:
        store = Asynchronous(redis_store)
        yield store
        store.close()


def names(items):
    return sorted((item.namespace, item.key) for item in items)


def keys(items):
    return sorted(item.key for item in items)


# Items


def test_what_was_put_is_found(store):
    store.put(("a", "b"), "k", {"old": 1})
    store.put(("a", "b"), "k", {"text": "x", "n": 1}, index=False)
    store.put(("b",), 5, {})

    item = store.get(("a", "b"), "k")

    assert (item.namespace, item.key, item.value) == (("a", "b"), "k", {"text": "x", "n": 1})
    assert [(i.key, i.score) for i in store.search(("a",), query=None)] == [("k", None)]
    assert store.get(("b",), "5").value == {}
    for namespace, key in ((("a", "b"), "other"), (("a",), "k"), (("a", "b", "c"), "k")):
        assert store.get(namespace, key) is None


def test_a_deleted_item_is_gone(store):
    store.put(("a",), "k", {"n": 1})

    for _ in range(2):
        store.delete(("a",), "k")

        assert store.get(("a",), "k") is None
        assert store.search(("a",)) == []


def test_times_are_of_utc_and_aware(store):
    store.put(("a",), "k", {})

    item = store.get(("a",), "k")

    assert item.created_at.utcoffset() == item.updated_at.utcoffset() == timedelta(0)


def test_an_overwritten_item_keeps_its_creation_time(store):
    store.put(("a",), "k", {"n": 1})
    first = store.get(("a",), "k")
    time.sleep(0.002)
    store.put(("a",), "k", {"n": 2})

    second = store.get(("a",), "k")

    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at


def test_a_tuple_comes_back_as_a_list(store):
    store.put(("a",), "k", {"pair": (1, 2)})

    assert store.get(("a",), "k").value == {"pair": [1, 2]}


@pytest.mark.parametrize(
    "namespace", [(), ("",), ("a", ""), ("a.b",), ("a\0",), ("langgraph", "x")], ids=repr
)
def test_a_namespace_that_langgraph_forbids_is_refused(store, namespace):
    with pytest.raises(InvalidNamespaceError):
        store.put(namespace, "k", {})


@pytest.mark.parametrize("namespace", [(), ("a.b",)])
def test_a_namespace_of_a_batch_is_validated(store, namespace):
    with pytest.raises(InvalidNamespaceError):
        store.batch([PutOp(namespace, "k", {})])


def test_an_unusual_value_is_found_again_exactly(store):
    value = {"n": 2**70, "m": -0.0, "k": 1e300, "": {"": []}, "t": "x" * 1_000_000}

    store.put(("a",), "k", value)

    assert store.get(("a",), "k").value == store.search(("a",))[0].value == value


# Search


def test_a_prefix_finds_the_namespace_and_all_under_it(store):
    everything = [("Foo",), ("a",), ("a", "b"), ("a", "b", "c"), ("a\n",), ("ab",), ("foo",)]
    for namespace in reversed(everything):
        store.put(namespace, "k", {})
    store.put(("a",), "k\n", {})

    def found(*prefix):
        return [namespace for namespace, key in names(store.search(prefix)) if key == "k"]

    assert (found(), found("fo"), found("foo")) == (everything, [], [("foo",)])
    assert found("a") == [("a",), ("a", "b"), ("a", "b", "c")]
    assert found("a", "b") == [("a", "b"), ("a", "b", "c")]
    assert store.list_namespaces(suffix=("a",)) == [("a",)]
    assert len(store.search(("a",))) == 4


def test_a_search_finds_ten_unless_told(store):
    for n in range(12):
        store.put(("a",), f"{n:02}", {})

    assert (len(store.search(("a",))), len(store.search(("a",), limit=100))) == (10, 12)
    assert store.search(("a",), limit=0) == []


def test_pages_of_a_search_are_disjoint_and_complete(store):
    for n in range(25):
        store.put(("root", f"{n % 3}"), f"{n:02}", {"even": n % 2 == 0})

    pages = [store.search(("root",), limit=10, offset=start) for start in (0, 10, 20, 30)]
    even = [store.search((), filter={"even": True}, limit=6, offset=start) for start in (0, 6, 12)]

    assert [len(page) for page in pages] == [10, 10, 5, 0]
    for found, step in ((pages, 1), (even, 2)):
        assert keys(item for page in found for item in page) == [
            f"{n:02}" for n in range(25)[::step]
        ]


def test_an_offset_and_a_limit_page_through_a_search_in_a_fixed_order(store):
    for root in ("c", "a", "b"):
        for n in (2, 0, 1):
            store.put((root,), str(n), {})

    found = [(item.namespace[0], item.key) for item in store.search((), limit=4, offset=2)]

    assert found == [("a", "2"), ("b", "0"), ("b", "1"), ("b", "2")]


# Filters


@pytest.mark.parametrize(("wanted", "found"), [
    pytest.param({"n": 1.0}, ["one"], id="integer"),
    pytest.param({"text": "a"}, ["none"], id="text"),
    pytest.param({"n": 1, "text": "b"}, ["one"], id="both"),
    pytest.param({"n": 1, "text": "c"}, [], id="not both"),
    pytest.param({"n": {"$eq": 1}}, ["one"], id="equal"),
    pytest.param({"text": {"$ne": "a"}}, ["one", "two"], id="unequal"),
    pytest.param({"on": True}, ["one"], id="true"),
    pytest.param({"on": 1}, ["one"], id="true is one"),
    pytest.param({"none": None}, ["none", "one", "two"], id="missing is null"),
    pytest.param({"n": None}, ["none"], id="null"),
    pytest.param({"n": {"$ne": None}}, ["one", "two"], id="not null"),
    pytest.param({"on": {"$ne": True}}, ["none", "two"], id="missing is unequal"),
    pytest.param({"text": {"$gte": "b"}}, ["one", "two"], id="order of text"),
    pytest.param({"n": {"$gt": 0}}, ["one", "two"], id="null meets no bound"),
    pytest.param({"in": {"n": 1}}, ["one"], id="nested"),
    pytest.param({"in": {"s": {"x": {"$gt": 4}}}}, ["one"], id="nested bound"),
    pytest.param({"list": [1]}, ["two"], id="list"),
    pytest.param({"list": [1, 2]}, ["none"], id="longer list"),
    pytest.param({"m": {"$gt": 9}}, ["none", "two"], id="$gt"),
    pytest.param({"m": {"$gte": 10}}, ["none", "two"], id="$gte"),
    pytest.param({"m": {"$lt": 10.5}}, ["one", "two"], id="$lt"),
    pytest.param({"m": {"$lte": 9}}, ["one"], id="$lte"),
    pytest.param({"m": {"$gt": 9, "$lt": 10.5}}, ["two"], id="two bounds"),
])  # fmt: skip
def test_a_field_is_filtered(store, wanted, found):
    one = {"n": 1, "m": 9, "on": True, "text": "b", "in": {"n": 1, "s": {"x": 5}}}
    two = {"n": 2.5, "m": 10, "on": False, "text": "c", "none": None, "list": [1]}
    none = {"n": None, "m": 10.5, "text": "a", "list": [1, 2]}
    store.batch([PutOp(("t",), *each) for each in (("one", one), ("two", two), ("none", none))])

    assert keys(store.search(("t",), filter=wanted)) == found


def test_a_bound_of_another_type_matches_nothing(store):
    store.put(("t",), "list", {"n": [5]})
    store.put(("t",), "number", {"n": 5})

    assert keys(store.search(("t",), filter={"n": {"$lt": 6, "$gt": 4}})) == ["number"]


def test_an_unknown_operator_is_an_error(store):
    store.put(("t",), "k", {"n": 1})

    with pytest.raises(ValueError, match="operator"):
        store.search(("t",), filter={"n": {"$near": 1}})


# Namespaces


@pytest.mark.parametrize(("asked", "found"), [
    ({}, ["a b c", "a b d e", "a f", "ab", "b b c"]),
    ({"prefix": ("a",)}, ["a b c", "a b d e", "a f"]), ({"prefix": ("a", "b", "c")}, ["a b c"]),
    ({"prefix": ("c",)}, []), ({"suffix": ("c",)}, ["a b c", "b b c"]),
    ({"suffix": ("b", "c"), "prefix": ("b",)}, ["b b c"]),
    ({"suffix": ("e",), "prefix": ("a",)}, ["a b d e"]),
    ({"prefix": ("*", "b", "c")}, ["a b c", "b b c"]), ({"prefix": ("a", "*", "d")}, ["a b d e"]),
    ({"suffix": ("b", "*")}, ["a b c", "b b c"]), ({"prefix": ("a*",)}, []),
    ({"max_depth": 1}, ["a", "ab", "b"]), ({"prefix": ("a",), "max_depth": 2}, ["a b", "a f"]),
    ({"limit": 2, "offset": 1}, ["a b d e", "a f"]), ({"limit": 5, "offset": 5}, []),
], ids=repr)  # fmt: skip
def test_namespaces_are_listed_once_and_sorted(store, asked, found):
    for namespace in ("b b c", "a b c", "a b d e", "a f", "ab"):
        for key in ("1", "2"):
            store.put(tuple(namespace.split()), key, {})

    assert [" ".join(namespace) for namespace in store.list_namespaces(**asked)] == found


def test_a_namespace_whose_items_are_deleted_is_not_listed(store):
    store.put(("a",), "k", {})
    store.delete(("a",), "k")

    assert store.list_namespaces() == []


# Batches


def test_results_of_a_batch_are_in_order(store):
    store.batch([PutOp(("a",), str(n), {"n": n}) for n in range(2500)])
    reads = [GetOp(("a",), str(n)) for n in range(2500)]
    others = [PutOp(("b",), "new", {"n": 2}), ListNamespacesOp(), SearchOp(("a",))]

    put, listed, found, missing, *read = store.batch([*others, GetOp(("a",), "missing"), *reads])

    assert (put, listed, len(found), missing) == (None, [("a",)], 10, None)
    assert [item.value["n"] for item in read] == list(range(2500))
    assert store.batch([]) == []


def test_reads_of_a_batch_do_not_see_its_writes(store):
    store.put(("a",), "k", {"n": 1})

    results = store.batch([PutOp(("a",), "k", {"n": 2}), GetOp(("a",), "k"), SearchOp(("a",))])

    assert (results[1].value, results[2][0].value) == ({"n": 1}, {"n": 1})
    assert store.get(("a",), "k").value == {"n": 2}


def test_the_last_write_of_a_batch_wins(store):
    store.batch([PutOp(("a",), "k", {"n": 1}), PutOp(("a",), "k", {"n": 2})])
    store.batch([PutOp(("a",), "gone", {}), PutOp(("a",), "gone", None)])

    assert [(item.key, item.value) for item in store.search(("a",))] == [("k", {"n": 2})]


# Times to live


def gone(store, namespace, key):
    deadline = time.monotonic() + 3
    while store.get(namespace, key, refresh_ttl=False) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_an_expired_item_is_gone(store):
    store.put(("a",), "stays", {})
    store.put(("b",), "goes", {}, ttl=0.001)

    assert gone(store, ("b",), "goes")
    assert (keys(store.search(())), store.list_namespaces()) == (["stays"], [("a",)])


def test_an_item_put_again_without_a_time_to_live_stays(store):
    store.put(("a",), "k", {"n": 1}, ttl=0.002)
    store.put(("a",), "k", {"n": 2}, ttl=None)
    time.sleep(0.2)  # longer than the first time to live

    assert store.get(("a",), "k").value == {"n": 2}
    assert "k" in keys(store.search(("a",)))


# Filters, in detail


PLAIN = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", 0.5, 2.0])
NAME = st.sampled_from(["x", "y", "z"])


def nested(of):
    return st.recursive(
        of,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAME, inner, max_size=2),
        max_leaves=5,
    )


OPERATOR = st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"])
WANTED = nested(PLAIN | st.dictionaries(OPERATOR, PLAIN, min_size=1, max_size=2))


@given(st.dictionaries(NAME, nested(PLAIN), max_size=3), st.dictionaries(NAME, WANTED, max_size=2))
def test_a_filter_matches_what_it_matches_in_memory_unless_that_raises(value, wanted):
    store = InMemoryStore()
    store.put(("a",), "k", value)

    matched = matches(value, wanted)

    try:
        expected = bool(store.search(("a",), filter=wanted))
    except (TypeError, ValueError):
        return  # a bound on what is no number, where it knows no answer
    assert matched == expected
