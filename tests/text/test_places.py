"""Pages, slides, sheets and headings of documents survive their conversion."""

from __future__ import annotations

from documents import write_headed, write_pages, write_sheets, write_slides

from memagent_graph.text import charset
from memagent_graph.text.files import open_source
from memagent_graph.text.source import Location


def place(source, words):
    return source.locate(source.read(0, source.length).index(words))


def test_a_pdf_has_its_pages_also_empty_ones(tmp_path):
    pages = [[(50, 700, "first")], [], [(50, 700, ".1"), (50, 500, "third")], [(50, 700, "last")]]

    source = open_source(write_pages(tmp_path / "a.pdf", pages))

    assert [place(source, words).page for words in ("first", "third", "last")] == [1, 3, 4]
    assert ".1\nthird" in source.text
    assert source.locate(source.length).page == 4


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
    monkeypatch.setattr(charset, "_BLOCK", 16)
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
