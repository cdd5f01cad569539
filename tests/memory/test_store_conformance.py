"""What LangGraph's stores have in common, and where one of them differs.

`DIFFERENCES` lists every case in which a store does not do what the test says; each is checked,
so that the list stays true.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memagent_graph.memory.redis import RedisStore

DIFFERENCES = {
    "memory": {
        "test_an_overwritten_item_keeps_its_creation_time": "the time starts again",
        "test_a_stored_value_does_not_change_with_the_callers_object": "nested values are shared",
        "test_a_namespace_whose_items_are_deleted_is_not_listed": "it stays",
        "test_reading_does_not_create_a_namespace": "it does",
        "test_a_missing_or_null_field_meets_no_bound": "raises TypeError",
        "test_text_is_ordered_with_text": "raises ValueError: bounds are numbers",
        "test_a_bound_of_another_type_matches_nothing": "raises TypeError",
        "test_an_expired_item_is_gone": "has no times to live",
        "test_an_item_put_again_without_a_time_to_live_stays": "has no times to live",
        "test_a_tuple_comes_back_as_a_list": "values are not serialized",
        "test_a_value_that_is_not_json_is_refused": "anything is kept",
        "test_a_namespace_of_a_batch_is_validated": "it is not",
        "test_a_search_of_everything_lists_namespaces_in_order": "in the order of their creation",
        "test_an_offset_and_a_limit_page_through_a_search_in_a_fixed_order": "order of creation",
    },
    "sqlite": {
        "test_an_overwritten_item_keeps_its_creation_time": "the time starts again",
        "test_times_are_of_utc_and_aware": "they are naive",
        "test_an_expired_item_is_gone": "until swept it is still found",
        "test_a_missing_field_is_not_equal_to_a_value": "SQL: null is neither equal nor unequal",
        "test_a_nested_field_is_filtered": "nested fields are written 'a.b'",
        "test_a_field_of_any_name_is_filtered[space]": "raises ValueError",
        "test_a_field_of_any_name_is_filtered[sql]": "raises ValueError",
        "test_a_field_of_any_name_is_filtered[chinese]": "raises ValueError",
        "test_a_field_of_any_name_is_filtered[dot]": "means the field b of a",
        "test_unusual_values_are_found_again_exactly[big]": "raises TypeError beyond 64 bits",
        "test_unusual_values_are_found_again_exactly[infinite]": "becomes null",
        "test_unusual_values_are_found_again_exactly[surrogate]": "raises TypeError",
        "test_unusual_keys_are_found_again_exactly[surrogate]": "raises UnicodeEncodeError",
        "test_a_search_of_everything_lists_namespaces_in_order": "latest first",
        "test_an_offset_and_a_limit_page_through_a_search_in_a_fixed_order": "latest first",
    },
}

LABELS = {
    "colon": "a:b",
    "braces": "{a}b{}",
    "brace": "}",
    "slash": "a/b//c",
    "percent": "%2F%25",
    "glob": "a*[b]?\\",
    "newline": "a\n",
    "space": " a ",
    "chinese": "\u540d\u524d",
    "emoji": "\U0001f409",
    "lua": "') redis['call']('FLUSHALL') --",
    "proto": "__proto__",
    "sql": "'; DROP TABLE store; --",
    "underscore": "a_b%",
    "hash": "#expiry",
}
KEYS = {**LABELS, "empty": "", "dot": "a.b", "nul": "a\0b", "surrogate": "\ud800"}


class Asynchronous(BaseStore):
    """Sends what synchronous tests do through a store's asynchronous half."""

    supports_ttl = True

    def __init__(self, store):
        self._store = store
        self.ttl_config = store.ttl_config
        self.loop = asyncio.new_event_loop()

    def batch(self, ops):
        return self.loop.run_until_complete(self._store.abatch(ops))

    async def abatch(self, ops):
        raise NotImplementedError

    def close(self):
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


@pytest.fixture(params=["memory", "sqlite", "redis", "redis asynchronously"])
def store(request):
    name = request.node.name.replace(f"[{request.param}", "[").replace("[-", "[").replace("[]", "")
    reason = DIFFERENCES.get(request.param, {}).get(name)
    if reason:
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        with SqliteStore.from_conn_string(":memory:") as store:
            yield store
    elif request.param == "redis":
        yield request.getfixturevalue("redis_store")
    else:
        store = Asynchronous(request.getfixturevalue("redis_store"))
        yield store
        store.close()


def names(items):
    return sorted((item.namespace, item.key) for item in items)


def keys(items):
    return sorted(item.key for item in items)


# Items


def test_what_was_put_is_found(store):
    store.put(("a", "b"), "k", {"text": "x", "n": 1})

    item = store.get(("a", "b"), "k")

    assert (item.namespace, item.key, item.value) == (("a", "b"), "k", {"text": "x", "n": 1})


def test_what_was_not_put_is_none(store):
    store.put(("a", "b"), "k", {})

    assert store.get(("a", "b"), "other") is None
    assert store.get(("a",), "k") is None
    assert store.get(("a", "b", "c"), "k") is None


def test_a_second_put_replaces_the_value(store):
    store.put(("a",), "k", {"old": 1})
    store.put(("a",), "k", {"new": 2})

    assert store.get(("a",), "k").value == {"new": 2}
    assert len(store.search(("a",))) == 1


def test_an_empty_value_is_a_value(store):
    store.put(("a",), "k", {})

    assert store.get(("a",), "k").value == {}
    assert keys(store.search(())) == ["k"]


def test_a_deleted_item_is_gone(store):
    store.put(("a",), "k", {"n": 1})

    store.delete(("a",), "k")

    assert store.get(("a",), "k") is None
    assert store.search(("a",)) == []


def test_deleting_what_is_not_there_does_nothing(store):
    store.delete(("a",), "k")

    assert store.get(("a",), "k") is None


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


def test_a_stored_value_does_not_change_with_the_callers_object(store):
    value = {"list": [1]}
    store.put(("a",), "k", value)
    value["list"].append(2)

    assert store.get(("a",), "k").value == {"list": [1]}


def test_a_key_that_is_no_text_becomes_text(store):
    store.put(("a",), 5, {"n": 1})

    assert store.get(("a",), "5").value == {"n": 1}


def test_a_tuple_comes_back_as_a_list(store):
    store.put(("a",), "k", {"pair": (1, 2)})

    assert store.get(("a",), "k").value == {"pair": [1, 2]}


def test_a_value_that_is_not_json_is_refused(store):
    with pytest.raises(TypeError):
        store.put(("a",), "k", {"x": object()})

    assert store.get(("a",), "k") is None


@pytest.mark.parametrize(
    "namespace", [(), ("",), ("a", ""), ("a.b",), ("a\0",), ("langgraph", "x")], ids=repr
)
def test_a_namespace_that_langgraph_forbids_is_refused(store, namespace):
    with pytest.raises(InvalidNamespaceError):
        store.put(namespace, "k", {})


def test_a_namespace_of_a_batch_is_validated(store):
    with pytest.raises(InvalidNamespaceError):
        store.batch([PutOp(("a.b",), "k", {})])


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_unusual_labels_are_found_again_exactly(store, label):
    store.put((label, "x", label), "k", {"n": 1})
    store.put((label,), "k", {"n": 2})
    store.put(("other", label), "k", {"n": 3})

    assert store.get((label, "x", label), "k").value == {"n": 1}
    assert names(store.search((label,))) == [((label,), "k"), ((label, "x", label), "k")]
    assert names(store.search(("other", label))) == [(("other", label), "k")]
    assert sorted(store.list_namespaces()) == sorted(
        [(label,), (label, "x", label), ("other", label)]
    )


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_unusual_keys_are_found_again_exactly(store, key):
    store.put(("a",), key, {"n": 1})
    store.put(("a",), key + "x", {"n": 2})

    assert store.get(("a",), key).value == {"n": 1}
    assert keys(store.search(("a",))) == sorted([key, key + "x"])


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"n": 2**70}, id="big"),
        pytest.param({"n": 0.1 + 0.2, "m": -0.0, "k": 1e300}, id="float"),
        pytest.param({"n": float("inf")}, id="infinite"),
        pytest.param({"t": "\ud800"}, id="surrogate"),
        pytest.param({"t": "\0\n\r\t\u2028\U0001f409"}, id="controls"),
        pytest.param({"__proto__": {"x": 1}, "constructor": None}, id="proto"),
        pytest.param({"": {"": []}}, id="empty"),
        pytest.param({"t": "x" * 1_000_000}, id="megabyte"),
        pytest.param({"a": {"b": [{"c": [None, True, False]}]}}, id="nested"),
    ],
)
def test_unusual_values_are_found_again_exactly(store, value):
    store.put(("a",), "k", value)

    assert store.get(("a",), "k").value == value
    assert store.search(("a",))[0].value == value


# Search


def test_a_prefix_finds_the_namespace_and_all_under_it(store):
    for namespace in [("a",), ("a", "b"), ("a", "b", "c"), ("b",)]:
        store.put(namespace, "k", {})

    assert names(store.search(("a",))) == [(("a",), "k"), (("a", "b"), "k"), (("a", "b", "c"), "k")]
    assert names(store.search(("a", "b"))) == [(("a", "b"), "k"), (("a", "b", "c"), "k")]


def test_a_prefix_that_ends_inside_a_label_finds_nothing_of_that_label(store):
    store.put(("user", "al"), "k", {})
    store.put(("user", "alice"), "k", {})
    store.put(("user1",), "k", {})

    assert names(store.search(("user", "al"))) == [(("user", "al"), "k")]
    assert names(store.search(("user",))) == [(("user", "al"), "k"), (("user", "alice"), "k")]
    assert store.search(("us",)) == []


def test_case_is_kept_apart(store):
    store.put(("Foo",), "K", {"n": 1})
    store.put(("foo",), "k", {"n": 2})

    assert names(store.search(("foo",))) == [(("foo",), "k")]
    assert store.get(("Foo",), "k") is None


@pytest.mark.parametrize("wildcard", ["*", "a*", "?", "[ab]", "%", "_", "\\*"])
def test_a_wildcard_in_a_prefix_is_a_character(store, wildcard):
    store.put(("ab",), "k", {})
    store.put((wildcard,), "k", {})

    assert names(store.search((wildcard,))) == [((wildcard,), "k")]


def test_an_empty_prefix_finds_everything(store):
    store.put(("a",), "k", {})
    store.put(("b", "c"), "k", {})

    assert names(store.search(())) == [(("a",), "k"), (("b", "c"), "k")]


def test_a_trailing_newline_makes_another_name(store):
    store.put(("a",), "k", {"n": 1})
    store.put(("a\n",), "k", {"n": 2})
    store.put(("a",), "k\n", {"n": 3})

    assert names(store.search(("a",))) == [(("a",), "k"), (("a",), "k\n")]
    assert store.list_namespaces(suffix=("a",)) == [("a",)]


def test_a_search_finds_ten_unless_told(store):
    for n in range(12):
        store.put(("a",), f"{n:02}", {})

    assert len(store.search(("a",))) == 10
    assert len(store.search(("a",), limit=100)) == 12
    assert store.search(("a",), limit=0) == []


def test_pages_of_a_search_are_disjoint_and_complete(store):
    for n in range(25):
        store.put(("root", f"{n % 3}"), f"{n:02}", {"even": n % 2 == 0})

    pages = [store.search(("root",), limit=10, offset=start) for start in (0, 10, 20, 30)]
    even = [store.search((), filter={"even": True}, limit=6, offset=start) for start in (0, 6, 12)]

    assert [len(page) for page in pages] == [10, 10, 5, 0]
    assert keys(item for page in pages for item in page) == [f"{n:02}" for n in range(25)]
    assert keys(item for page in even for item in page) == [f"{n:02}" for n in range(0, 25, 2)]


def test_an_offset_and_a_limit_page_through_a_search_in_a_fixed_order(store):
    for root in ("c", "a", "b"):
        for n in (2, 0, 1):
            store.put((root,), str(n), {})
            time.sleep(0.002)

    found = [(item.namespace[0], item.key) for item in store.search((), limit=4, offset=2)]

    assert found == [("a", "2"), ("b", "0"), ("b", "1"), ("b", "2")]


def test_a_search_of_everything_lists_namespaces_in_order(store):
    for label in ("a", "c", "b"):  # in whatever second SQLite counts each
        store.put(("root", label), "k", {})
        time.sleep(0.002)

    assert [item.namespace[1] for item in store.search(())] == ["a", "b", "c"]


def test_an_item_may_be_kept_out_of_every_index(store):
    store.put(("a",), "k", {"text": "x"}, index=False)

    (item,) = store.search(("a",), query=None)

    assert (item.key, item.score) == ("k", None)


# Filters


@pytest.fixture
def things(store):
    store.put(("t",), "one", {"n": 1, "on": True, "text": "b", "in": {"n": 1, "s": {"x": 5}}})
    store.put(("t",), "two", {"n": 2.5, "on": False, "text": "c", "none": None, "list": [1]})
    store.put(("t",), "none", {"n": None, "text": "a", "list": [1, 2]})
    return lambda **wanted: keys(store.search(("t",), filter=wanted))


def test_a_field_is_filtered_by_its_value(things):
    assert things(n=1) == ["one"]
    assert things(n=2.5) == ["two"]
    assert things(text="a") == ["none"]
    assert things(n=1, text="b") == ["one"]
    assert things(n=1, text="c") == []


def test_equal_and_unequal_are_operators(things):
    assert things(n={"$eq": 1}) == ["one"]
    assert things(text={"$ne": "a"}) == ["one", "two"]


def test_an_integer_equals_the_same_float(things):
    assert things(n=1.0) == ["one"]


def test_booleans_are_filtered_and_equal_zero_and_one(things):
    assert things(on=True) == ["one"]
    assert things(on=False) == ["two"]
    assert things(on=1) == ["one"]


def test_null_matches_a_missing_field(things):
    assert things(none=None) == ["none", "one", "two"]
    assert things(n=None) == ["none"]
    assert things(n={"$ne": None}) == ["one", "two"]


def test_a_missing_field_is_not_equal_to_a_value(things):
    assert things(on={"$ne": True}) == ["none", "two"]


def test_numbers_are_ordered(store):
    for n in (9, 10, 10.5):
        store.put(("t",), str(n), {"n": n})

    def found(**bounds):
        wanted = {"n": {f"${name}": bound for name, bound in bounds.items()}}
        return keys(store.search(("t",), filter=wanted))

    assert found(gt=9) == ["10", "10.5"]
    assert found(gte=10) == ["10", "10.5"]
    assert found(lt=10.5) == ["10", "9"]
    assert found(lte=9) == ["9"]
    assert found(gt=9, lt=10.5) == ["10"]


def test_text_is_ordered_with_text(things):
    assert things(text={"$gte": "b"}) == ["one", "two"]


def test_a_missing_or_null_field_meets_no_bound(things):
    assert things(n={"$gt": 0}) == ["one", "two"]


def test_a_bound_of_another_type_matches_nothing(store):
    store.put(("t",), "list", {"n": [5]})
    store.put(("t",), "number", {"n": 5})

    assert keys(store.search(("t",), filter={"n": {"$lt": 6, "$gt": 4}})) == ["number"]


def test_a_nested_field_is_filtered(things):
    assert things(**{"in": {"n": 1}}) == ["one"]
    assert things(**{"in": {"s": {"x": {"$gt": 4}}}}) == ["one"]
    assert things(**{"in": {"s": {"x": {"$gt": 5}}}}) == []


def test_a_list_is_filtered_by_its_elements(things):
    assert things(list=[1]) == ["two"]
    assert things(list=[1, 2]) == ["none"]


def test_an_unknown_operator_is_an_error(store):
    store.put(("t",), "k", {"n": 1})

    with pytest.raises(ValueError, match="operator"):
        store.search(("t",), filter={"n": {"$near": 1}})


@pytest.mark.parametrize(
    "field",
    ["with-dash", "with space", "'; DROP", "\u540d", "a.b"],
    ids=["dash", "space", "sql", "chinese", "dot"],
)
def test_a_field_of_any_name_is_filtered(store, field):
    store.put(("t",), "k", {field: 1})
    store.put(("t",), "other", {field: 2})

    assert keys(store.search(("t",), filter={field: 1})) == ["k"]


# Namespaces


@pytest.fixture
def tree(store):
    for namespace in [("a", "b", "c"), ("a", "b", "d", "e"), ("a", "f"), ("b", "b", "c"), ("ab",)]:
        for key in ("1", "2"):
            store.put(namespace, key, {})
    return store


def test_namespaces_are_listed_once_and_sorted(tree):
    assert tree.list_namespaces() == [
        ("a", "b", "c"),
        ("a", "b", "d", "e"),
        ("a", "f"),
        ("ab",),
        ("b", "b", "c"),
    ]


def test_namespaces_are_listed_by_prefix(tree):
    assert tree.list_namespaces(prefix=("a",)) == [
        ("a", "b", "c"),
        ("a", "b", "d", "e"),
        ("a", "f"),
    ]
    assert tree.list_namespaces(prefix=("a", "b", "c")) == [("a", "b", "c")]
    assert tree.list_namespaces(prefix=("c",)) == []


def test_namespaces_are_listed_by_suffix(tree):
    assert tree.list_namespaces(suffix=("c",)) == [("a", "b", "c"), ("b", "b", "c")]
    assert tree.list_namespaces(suffix=("b", "c"), prefix=("b",)) == [("b", "b", "c")]


def test_a_star_stands_for_one_label(tree):
    assert tree.list_namespaces(prefix=("*", "b", "c")) == [("a", "b", "c"), ("b", "b", "c")]
    assert tree.list_namespaces(prefix=("a", "*", "d")) == [("a", "b", "d", "e")]
    assert tree.list_namespaces(suffix=("b", "*")) == [("a", "b", "c"), ("b", "b", "c")]
    assert tree.list_namespaces(prefix=("a*",)) == []


def test_a_depth_cuts_and_merges_namespaces(tree):
    assert tree.list_namespaces(max_depth=1) == [("a",), ("ab",), ("b",)]
    assert tree.list_namespaces(prefix=("a",), max_depth=2) == [("a", "b"), ("a", "f")]


def test_namespaces_are_paged(tree):
    assert tree.list_namespaces(limit=2, offset=1) == [("a", "b", "d", "e"), ("a", "f")]
    assert tree.list_namespaces(limit=5, offset=5) == []


def test_several_conditions_hold_together(tree):
    conditions = (MatchCondition("prefix", ("a",)), MatchCondition("suffix", ("e",)))

    assert tree.batch([ListNamespacesOp(conditions)]) == [[("a", "b", "d", "e")]]


def test_a_namespace_whose_items_are_deleted_is_not_listed(store):
    store.put(("a",), "k", {})
    store.delete(("a",), "k")

    assert store.list_namespaces() == []


def test_reading_does_not_create_a_namespace(store):
    store.get(("a",), "k")

    assert store.list_namespaces() == []


# Batches


def test_results_of_a_batch_are_in_order(store):
    store.put(("a",), "k", {"n": 1})

    results = store.batch(
        [
            PutOp(("b",), "new", {"n": 2}),
            GetOp(("a",), "k"),
            ListNamespacesOp(),
            SearchOp(("a",)),
            GetOp(("a",), "missing"),
        ]
    )

    assert results[0] is None
    assert results[1].value == {"n": 1}
    assert results[2] == [("a",)]
    assert keys(results[3]) == ["k"]
    assert results[4] is None


def test_reads_of_a_batch_do_not_see_its_writes(store):
    store.put(("a",), "k", {"n": 1})

    results = store.batch([PutOp(("a",), "k", {"n": 2}), GetOp(("a",), "k"), SearchOp(("a",))])

    assert (results[1].value, results[2][0].value) == ({"n": 1}, {"n": 1})
    assert store.get(("a",), "k").value == {"n": 2}


def test_the_last_write_of_a_batch_wins(store):
    store.batch([PutOp(("a",), "k", {"n": 1}), PutOp(("a",), "k", {"n": 2})])
    store.batch([PutOp(("a",), "gone", {}), PutOp(("a",), "gone", None)])

    assert store.get(("a",), "k").value == {"n": 2}
    assert store.get(("a",), "gone") is None


def test_a_large_batch_is_carried_out_whole(store):
    store.batch([PutOp(("a",), str(n), {"n": n}) for n in range(2500)])

    found = store.batch([GetOp(("a",), str(n)) for n in range(2500)])

    assert [item.value["n"] for item in found] == list(range(2500))


def test_an_empty_batch_is_nothing(store):
    assert store.batch([]) == []


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
    assert keys(store.search(())) == ["stays"]
    assert store.list_namespaces() == [("a",)]


def test_an_item_put_again_without_a_time_to_live_stays(store):
    store.put(("a",), "k", {"n": 1}, ttl=0.002)
    store.put(("a",), "k", {"n": 2}, ttl=None)
    time.sleep(0.2)  # longer than the first time to live

    assert store.get(("a",), "k").value == {"n": 2}
    assert "k" in keys(store.search(("a",)))


def test_every_difference_listed_is_of_a_test():
    tests = {name for name in globals() if name.startswith("test_")}

    for listed in DIFFERENCES.values():
        assert {name.partition("[")[0] for name in listed} <= tests


def test_redis_differs_nowhere():
    """But for queries, which it refuses where stores without an index ignore them."""
    assert issubclass(RedisStore, BaseStore)
    assert not any(name.startswith("redis") for name in DIFFERENCES)
