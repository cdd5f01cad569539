"""Forgetting a document removes its facts from a named memory, and opens what they had closed."""

from fixed_readers import fact_model
from langgraph.store.memory import InMemoryStore

from memagent_graph import Facts, MemoryBank, create_memagent, facts_of
from memagent_graph.text.source import TextSource

ASKED = {"question": "What is known of Lease 7?", "memory_name": "lease"}
LEASE = TextSource(
    "The rent of Lease 7 is 900 euros since 2020. The tenant of Lease 7 is Ann.", "l"
)
AMENDMENT = TextSource("The rent of Lease 7 is 950 euros since 2022.", "l")
LATER = TextSource("The rent of Lease 7 is 990 euros since 2024.", "later.txt")


def read(store, *documents):
    agent = create_memagent(fact_model(), store=store, schema=Facts)
    for document in documents:
        agent.invoke({**ASKED, "document": document})
    return MemoryBank(store)


def test_without_an_amendment_what_it_had_closed_holds_again():
    bank = read(InMemoryStore(), LEASE, AMENDMENT)

    preview = bank.forget_source(AMENDMENT, preview=True)

    assert "replaced" in bank.get("lease").text
    assert (bank.forget_source(AMENDMENT), preview.fell_back) == (preview, ("lease",))
    left = bank.get("lease")
    lines = ["Lease 7 | rent | 900 euros | since 2020", "Lease 7 | tenant | Ann"]
    assert left.text.splitlines() == lines
    assert all(fact.evidence for fact in facts_of(left))


def test_what_was_read_after_an_amendment_is_read_again():
    bank = read(store := InMemoryStore(), LEASE, AMENDMENT, LATER)

    done = bank.forget_source(AMENDMENT)
    read(store, LATER)

    assert done.unread == (("lease", "later.txt"),)
    assert bank.get("lease").text.splitlines() == [
        "Lease 7 | rent | 900 euros | since 2020; until 2024; replaced",
        "Lease 7 | tenant | Ann",
        "Lease 7 | rent | 990 euros | since 2024",
    ]
