"""Two servers of one store: what one tenant's clients read, another's cannot see."""

from __future__ import annotations

from langgraph.store.memory import InMemoryStore
from mcp import Client

from memagent_mcp_server import Roots, create_server


async def test_servers_of_one_store_share_no_memory_if_their_namespaces_differ(tmp_path):
    (tmp_path / "lease.txt").write_text("The lease was signed by Mr. Fox.")
    store, listed = InMemoryStore(), {}

    for tenant in ("ann", "ben"):
        roots = Roots([str(tmp_path / "lease.txt")])
        server = create_server(
            "extractive", roots=roots, store=store, namespace=(tenant, "memagent")
        )
        async with Client(server) as client:
            before = await client.call_tool("list_memories", {})
            asked = {"question": "Who signed the lease?", "source": "lease.txt"}
            read = await client.call_tool("read", asked)
            after = await client.call_tool("list_memories", {})
        listed[tenant] = [len(found.structured_content["result"]) for found in (before, after)]
        assert read.structured_content["memory"]

    assert listed == {"ann": [0, 1], "ben": [0, 1]}
    assert {space[:2] for space in store.list_namespaces(limit=100)} == {
        ("ann", "memagent"),
        ("ben", "memagent"),
    }
