import asyncio
from pathlib import Path

import pytest
from fixed_readers import ChainReader, Watched, numbered
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemAgentRetriever, ReadingConfig
from memagent_graph import corpus as choose
from memagent_graph.errors import (
    EmptyDocumentError,
    MemAgentError,
    ModelError,
    QuestionError,
    SourceNotFoundError,
    UnreadableSourceError,
)
from memagent_graph.evidence.places import Evidence, Memory, locate
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update
from memagent_graph.text.source import TextSource

QUESTION = "Where does the person live who signed the lease?"
SIGNED = "The lease was signed by Mr. Fox."
LIVES = "Mr. Fox lives in Rue Morgue."
SMALL = ReadingConfig(chunk_tokens=50)


def in_segments(number):
    return SMALL.model_copy(update={"segments": number})


def corpus(tmp_path=None):
    filler = numbered(60)
    texts = {"lease.txt": f"\n{SIGNED}\n{filler}", "people.txt": f"\n{LIVES}\n{filler}"}
    texts = {name: filler + text for name, text in (texts | {"weather.txt": ""}).items()}
    if tmp_path is None:
        return [Document(text, metadata={"source": name}) for name, text in texts.items()]
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_page_that_a_loader_gave_a_document_and_its_id_come_back():
    loaded = [Document(LIVES, id="p0", metadata={"source": "x.pdf", "page": 0})]
    loaded += [Document(SIGNED, id="p7", metadata={"source": "x.pdf", "page": 7})]
    retriever = MemAgentRetriever(corpus=loaded)

    found = {one.metadata["page"]: one for one in retriever.invoke(QUESTION)}
    passages = MemAgentRetriever(corpus=loaded, by="passage").invoke(QUESTION)

    told = {page: (one.id, one.page_content) for page, one in found.items()}
    assert told == {0: ("p0", LIVES), 7: ("p7", SIGNED)}
    assert {one.metadata["page"] for one in passages} == {0, 7}


class Matching(BaseRetriever):
    documents: list[Document]

    def _get_relevant_documents(self, query, *, run_manager):
        return [item for item in self.documents if item.metadata["source"] in query]


@pytest.mark.parametrize("segments", [1, 3])
def test_statements_come_back_by_source_with_spans_into_that_source(segments):
    documents = corpus()

    found = MemAgentRetriever(corpus=documents, config=in_segments(segments)).invoke(QUESTION)

    texts = {document.metadata["source"]: document.page_content for document in documents}
    by_source = {document.metadata["source"]: document for document in found}
    assert SIGNED in by_source["lease.txt"].page_content
    assert LIVES in by_source["people.txt"].page_content
    for source, document in by_source.items():
        metadata, text = document.metadata, texts[source]
        for item in metadata["evidence"]:
            assert text[item["start"] : item["end"]] == item["text"]
            assert item["line"] == text.count("\n", 0, item["start"]) + 1
        first = min(item["start"] for item in metadata["evidence"])
        assert metadata["start"] == (0 if document.page_content == text else first)
        assert (metadata["coverage"], metadata["page"]) == (1, None)
        assert LIVES in metadata["answer"]


async def test_sync_async_and_batch_agree_over_a_folder(tmp_path):
    retriever = MemAgentRetriever(corpus=corpus(tmp_path))

    found = retriever.invoke(QUESTION)

    names = {Path(document.metadata["source"]).name for document in found}
    assert names >= {"lease.txt", "people.txt"}
    assert await retriever.ainvoke(QUESTION) == found
    assert retriever.batch([QUESTION] * 2) == [found] * 2


def test_at_most_k_documents_are_returned_those_that_the_answer_stands_in_first():
    said = "In the year {} a lease was a long roll of paper that hung from a wall to dry."
    chatter = [Document(said.format(year)) for year in range(1801, 1806)]

    found = MemAgentRetriever(corpus=[*chatter, *corpus()], k=2).invoke(QUESTION)

    assert {document.metadata["source"] for document in found} == {"lease.txt", "people.txt"}


def test_another_retrievers_results_are_read_for_each_query_and_nothing_else():
    left, right = (
        Document(f"The {name} lamp is red.", metadata={"source": name})
        for name in ("left", "right")
    )
    empty = Document("", metadata={"source": "lamp"})
    retriever = MemAgentRetriever(corpus=Matching(documents=[left, empty, right]))

    found = retriever.batch(["Which is the left lamp?", "Which is the right lamp?", "Who?"])

    sources = [[document.metadata["source"] for document in documents] for documents in found]
    assert sources == [["left"], ["right"], []]


@pytest.mark.parametrize("segments", [1, 2])
def test_a_reader_that_knows_no_evidence_gives_one_document_with_all_sources(segments):
    config = in_segments(segments)
    retriever = MemAgentRetriever(corpus=corpus(), model=ChainReader(), config=config)

    [found] = retriever.invoke(QUESTION)

    assert found.page_content
    assert found.metadata["source"] == "lease.txt, people.txt, weather.txt"
    assert found.metadata["evidence"] == []
    assert (found.metadata["page"], found.metadata["score"]) == (None, 0.5)


def test_a_corpus_is_read_once_for_the_same_query_also_by_another_retriever():
    store, first, second = InMemoryStore(), ChainReader(), ChainReader()
    options = {"corpus": corpus(), "config": in_segments(2), "store": store}
    expected = MemAgentRetriever(model=first, **options).invoke(QUESTION)

    assert MemAgentRetriever(model=second, **options).invoke(QUESTION) == expected
    assert first.spans
    assert not second.spans


class Alone(ChainReader):
    merge = Reader.merge


@pytest.mark.parametrize(
    ("reader", "config", "merges"), [(ChainReader(), in_segments(4), [4]), (Alone(), SMALL, [])]
)
def test_segments_are_merged_and_without_merges_the_corpus_is_read_in_one(reader, config, merges):
    documents = [Document(numbered(20), metadata={"source": str(n)}) for n in range(8)]

    MemAgentRetriever(corpus=documents, model=reader, config=config).invoke(QUESTION)

    assert (reader.merges, reader.answers) == (merges, 1)
    assert merges or reader.spans == sorted(reader.spans)


def test_what_cannot_be_read_is_an_error_and_not_an_empty_result(tmp_path):
    failing = Watched(lambda _: ModelError("down"))

    with pytest.raises(SourceNotFoundError):
        MemAgentRetriever(corpus=tmp_path / "gone.txt").invoke(QUESTION)
    with pytest.raises(ModelError, match="down"):
        MemAgentRetriever(corpus=corpus(), model=failing).invoke(QUESTION)


def test_passages_among_the_first_three_are_returned_whole_and_long_sources_are_not():
    said = f"It rained. {SIGNED} It was {{}} o'clock."
    passages = [Document(said.format(n), metadata={"source": str(n)}) for n in range(5)]
    texts = {passage.page_content for passage in passages}

    found = MemAgentRetriever(corpus=passages, k=9).invoke(QUESTION)
    long = MemAgentRetriever(corpus=corpus()).invoke(QUESTION)

    whole = [document.page_content in texts for document in found]
    assert whole == [True, True, True, False, False][: len(found)]
    assert all(len(document.page_content) < 1000 for document in long)


@pytest.mark.parametrize("chunk_tokens", [40, 5000])
def test_no_statement_crosses_from_one_file_into_another_and_no_file_name_is_one(chunk_tokens):
    names = [f"project {number} of the owner" for number in range(12)]
    texts = {name: f"It has no end\nand {name[:9]} neither" for name in names}
    corpus = [Document(text, metadata={"source": name}) for name, text in texts.items()]
    config = ReadingConfig(chunk_tokens=chunk_tokens)

    retriever = MemAgentRetriever(corpus=corpus, config=config, k=12)
    found = retriever.invoke("Who is the owner of project 7?")

    assert found
    for document in found:
        assert "=====" not in document.page_content + document.metadata["answer"]
        text = texts[document.metadata["source"]]
        for item in document.metadata["evidence"]:
            assert text[item["start"] : item["end"]].split() == item["text"].split()


class Paged(TextSource):
    def locate(self, offset):
        place = super().locate(offset)
        return place._replace(page=place.line, heading=f"{self.name} {place.line}")


class Noting(Reader):
    """Notes the lines that begin with a mark in its own words; `cites` picks what it cites."""

    identity = Identity("noting", "noting-1")

    def __init__(self, cites=lambda evidence: evidence[:1], fails=lambda question: None):
        self.cites, self.fails = cites, fails
        self.asked = []
        self.merges = 0

    async def update(self, step, *, config=None):
        self.asked.append(("update", step.question))
        if error := self.fails(step.question):
            raise error
        chunk, found, at = step.chunk, [*step.memory.evidence], 0
        for line in chunk.text.splitlines(keepends=True):
            if line.startswith("*"):
                start = chunk.start + at
                end = start + len(line.rstrip())
                found.append(locate(f"Noted: {line[2:].strip()}", chunk.source, start, end))
            at += len(line)
        return Update(memory_of(found) if found else None)

    async def merge(self, question, memories, *, config=None):
        self.merges += 1
        self.asked.append(("merge", question))
        return Merge(memory_of([item for memory in memories for item in memory.evidence]))

    async def respond(self, question, memory, *, config=None):
        self.asked.append(("answer", question))
        return Answer("So it is.", "So it is.", evidence=tuple(self.cites(memory.evidence)))


def memory_of(evidence):
    return Memory("\n".join(item.text for item in evidence), tuple(evidence))


def marked(*, filler=400, **lines):
    begin = ["filler line"] * filler
    return [Paged("\n".join([*begin, *said, "end of it"]), name) for name, said in lines.items()]


def test_with_evidence_there_is_a_document_a_source_ranked_by_the_answer_s_citations():
    corpus = marked(
        a=["* alpha is a long statement, longer than all of the others"],
        b=["* beta", "* beta again"],
        c=["* gamma"],
        d=["* delta is said here"],
        e=[],
    )

    def cites(evidence):
        by_text = {item.text: item for item in evidence}
        return [by_text["Noted: gamma"], by_text["Noted: beta"], by_text["Noted: beta again"]]

    reader = Noting(cites)
    found = MemAgentRetriever(corpus=corpus, model=reader, config=in_segments(4), k=9).invoke("?")

    assert [document.metadata["source"] for document in found] == ["b", "c", "a", "d"]
    scores = [document.metadata["score"] for document in found]
    assert scores[:2] == [1, 0.75]
    assert 0.5 >= scores[2] > scores[3] > 0
    first, text = found[0].metadata, corpus[1].text
    assert found[0].page_content == "* beta\n* beta again" == text[first["start"] : first["end"]]
    assert [item["text"] for item in first["evidence"]] == ["Noted: beta", "Noted: beta again"]
    assert [first["page"], *(item["page"] for item in first["evidence"])] == [401, 401, 402]
    assert first["evidence"][1]["heading"] == "b 402"
    assert all(text[item["start"] : item["end"]].startswith("* beta") for item in first["evidence"])


def test_passages_that_overlap_are_returned_once():
    class Overlapping(Noting):
        async def update(self, step, *, config=None):
            chunk = step.chunk
            part, begin = next(chunk.source.parts_between(0, 1))
            start = begin + part.text.index("first")
            spans = [(start, start + 12), (start + 6, start + 20), (start, start + 12)]
            return Update(memory_of([Evidence(f"{s} {e}", "a", 1, s, e) for s, e in spans]))

    corpus = [TextSource("x" * 2500 + " first second third fourth", "a")]

    [found] = MemAgentRetriever(corpus=corpus, model=Overlapping()).invoke("?")

    assert found.page_content == "first second third f"


QUERIES = ["Where is one?", "Where is two?", "Where is three?"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["batch", "abatch"])
def test_several_queries_are_read_for_in_one_pass_and_get_what_each_gets_alone(how, monkeypatch):
    sources, opened, reader = marked(a=["* one"], b=["* two"], filler=90), [], Noting()
    alone = MemAgentRetriever(corpus=sources, model=Noting(), config=in_segments(2))
    expected = [alone.invoke(query) for query in QUERIES]
    monkeypatch.setattr(
        "memagent_graph.retriever.open_source", lambda source: opened.append(source) or source
    )
    retriever = MemAgentRetriever(corpus=sources, model=reader, config=in_segments(2))

    asked = [*QUERIES, QUERIES[0]]
    found = retriever.batch(asked) if how == "batch" else asyncio.run(retriever.abatch(asked))

    assert found == [*expected, expected[0]]
    assert opened == sources
    answers = [query for what, query in reader.asked if what == "answer"]
    assert sorted(answers) == sorted(QUERIES)


@pytest.mark.parametrize("how", ["batch", "abatch"])
def test_a_query_that_fails_does_not_fail_the_others(how):
    def fails(question):
        return {QUERIES[1]: ModelError("down"), QUERIES[2]: TypeError("a bug")}.get(question)

    sources = marked(a=["* one"], filler=20)
    retriever = MemAgentRetriever(corpus=sources, model=Noting(fails=fails), config=SMALL)

    def run(queries, **options):
        if how == "batch":
            return retriever.batch(queries, **options)
        return asyncio.run(retriever.abatch(queries, **options))

    first, second, blank = run([QUERIES[0], QUERIES[1], " "], return_exceptions=True)
    assert first == retriever.invoke(QUERIES[0])
    assert isinstance(second, ModelError)
    assert isinstance(blank, QuestionError)
    again, _, broken = run(QUERIES, return_exceptions=True)
    assert again == first
    assert isinstance(broken, TypeError)
    with pytest.raises(ModelError, match="down"):
        run(QUERIES[:2])
    gone = MemAgentRetriever(corpus=Path("gone.txt"))
    assert all(isinstance(e, MemAgentError) for e in gone.batch(QUERIES, return_exceptions=True))
    assert retriever.batch([]) == []


@pytest.mark.parametrize("queries", [QUERIES[:1], QUERIES])
async def test_cancelling_leaves_no_reading_behind(queries):
    begun = asyncio.Event()

    class Slow(Noting):
        async def update(self, step, *, config=None):
            begun.set()
            await asyncio.sleep(60)

    retriever = MemAgentRetriever(corpus=marked(a=["* one"]), model=Slow(), config=SMALL)
    task = asyncio.create_task(retriever.abatch(queries))
    await begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:  # they take the readings out of the store's list; a reading itself would sleep on
        _, others = await asyncio.wait(others, timeout=20)
    assert not others


def test_an_unknown_argument_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="top_k"):
        MemAgentRetriever(corpus="text", top_k=3)


def test_a_document_a_record_and_what_can_be_read_once_are_a_corpus_too(tmp_path):
    file = tmp_path / "lease.txt"
    file.write_text(SIGNED)
    corpora = [
        Document(SIGNED, metadata={"source": "lease.txt"}),
        {"path": str(file)},
        (document for document in [Document(SIGNED, metadata={"source": "lease.txt"})]),
        file.open(),
    ]

    for each in corpora:
        retriever = MemAgentRetriever(corpus=each)
        for _ in range(2):
            [found] = retriever.invoke("Who signed the lease?")
            assert Path(found.metadata["source"]).name == "lease.txt"
            assert found.page_content == SIGNED
    corpora[-1].close()


@pytest.fixture
def contracts(tmp_path):
    folder = tmp_path / "contracts"
    for name, text in {
        "2023/lease.md": "Ann Kestrel signed the lease. She lives in Husum, and the lease is cold.",
        "2023/rent.txt": "The rent of the lease is 900.",
        "drafts/lease.md": "Odo Brandt signed the lease.",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def sources(documents):
    return sorted(found.metadata["source"].removeprefix("contracts/") for found in documents)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"include": ["2023/*"]}, ["2023/lease.md", "2023/rent.txt"]),
        ({"exclude": "contracts/2023/*"}, ["drafts/lease.md"]),
        ({"include": "lease.md", "exclude": ["drafts/*"]}, ["2023/lease.md"]),
        ({}, ["2023/lease.md", "2023/rent.txt", "drafts/lease.md"]),
    ],
)
def test_a_corpus_reads_what_is_included_and_not_excluded(contracts, chosen, expected):
    (contracts / "drafts" / "lost.pdf").write_bytes(b"no PDF")
    retriever = MemAgentRetriever(corpus=choose(contracts, **chosen), model="extractive")

    found = retriever.invoke("Who signed the lease, and what is the rent of the lease?")

    assert sources(found) == expected
    opened = "lost.pdf" in str(found[0].metadata["skipped"])
    assert opened == ("include" not in chosen)  # what is not chosen is not even opened


def test_metadata_come_with_the_documents_and_choose_what_is_read(contracts):
    dated = choose(contracts, metadata={"2023/*": {"year": 2023}, "*.md": {"signed": True}})
    retriever = MemAgentRetriever(corpus=dated, model="extractive")
    question = "Who signed the lease, and what is its rent?"

    both = retriever.invoke(question, filter={"year": 2023})
    one = retriever.invoke(question, filter=lambda found: "rent" in found["source"])
    batch = retriever.batch([question, "What is the rent?"], filter={"signed": True, "year": 2023})

    assert sources(both) == ["2023/lease.md", "2023/rent.txt"]
    assert {found.metadata.get("signed") for found in both} == {True, None}
    assert sources(one) == ["2023/rent.txt"]
    assert sources(batch[0]) == ["2023/lease.md"]
    assert retriever.invoke(question, filter={"year": 1900}) == []


def test_documents_of_langchain_are_chosen_by_their_own_metadata_too():
    lease = Document("Ann signed.", metadata={"source": "lease", "year": 2023})
    other = Document("Odo signed.", metadata={"source": "other", "year": 2024})
    corpus = choose([lease, other], metadata=lambda name: {"kind": name})

    for chosen in ({"year": 2024}, {"kind": "other"}):
        retriever = MemAgentRetriever(corpus=corpus, model="extractive")
        [found] = retriever.invoke("Who signed?", filter=chosen)
        assert (found.page_content, found.metadata["year"]) == ("Odo signed.", 2024)


def test_by_passage_each_document_is_one_place(contracts):
    retriever = MemAgentRetriever(corpus=contracts, model="extractive", by="passage", k=9)

    found = retriever.invoke("Who signed the lease, and where does she live?")

    for document in found:
        place = document.metadata
        text = (contracts.parent / place["source"]).read_text()
        assert document.page_content == text[place["start"] : place["end"]]
    assert sources(found).count("2023/lease.md") == 2
    scores = [document.metadata["score"] for document in found]
    assert scores == sorted(scores, reverse=True)


def test_a_corpus_without_a_document_names_its_patterns(contracts):
    with pytest.raises(UnreadableSourceError, match="no file is included"):
        choose(contracts, include="*.docx").open_sources()
    with pytest.raises(EmptyDocumentError, match=r"\*\.md, not lease.: change include"):
        choose("text", include="*.md", exclude="lease").open_sources()
