from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pydoc_data.topics import topics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.text.terms import content_terms, names, stem, terms


@pytest.mark.parametrize(
    "spelling", ["drain_idle_sockets", "drainIdleSockets", "DrainIdleSockets", "DRAIN_IDLE_SOCKETS"]
)
def test_an_identifier_is_found_by_the_words_it_is_made_of_and_as_a_whole(spelling):
    assert set(terms("drain idle sockets")) <= set(terms(spelling))
    assert "recursion_limit" in terms('config["recursion_limit"]')
    assert "recursion_limit" in terms("config.recursion_limit")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,190", ["1190"]),
        ("灯塔钥匙", ["灯塔", "塔钥", "钥匙"]),
        ("iPhone手机", [*terms("iPhone"), "手机"]),
        ("2013年的Windows系统", ["2013", "年的", *terms("Windows"), "系统"]),
        ("ปี๒๕๖๙", ["ปี", "๒๕๖๙"]),
        ("painting", terms("painted")),
        ("Gates", terms("gate")),
        ("oﬃce ﬁle", terms("office file")),
    ],
)
def test_a_text_has_these_terms(text, expected):
    assert terms(text) == expected


@given(st.text("ab'sTor’é٣\u0301—-\n 01.,:_", max_size=40))
def test_a_text_has_the_terms_that_it_has_beside_an_unspaced_script(text):
    assert terms(f"{text}\n\n. 灯") == [*terms(text), "灯"]


def test_threads_that_stem_at_once_get_the_stems_of_one():
    words = sorted({word.lower() for text in topics.values() for word in text.split()})
    alone = [stem(word) for word in words]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: [stem(word) for word in words], range(8)))

    assert found == [alone] * 8


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("แมวของฉันชื่อมะลิ", "มะลิ"),
        ("ແມວຂອງຂ້ອຍຊື່ມະລິ", "ມະລິ"),
        ("ឆ្មារបស់ខ្ញុំឈ្មោះម៉ាលី", "ម៉ាលី"),
        ("ကျွန်တော့်ကြောင်နာမည်ကမီမီ", "မီမီ"),
        ("ꦏꦸꦕꦶꦁꦏꦸꦗꦼꦤꦺꦁꦩꦶꦩꦶ", "ꦩꦶꦩꦶ"),
        ("ꆈꌠꁱꂷ", "ꁱꂷ"),
    ],
)
def test_scripts_without_spaces_are_compared_by_pairs_of_letters_with_their_marks(text, name):
    assert {*terms(name)} < {*terms(text)}
    assert 1 < len(terms(text)) < len(text)


def test_words_that_an_answer_does_not_repeat_are_left_out_of_a_question_unless_all_are():
    assert content_terms("Where does the keeper of the lamp live?") == ["keeper", "lamp", "live"]
    assert "什么" not in content_terms("灯塔是什么？")
    assert content_terms("Who is it?") == ["who", "is", "it"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("It was directed by Ilse Varga.", "Ilse Varga"),
        ("It is called “Harbour of Glass” there.", "“Harbour of Glass”"),
        ("Raise a GraphRecursionError here.", "GraphRecursionError"),
        ("See max_attempts for that.", "max_attempts"),
        ("《玻璃港》的导演是林晓岚。", "林晓岚"),
    ],
)
def test_names_are_people_titles_and_identifiers(text, name):
    assert name in names(text)


@pytest.mark.parametrize(
    "text",
    [
        "the light-\nhouse kee-\nper Jürgen",
        "the light\u2010 \r\n  house kee\u00ad\nper Jürgen",
        "the light\u00adhouse kee\u200bper Ju\u0308rgen",
        "\ufeffthe ｌｉｇｈｔｈｏｕｓｅ keeper\u2060 Jürgen",
        "the light\u200chouse keeper Jürgen",
    ],
)
def test_one_word_has_one_term_however_it_is_broken_or_encoded(text):
    assert set(terms("the lighthouse keeper Jürgen")) <= set(terms(text))


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("حَارِسُ المَنَـــارَةِ", "حارس المنارة"),
        ("\ufea3\ufe8e\ufead\ufeb1", "حارس"),
        ("שׁוֹמֵר הַמִּגְדַּלּוֹר", "שומר המגדלור"),
        ("ｶﾀｶﾅ", "カタカナ"),
        ("𝐤𝐞𝐞𝐩𝐞𝐫", "keeper"),
        ("Фёдор Ёлкин", "Федор Елкин"),
    ],
)
def test_points_and_forms_of_letters_make_no_other_word(written, plain):
    assert terms(written) == terms(plain)


def test_a_compound_that_is_broken_at_its_own_hyphen_keeps_its_parts():
    assert set(terms("a well-known fact")) <= set(terms("a well-\nknown fact"))


@pytest.mark.parametrize("text", ["from 1990-\n1995", "- one\n- two", "Jean-\nLuc", "x -\ny"])
def test_a_hyphen_that_breaks_no_word_is_left_alone(text):
    assert terms(text) == terms(text.replace("-", " "))
