"""Forgetting a document removes its facts from a named memory, and opens what they had closed."""

from __future__ import annotations

from doubles import Stating
from langgraph.store.memory import InMemoryStore

from memagent_graph import Facts, MemoryBank, ReadingConfig, create_memagent, facts_of
from memagent_graph.text.source import TextSource

ASKED = {"question": "What is known of Lease 7?", "memory_name": "lease"}
LEASE = TextSource(
    "The rent of Lease 7 is 900 euros since 2020. The tenant of Lease 7 is Ann.", "l"
)
AMENDMENT = TextSource("The rent of Lease 7 is 950 euros since 2022.", "l")
LATER = TextSource("The rent of Lease 7 is 990 euros since 2024.", "later.txt")


def read(store, *documents, config=None):
    agent = create_memagent(Stating(), store=store, schema=Facts, config=config)
    for document in documents:
        agent.invoke({**ASKED, "document": document})
    return MemoryBank(store)


def test_without_an_amendment_what_it_had_closed_holds_again(store):
    bank = read(store, LEASE, AMENDMENT)

    preview = bank.forget_source(AMENDMENT, preview=True)

    assert "replaced" in bank.get("lease").text
    assert bank.forget_source(AMENDMENT) == preview
    assert preview.fell_back == ("lease",)
    assert bank.get("lease").text.splitlines() == [
        "Lease 7 | rent | 900 euros | since 2020",
        "Lease 7 | tenant | Ann",
    ]
    assert all(fact.evidence for fact in facts_of(bank.get("lease")))


def test_a_document_is_forgotten_by_its_file(tmp_path):
    lease, amendment = tmp_path / "lease.txt", tmp_path / "amendment.txt"
    lease.write_text("The rent of Lease 7 is 900 euros since 2020.")
    amendment.write_text("The rent of Lease 7 is 950 euros since 2022.")
    bank = read(InMemoryStore(), lease, amendment)

    bank.forget_source(amendment)

    assert bank.get("lease").text == "Lease 7 | rent | 900 euros | since 2020"


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


def test_history_that_had_no_room_comes_back():
    store = InMemoryStore()
    bank = read(store, LEASE, config=ReadingConfig(memory_tokens=60))
    read(store, AMENDMENT, LATER, config=ReadingConfig(memory_tokens=30))
    assert "900" not in bank.get("lease").text

    bank.forget_source(AMENDMENT, LATER)

    assert "Lease 7 | rent | 900 euros | since 2020" in bank.get("lease").text.splitlines()


def test_one_file_of_a_folder_is_forgotten_by_its_name(tmp_path):
    (tmp_path / "a.txt").write_text(LEASE.read(0, LEASE.length))
    (tmp_path / "b.txt").write_text(AMENDMENT.read(0, AMENDMENT.length))
    bank = read(InMemoryStore(), LATER, tmp_path)

    done = bank.forget_source(*bank.digests_of(str(tmp_path.name) + "/b.txt"))

    assert done.unread == (("lease", f"{tmp_path.name}/a.txt"),)
    assert bank.get("lease").text == "Lease 7 | rent | 990 euros | since 2024"
