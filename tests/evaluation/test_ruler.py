"""RULER's samples and ours, taken apart by one parser, have the same structure."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from hashlib import sha256

import pytest
from ruler_samples import CAPS, NAMES, PLAIN, made, official, prompt_of, structure

from memagent_graph.errors import MissingDependencyError
from memagent_graph.evaluation.tasks import probes
from memagent_graph.evaluation.tasks.haystack import vocabulary
from memagent_graph.evaluation.tasks.ruler import NOISE, parse, statements
from memagent_graph.text.tokens import EstimatingTokenizer


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_official_samples_and_ours_have_the_same_structure(name):
    rows = [row for row in official() if row["task"] == name]
    wanted = structure(rows[0]["input"] + rows[0]["answer_prefix"], rows[0]["outputs"], 8192)

    for row in rows:
        assert structure(row["input"] + row["answer_prefix"], row["outputs"], 8192) == wanted
    for length, index, seed in [(8192, 0, 0), (8192, 1, 0), (8192, 0, 5), (10_000, 2, 1)]:
        sample = made(name, length, index, seed)
        assert structure(prompt_of(sample), sample.answers, length) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_the_official_prefix_and_question_are_cut_where_ours_are(name):
    row = next(row for row in official() if row["task"] == name)
    sample = made(name, 8192)
    ours, theirs = parse(prompt_of(sample)), parse(row["input"] + row["answer_prefix"])

    assert theirs.prefix == row["answer_prefix"]
    assert ours.question == sample.question
    assert ours.template == sample.template
    assert sample.answer_tokens == CAPS[ours.form.kind]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokenizer", [PLAIN, EstimatingTokenizer()], ids=["plain", "estimate"])
@pytest.mark.parametrize("length", [8_192, 30_001])
def test_prompt_and_answer_have_the_tokens_asked_for_and_never_more(name, tokenizer, length):
    for index in range(3):
        sample = made(name, length, index, tokenizer=tokenizer)
        tokens = tokenizer.count(prompt_of(sample)) + sample.answer_tokens

        assert 0.99 * length <= tokens <= length


def test_a_short_list_has_rulers_other_counts_and_smaller_example():
    parts = parse(prompt_of(made("cwe", 4_000)))
    (example,) = parts.examples

    counts = [
        Counter(Counter(one.subject for one in statements("cwe", text)).values())
        for text in (example.document, parts.document)
    ]
    assert counts[0] == {3: 10, 1: 10}
    assert counts[1].keys() == {6, 1}
    assert counts[1][6] == 10


BROKEN = {
    "niah_single_1": [
        ("A special magic", "A magic"),
        (" is yellow. Here", " is red. Here"),
        ("back again.\nThe", "back again. The"),
        (r"is: (\d{6})\d\.", r"is: \1."),
        (r"for \S+ is: ", "for nobody-else is: "),
        (r"(One of the special.*)\n", r"\1\n\1\n"),
        (r"provided text is$", "provided text was"),
    ],
    "niah_multikey_1": [
        (r"One of the special[^:]*: \d+\. ", ""),
        (r"(?s)^(.*)( One of the special[^:]*: \d+\.)( \w+)", r"\1\3\2"),
        ("roads. ", "roads.\n"),
    ],
    "niah_multikey_3": [(r"(One of the special.*)\n", r"\1\n" + NOISE + r"\n"), ("uuids", "UUIDs")],
    "niah_multiquery": [(", and ", " and "), ("are$", "is")],
    "niah_multivalue": [(r"is: (\d{7})\.(.*)is: \d{7}\.", r"is: \1.\2is: \1.")],
    "vt": [
        (r" \n", r"\n"),
        (r"(?s)(.*)(VAR \w{5} = VAR \w+ \n)(.*?)(VAR \w{5} = VAR \w+ \n)", r"\1\4\3\2"),
        (r"VAR \w{5} = VAR \w+ \n", ""),
        (r"= \d(\d{4})\nT", r"= \1\nT"),
        (r"they are:  \w+", "they are: "),
        (r"VAR (\w)\w\w = (?=\d)", r"VAR \1 = "),
        (r", they are: $", ", they are:"),
    ],
    "cwe": [
        (r" 9\. \S+", ""),
        (r" 900\. \S+", " 900. zebra"),
        (r" 20\. \S+ ", " 20. zebra "),
        ("are: 1. ", "are: "),
        ("10 most common", "9 most common"),
    ],
    "fwe": [(r"\.\.\. ", "abcdef "), (r"coded words\. ", "coded words.\n"), (r" [a-z]{6}\n", "\n")],
}


@pytest.mark.parametrize(
    ("name", "wrong", "instead"),
    [(name, *change) for name, changes in BROKEN.items() for change in changes],
)
def test_a_broken_sample_has_another_structure(name, wrong, instead):
    sample = made(name, 8_192)
    right = prompt_of(sample)
    broken = re.sub(wrong, instead, right, count=1)
    assert broken != right

    assert structure(right, sample.answers, 8192) != structure(broken, sample.answers, 8192)


GOLDEN = {
    (2, 2, 2): {
        "niah_single_1": "6caa13118afc",
        "niah_single_2": "8b6cbf05fe8e",
        "niah_single_3": "4369dff3098d",
        "niah_multikey_1": "61ad18e55667",
        "niah_multikey_2": "cb472802880e",
        "niah_multikey_3": "2edccf888fa3",
        "niah_multivalue": "99f27bb84cf0",
        "niah_multiquery": "0ba1dfbf44bc",
        "vt": "e3554473a6ad",
        "cwe": "340cdf87b684",
        "fwe": "5615e9d981de",
    },
}


def test_samples_become_others_only_with_a_new_version():
    """After a change of the generator: raise its VERSION, and put the new digests here."""
    if vocabulary().digest != "06d7a654dd60845f":
        pytest.skip("wonderwords has other words than 3.0.1")
    versions = (probes.NEEDLE_VERSION, probes.TRACKING_VERSION, probes.WORDS_VERSION)
    digests = {}
    for name in NAMES:
        sample = made(name, 6_000, 1, 2)
        text = json.dumps([prompt_of(sample), sample.answers])
        digests[name] = sha256(text.encode()).hexdigest()[:12]

    assert {versions: digests} == GOLDEN


def test_words_are_plain_and_enough_for_the_longest_documents():
    known = vocabulary()

    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", word) for word in known.words)
    assert len(known.adjectives) * len(known.nouns) > 20 * 3_670_016 / 20
    assert len(known.words) > 8_000


def test_without_wonderwords_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    vocabulary.cache_clear()

    with pytest.raises(MissingDependencyError, match=r"memagent-graph\[eval\]"):
        made("cwe", 8_192)
    assert made("niah_multikey_3", 2_000).answers
