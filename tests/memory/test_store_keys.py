import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.redis.layout import Names, bounds, decode, member_of, root_of

# Few characters, so that names are often nearly alike, and then any at all.
SPECIAL = st.text("ab/%{}:2F#\n\0\ud800\uffff", max_size=6)
KEY = SPECIAL | st.text(st.characters(), max_size=6)
NAMESPACE = st.lists(KEY.filter(bool), max_size=4).map(tuple)
PLACE = st.tuples(NAMESPACE, KEY)


@given(PLACE)
def test_a_name_can_be_read_back(place):
    namespace, key = place

    assert decode(root_of(namespace), member_of(namespace, key)) == place


@given(PLACE, PLACE)
def test_two_items_never_share_a_redis_key(one, other):
    keys = [Names("p").item(root_of(place[0]), member_of(*place)) for place in (one, other)]

    assert (keys[0] == keys[1]) == (one == other)


@given(PLACE, NAMESPACE)
def test_the_bounds_of_a_prefix_hold_what_is_in_or_under_it_and_nothing_else(place, prefix):
    namespace, key = place
    low, high = bounds(prefix)

    inside = low[1:] <= member_of(namespace, key) < high[1:]
    same_root = not prefix or root_of(namespace) == root_of(prefix)

    assert (inside and same_root) == (namespace[: len(prefix)] == prefix)


@given(PLACE, st.text(st.characters(exclude_characters="{}"), max_size=5))
def test_all_keys_of_a_root_have_its_hash_tag(place, prefix):
    names, root = Names(prefix), root_of(place[0])
    own = names.item(root, member_of(*place)), names.receipt(root, "token")

    keys = [names.index(root), names.expiry(root), *own]

    assert {one[one.index(b"{") + 1 : one.index(b"}")] for one in keys} == {root}
    assert root
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("prefix", ["a{b", "a}b"])
def test_a_prefix_with_a_brace_is_refused(prefix):
    with pytest.raises(ConfigurationError, match="brace"):
        Names(prefix)


def test_a_thousand_tenants_are_spread_over_the_slots_of_a_cluster():
    def slot(*namespace):
        return key_slot(Names("memagent").item(root_of(namespace), member_of(namespace, "key")))

    tenants = [(f"tenant-{number}", "memagent", "versions") for number in range(1000)]

    assert len({slot(*namespace) for namespace in tenants}) >= 900
    assert len({slot("memagent", *namespace) for namespace in tenants}) == 1
