from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.text import source
from memagent_graph.text.source import Headings, TextSource

LINES = st.sampled_from(
    ["# One", "## Two ##", "text", "", "#no", "```", "~~~~", "    # code", "# C#", "```py", "\t# x"]
)


def headings(text):
    return Headings(TextSource(text))


def test_the_nearest_heading_above_is_found_and_its_own_line_belongs_to_it():
    text = "before\n# One\nfirst\r\n## Two ##\r\nsecond"
    found = headings(text)

    said = [found.above(text.index(word)) for word in ("before", "# One", "first", "Two", "second")]

    assert said == [None, "One", "One", "Two", "Two"]
    assert found.above(text.index("second"), since=text.index("first")) == "Two"
    assert found.above(text.index("first"), since=text.index("first")) is None


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# One", "One"),
        ("   ###### Deep", "Deep"),
        ("# C#", "C#"),
        ("# C #", "C"),
        ("#\ttab", "tab"),
        ("####### seven", None),
        ("    # code", None),
        ("#hashtag", None),
        ("# ", None),
        ("text # no", None),
        ("# 第一章", "第一章"),
        ("# " + "x" * 5000, "x" * 200),
    ],
)
def test_a_heading_is_what_markdown_takes_for_one(line, title):
    assert headings(f"{line}\ntext").above(len(line) + 1) == title


def test_a_comment_in_code_is_no_heading():
    text = "# One\n```sh\n# comment\n~~~\n# comment\n``` no end\n````\nafter\n# Two\n"
    found = headings(text)

    assert found.above(text.index("after")) == "One"
    assert found.above(len(text)) == "Two"


@given(st.lists(LINES, min_size=1).map("\n".join), st.integers(10, 40))
def test_a_text_in_pieces_has_the_headings_of_the_whole(text, size):
    whole = headings(text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(source, "_WINDOW", size)
        pieced = headings(text)

    assert [whole.above(at) for at in range(len(text))] == [
        pieced.above(at) for at in range(len(text))
    ]
