"""The index finds passages by their words, in all scripts, and is built once for each file."""

from __future__ import annotations

import os
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank
from memagent_graph.text import cache
from memagent_graph.text import index as indexes
from memagent_graph.text.cache import forget_converted
from memagent_graph.text.chunks import passages
from memagent_graph.text.files import open_source
from memagent_graph.text.index import Index, IndexPart, find_highest, open_index
from memagent_graph.text.source import JoinedSource, TextSource

FILLER = "The ship sailed on through the calm and empty sea, and nobody on board said a word. " * 12


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where entries are kept; nothing is known of any text yet."""
    monkeypatch.setenv("MEMAGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    cache._cache.cache_clear()
    monkeypatch.setattr(cache, "_no_plain_text", Event())
    monkeypatch.setattr(indexes, "recent", indexes._Recent())
    return tmp_path / "cache" / "converted"


@pytest.fixture
def indexed(monkeypatch):
    """How many texts were indexed, as it happens."""
    done = []
    of = IndexPart.of.__func__

    def count(cls, texts):
        texts = [*texts]
        if not "".join(texts).strip().startswith("====="):
            done.append("".join(texts))
        return of(cls, texts)

    monkeypatch.setattr(IndexPart, "of", classmethod(count))
    return done


def forget_memory():
    """As a new process does."""
    indexes.recent = indexes._Recent()


def best(source, question):
    found = open_index(source).find(question, 1)
    return source.read(found[0].start, found[0].end - found[0].start) if found else None


class TestPassages:
    @given(st.text(st.sampled_from("ab .\n。é\u0301👨\u200d👩🇩🇪\r"), max_size=3000))
    def test_joined_they_are_the_source(self, text):
        found = [*passages(TextSource(text))]

        assert "".join(passage for _, passage in found) == text
        assert [start for start, _ in found] == [
            sum(len(passage) for _, passage in found[:number]) for number in range(len(found))
        ]
        assert all(0 < len(passage) <= 800 for _, passage in found)

    @given(st.lists(st.text(st.sampled_from("ab .\n中"), max_size=2000), min_size=1, max_size=5))
    def test_the_passages_of_an_index_are_all_of_a_corpus(self, texts):
        corpus = JoinedSource([TextSource(text) for text in texts], "corpus")
        index = open_index(corpus)
        spans = [index.span(number) for number in range(len(index))]

        assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert spans[-1][1] == corpus.length
        assert [index.at(start) for start, _ in spans] == [*range(len(spans))]


class TestFinding:
    @pytest.mark.parametrize(
        ("fact", "question"),
        [
            ("Ms. Ortega founded the observatory.", "Who founded the observatory?"),
            ("Die Sternwarte wurde von Frau Ortega gegründet.", "Wer hat die Sternwarte gebaut?"),
            ("天文台是由奥尔特加女士创建的。", "天文台是谁创建的?"),
            ("천문대는 오르테가가 설립했다.", "천문대는 누가 설립했나?"),
            ("أسست السيدة أورتيغا المرصد.", "من أسست المرصد؟"),
            ("वेधशाला की स्थापना ओर्टेगा ने की।", "वेधशाला की स्थापना किसने की?"),
            ("def find_chunk_end(text): ...", "Where does find_chunk_end look?"),
        ],
    )
    def test_the_passage_with_the_answer_comes_first_in_all_scripts(self, fact, question):
        source = TextSource(FILLER * 20 + "\n\n" + fact + "\n\n" + FILLER * 20)

        assert fact in best(source, question)

    def test_nothing_is_found_where_none_of_the_words_stands_and_a_rare_word_counts_more(self):
        assert open_index(TextSource(FILLER)).find("zebra crossing") == []
        assert Index.of([]).find("zebra") == []
        assert Index.of([*["ship"] * 4, "whale"]).find("ship whale")[0].number == 4

    def test_the_best_come_first_and_no_more_than_asked_for(self):
        index = Index.of(["a lion", "a lion and a tiger", "nothing", "tiger tiger lion", "lion"])

        found = index.find("lion tiger", 3)

        assert [passage.number for passage in found] == [3, 1, 4]
        assert [passage.score for passage in found] == sorted(
            (passage.score for passage in found), reverse=True
        )
        assert (found[0].start, found[0].end) == index.span(3) == (31, 47)

    def test_a_file_is_found_by_its_name_with_its_first_passage(self):
        corpus = JoinedSource(
            [TextSource(FILLER, "walrus.txt"), TextSource(FILLER, "harbour.txt")], "corpus"
        )

        found = best(corpus, "harbour")

        assert "===== harbour.txt =====" in found
        assert "The ship sailed" in found

    @given(st.lists(st.lists(st.sampled_from(["lion", "tiger", "zebra", "天文台"]), max_size=5)))
    def test_parts_joined_find_what_one_index_of_all_finds(self, texts):
        passages = [" ".join(words) for words in texts]
        whole = Index.of(passages)
        joined = Index(
            [IndexPart.of(passages[:2]), IndexPart.of(passages[2:3]), IndexPart.of(passages[3:])]
        )

        many = Index([IndexPart.of([one]) for one in passages] * 300)

        assert joined.find("lion 天文台") == whole.find("lion 天文台")
        assert many.find("lion 天文台") == Index.of(passages * 300).find("lion 天文台")


class TestKept:
    @given(st.lists(st.text(max_size=40), max_size=6))
    def test_a_part_comes_back_from_its_bytes(self, texts):
        part = IndexPart.of(texts)
        again = IndexPart.decode(part.encode())

        assert again.terms.tolist() == part.terms.tolist()
        assert Index([again]).find("".join(texts)) == Index([part]).find("".join(texts))

    def test_a_file_is_indexed_once_and_of_a_folder_the_one_that_changed(
        self, folder, indexed, tmp_path
    ):
        files = tmp_path / "files"
        files.mkdir()
        for number in range(3):
            (files / f"{number}.txt").write_text(f"{FILLER} File {number}.")
        open_index(open_source(files))
        (files / "1.txt").write_text("The walrus has moved in.")

        for _ in range(2):
            forget_memory()
            assert "walrus" in best(open_source(files), "Where is the walrus?")

        assert len(indexed) == 4

    def test_a_text_that_is_in_no_file_is_indexed_once_and_not_written(self, folder, indexed):
        for _ in range(2):
            open_index(TextSource(FILLER))

        assert len(indexed) == 1
        assert not folder.exists()

    def test_another_conversion_of_the_same_file_is_another_text(self, folder):
        one, other = TextSource("The lion sleeps."), TextSource("The tiger sleeps.")
        one.digest = other.digest = "0" * 64

        assert open_index(one).find("lion")
        assert not open_index(other).find("lion")

    def test_entries_are_encrypted_with_the_key_of_the_store(self, folder, monkeypatch, tmp_path):
        monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
        (tmp_path / "a.txt").write_text("The swordfish is in the cellar.")
        open_index(open_source(tmp_path / "a.txt"))
        forget_memory()

        (entry,) = folder.iterdir()
        assert b"swordfish" not in entry.read_bytes()
        assert best(open_source(tmp_path / "a.txt"), "Where is the swordfish?")

    def test_entries_are_of_their_owner_and_a_torn_one_is_made_again(
        self, folder, indexed, tmp_path
    ):
        (tmp_path / "a.txt").write_text("The swordfish is in the cellar.")
        open_index(open_source(tmp_path / "a.txt"))
        (entry,) = folder.iterdir()
        assert os.name == "nt" or entry.stat().st_mode & 0o077 == 0
        entry.write_bytes(entry.read_bytes()[:-1])
        forget_memory()

        assert best(open_source(tmp_path / "a.txt"), "Where is the swordfish?")
        assert len(indexed) == 2


class TestJoined:
    """A long document has several parts."""

    TEXT = "\n\n".join(
        f"The lion {number} met a tiger. 天文台 {number % 7} penc 数据{number} 文台 zebra." * 3
        for number in range(400)
    )
    WORDS = ("lion", "天文", "penc", "数据", "397", "zebra", "=", "walrus", "")

    @pytest.fixture
    def long(self, folder, monkeypatch, tmp_path):
        monkeypatch.setattr(indexes, "_PART_LENGTH", 5_000)
        (tmp_path / "long.txt").write_text(self.TEXT, "utf-8")
        return open_source(tmp_path / "long.txt")

    def compare(self, index):
        whole = Index.of(text for _, text in passages(TextSource(self.TEXT)))
        assert len(index) == len(whole)
        assert [*map(index.span, range(len(index)))] == [*map(whole.span, range(len(whole)))]
        for word in self.WORDS:
            assert index.scores({word: 1.0}).tobytes() == whole.scores({word: 1.0}).tobytes()
            assert index.rarity(word) == whole.rarity(word)

    def test_parts_from_the_cache_find_the_same(self, long, folder, indexed):
        self.compare(open_index(long))
        forget_memory()
        indexed.clear()

        index = open_index(long)
        assert indexed == []
        self.compare(index)
        assert forget_converted(long.digest) > 1
        assert [*folder.iterdir()] == []


class TestForgetting:
    def test_an_index_goes_with_its_file(self, folder, tmp_path):
        (tmp_path / "a.txt").write_text("The swordfish is in the cellar.")
        source = open_source(tmp_path / "a.txt")
        open_index(source)

        assert forget_converted(source.digest) == 1
        assert [*folder.iterdir()] == []

    def test_forgetting_a_source_takes_its_index_from_disk_and_memory(
        self, folder, indexed, tmp_path
    ):
        (tmp_path / "a.txt").write_text("The swordfish is in the cellar.")
        source = open_source(tmp_path / "a.txt")
        open_index(source)

        done = MemoryBank(InMemoryStore()).forget_source(source.digest)
        open_index(source)

        assert done.cached == 1
        assert len(indexed) == 2


@given(st.lists(st.sampled_from([0.0, 0.5, 1.25, 3.0])), st.integers(0, 40))
def test_the_highest_scores_are_those_of_a_stable_sort(scores, most):
    found = find_highest(np.array(scores), most)

    assert found.tolist() == np.argsort(-np.array(scores), kind="stable")[:most].tolist()
