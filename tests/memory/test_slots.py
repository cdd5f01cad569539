"""Where namespaces are in a Redis Cluster, by the hash slots of their keys."""

from __future__ import annotations

from doubles import ChainReader, numbered
from redis.crc import key_slot

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.memory.redis.keys import Names, member_of, root_of

NAMES = Names("memagent")


def slot(namespace):
    return key_slot(NAMES.item(root_of(namespace), member_of(namespace, "key")))


def test_a_thousand_tenants_are_spread_over_the_cluster():
    tenants = [(f"tenant-{number}", "memagent", "versions") for number in range(1000)]

    assert len({slot(namespace) for namespace in tenants}) >= 900
    assert len({slot(("memagent", *namespace)) for namespace in tenants}) == 1


def test_all_that_a_reading_writes_for_one_tenant_is_in_one_slot(redis_store, redis_client, prefix):
    agent = create_memagent(
        ChainReader(),
        config=ReadingConfig(chunk_tokens=50),
        store=redis_store,
        namespace=("ann", "memagent"),
    )

    agent.invoke({"question": "What?", "document": numbered(30), "memory_name": "lease"})
    agent.invoke({"question": "And?", "document": numbered(30)})

    keys = set(redis_client.scan_iter(f"{prefix}:*"))
    keys.remove(Names(prefix).roots)  # the store's own, one for all tenants
    assert len(keys) > 10
    assert {key_slot(key) for key in keys} == {key_slot(b"{ann}")}
