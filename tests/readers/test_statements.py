from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memagent_graph.evidence.statements import statements
from memagent_graph.text.terms import join_lines


def cut(text):
    return [statement.text for statement in statements(text)]


CODE = 'import os\ndef drain(self):\n    """Close idle sockets."""\n    return None\n'
SAID = "Dr. Lund left at 3.5 knots. | “Where to?” he asked. | Nobody knew! | It was J. S. Bach."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SAID.replace(" |", ""), SAID.split(" | ")),
        ("港口下雨。“谁来了？”他问。没有人！", ["港口下雨。", "“谁来了？”", "他问。", "没有人！"]),
        ("Vivo en Lima. ¿Me ayudas?", ["Vivo en Lima.", "¿Me ayudas?"]),
        ("मैं दिल्ली में रहता हूँ। आप कहाँ हैं?", ["मैं दिल्ली में रहता हूँ।", "आप कहाँ हैं?"]),
        ("hi! i live in ulm. is it far?", ["hi!", "i live in ulm.", "is it far?"]),
        ("How are you? i live in ulm.", ["How are you?", "i live in ulm."]),
        ("Yahoo! is a firm, approx. as old as we.", ["Yahoo! is a firm, approx. as old as we."]),
        (CODE, ["import os", 'def drain(self): """Close idle sockets."""', "return None"]),
    ],
    ids=["prose", "Chinese", "Spanish", "Hindi", "lower case", "mixed case", "signs", "code"],
)
def test_a_text_is_cut_into_sentences_and_code_into_lines(text, found):
    assert cut(text) == found


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Anna works at Acme Inc. in Bern. Tom works at Hill Bros. & Co. of Oslo.", 2),
        ("Anna works at Acme Inc. The rent of Lease 7 is 900 euros.", 2),
        ("The owner is Hill Co. Ltd. It rents Lease 7 to Vale Corp. Dr. Bell signed.", 3),
        ("She moved to Washington, D.C. The house is large.", 2),
        ("Sen. Hill met Mme. Dubois on Mt. Airy.", 1),
        ("It ends on Feb. 3, 2024, by Art. 5 and Sec. 2 of Vol. 7, pp. 3 to 9.", 1),
        ("She studied Art. He did not. It was in May. Nobody came in Dec. The rest is known.", 5),
        ("It takes fruit, e.g. The Apple of Kent, or tea, i.e. That of Ceylon.", 1),
        ("Did it end? No. The rent rose.", 3),
        ("Acme Ltd. Eva Hill owns.", 1),
        ("Acme Ltd. Partners signed the lease with Bolt Inc. Holdings of Bern.", 1),
        ("Please ask Acme Inc. Customer Care for help.", 1),
        ("Tom King Jr. Boulevard is long. The tenant is Acme Ltd. Berlin.", 2),
        ("We met at 5 p.m. Monday, and at 10 a.m. Eastern Time. It rained at 8 p.m. GMT.", 2),
        ("Ab dem 1. Mai 2024 gilt die 2. Fassung. Der Vertrag endet am 31. Dezember 2025.", 2),
        ("Sie zog im 3. Stock ein. Das Haus hat 12. Davon stehen 3 leer.", 3),
        ("Nach § 3 Abs. 2 zahlt Hr. Weber, z. B. Miete bzw. Pacht, an der Lindenstr. Nord.", 1),
    ],
)
def test_an_abbreviation_ends_a_sentence_only_before_words_that_begin_one(text, count):
    assert len(cut(text)) == count


PIECES = st.sampled_from(
    [*"漢。.\n\t\x00\u2028{( ", "Word", "word", "! ", "\n\n", "\r\n", "x" * 700, "| a |", "Mr. "]
)


@given(st.lists(PIECES, max_size=60).map("".join) | st.text())
def test_statements_are_everything_but_white_space_each_where_it_says(text):
    assume(join_lines(text).split() == text.split())  # else the text reads otherwise than it stands
    found = list(statements(text))

    assert "".join("".join(item.text.split()) for item in found) == "".join(text.split())
    for item in found:
        assert " ".join(text[item.start : item.end].split()) == item.text
    assert all(a.end <= b.start for a, b in pairwise(found))


def test_a_text_without_sentence_ends_is_cut_between_lines():
    fact = "FACT: The owner is Ann, reachable at extension 40."
    lines = ["words without an end " * 4 + "of any kind"] * 25

    for place in range(len(lines)):
        text = "\n".join([*lines[:place], fact, *lines[place:]])
        assert any(fact in statement.text for statement in statements(text))


@pytest.mark.parametrize("text", ["word " * 10_000, "x" * 50_000, "a,\n" * 10_000])
def test_no_statement_is_endless(text):
    assert max(map(len, cut(text))) <= 600
