"""Pages, slides, sheets and headings of documents survive their conversion."""

from __future__ import annotations

from itertools import zip_longest
from textwrap import wrap

import pytest
from documents import write_headed, write_pages, write_sheets, write_slides
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent_graph.text import files
from memagent_graph.text.converter import ConvertedSource
from memagent_graph.text.files import open_source
from memagent_graph.text.source import Location

FORM = [
    (x, 700 - 20 * row, f"cell{row}{column}")
    for row in range(6)
    for column, x in enumerate((50, 200, 350, 500))
]


def place(source, words):
    return source.locate(source.read(0, source.length).index(words))


LEFT = """The landlord of the mill is Anna Bell of Husum, who bought it in 1998 from the estate
of Otto Brandt and let it to Tom King from the first of May 2003 at a rent of 900 euros, paid
monthly in advance on the third working day of each month, by transfer."""
RIGHT = """The tenant keeps the garden in good order. Dogs are not allowed in the house, but cats
are, and so are birds. The deposit is 1,800 euros and bears interest. Either side may end the
lease with notice of six months before the end of a quarter, in writing."""
CELLS = ["Duty of the landlord", "in the first year", "Repairs of the roof", "and of the walls"]
CELLS += ["Notice by the tenant", "and by the landlord", "Rent of the garage", "with its cellar"]
ITEMS = ["Rent", "Deposit", "Garage", "Heating", "Water", "Power", "Garden"]


def write_rows(path, left, right, *, above="", below=""):
    """A page of two columns that is drawn row by row, between two lines as wide as both."""
    rows = [*zip_longest(left, right, fillvalue="")]
    drawn = [(x, 700 - 12 * at, row[x > 72]) for at, row in enumerate(rows) for x in (72, 320)]
    texts = [(72, 720, above), *drawn, (72, 690 - 12 * len(rows), below)]
    return write_pages(path, [[one for one in texts if one[2]]])


@pytest.mark.parametrize("more", [0, 3])
def test_two_columns_of_prose_that_are_drawn_row_by_row_are_read_one_by_one(tmp_path, more):
    left, right = wrap(LEFT, 44), wrap(" ".join([RIGHT, LEFT][: 1 + bool(more)]), 44)
    wide = "This agreement is made between Anna Bell of Husum and Tom King of Kiel in the north."

    page = write_rows(tmp_path / "a.pdf", left, right, above=wide, below=wide + " End")
    text = open_source(page).read(0, 4000)

    assert text.split() == " ".join([wide, *left, *right, wide, "End"]).split()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (ITEMS, [f"{price} euros" for price in range(900, 907)]),
        ([one.lower() for one in ITEMS], [f"{at} {one}" for at, one in enumerate(CELLS[:7])]),
        (CELLS, [one.replace(" the ", " our ") for one in CELLS]),
        (["Duty", "", "", "Repairs", "", "", "Notice"], wrap(RIGHT, 30)[:9]),
    ],
    ids=["prices", "keys", "cells of two lines", "keys and prose"],
)
def test_a_table_of_two_columns_is_read_row_by_row(tmp_path, left, right):
    text = open_source(write_rows(tmp_path / "a.pdf", left, right)).read(0, 4000)

    rows = zip_longest(left, right, fillvalue="")
    assert text.split() == " ".join(map(" ".join, rows)).split()


def test_a_pdf_has_its_pages_also_empty_ones(tmp_path):
    pages = [[(50, 700, "first")], [], [(50, 700, ".1"), (50, 500, "third")], [(50, 700, "last")]]

    source = open_source(write_pages(tmp_path / "a.pdf", pages))

    assert [place(source, words).page for words in ("first", "third", "last")] == [1, 3, 4]
    assert ".1\nthird" in source.text
    assert source.locate(source.length).page == 4


def test_a_pdf_with_forms_has_its_pages(tmp_path):
    pages = [[(50, 700, "A plain page.")], [], FORM, [(50, 700, "# the last page")]]

    source = open_source(write_pages(tmp_path / "a.pdf", pages))

    assert "cell00 cell01 cell02 cell03\n" in source.text
    assert [place(source, words).page for words in ("plain", "cell00", "cell53", "last")] == [
        1,
        3,
        3,
        4,
    ]
    assert place(source, "last").heading is None


def test_slides_are_pages_and_a_heading_is_of_the_same_slide(tmp_path):
    slides = [("Plans", "grow"), (None, "<!-- Slide number: 9 -->\nshrink"), ("End", "thanks")]

    source = open_source(write_slides(tmp_path / "a.pptx", slides))

    assert place(source, "grow")[2:] == (1, "Plans")
    assert place(source, "shrink")[2:] == (2, None)
    assert place(source, "thanks")[2:] == (3, "End")


def test_sheets_are_pages_and_their_names_are_headings(tmp_path):
    sheets = {"Costs": [["rent"], ["12\n## Forged"]], "My Income": [["lease"], ["34"]]}

    source = open_source(write_sheets(tmp_path / "a.xlsx", sheets))

    assert place(source, "rent")[2:] == place(source, "Forged")[2:] == (1, "Costs")
    assert place(source, "lease")[2:] == place(source, "34")[2:] == (2, "My Income")


def test_headings_of_word_documents_are_found(tmp_path):
    parts = [(0, "Preface."), (1, "Lease"), (0, "Signed."), (3, "Rent"), (0, "Paid.")]

    source = open_source(write_headed(tmp_path / "a.docx", parts))

    assert place(source, "Preface") == Location(source.name, 1)
    assert place(source, "Signed")[2:] == (None, "Lease")
    assert place(source, "Paid")[2:] == (None, "Rent")


def test_headings_of_web_pages_and_of_markdown_files_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK", 16)
    page, text = tmp_path / "a.html", tmp_path / "a.md"
    page.write_text("<h1>Title</h1><p>Body.</p><pre># comment</pre><h2>Next</h2><p>More.</p>")
    text.write_text("intro\n# The Title of it\nBody.\n```\n# comment\n```\nMore. " * 3)

    for source in map(open_source, (page, text)):
        for number in range(source.length):
            assert source.locate(number).heading != "comment"
    assert place(open_source(page), "Body").heading == "Title"
    assert place(open_source(page), "More").heading == "Next"
    assert place(open_source(text), "intro").heading is None
    assert place(open_source(text), "More").heading == "The Title of it"


def test_a_text_file_has_no_headings(tmp_path):
    (tmp_path / "a.txt").write_text("# a comment\ncode")

    assert open_source(tmp_path / "a.txt").locate(14).heading is None


def test_places_in_a_folder_are_those_of_its_files(tmp_path):
    write_headed(tmp_path / "a.docx", [(1, "Lease"), (0, "Signed.")])
    write_pages(tmp_path / "b.pdf", [[(50, 700, "one")], [(50, 700, "two")]])
    (tmp_path / "c.txt").write_text("plain")

    source = open_source(tmp_path)

    name = tmp_path.name
    assert place(source, "Signed") == Location(f"{name}/a.docx", 3, None, "Lease")
    assert place(source, "two") == Location(f"{name}/b.pdf", 3, 2)
    assert place(source, "===== ") == Location(f"{name}/a.docx", 1)
    assert place(source, "plain") == Location(f"{name}/c.txt", 1)


@given(st.lists(st.integers(0, 12), min_size=1))
@settings(max_examples=30)
def test_the_page_of_an_offset_is_the_last_that_begins_before_it(lengths):
    text, pages = "", []
    for number, length in enumerate(lengths, 1):
        pages.append(len(text))
        text += chr(64 + number) * length + "\f"
    source = ConvertedSource.__new__(ConvertedSource)
    source.name, source.text, source._pages, source._suffix = "a", text, pages, ".pdf"

    for offset, letter in enumerate(text):
        if letter != "\f":
            assert source.locate(offset).page == ord(letter) - 64
