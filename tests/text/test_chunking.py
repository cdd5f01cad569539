from __future__ import annotations

import re
import subprocess
import sys

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from memagent_graph.text.chunks import chunks as cut_all
from memagent_graph.text.chunks import cut_at_sentence, next_chunk
from memagent_graph.text.files import open_source
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer, HuggingFaceTokenizer

ESTIMATE = EstimatingTokenizer()
CLUSTERS = ["e\u0301", "👩‍👩‍👧‍👦", "🇫🇷", "a\u0300\u0301\u0302", "\u0600", "नमस्ते", "\ud800"]
SPACES = ["\r\n", "\n\n", "\0", "   "]
WRITTEN = ["漢字。", "שלום ", "سلام", "한글 ", "Mr. Fox ran. ", "snake_case(x) ", "1"]
ANY_TEXT = st.text(st.characters(), max_size=300) | st.lists(
    st.sampled_from(CLUSTERS + SPACES + WRITTEN), max_size=60
).map("".join)


@pytest.fixture(scope="module")
def bpe():
    """A byte-level BPE, as GPT-2, Qwen and Llama 3 have."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(["The fox and the dog saw a door. " * 20], trainer)
    return HuggingFaceTokenizer(backend)


def chunks(text, tokenizer, budget, **options):
    source, found, offset = TextSource(text), [], 0
    while chunk := next_chunk(source, offset, tokenizer=tokenizer, chunk_tokens=budget, **options):
        found.append(chunk)
        offset = chunk.end
    return found


def check(text, tokenizer, budget):
    found = chunks(text, tokenizer, budget)
    assert "".join(chunk.text for chunk in found) == text
    for chunk in found:
        # From its own start: after a cut within a grapheme, flags pair up anew.
        boundaries = {chunk.start + m.end() for m in regex.finditer(r"\X", text[chunk.start :])}
        assert text[chunk.start : chunk.end] == chunk.text
        assert chunk.tokens == tokenizer.count(chunk.text)
        assert chunk.tokens <= budget or len(chunk.text) == 1
        if chunk.end not in boundaries:
            begin = max((b for b in boundaries if b < chunk.end), default=chunk.start)
            end = min(b for b in boundaries if b > chunk.end)
            assert tokenizer.count(text[begin:end]) > budget
            assert chunk.start >= begin


@given(ANY_TEXT, st.integers(1, 60))
@example("a\u0300" * 30, 1)
@example("\u0600" + "\U0001f1e6" * 4, 5)
def test_chunks_of_any_text_are_lossless_within_budget_and_split_no_grapheme(text, budget):
    check(text, ESTIMATE, budget)


@given(text=ANY_TEXT.filter(lambda text: "\ud800" not in text), budget=st.integers(1, 60))
def test_so_are_chunks_by_a_real_tokenizer(bpe, text, budget):
    if any("\ud800" <= character <= "\udfff" for character in text):
        return
    check(text, bpe, budget)


WORDS = ["The fox", " and", " dogs", ".", "\n\n", " saw", "'s", "   ", " 1234"]


@given(st.lists(st.sampled_from(WORDS)), st.integers(1, 20))
def test_exact_cuts_are_after_every_so_many_tokens_of_the_whole_document(bpe, words, budget):
    text = "".join(words)
    ends = [end for _, end in bpe.backend.encode(text, add_special_tokens=False).offsets]

    found = chunks(text, bpe, budget, exact_cuts=True)

    cuts = [*ends[budget - 1 :: budget], *ends[-1:]]
    assert [chunk.end for chunk in found] == [*dict.fromkeys(cuts)]


@given(ANY_TEXT, st.integers(0, 80))
def test_the_estimated_prefix_is_the_longest_that_fits(text, tokens):
    end = ESTIMATE.prefix(text, tokens)

    assert ESTIMATE.count(text[:end]) <= tokens
    if end < len(text):
        assert ESTIMATE.count(text[: end + 1]) > tokens


@pytest.mark.parametrize(
    ("separator", "filler"),
    [
        ("\n\n", "word, word; "),  # a paragraph end is preferred
        (". ", "word word "),
        ("。", "漢字漢字"),
        ("\n", "wordword"),
        (" ", "wordword"),
    ],
)
def test_a_chunk_ends_at_the_best_break_in_its_final_tenth(separator, filler):
    head = (filler * 400)[:900]
    whole = ESTIMATE.count(head)
    text = head + separator + (filler * 400)[: int(len(head) * 0.04)] + "字" * 3000

    chunk = chunks(text, ESTIMATE, int(whole * 1.06))[0]

    assert chunk.text == head + separator


def test_a_memory_is_cut_after_whole_sentences_lines_or_words():
    assert (
        cut_at_sentence("One is here. Two is here. Three is", 9, ESTIMATE)
        == "One is here. Two is here."
    )
    assert cut_at_sentence("alpha beta gamma delta epsilon", 4, ESTIMATE).endswith(
        ("beta", "gamma")
    )
    assert cut_at_sentence("short.", 100, ESTIMATE) == "short."
    assert ESTIMATE.count(cut_at_sentence("x1y2z3" * 400, 20, ESTIMATE)) <= 20
    lines = "- one. two\n" + "- three four five\n" * 40
    assert len(cut_at_sentence(lines, 60, ESTIMATE).splitlines()) > 5


HUGE = """
import resource
from pathlib import Path
import sys
from memagent_graph.text.chunks import next_chunk
from memagent_graph.text.files import open_source
from memagent_graph.text.tokens import EstimatingTokenizer
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = open_source(Path(sys.argv[1]))
offset = chunks = 0
while chunk := next_chunk(source, offset, tokenizer=EstimatingTokenizer(), chunk_tokens=50_000):
    offset = chunk.end
    chunks += 1
print(offset, chunks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_single_line_of_60_megabytes_is_read_in_little_memory(tmp_path):
    file = tmp_path / "line.txt"
    with file.open("w") as out:
        for _ in range(60):
            out.write("abcdefghi " * 100_000)

    printed = subprocess.run(
        [sys.executable, "-c", HUGE, str(file)], capture_output=True, text=True, check=True
    ).stdout

    length, count, kilobytes = map(int, printed.split())
    assert length == 60_000_000
    assert count > 60
    assert kilobytes < 40_000


TABLE = "| id | what |\n| --- | --- |\n" + "".join(
    f"| {number} | Lamp {number}. It is on. |\n" for number in range(300)
)
SHEET = "id,what\n" + "".join(f'{number},"Lamp. It is\non, says Ann"\n' for number in range(300))
HEADERS = {"md": "| id | what |\n| --- | --- |\n", "csv": "id,what\n"}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("suffix", "table"), [("md", f"# Lamps\n\n{TABLE}\nDone."), ("csv", SHEET)]
)
def test_a_table_is_cut_between_rows_and_each_chunk_shows_its_header(tmp_path, suffix, table, end):
    path = tmp_path / f"lamps.{suffix}"
    path.write_bytes(table.replace("\n", end).encode())
    other = tmp_path / "other.txt"
    other.write_text("It rained. " * 200)
    tokenizer = ESTIMATE

    for source in (open_source(path), open_source([other, path, other])):
        cut = [*cut_all(source, tokenizer=tokenizer, chunk_tokens=200)]

        assert "".join(chunk.text for chunk in cut) == source.read(0, source.length)
        begun = [chunk for chunk in cut if re.match(r"\| \d|\d+,", chunk.text)]
        assert len(begun) > 5
        for chunk in begun:
            assert chunk.shown == HEADERS[suffix] + chunk.text
            assert tokenizer.count(chunk.shown) <= 200
        for chunk in cut:
            assert chunk in begun or not chunk.header
            assert not re.match(r"on, says|It is|Lamp|says", chunk.text)  # within a row
        [exact] = [*cut_all(source, tokenizer=tokenizer, chunk_tokens=10**6, exact_cuts=True)]
        assert exact.shown == exact.text


def test_equal_rows_below_other_headers_are_other_chunks():
    def second_chunk(name):
        source = open_source(f"| {name} | b |\n| --- | --- |\n" + "| 1 | 2 |\n" * 400)
        return [*cut_all(source, tokenizer=ESTIMATE, chunk_tokens=100)][1]

    assert second_chunk("x").text == second_chunk("y").text
    assert second_chunk("x").digest != second_chunk("y").digest
