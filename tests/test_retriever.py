from __future__ import annotations

from pathlib import Path

import pytest
from doubles import ChainReader, numbered
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemAgentRetriever, ReadingConfig
from memagent_graph.errors import ModelError, SourceNotFoundError
from memagent_graph.readers.base import Reader, Update

QUESTION = "Where does the person live who signed the lease?"
SIGNED = "The lease was signed by Mr. Fox."
LIVES = "Mr. Fox lives in Rue Morgue."
SMALL = ReadingConfig(chunk_tokens=50)


def corpus(tmp_path=None):
    filler = numbered(60)
    texts = {
        "lease.txt": f"{filler}\n{SIGNED}\n{filler}",
        "people.txt": f"{filler}\n{LIVES}\n{filler}",
        "weather.txt": filler,
    }
    if tmp_path is None:
        return [Document(text, metadata={"source": name}) for name, text in texts.items()]
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


class Fixed(BaseRetriever):
    documents: list[Document]

    def _get_relevant_documents(self, query, *, run_manager):
        return self.documents


@pytest.mark.parametrize("segments", [1, 3])
def test_statements_come_back_by_source_with_spans_into_that_source(segments):
    documents = corpus()

    found = MemAgentRetriever(corpus=documents, segments=segments, config=SMALL).invoke(QUESTION)

    texts = {document.metadata["source"]: document.page_content for document in documents}
    by_source = {document.metadata["source"]: document for document in found}
    assert SIGNED in by_source["lease.txt"].page_content
    assert LIVES in by_source["people.txt"].page_content
    for source, document in by_source.items():
        metadata = document.metadata
        for item in metadata["evidence"]:
            assert texts[source][item["start"] : item["end"]] == item["text"]
            line = texts[source].count("\n", 0, item["start"]) + 1
            assert item["line"] == line
        whole = document.page_content == texts[source]
        first = min(item["start"] for item in metadata["evidence"])
        assert metadata["start"] == (0 if whole else first)
        assert metadata["coverage"] == 1
        assert LIVES in metadata["answer"]


async def test_sync_async_and_batch_agree_over_a_folder(tmp_path):
    retriever = MemAgentRetriever(corpus=corpus(tmp_path))

    found = retriever.invoke(QUESTION)

    assert {Path(document.metadata["source"]).name for document in found} >= {
        "lease.txt",
        "people.txt",
    }
    assert await retriever.ainvoke(QUESTION) == found
    assert retriever.batch([QUESTION] * 2) == [found] * 2


def test_at_most_k_documents_are_returned_those_that_the_answer_stands_in_first():
    chatter = [
        Document(f"In the year {n} a lease was a long roll of paper that hung from a wall to dry.")
        for n in range(1801, 1806)
    ]

    found = MemAgentRetriever(corpus=[*chatter, *corpus()], k=2).invoke(QUESTION)

    assert {document.metadata["source"] for document in found} == {"lease.txt", "people.txt"}


def test_a_rag_chain_works_with_one_line_changed():
    def told(documents):
        return "\n".join(document.page_content for document in documents)

    chain = RunnablePassthrough() | MemAgentRetriever(corpus=corpus()) | told

    assert LIVES in chain.invoke(QUESTION)


def test_another_retrievers_results_are_read_and_nothing_else():
    lease, *_ = corpus()
    retriever = MemAgentRetriever(corpus=Fixed(documents=[lease, Document("")]))

    found = retriever.invoke(QUESTION)

    assert [document.metadata["source"] for document in found] == ["lease.txt"]
    assert MemAgentRetriever(corpus=Fixed(documents=[])).invoke(QUESTION) == []


@pytest.mark.parametrize("segments", [1, 2])
def test_a_reader_that_knows_no_evidence_gives_one_document_with_all_sources(segments):
    retriever = MemAgentRetriever(
        corpus=corpus(), model=ChainReader(), config=SMALL, segments=segments
    )

    [found] = retriever.invoke(QUESTION)

    assert found.page_content
    assert found.metadata["source"] == "lease.txt, people.txt, weather.txt"
    assert found.metadata["evidence"] == []


def test_a_corpus_is_read_once_for_the_same_query_also_by_another_retriever():
    store, first, second = InMemoryStore(), ChainReader(), ChainReader()
    options = {"corpus": corpus(), "config": SMALL, "store": store, "segments": 2}
    expected = MemAgentRetriever(model=first, **options).invoke(QUESTION)

    assert MemAgentRetriever(model=second, **options).invoke(QUESTION) == expected
    assert first.spans
    assert not second.spans


def test_segments_are_read_at_once_and_their_memories_merged():
    reader = ChainReader()
    documents = [Document(numbered(20), metadata={"source": str(n)}) for n in range(8)]

    MemAgentRetriever(corpus=documents, model=reader, config=SMALL, segments=4).invoke(QUESTION)

    assert (reader.merges, reader.answers) == ([4], 1)


def test_a_reader_that_cannot_merge_reads_the_corpus_in_one():
    class Alone(ChainReader):
        merge = Reader.merge

    reader = Alone()
    documents = [Document(numbered(20), metadata={"source": str(n)}) for n in range(8)]

    MemAgentRetriever(corpus=documents, model=reader, config=SMALL).invoke(QUESTION)

    assert reader.spans == sorted(reader.spans)


def test_what_cannot_be_read_is_an_error_and_not_an_empty_result(tmp_path):
    class Failing(ChainReader):
        async def update(self, *_, **__) -> Update:
            raise ModelError("down")

    with pytest.raises(SourceNotFoundError):
        MemAgentRetriever(corpus=tmp_path / "gone.txt").invoke(QUESTION)
    with pytest.raises(ModelError, match="down"):
        MemAgentRetriever(corpus=corpus(), model=Failing()).invoke(QUESTION)


@pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")
def test_it_is_a_tool_too():
    tool = MemAgentRetriever(corpus=corpus()).as_tool(
        name="search_leases", description="Search the leases."
    )

    assert LIVES in str(tool.invoke(QUESTION))


def test_passages_among_the_first_three_are_returned_whole_and_long_sources_are_not():
    passages = [
        Document(f"It rained. {SIGNED} It was {n} o'clock.", metadata={"source": str(n)})
        for n in range(5)
    ]

    found = MemAgentRetriever(corpus=passages, k=9).invoke(QUESTION)

    assert [document.page_content in {p.page_content for p in passages} for document in found] == [
        True,
        True,
        True,
        False,
        False,
    ][: len(found)]
    long = MemAgentRetriever(corpus=corpus()).invoke(QUESTION)
    assert all(len(document.page_content) < 1000 for document in long)
