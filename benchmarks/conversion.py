"""Compare libraries that convert documents to text: words found, order, seconds, memory.

    python benchmarks/conversion.py FOLDER pdf --with memagent pdftotext pypdfium2 pdfplumber
    python benchmarks/conversion.py FOLDER docx --with memagent pandoc docx2python mammoth

FOLDER has documents of the format, at any depth; those of public repositories were used for
docs/benchmarks.md. Each library converts every file in a process of its own, with a limit
on time per file. A library that is not installed is an error.

The words of a file come from a reference: for PDF what pdftotext prints, for DOCX and PPTX the text
elements of all parts that are shown (a fallback's copy once), for XLSX the cells that are text, as
python-calamine has them (how numbers and days are shown is for tests: these libraries give bare
values), for others what the first library of `--with` finds. *Words* is the share of the
reference's words that a library finds, *order* the share of its pairs of neighbours that are
neighbours in the library's text too, and *worst* the files in which fewer than 99% of the words are
found. Files without words count as neither.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import signal
import subprocess
import sys
import unicodedata
import zipfile
from collections import Counter
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

SECONDS = 30
"""Limit on the time per file, in seconds."""


def pdftotext(path: Path) -> str:
    return _run("pdftotext", "-enc", "UTF-8", path, "-")


def pandoc(path: Path) -> str:
    return _run("pandoc", "--to", "plain", "--wrap", "none", "--track-changes", "accept", path)


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, check=True, timeout=SECONDS)
    return done.stdout.decode("utf-8", "replace")


def memagent(path: Path) -> str:
    from memagent_graph.text.formats import convert

    return convert(path.read_bytes(), path.suffix.lower()).text


def markitdown(path: Path) -> str:
    from markitdown import MarkItDown

    return MarkItDown(enable_plugins=False).convert_local(path).text_content


def pypdfium2(path: Path) -> str:
    import pypdfium2

    pages = pypdfium2.PdfDocument(path)
    return "\f".join(page.get_textpage().get_text_range() for page in pages)


def pypdf(path: Path) -> str:
    from pypdf import PdfReader

    return "\f".join(page.extract_text() for page in PdfReader(path).pages)


def pdfplumber(path: Path) -> str:
    from pdfplumber import open as open_pdf

    with open_pdf(path) as document:
        return "\f".join(page.extract_text() or "" for page in document.pages)


def pdfminer(path: Path) -> str:
    from pdfminer.high_level import extract_text

    return extract_text(path)


def kreuzberg(path: Path) -> str:
    from kreuzberg import extract_file_sync

    return extract_file_sync(path).content


def docx2python(path: Path) -> str:
    from docx2python import docx2python as read

    with read(path) as document:
        return document.text


def mammoth(path: Path) -> str:
    from mammoth import extract_raw_text

    with path.open("rb") as file:
        return extract_raw_text(file).value


def python_docx(path: Path) -> str:
    from docx import Document

    document = Document(path)
    cells = (cell for table in document.tables for row in table.rows for cell in row.cells)
    return "\n".join(part.text for part in (*document.paragraphs, *cells))


def python_pptx(path: Path) -> str:
    from pptx import Presentation

    shapes = (shape for slide in Presentation(path).slides for shape in slide.shapes)
    return "\n".join(shape.text_frame.text for shape in shapes if shape.has_text_frame)


def openpyxl(path: Path) -> str:
    from openpyxl import load_workbook

    sheets = load_workbook(path, read_only=True, data_only=True).worksheets
    rows = (row for sheet in sheets for row in sheet.iter_rows(values_only=True))
    return "\n".join(" ".join(str(cell) for cell in row if cell is not None) for row in rows)


def calamine(path: Path) -> str:
    from python_calamine import CalamineWorkbook

    book = CalamineWorkbook.from_path(path)
    rows = (row for name in book.sheet_names for row in book.get_sheet_by_name(name).to_python())
    return "\n".join(" ".join(map(str, row)) for row in rows)


def markdownify(path: Path) -> str:
    from markdownify import markdownify as convert

    return convert(path.read_bytes().decode("utf-8", "replace"))


def html_to_markdown(path: Path) -> str:
    from html_to_markdown import convert

    return convert(path.read_bytes().decode("utf-8", "replace")).content


def html2text(path: Path) -> str:
    from html2text import html2text as convert

    return convert(path.read_bytes().decode("utf-8", "replace"))


def selectolax(path: Path) -> str:
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(path.read_bytes())
    tree.strip_tags(["script", "style", "template", "noscript", "head"])
    return tree.text(separator=" ")


def striprtf(path: Path) -> str:
    from striprtf.striprtf import rtf_to_text

    return rtf_to_text(path.read_bytes().decode("latin-1"), errors="replace")


LIBRARIES = {
    found.__name__: found
    for found in (
        *(memagent, pdftotext, pandoc, markitdown, kreuzberg),
        *(pypdfium2, pypdf, pdfplumber, pdfminer),
        *(docx2python, mammoth, python_docx, python_pptx, openpyxl, calamine),
        *(markdownify, html_to_markdown, html2text, selectolax, striprtf),
    )
}

OWN = {
    ".docx": re.compile(r"word/(document\d*|header\d*|footer\d*|footnotes|endnotes|comments)\.xml"),
    ".pptx": re.compile(r"ppt/(slides|notesSlides)/[^/]+\.xml"),
}
"""Parts of an archive whose text elements are shown."""


def own_words(path: Path) -> list[str]:
    """Return the words in the text elements of an Office file; a fallback is a copy."""
    from lxml import etree

    found = []
    with zipfile.ZipFile(BytesIO(path.read_bytes())) as archive:
        for name in archive.namelist():
            if OWN[path.suffix.lower()].fullmatch(name):
                tree = etree.fromstring(archive.read(name))
                for copy in tree.iter("{*}Fallback"):
                    copy.clear()
                for paragraph in tree.iter("{*}p"):
                    texts = (
                        (element.text or "") if element.tag.endswith("}t") else " "
                        for element in paragraph.iter("{*}t", "{*}tab", "{*}br", "{*}p")
                        if next(element.iterancestors("{*}p"), element) is paragraph
                    )
                    found += words("".join(texts))
    return found


def text_cells(path: Path) -> list[str]:
    """Return the words of all cells of a workbook that are text."""
    from python_calamine import CalamineError, CalamineWorkbook

    try:
        book = CalamineWorkbook.from_path(path)
        sheets = [book.get_sheet_by_name(name).to_python() for name in book.sheet_names]
    except CalamineError:
        return []
    cells = (cell for rows in sheets for row in rows for cell in row)
    return words("\n".join(cell for cell in cells if isinstance(cell, str)))


def words(text: str) -> list[str]:
    """Return the words of a text, in one form."""
    text = re.sub(r"\xad|[-‐\u2010]\s*[\r\n]+\s*", "", text)
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).lower())


class _SlowError(BaseException):
    pass


def convert_all(name: str, paths: list[Path]) -> None:
    """Convert files with one library; print a record for each."""
    convert = LIBRARIES[name]

    def stop(*_: object) -> None:
        raise _SlowError

    signal.signal(signal.SIGALRM, stop)
    for path in paths:
        signal.alarm(SECONDS)
        start, error, text = perf_counter(), None, ""
        try:
            text = convert(path)
        except _SlowError:
            error = "time"
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - a parser may raise anything
            error = f"{type(failure).__name__}: {failure}"[:200]
        signal.alarm(0)
        seconds = perf_counter() - start
        who = resource.RUSAGE_CHILDREN if convert in {pdftotext, pandoc} else resource.RUSAGE_SELF
        memory = resource.getrusage(who).ru_maxrss / 1024
        record = {"seconds": seconds, "memory": memory, "error": error, "words": words(text)}
        sys.stdout.write(json.dumps(record) + "\n")


def compare(reference: list[str], found: list[str]) -> tuple[int, int, int, int]:
    """Return how many words and pairs of neighbours there are, and how many were found."""
    expected, got = Counter(reference), Counter(found)
    pairs, others = Counter(pairwise(reference)), Counter(pairwise(found))
    return expected.total(), (expected & got).total(), pairs.total(), (pairs & others).total()


def main() -> None:
    """Print a line for each library."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("format")
    parser.add_argument("--with", dest="libraries", nargs="+", choices=LIBRARIES, required=True)
    parser.add_argument("--every", type=int, default=1, help="take every n-th file only")
    parser.add_argument("--show", action="store_true", help="list the files that lack words")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    paths = sorted(asked.folder.rglob(f"*.{asked.format}"))[:: asked.every]
    if asked.child:
        convert_all(asked.libraries[0], paths)
        return
    records = {}
    for library in asked.libraries:
        command = [sys.executable, __file__, asked.folder, asked.format, "--child"]
        command += ["--every", str(asked.every), "--with", library]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        records[library] = [json.loads(line) for line in done.stdout.splitlines()]
    suffix = f".{asked.format}"
    if suffix in OWN:
        references = [_own(path) for path in paths]
    elif suffix == ".xlsx":
        references = [text_cells(path) for path in paths]
    else:
        basis = "pdftotext" if "pdftotext" in records else asked.libraries[0]
        references = [record["words"] for record in records[basis]]
    for library, found in records.items():
        report(library, paths, references, found, show=asked.show)


def _own(path: Path) -> list[str]:
    try:
        return own_words(path)
    except (zipfile.BadZipFile, SyntaxError, KeyError):
        return []


def report(
    library: str,
    paths: list[Path],
    references: list[list[str]],
    records: list[dict[str, Any]],
    *,
    show: bool,
) -> None:
    """Print the figures of one library."""
    sums, few, failed = Counter(), [], []
    for path, reference, record in zip(paths, references, records, strict=False):
        if record["error"]:
            failed.append(f"{path.name}: {record['error']}")
        if not reference:
            continue
        total, got, pairs, kept = compare(reference, record["words"])
        sums.update(total=total, got=got, pairs=pairs, kept=kept)
        if got < 0.99 * total:
            few.append(f"{path.name}: {got} of {total}")
    seconds = sum(record["seconds"] for record in records)
    slowest = max((record["seconds"] for record in records), default=0)
    memory = max((record["memory"] for record in records), default=0)
    sys.stdout.write(
        f"{library:16} {len(records):4} files, words {sums['got'] / max(sums['total'], 1):.4f}, "
        f"order {sums['kept'] / max(sums['pairs'], 1):.4f}, {len(few):3} below 99%, "
        f"{len(failed):3} failed, {seconds:7.1f} s, slowest {slowest:5.1f} s, {memory:5.0f} MB\n"
    )
    if show:
        sys.stdout.write("".join(f"    {line}\n" for line in [*few, *failed]))


if __name__ == "__main__":
    main()
