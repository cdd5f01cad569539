from __future__ import annotations

import gc
import io
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from memagent_graph.errors import (
    EmptyDocumentError,
    MissingDependencyError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    UnreadableSourceError,
)
from memagent_graph.text import charset
from memagent_graph.text.files import open_source
from memagent_graph.text.source import (
    JoinedSource,
    Location,
    TextSource,
    flat_parts,
    parts_with_offsets,
    share_opened,
    skips_of,
)

TEXT = "First line\r\nsecond ‘line’ with é and 漢字 and 👩‍👩‍👧\n\nlast line\0 with a NUL"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that a few hundred bytes cross many block borders."""
    monkeypatch.setattr(charset, "_BLOCK", 64)


def whole(source):
    return source.read(0, source.length + 1)


def write(path: Path, content: str | bytes, encoding: str = "utf-8") -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def test_a_str_is_text_even_when_a_file_has_that_name(tmp_path, monkeypatch):
    write(tmp_path / "secret.txt", "do not read me")
    monkeypatch.chdir(tmp_path)

    with pytest.warns(UserWarning, match="the name of a file"):
        source = open_source("secret.txt")

    assert whole(source) == "secret.txt"
    assert source.uri is None


@pytest.mark.parametrize("given_as", [lambda path: path, lambda path: {"path": str(path)}])
def test_a_path_is_a_file_and_its_uri_opens_it_again(tmp_path, given_as):
    path = write(tmp_path / "a b é.txt", TEXT)

    source = open_source(given_as(path))
    again = open_source({"uri": source.uri})

    assert whole(source) == whole(again) == TEXT
    assert source.digest == again.digest
    assert source.length == len(TEXT)


GERMAN = "Das Grüne Haus gehört Frau Müller. Die Miete beträgt 950 Euro.\n"
JAPANESE = "灯台守の名前は織田武です。\n"
KOREAN = "등대지기의 이름은 김철수입니다.\n"
POLISH = "Latarnik nazywa się Łukasz Żółć i mieszka w Gdyni przy porcie.\n"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        *((name, TEXT) for name in ("utf-8", "utf-8-sig", "utf-16", "utf-32")),
        ("cp1252", "Der Käfer läuft über die Brücke, naïve Gäste grüßen schön. " * 20),
        ("shift_jis", JAPANESE),
        ("euc_jp", JAPANESE),
        ("iso2022_jp", JAPANESE),
        ("gb18030", "灯塔看守人的名字是王海涛。\n"),
        ("hz", "Lease 7\n甲方是王伟，月租金为八百五十欧元。~\n"),
        ("big5", "燈塔看守人的名字是王海濤。\n"),
        ("euc_kr", KOREAN),
        ("iso2022_kr", KOREAN),
        ("iso-8859-2", POLISH),
        ("cp1250", POLISH * 40),
        ("koi8-r", "Смотритель маяка Иван Петров.\n"),
        ("cp1256", "حارس المنارة هو أحمد\n"),
        ("cp437", GERMAN),
        ("utf-16-le", GERMAN),
        ("utf-16-be", POLISH),
    ],
)
def test_a_short_file_in_an_old_encoding_is_read_as_what_it_is(tmp_path, encoding, text):
    assert whole(open_source(write(tmp_path / "f.txt", text, encoding))) == text


def test_a_guessed_encoding_is_named_in_a_warning_and_can_be_given(tmp_path):
    path = write(tmp_path / "f.txt", GERMAN, "latin-1")

    guessed, given = open_source(path), open_source(path, encoding="iso-8859-15")
    wrong = open_source(path, encoding="cp437")

    assert "f.txt was read as windows-1252, which is a guess" in guessed.warnings[0]
    assert given.warnings == ()
    assert whole(given) == GERMAN
    assert whole(wrong) == GERMAN.encode("latin-1").decode("cp437")
    assert wrong.digest != given.digest
    assert whole(open_source({"uri": wrong.uri})) == whole(wrong)
    assert whole(open_source(GERMAN.encode("cp437"), encoding="cp437")) == GERMAN


def test_the_encoding_of_a_program_is_not_guessed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "chardet", None)

    with pytest.raises(UnreadableSourceError, match="binary"):
        open_source(write(tmp_path / "module.pyc", b"\xcb\r\r\n\0\x1b$\xff" * 50))


def test_an_encoding_that_there_is_not_and_one_for_a_folder_are_refused(tmp_path):
    path = write(tmp_path / "f.txt", GERMAN)

    with pytest.raises(SourceError, match="no encoding 'klingon': name a Python codec"):
        open_source(path, encoding="klingon")
    with pytest.raises(SourceError, match="for one text file"):
        open_source(tmp_path, encoding="cp1252")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.data())
def test_windows_of_a_file_are_slices_of_its_text(tmp_path_factory, text, data):
    text = "begin " + text.replace("\0", "") + " end" * 30
    source = open_source(write(tmp_path_factory.mktemp("t") / "f.txt", text))
    start = data.draw(st.integers(0, len(text)))
    size = data.draw(st.integers(0, len(text)))

    assert source.read(start, size) == text[start : start + size]
    assert source.locate(start).line == text.count("\n", 0, start) + 1


def test_wrong_bytes_in_utf8_are_marked_and_counted_and_the_rest_is_kept(tmp_path):
    content = ("Good text, naïve and 漢字. " * 200).encode()

    source = open_source(write(tmp_path / "f.txt", content + b"\xff\xfe bad" + content))

    assert source.invalid == 2
    assert whole(source) == (content.decode() + "\ufffd\ufffd bad" + content.decode())


BINARIES = {"elf": b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 4, "zeros": b"\0\xff" * 50}
REFUSED = [
    *(
        (content, EmptyDocumentError, None)
        for content in ("", " \n", [], [""], b"", io.StringIO(""))
    ),
    (lambda folder: write(folder / "blank.txt", " \n \n"), EmptyDocumentError, r"blank\.txt"),
    *(
        (
            lambda folder, content=content: write(folder / "f", content),
            UnreadableSourceError,
            "binary",
        )
        for content in BINARIES.values()
    ),
    (lambda folder: folder / "none.txt", SourceNotFoundError, "none"),
    (lambda folder: folder / "*.none", SourceNotFoundError, "none"),
    ({"notes": "word " * 10_000}, SourceError, r"not {'notes': 'word.{,100}$"),
    (7, SourceError, "not int"),
    ({"uri": "http://example.org/x"}, SourceError, "http"),
]


@pytest.mark.parametrize(("document", "error", "says"), REFUSED)
def test_what_cannot_be_read_is_refused_with_what_is_wrong(tmp_path, document, error, says):
    document = document(tmp_path) if callable(document) else document

    with pytest.raises(error, match=says):
        open_source(document)


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "sub").mkdir()
        (tmp_path / ".hidden").mkdir()
        write(tmp_path / "b.txt", "second file\nwith two lines")
        write(tmp_path / "sub" / "a.md", "third file")
        write(tmp_path / "a.txt", "first file")
        write(tmp_path / ".secret", "hidden")
        write(tmp_path / ".hidden" / "x.txt", "hidden")
        write(tmp_path / "image.png", b"\x89PNG\0\0" + b"\xff" * 50)
        (tmp_path / "loop").symlink_to(tmp_path)
        return tmp_path

    def test_its_text_files_are_read_in_order_each_introduced_by_its_name(self, folder):
        source = open_source(folder)

        text = whole(source)
        order = ["a.txt", "first file", "b.txt", "second file", "sub/a.md", "third file"]
        assert sorted(order, key=text.index) == order
        assert "hidden" not in text
        assert len(skips_of(source)) == 4
        assert source.length == len(text)
        place = source.locate(text.index("with two lines"))
        assert place == Location(f"{folder.name}/b.txt", 2)
        assert source.locate(text.index("third")).name == f"{folder.name}/sub/a.md"

    def test_it_opens_again_by_uri_with_the_same_digest_until_a_file_changes(self, folder):
        source = open_source(folder)
        same = open_source({"uri": source.uri}).digest
        write(folder / "a.txt", "first file, changed")

        assert same == source.digest
        assert open_source(folder).digest != source.digest

    def test_a_glob_takes_what_matches(self, folder):
        *all_but_sub, _ = (part.name for part in open_source(folder).parts)

        assert [part.name for part in open_source(folder / "*.txt").parts] == all_but_sub

    def test_links_that_lead_out_of_it_are_left_out_and_counted(self, folder, tmp_path_factory):
        outside = tmp_path_factory.mktemp("outside")
        write(outside / "key.txt", "the private key")
        (folder / "notes.txt").symlink_to(outside / "key.txt")
        (folder / "more").symlink_to(outside)
        (folder / "sub" / "inner.txt").symlink_to(folder / "a.txt")

        for path, skipped in ((folder, 6), (folder / "*.txt", 1), (folder / "*" / "*.txt", 2)):
            source = open_source(path)
            assert "private" not in whole(source)
            assert len(skips_of(source)) == skipped
        assert whole(open_source(folder)).count("first file") == 2

    def test_links_to_what_is_hidden_in_it_are_left_out(self, folder):
        (folder / "shown.txt").symlink_to(folder / ".secret")
        (folder / "shown").symlink_to(folder / ".hidden")

        for path in (folder, folder / "*.txt", folder / "*" / "*.txt"):
            assert "\nhidden" not in whole(open_source(path))
        for named in (folder / ".hid*" / "*.txt", folder / "shown.txt"):
            assert "hidden" in whole(open_source(named))

    def test_pipes_in_it_are_left_out_and_one_that_is_named_is_refused(self, folder):
        os.mkfifo(folder / "pipe.txt")

        assert "first file" in whole(open_source(folder))
        with pytest.raises(UnreadableSourceError, match="pipe"):
            open_source(folder / "pipe.txt")

    def test_each_skipped_file_is_named_with_the_reason(self, folder, tmp_path_factory):
        outside = write(tmp_path_factory.mktemp("outside") / "key.txt", "the private key")
        (folder / "notes.txt").symlink_to(outside)
        write(folder / "blank.txt", " \n")
        write(folder / "old.txt", GERMAN, "latin-1")
        reasons = {
            ".hidden": "it is hidden.",
            ".secret": "it is hidden.",
            "blank.txt": "it is empty or only white space.",
            "image.png": "it is a picture of less than 4 KiB, as icons are.",
            "loop": "it is a link to a folder, which is not entered.",
            "notes.txt": "it is a link out of the folder, or to a hidden file.",
        }

        warnings = open_source(folder).warnings

        skipped = [line for line in warnings if line.startswith("skipped ")]
        for line, (name, reason) in zip(skipped, reasons.items(), strict=True):
            assert line.startswith(f"skipped {folder.name}/{name}: {reason}")
        assert "old.txt was read as windows-1252" in str(set(warnings) - set(skipped))

    @pytest.mark.skipif(os.geteuid() == 0, reason="an administrator may read every folder")
    def test_a_folder_without_permission_is_named(self, folder):
        (folder / "sub").chmod(0)

        assert f"{folder.name}/sub: no permission to read" in str(open_source(folder).warnings)
        with pytest.raises(UnreadableSourceError, match="no permission to read the folder"):
            open_source(folder / "sub")

    def test_many_files_of_a_kind_that_is_no_document_are_counted(self, tmp_path):
        write(tmp_path / "code.py", "import os")
        for number in range(5):
            (tmp_path / f"{number}.pyc").write_bytes(bytes(range(256)))
            write(tmp_path / f"{number}.empty", "")
        for number in range(3):
            (tmp_path / f"{number}.PNG").write_bytes(bytes(range(256)))
        source = open_source(tmp_path)

        binary = [line for line in source.warnings if "binary" in line or "icons" in line]
        assert [line.split(":")[0].rpartition("/")[2] for line in binary] == [
            *("0.PNG", "1.PNG", "2.PNG"),
            "skipped 5 .pyc files",
        ]
        assert "skipped 5 .empty files: they are empty." in source.warnings
        assert len(skips_of(source)) == 13

    def test_one_whose_files_have_no_text_is_not_read_as_if_it_had(self, tmp_path):
        for number in range(12):
            write(tmp_path / f"{number:02}.txt", "\n\f ")

        with pytest.raises(UnreadableSourceError, match="00.txt: it is empty.* and 2 other files"):
            open_source(tmp_path)
        with pytest.raises(EmptyDocumentError, match="00.txt: it is empty"):
            open_source(sorted(tmp_path.iterdir()))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("block", [7, 1 << 18])
def test_a_line_ends_with_any_of_the_three_ends(tmp_path, monkeypatch, end, block):
    monkeypatch.setattr("memagent_graph.text.charset._BLOCK", block)
    lines = ["# Lease", "", "Ann signed on Monday.", "", "## Rent", "It is 900."]
    path = write(tmp_path / "a.md", end.join(lines))

    for source in (open_source(path), open_source(end.join(lines))):
        text = whole(source)
        for number, line in enumerate(lines, 1):
            assert line == "" or source.locate(text.index(line)).line == number
    found = open_source(path)
    assert found.locate(whole(found).index("It is")).heading == "Rent"


def test_a_list_is_all_of_its_items_with_a_uri_if_each_has_one(tmp_path):
    paths = [write(tmp_path / name, name * 3) for name in ("b.txt", "a.txt")]

    source = open_source(paths)
    mixed = open_source([paths[0], "some text"])

    assert whole(source).index("b.txtb") < whole(source).index("a.txta")
    assert whole(open_source({"uri": source.uri})) == whole(source)
    assert mixed.uri is None


def test_a_generator_of_documents_keeps_their_sources():
    texts = ("Ann signed.", "Odo left.")

    opened = open_source(Document(text, metadata={"source": text[:3]}) for text in texts)

    assert [(part.name, part.text) for part in opened.parts] == [
        ("Ann", "Ann signed."),
        ("Odo", "Odo left."),
    ]


@pytest.mark.parametrize(
    "stream",
    [io.StringIO(TEXT), io.BytesIO(TEXT.encode()), (line for line in TEXT.splitlines(True))],
)
def test_a_stream_is_read_once_and_its_copy_goes_with_the_source(stream):
    source = open_source(stream)
    path = source._path

    assert whole(source) == TEXT
    assert source.uri is None
    del source
    gc.collect()
    assert not path.exists()


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path):
    path = write(tmp_path / "f.txt", "some text " * 50)
    source = open_source(path)
    write(path, "other text " * 50)

    with pytest.raises(SourceChangedError, match=r"f\.txt"):
        source.read(0, 10)


def test_html_is_converted_and_without_the_extra_the_error_names_it(tmp_path, monkeypatch):
    path = write(tmp_path / "page.html", "<html><body><h1>Title</h1><p>Text.</p></body></html>")

    source = open_source(path)
    assert whole(source) == whole(open_source({"uri": source.uri})) == "# Title\n\nText."

    monkeypatch.setitem(sys.modules, "selectolax", None)
    with pytest.raises(MissingDependencyError, match=r"memagent-graph\[documents\]"):
        open_source(path)


def nest(texts):
    """A source of the texts; lists of them become sources joined from others."""
    if isinstance(texts, str):
        return TextSource(texts)
    return JoinedSource([nest(one) for one in texts], "joined")


NESTED = st.deferred(lambda: st.text("ab", max_size=4) | st.lists(NESTED, max_size=4))


@given(NESTED, st.integers(0, 200), st.integers(0, 200))
def test_parts_between_two_offsets_are_those_of_all_that_are_there(texts, one, other):
    source, (start, end) = nest(texts), sorted((one, other))

    every = [*parts_with_offsets(source)]
    found = [*parts_with_offsets(source, start, end)]

    assert [part for part, _ in every] == [*flat_parts(source)]
    assert all(source.read(begin, part.length) == part.text for part, begin in every)
    there = [(part, at) for part, at in every if at < end and start < at + part.length]
    assert [pair for pair in found if pair in there] == there
    assert [pair for pair in every if pair in found] == found


def test_documents_that_were_skipped_or_lost_parts_lower_the_share_that_was_opened(tmp_path):
    (tmp_path / "a.txt").write_text("Ann signed.")
    (tmp_path / ".hidden").write_text("Nobody reads this.")

    assert share_opened(open_source(tmp_path)) == 1

    (tmp_path / "b.docx").write_bytes(b"PK broken")
    torn = open_source("Odo signed.")
    torn.lost = 0.5

    assert share_opened(open_source(tmp_path)) == 1 / 2
    assert share_opened(open_source([tmp_path, torn])) == 1.5 / 3
