"""Each format is read as what it is: all that it shows, as it shows it."""

from __future__ import annotations

import json
import re
import struct
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from email.message import EmailMessage
from importlib import import_module
from itertools import chain, count
from zipfile import ZipFile

import pytest
from bombs import (
    DOCUMENTS,
    OFFICE,
    PACKAGE,
    WORD,
    write_archive,
    write_docx,
    write_epub,
    write_opendocument,
    write_pdf,
    write_xlsx,
)
from documents import write_pages, write_scan, write_sheets

pytest.importorskip("openpyxl")
pytest.importorskip("pypdfium2")
pytest.importorskip("selectolax")

from hypothesis import given, settings
from hypothesis import strategies as st
from lxml.etree import fromstring
from openpyxl import Workbook
from openpyxl.comments import Comment
from openpyxl.utils.datetime import MAC_EPOCH
from oxmsg.storage import Storage, Stream
from pptx import Presentation
from pypdfium2 import PdfDocument

from memagent_graph.errors import UnreadableSourceError
from memagent_graph.text.conversion import convert
from memagent_graph.text.files import open_source
from memagent_graph.text.mail import read_outlook_storage
from memagent_graph.text.notation import in_style, show_value
from memagent_graph.text.source import skips_of

OUTSIDE = ' TargetMode="External"'
MATH = "http://schemas.openxmlformats.org/officeDocument/2006/math"
TWO = "<m:e><m:t>1</m:t></m:e><m:e><m:t>2</m:t></m:e>"
MOMENT = datetime(2024, 3, 5, 14, 7, 9)  # noqa: DTZ001 - cells have no time zone


def read(path):
    return convert(path.read_bytes(), path.suffix)


def paragraph(text, settings=""):
    return f"<w:p><w:pPr>{settings}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def write_parts(path, body, parts):
    """A DOCX with other parts, each (kind, name, content)."""
    write_docx(path, body)
    links = "".join(
        f'<Relationship Id="r{number}" Type="{OFFICE}/{kind}" Target="{name}"'
        f"{OUTSIDE * (':' in name)}/>"
        for number, (kind, name, _) in enumerate(parts)
    )
    with ZipFile(path, "a") as archive:
        relations = f'<Relationships xmlns="{PACKAGE}/relationships">{links}</Relationships>'
        archive.writestr("word/_rels/document.xml.rels", relations)
        for _, name, content in parts:
            root, _, inner = content.partition(">")
            archive.writestr(f"word/{name}", f'{root} xmlns:w="{WORD}">{inner}')
    return path


FIRST = '<w:start w:val="1"/>'


def level(text, at=0, more=FIRST):
    return f'<w:lvl w:ilvl="{at}">{more}<w:lvlText w:val="{text}"/></w:lvl>'


def override(inner):
    return f'<w:lvlOverride w:ilvl="0">{inner}</w:lvlOverride>'


def number(of_list, at=0):
    level = "" if at is None else f'<w:ilvl w:val="{at}"/>'
    named = f'<w:numId w:val="{of_list}"/>' if of_list else ""
    return f"<w:numPr>{level}{named}</w:numPr>"


def style(name, settings, base=""):
    based = f'<w:basedOn w:val="{base}"/><w:pPr>{settings}</w:pPr>'
    return f'<w:style w:styleId="{name}">{based}</w:style>'


def of(style):
    return f'<w:pStyle w:val="{style}"/>'


START = '<w:startOverride w:val="5"/>'


GREEK = '<w:rFonts w:ascii="Symbol"/>'


def run(text, settings=""):
    return f'<w:r><w:rPr>{settings}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def field(kind):
    return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'


class TestWord:
    def test_headers_footers_notes_and_comments_are_read(self, tmp_path):
        reference = f'xmlns:r="{OFFICE}" r:id='
        body = (
            f"{paragraph('The contract.')}<w:p><w:r><w:t>Rent</w:t></w:r>"
            '<w:footnoteReference w:id="2"/>'
            f'</w:p><w:sectPr><w:headerReference {reference}"r0"/>'
            f'<w:footerReference {reference}"r1"/></w:sectPr>'
        )
        note = f'<w:footnote w:id="2">{paragraph("Cold.")}</w:footnote>'
        comment = f'<w:comment w:id="0" w:author="Ann">{paragraph("Too high.")}</w:comment>'
        parts = [
            ("header", "h.xml", f"<w:hdr>{paragraph('Case 77')}</w:hdr>"),
            ("footer", "f.xml", f"<w:ftr>{paragraph('Secret')}</w:ftr>"),
            ("footnotes", "n.xml", f"<w:footnotes>{note}</w:footnotes>"),
            ("comments", "c.xml", f"<w:comments>{comment}</w:comments>"),
        ]

        found = read(write_parts(tmp_path / "a.docx", body, parts))

        assert found.text.split("\n\n") == [
            *("Case 77", "The contract.", "Rent[^1]", "Secret"),
            *("[^1]: Cold.", "[comment 0]: Ann: Too high."),
        ]

    def test_boxes_tables_and_changes_are_read_once_and_what_was_deleted_is_not(self, tmp_path):
        box = f"<w:txbxContent>{paragraph('The deposit is 900.')}</w:txbxContent>"
        cell = "<w:tc>{}</w:tc>"
        body = (
            '<w:p><w:r><mc:AlternateContent xmlns:mc="m"><mc:Choice>'
            f"{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent></w:r>"
            "<w:ins><w:r><w:t>Paid</w:t></w:r></w:ins><w:del><w:r><w:delText>Owed</w:delText></w:r>"
            f"</w:del></w:p><w:tbl><w:tr>{cell.format(paragraph('a|b'))}"
            f"{cell.format(paragraph('n'))}</w:tr><w:tr>{cell.format(paragraph('1'))}"
            f"{cell.format('<w:p/>')}</w:tr></w:tbl>"
        )

        text = read(write_docx(tmp_path / "a.docx", body)).text

        assert text == ("Paid\n\nThe deposit is 900.\n\n| a\\|b | n |\n| --- | --- |\n| 1 |  |")

    @pytest.mark.parametrize(
        ("levels", "paragraphs", "shown", "more"),
        [
            (
                level("§ %1", 0, '<w:start w:val="3"/>')
                + level("%1.%2)", 1, '<w:start w:val="1"/><w:numFmt w:val="lowerLetter"/>'),
                [number(1), number(1, 1), number(1, 1), number(1), number(1, 1)],
                "§ 3 | 3.a) | 3.b) | § 4 | 4.a) ",
                {},
            ),
            (
                level("%1."),
                [number(1), number(2), number(2)],
                "1. | 5. | 6. ",
                {"other": override(START)},
            ),
            (
                level("%1."),
                [number(2)] * 2,
                "Step 1 | Step 2 ",
                {"other": override(level("Step %1"))},
            ),
            (
                level("%1.") + level("%1.%2", 1),
                [of("A"), of("B"), of("B")],
                "1. | 1.1 | 1.2 ",
                {"styles": style("A", number(1)) + style("B", number(None, 1), "A")},
            ),
            (
                level("%1.") + level("%1.%2", 1, f'{FIRST}<w:pStyle w:val="B"/>'),
                [of("A"), of("B")],
                "1. | 1.1 ",
                {"styles": style("A", number(1, None)) + style("B", number(1, None))},
            ),
            (
                level("%1.", 0, f'{FIRST}<w:numFmt w:val="upperRoman"/>')
                + level("%1.%2", 1, f"{FIRST}<w:isLgl/>"),
                [number(1), number(1), number(1, 1)],
                "I. | II. | 2.1 ",
                {},
            ),
            (
                level("%1.") + level("(%2)", 1, f'{FIRST}<w:lvlRestart w:val="0"/>'),
                [number(1), number(1, 1), number(1), number(1, 1)],
                "1. | (1) | 2. | (2) ",
                {},
            ),
            (
                level("%1.", 0, f'{FIRST}<x><w:numFmt w:val="custom" w:format="001, 002"/></x>'),
                [number(1), f"{number(1)}<w:empty/>", number(1)],
                "001. | 003. ",
                {},
            ),
            (level("§ %1") + level("%1.%2", 1), [number(3), number(3, 1)], "§ 1 | 1.1 ", {}),
            (
                level("%1.", 0, "") + level("%1.%2", 1) + level("%1.%2.%3", 2),
                [number(1), number(1, 2), number(1, 1)],
                "0. | 0.1.1 | 0.2 ",
                {},
            ),
        ],
        ids=[
            *("a start", "another start", "another text", "levels of styles", "styles of levels"),
            *("Roman and legal", "no restart", "zeros and an empty item", "a link to a style"),
            "no start, and a level that is passed over",
        ],
    )
    def test_lists_are_numbered_as_they_are_shown(self, tmp_path, levels, paragraphs, shown, more):
        of_first = '<w:abstractNumId w:val="1"/>'
        numbering = (
            f'<w:numbering><w:abstractNum w:abstractNumId="1"><w:styleLink w:val="L"/>{levels}'
            '</w:abstractNum><w:abstractNum w:abstractNumId="2"><w:numStyleLink w:val="L"/>'
            f'</w:abstractNum><w:num w:numId="1">{of_first}</w:num>'
            f'<w:num w:numId="2">{of_first}{more.get("other", "")}</w:num>'
            '<w:num w:numId="3"><w:abstractNumId w:val="2"/></w:num></w:numbering>'
        )
        parts = [
            ("numbering", "n.xml", numbering),
            ("styles", "s.xml", f"<w:styles>{more.get('styles', '')}</w:styles>"),
        ]
        said = [("" if "empty" in settings else "x", settings) for settings in paragraphs]
        body = "".join(paragraph(*one) for one in said)

        text = read(write_parts(tmp_path / "a.docx", body, parts)).text

        assert text.replace("x", "").split("\n\n") == shown.split("| ")

    @pytest.mark.parametrize(
        ("style", "shown"),
        [
            ("lowerLetter", "a z aa"),
            ("upperRoman", "I XXVI XXVII"),
            ("ordinal", "1st 26th 27th"),
            ("numberInDash", "- 1 - - 26 - - 27 -"),
            ("decimalEnclosedCircle", "① 26 27"),
            ("chineseCounting", "一 二十六 二十七"),
            ("russianLower", "а ы э"),
            ("unknown", "1 26 27"),
        ],
    )
    def test_numbers_of_lists_have_their_style(self, style, shown):
        assert " ".join(in_style(count, style) for count in (1, 26, 27)) == shown

    def test_what_is_ticked_or_chosen_in_a_form_is_read(self, tmp_path):
        chosen = '<w:result w:val="1"/><w:listEntry w:val="a"/><w:listEntry w:val="b"/>'
        fields = (
            '<w:checkBox><w:default w:val="0"/><w:checked/></w:checkBox>',
            '<w:checkBox><w:default w:val="0"/></w:checkBox>',
            f"<w:ddList>{chosen}</w:ddList>",
        )
        body = "".join(
            f'<w:fldChar w:fldCharType="begin"><w:ffData>{field}</w:ffData></w:fldChar>'
            for field in fields
        )
        body += '<w:sym w:font="Wingdings" w:char="F0FE"/>'
        body += '<w:sym w:font="Wingdings 2" w:char="F0A3"/>'
        body += '<w:r><w:rPr><w:rFonts w:hAnsi="Wingdings"/></w:rPr><w:t>\xfc\x81</w:t></w:r>'
        body += '<w:sym w:font="Symbol" w:char="F06D"/>' + run("\uf0b1m\u03b1", GREEK)
        body += run("\xe8 m", '<x:sym xmlns:x="x" typeface="Wingdings"/>')

        assert read(write_docx(tmp_path / "a.docx", f"<w:p>{body}</w:p>")).text == "☒☐b☑☐✓①μ±μα→ m"

    def test_links_have_their_addresses(self, tmp_path):
        said = "<w:r><w:t>here</w:t></w:r>"
        code = '<w:r><w:instrText> HYPERLINK "http://example.org/a" </w:instrText></w:r>'
        drawn = '<x:docPr xmlns:x="x"><x:hlinkClick xmlns:r="r" r:id="r0"/></x:docPr>'
        body = (
            f"<w:p>{field('begin')}{code}{field('separate')}{said}{field('end')}</w:p>"
            f"<w:p><w:fldSimple w:instr='HYPERLINK http://example.org/b'>{said}</w:fldSimple></w:p>"
            f"<w:p>{drawn}</w:p>"
        )
        links = [("hyperlink", "http://example.org/c", "<x>")]

        assert read(write_parts(tmp_path / "a.docx", body, links)).text == (
            "here <http://example.org/a>\n\nhere <http://example.org/b>\n\n<http://example.org/c>"
        )

    @pytest.mark.parametrize(
        ("inner", "text"),
        [
            (run("10") + run("6", '<w:rStyle w:val="Above"/>'), "10^6"),
            (run("10") + run("6 ", '<w:position w:val="8"/>') + run("cells"), "10^6 cells"),
            (run("90", "<w:strike/>") + run("0", "<w:dstrike/>") + run("950"), "~~900~~950"),
            (run("1", '<w:strike w:val="0"/>') + run("2"), "12"),
            (run("90", '<w:rStyle w:val="Out"/>') + run("95"), "~~90~~95"),
            (f'<m:oMathPara xmlns:m="{MATH}">{TWO}</m:oMathPara>', "1\n2"),
            (
                f"<w:ruby><w:rt>{run('kan')}</w:rt><w:rubyBase>{run('漢')}</w:rubyBase></w:ruby>",
                "漢(kan)",
            ),
            ('<w:r><w:pict><v xmlns="v"><textpath string="DRAFT"/></v></w:pict></w:r>', "DRAFT"),
        ],
        ids=[
            "style of a style",
            "place",
            "struck",
            "not struck",
            "a style",
            "formulas",
            "ruby",
            "watermark",
        ],
    )
    def test_what_is_raised_struck_or_drawn_is_read_as_it_is_shown(self, tmp_path, inner, text):
        above = '<w:basedOn w:val="Up"/>'
        up = '<w:rPr><w:vertAlign w:val="superscript"/></w:rPr>'
        styles = (
            f'<w:style w:styleId="Above">{above}</w:style><w:style w:styleId="Up">{up}</w:style>'
            '<w:style w:styleId="Out"><w:rPr><w:strike/></w:rPr></w:style>'
        )
        parts = [("styles", "s.xml", f"<w:styles>{styles}</w:styles>")]

        found = read(write_parts(tmp_path / "a.docx", f"<w:p>{inner}</w:p>", parts))

        assert found.text.strip() == text

    def test_a_formula_in_the_code_of_a_field_is_shown_as_code_and_counted_as_unread(
        self, tmp_path
    ):
        code = "".join(f"<w:instrText>{part}</w:instrText>" for part in ("EQ ", "\\f(1,2)"))
        body = f"<w:p>{run('Take ')}{field('begin')}{code}{field('end')}</w:p>"

        found = read(write_docx(tmp_path / "a.docx", body))

        assert found.text == "Take EQ \\f(1,2)"
        assert found.lost > 0
        assert found.warnings == ("did not read 1 embedded object.",)

    def test_a_row_begins_in_its_column_and_the_signs_of_brackets_are_kept(self, tmp_path):
        cell = "<w:tc>{}</w:tc>"
        root = f"<m:rad><m:deg/>{TWO[:23]}</m:rad>"
        both = f"<m:t>P</m:t><m:d>{TWO}</m:d><m:sSup>{TWO}</m:sSup>{root}"
        stacked = f'<m:f><m:fPr><m:type m:val="noBar"/></m:fPr>{TWO}</m:f><m:f>{TWO}</m:f>'
        table = f"<m:m><m:mr>{TWO}</m:mr></m:m>"
        formula = f'<m:oMath xmlns:m="{MATH}">{both}<m:t>, </m:t>{stacked}{table}</m:oMath>'
        body = (
            f"<w:tbl><w:tr>{cell.format(paragraph('a'))}{cell.format(paragraph('b'))}</w:tr>"
            '<w:tr><w:trPr><w:gridBefore w:val="1"/></w:trPr>'
            f"{cell.format(paragraph('1'))}</w:tr></w:tbl><w:p>{formula}</w:p>"
        )

        text = read(write_docx(tmp_path / "a.docx", body)).text

        assert text == "| a | b |\n| --- | --- |\n|  | 1 |\n\nP(1|2)1^2√1, 1¦2 1/2[1 2]"

    @pytest.mark.parametrize(
        ("name", "settings", "parts", "text"),
        [
            ("acc", "", "x", "x\u0302"),
            ("acc", '<m:chr m:val="\u20d7"/>', "AB", "(AB)\u20d7"),
            ("bar", '<m:pos m:val="top"/>', "x", "x\u0305"),
            ("groupChr", "", "a+b", "(a+b)\u23df"),
            ("nary", '<m:chr m:val="∑"/>', {"sub": "i", "e": "5"}, "∑_i 5"),
            ("borderBox", "<m:strikeH/>", "7", "~~7~~"),
            ("phant", '<m:show m:val="0"/>', "7", ""),
            ("rad", "", {"deg": "3", "e": "8"}, "∛8"),
        ],
    )
    def test_the_signs_around_a_formula_are_read(self, tmp_path, name, settings, parts, text):
        of = parts if isinstance(parts, dict) else {"e": parts}
        inner = "".join(f"<m:{key}><m:t>{said}</m:t></m:{key}>" for key, said in of.items())
        whole = f"<m:{name}><m:{name}Pr>{settings}</m:{name}Pr>{inner}</m:{name}>"
        body = f'<w:p><m:oMath xmlns:m="{MATH}">{whole}</m:oMath></w:p>'

        assert read(write_docx(tmp_path / "a.docx", body)).text == text


PARTS_OF = (
    f'<Relationships xmlns="{PACKAGE}/relationships">'
    f'<Relationship Id="r0" Type="{OFFICE}/{{}}" Target="{{}}"/></Relationships>'
)
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"


@pytest.mark.parametrize("level", ["layout", "master"])
def test_a_slide_has_the_numbers_of_its_layout_and_its_footer_once(tmp_path, level):
    presentation = Presentation()
    layout = presentation.slide_layouts[1]
    place = layout.placeholders[1]._element if level == "layout" else None
    of_master = layout.slide_master._element.find(".//{*}bodyStyle")
    style = of_master if place is None else place.find(".//{*}lstStyle")
    bullet = f'<a:buAutoNum xmlns:a="{DRAWING}" type="arabicPeriod"/>'
    for number in (1, 2) if place is None else (1,):
        old = style.find(f"{{*}}lvl{number}pPr")
        old = fromstring(f'<a:lvl1pPr xmlns:a="{DRAWING}"/>') if old is None else old
        for mark in old.findall("{*}buChar"):
            old.remove(mark)
        old.append(fromstring(bullet))
        style.append(old)
    for number in (1, 2):
        slide = presentation.slides.add_slide(layout)
        slide.placeholders[1].text_frame.text = f"a{number}\nb{number}"
        footer = layout.placeholders[3]._element
        slide.shapes._spTree.append(deepcopy(footer))
        slide.shapes[-1].text_frame.text = "In confidence"
    fixed = deepcopy(slide.shapes[-1]._element)
    fixed.find(".//{*}nvPr").clear()
    fixed.find(".//{*}t").text = "Kiel"
    layout.shapes._spTree.append(fixed)
    presentation.save(tmp_path / "a.pptx")

    text = re.sub("<!-- .* -->", "", read(tmp_path / "a.pptx").text)

    assert text.split() == [
        *("1.", "a1", "2.", "b1", "In", "confidence", "Kiel", "1.", "a2", "2.", "b2")
    ]


def write_slides(path, tree, links=(), parts=(), more=""):
    """A PPTX of one slide; links are (kind, target) with the ids r0, r1 and so on."""
    declared = f'xmlns:a="{DRAWING}" xmlns:p="p" xmlns:r="{OFFICE}"'
    found = "".join(
        f'<Relationship Id="r{number}" Type="{OFFICE}/{kind}" Target="{target}"'
        f"{OUTSIDE if ':' in target else ''}/>"
        for number, (kind, target) in enumerate(links)
    )
    order = '<p:sldIdLst><p:sldId r:id="r0"/></p:sldIdLst>'
    relations = f'<Relationships xmlns="{PACKAGE}/relationships">{{}}</Relationships>'
    to = f'<Relationship Id="r0" Type="{OFFICE}/{{}}" Target="{{}}"/>'
    return write_archive(
        path,
        {
            "_rels/.rels": relations.format(to.format("officeDocument", "ppt/p.xml")),
            "ppt/p.xml": f"<p:presentation {declared}>{order}</p:presentation>",
            "ppt/_rels/p.xml.rels": relations.format(to.format("slide", "s.xml")),
            "ppt/s.xml": (
                f"<p:sld {declared}{more}><p:cSld><p:spTree>{tree}</p:spTree></p:cSld></p:sld>"
            ),
            "ppt/_rels/s.xml.rels": relations.format(found),
            **{f"ppt/{name}": content.format(declared) for name, content in parts},
        },
    )


def line(text, settings="", run=""):
    return f"<a:p>{settings}<a:r><a:rPr>{run}</a:rPr><a:t>{text}</a:t></a:r></a:p>"


def shape_of(*lines, more=""):
    return f"<p:sp><p:cNvPr>{more}</p:cNvPr><p:txBody>{''.join(lines)}</p:txBody></p:sp>"


def test_lists_and_links_of_slides_are_as_they_are_shown_and_a_hidden_slide_is_named(tmp_path):
    def numbered(text, kind, more=""):
        return line(text, f'<a:pPr {more}><a:buAutoNum type="{kind}" startAt="3"/></a:pPr>')

    lines = [
        *(numbered("a", "alphaLcParenR"), numbered("b", "alphaLcParenR")),
        *(numbered("c", "arabicPeriod", 'lvl="1"'), numbered("d", "alphaLcParenR")),
        *(line("e"), numbered("f", "romanUcParenBoth"), numbered("g", "arabicPlain")),
        line("here", run='<a:hlinkClick r:id="r0"/>'),
    ]
    links = [("hyperlink", "http://example.org/a")]
    style = '<a:lstStyle><a:lvl1pPr><a:buAutoNum type="arabicPlain"/></a:lvl1pPr></a:lstStyle>'
    usual = shape_of(style, line("g"), line("h", "<a:pPr><a:buNone/></a:pPr>"))
    click = '<a:hlinkClick r:id="r0"/>'
    tree = shape_of(*lines) + usual + shape_of(line("Pay"), more=click)

    text = read(write_slides(tmp_path / "a.pptx", tree, links, (), ' show="0"')).text

    assert text.strip().split("\n") == [
        *("<!-- Slide number: 1 (hidden) -->", "", "c) a", "d) b", "3. c", "e) d", "e", "(III) f"),
        "3 g",
        *("here <http://example.org/a>", "", "1 g", "h", "", "<http://example.org/a>", "Pay"),
    ]


def test_a_chart_has_all_values_of_its_series_and_notes_have_their_tables(tmp_path):
    def cached(name, values):
        points = "".join(
            f'<c:pt idx="{at}"><c:v>{value}</c:v></c:pt>' for at, value in enumerate(values)
        )
        return f"<c:{name}><c:cache>{points}</c:cache></c:{name}>"

    series = "".join(
        f"<c:ser>{cached('tx', [name])}{cached('cat', ['May', 'June'])}{cached('val', values)}"
        "</c:ser>"
        for name, values in (("Kiel", [5, 5]), ("Bonn", [5, 6]))
    )
    split = line("Re</a:t></a:r><a:r><a:t>nts")
    axis = "<c:title><c:strRef><c:pt><c:v>Euros</c:v></c:pt></c:strRef></c:title>"
    title = f'<c:title xmlns:a="{DRAWING}">{split}</c:title>{axis}'
    cell = f"<a:tc><a:txBody>{line('due')}</a:txBody></a:tc>"
    table = f"<p:graphicFrame><a:tbl><a:tr>{cell}</a:tr></a:tbl></p:graphicFrame>"
    parts = [
        ("c.xml", f'<c:chartSpace xmlns:c="c">{title}{series}</c:chartSpace>'),
        ("n.xml", f"<p:notes {{}}><p:cSld><p:spTree>{table}</p:spTree></p:cSld></p:notes>"),
    ]
    frame = '<p:graphicFrame><c:chart xmlns:c="c" r:id="r0"/></p:graphicFrame>'
    links = [("chart", "c.xml"), ("notesSlide", "n.xml"), ("comments", "m.xml")]
    over = PARTS_OF.format("chartUserShapes", "u.xml")
    parts += [
        ("_rels/c.xml.rels", over),
        ("u.xml", f"<c:userShapes {{}} xmlns:c='c'>{line('Peak')}</c:userShapes>"),
        ("m.xml", f"<p:cmLst {{}}><p:cm>{split}</p:cm></p:cmLst>"),
    ]

    text = read(write_slides(tmp_path / "a.pptx", frame, links, parts)).text

    assert text.strip().split("\n\n")[1:] == [
        "Rents | Euros",
        "|  | May | June |\n| --- | --- | --- |\n| Kiel | 5 | 5 |\n| Bonn | 5 | 6 |",
        *("Peak", "Notes: | due |\n| --- |", "Comment: Rents"),
    ]


def test_a_chart_has_categories_within_categories_and_days(tmp_path):
    def points(*values):
        return "".join(f'<c:pt idx="{at}"><c:v>{value}</c:v></c:pt>' for at, value in values)

    levels = (points((0, "Kiel"), (1, "Husum"), (2, "Bonn")), points((0, "North"), (2, "South")))
    nested = "".join(f"<c:lvl>{level}</c:lvl>" for level in levels)
    days = f"<c:formatCode>yyyy\\-mm\\-dd</c:formatCode>{points((0, '45292.0'))}"
    share = f"<c:formatCode>0%</c:formatCode>{points((0, 0.25))}"
    series = (
        f"<c:ser><c:cat>{nested}</c:cat><c:val>{points((0, 1), (1, 2), (2, 3))}</c:val></c:ser>"
        f"<c:ser><c:cat>{days}</c:cat><c:val>{share}</c:val></c:ser>"
    )
    parts = [("c.xml", f'<c:chartSpace xmlns:c="c">{series}</c:chartSpace>')]
    frame = '<p:graphicFrame><c:chart xmlns:c="c" r:id="r0"/></p:graphicFrame>'

    text = read(write_slides(tmp_path / "a.pptx", frame, [("chart", "c.xml")], parts)).text

    assert re.sub("[| -]+", " ", text.split("\n\n")[1]).split("\n") == [
        *(" Kiel Husum Bonn ", " ", " North South ", " 1 2 3 ", " 2024 01 01 ", " 25% ")
    ]


USUAL = b"http://schemas.openxmlformats.org/spreadsheetml/2006/main"


class TestSheets:
    @pytest.mark.parametrize(
        ("value", "number_format", "shown"),
        [
            (7000123450001, "General", "7000123450001"),
            (1067, "00000", "01067"),
            (2.5, "0", "3"),
            (-2.5, "0.0", "-2.5"),
            (1234567.891, "#,##0.00", "1,234,567.89"),
            (0.5, "#.##", ".5"),
            (0.256, "0.0%", "25.6%"),
            (12000, "0.00E+00", "1.20E+04"),
            (999.99, "0.0E+0", "1.0E+3"),
            (0.00012, "0.0E+0", "1.2E-4"),
            (1234567, '0.0,,"M"', "1.2M"),
            (-3, "0;(0)", "(3)"),
            (0, '0;-0;"-"', "-"),
            (5, '[Red]0" kg"', "5 kg"),
            (12.5, "[$€-407] #,##0.00", "€ 12.50"),
            (5551234567, "(000) 000-0000", "(555) 123-4567"),
            (2.25, "# ?/?", "2.25"),
            (150, '[>=100]"high";"low"', "high"),
            (2.5, 'General" kg"', "2.5 kg"),
            (MOMENT, '[$-411]ggge"年"m"月"', "2024年3月"),
            (50, '[>=100]"high";"low"', "low"),
            (67, "@", "67"),
            (MOMENT, "dd.mm.yyyy", "05.03.2024"),
            (MOMENT, "d mmm yy h:mm AM/PM", "5 Mar 24 2:07 PM"),
            (MOMENT, "yyyy-mm-dd hh:mm:ss", "2024-03-05 14:07:09"),
            (MOMENT, "mm-dd-yy", "3/5/2024"),
            (date(2024, 3, 5), "dddd, d. mmmm", "Tuesday, 5. March"),
            (time(9, 5), "h:mm", "9:05"),
            (timedelta(hours=30, minutes=5), "[h]:mm", "30:05"),
            (time(0, 3, 7), "mm:ss", "03:07"),
            (1e21, "General", "1E+21"),
            (9007199254740993, "0", "9007199254740993"),
            (0.000012, "General", "0.000012"),
            (3.0, "General", "3"),
        ],
    )
    def test_a_value_is_shown_by_its_format(self, value, number_format, shown):
        assert show_value(value, number_format) == shown

    def test_cells_comments_and_formulas_are_as_they_are_shown(self, tmp_path):
        book = Workbook()
        sheet = book.active
        sheet.title = "Accounts"
        for row in (["account", "country", "code"], [7000123450001, "NA", "01067"], [None, "NULL"]):
            sheet.append(row)
        sheet["C3"] = 4109
        sheet["C3"].number_format = "00000"
        sheet["D3"] = "=A2*2"
        sheet["A2"].comment = Comment("closed in May", "Ann")
        book.create_sheet("Empty")
        book.save(tmp_path / "a.xlsx")

        found = read(tmp_path / "a.xlsx")

        assert "| 7000123450001 | NA | 01067 |  |\n|  | NULL | 04109 | =A2*2 |" in found.text
        assert "Comment on A2: closed in May" in found.text
        assert [found.text[start:].split("\n")[0] for start in found.pages] == [
            *("## Accounts", "## Empty")
        ]
        assert found.warnings[0].startswith("did not compute 1 formula")

    @pytest.mark.parametrize(
        ("rename", "namespace"),
        [
            (lambda name: "" if name == "xl/styles.xml" else name, USUAL),
            (lambda name: name.replace("sharedStrings", "SharedStrings"), USUAL),
            (lambda name: name.replace("/", "\\"), USUAL),
            (str, b"http://purl.oclc.org/ooxml/spreadsheetml/main"),
        ],
    )
    def test_a_workbook_that_lacks_styles_or_has_other_names_is_read(
        self, rename, namespace, tmp_path
    ):
        book = Workbook()
        book.active.append([12.5, "Ann_x0020_K."])
        book.active["A1"].number_format = "0.0"
        book.save(tmp_path / "whole.xlsx")
        with ZipFile(tmp_path / "whole.xlsx") as whole, ZipFile(tmp_path / "a.xlsx", "w") as other:
            for name in filter(rename, whole.namelist()):
                other.writestr(rename(name), whole.read(name).replace(USUAL, namespace))

        assert "| 12.5 | Ann K. |" in read(tmp_path / "a.xlsx").text

    def test_hidden_sheets_rows_and_columns_links_and_margins_are_read_in_spite_of_blemishes(
        self, tmp_path
    ):
        book = Workbook()
        sheet = book.active
        for row in (["rent", 900], ["due", 12], ["paid", 7]):
            sheet.append(row)
        sheet["A1"].hyperlink = "http://example.org/a"
        for row in (2, 3):
            sheet.row_dimensions[row].hidden = True
        sheet.column_dimensions["B"].hidden = True
        sheet["C2"] = date(2024, 1, 1)
        sheet["C2"].number_format = "mm-dd-yy"
        sheet.oddHeader.left.text, sheet.oddHeader.left.font = "Page &P of Kiel", "Arial,Bold"
        book.create_sheet("Costs").sheet_state = "veryHidden"
        book.save(tmp_path / "whole.xlsx")
        with ZipFile(tmp_path / "whole.xlsx") as whole, ZipFile(tmp_path / "a.xlsx", "w") as other:
            for name in whole.namelist():
                content = whole.read(name).replace(b'<family val="2"', b'<family val="99"')
                content = content.replace(b'numFmtId="14"', b'numFmtId="31"')  # of East Asia
                other.writestr(name, content.replace(b"<dcterms:created", b"<dcterms:broken"))

        text = read(tmp_path / "a.xlsx").text

        assert text == (
            "## Sheet\n\n| rent <http://example.org/a> | 900 |  |\n| --- | --- | --- |\n"
            "| due | 12 | 2024-01-01 |\n| paid | 7 |  |\n\n"
            "Hidden rows: 2-3.\nHidden columns: B.\n\nPage of Kiel\n\n## Costs (hidden)"
        )

    def test_a_link_of_a_formula_has_its_address_and_a_box_its_tick(self, tmp_path):
        relations = f'<Relationships xmlns="{PACKAGE}/relationships">'
        for number, kind in enumerate(("ctrlProp", "ctrlProp", "drawing")):
            named = f'Id="r{number}" Type="{OFFICE}/{kind}" Target="{number}.xml"'
            relations += f"<Relationship {named}/>"
        of, boxes = f'xmlns:r="{OFFICE}"', ""
        control = "".join(f'<control {of} shapeId="{at}" r:id="r{at}"/>' for at in (0, 1))
        for at in (0, 1):
            boxes += f'<sp><cNvPr id="{at}"/><p><t>box {at}</t></p></sp>'
        cell = '<c t="str"><f>HYPERLINK("http://a.org/x","Pay")</f><v>Pay</v></c>'
        rows = f"<row>{cell}</row></sheetData><controls>{control}</controls><sheetData>"
        with ZipFile(write_xlsx(tmp_path / "a.xlsx", rows), "a") as archive:
            archive.writestr("xl/_rels/s.xml.rels", f"{relations}</Relationships>")
            archive.writestr("xl/0.xml", '<x objectType="CheckBox" checked="Checked"/>')
            archive.writestr("xl/1.xml", '<x objectType="Radio"/>')
            archive.writestr("xl/2.xml", f"<x>{boxes}</x>")

        text = read(tmp_path / "a.xlsx").text

        assert text == "## a\n\n| Pay <http://a.org/x> |\n| --- |\n\n☒ box 0\n\n☐ box 1"

    def test_a_formula_that_cells_share_is_that_of_each(self, tmp_path):
        first = '<row r="1"><c r="A1"><f t="shared" ref="A1:A2" si="0">B1*2</f></c></row>'
        rows = f'{first}<row r="2"><c r="A2"><f t="shared" si="0"/></c></row>'

        text = read(write_xlsx(tmp_path / "a.xlsx", rows)).text

        assert text == "## a\n\n| =B1*2 |\n| --- |\n| =B2*2 |"

    def test_dates_count_from_the_day_that_the_workbook_names(self, tmp_path):
        book = Workbook()
        book.epoch = MAC_EPOCH
        book.active.append([date(2024, 3, 5), time(9, 5)])
        book.save(tmp_path / "a.xlsx")

        assert "| 2024-03-05 | 9:05:00 |" in read(tmp_path / "a.xlsx").text


class TestPdf:
    def test_a_word_that_a_hyphen_breaks_is_whole_and_a_number_keeps_its_hyphen(self, tmp_path):
        lines = [
            (50, 700, "signed by Ann Kes-"),
            (50, 688, "trel, account 1234-"),
            (50, 676, "5678."),
        ]

        text = read(write_pages(tmp_path / "a.pdf", [lines])).text

        assert "Kestrel" in text
        assert "12345678" not in text

    def test_pages_whose_fonts_name_no_letters_are_counted(self, tmp_path):
        codes = "".join(map(chr, range(14, 28)))
        drawn = [[(50, 700, "Ann signed.")], [(50, 700, codes)], [(50, 700, codes)]]

        found = read(write_pages(tmp_path / "a.pdf", drawn))

        assert found.warnings == ("did not read 2 pages whose fonts name no letters.",)

    def test_a_damaged_page_is_left_out_and_counted(self, tmp_path):
        names = ("Ann", "Bo", "Eve")
        pages = write_pages(tmp_path / "a.pdf", [[(50, 700, name)] for name in names])
        content = pages.read_bytes()
        second = content.index(b"6 0 obj\n<< /Type /Page")
        pages.write_bytes(content[: second + 8] + b"[[" + content[second + 10 :])

        found = read(pages)

        assert found.text.split() == ["Ann", "Eve"]
        assert len(found.pages) == 3
        assert found.warnings == ("did not read 1 damaged page.",)
        assert found.lost == 1 / 3

    def test_the_values_of_forms_have_their_names(self, tmp_path):
        pdfium = pytest.importorskip("reportlab.pdfgen.canvas")
        canvas = pdfium.Canvas(str(tmp_path / "a.pdf"))
        canvas.drawString(72, 700, "Application")
        place = {"x": 72, "y": 640, "width": 99, "height": 20}
        canvas.acroForm.textfield(name="tenant", value="Ilse Varga", **place)
        canvas.acroForm.textfield(name="town", value="Kiel", **place | {"x": 200})
        canvas.acroForm.checkbox(name="agreed", checked=True, x=72, y=600)
        canvas.save()

        text = read(tmp_path / "a.pdf").text

        assert "tenant: Ilse Varga" in text
        assert "agreed: Yes" in text
        assert text.count("Ilse") == text.count("Kiel") == 1

    def test_a_scanned_page_that_is_not_read_is_counted(self, tmp_path, monkeypatch):
        monkeypatch.setattr("memagent_graph.text.ocr.has_ocr", bool)
        scan = write_scan(tmp_path / "a.pdf", [[(72, 700, "Ann signed.")]])

        assert read(scan).lost == 1
        assert read(write_pages(tmp_path / "blank.pdf", [[]])).lost == 0

    @pytest.mark.parametrize(
        ("drawn", "text"),
        [
            ("(about 10) Tj {}(6) Tj {}( m deep) Tj", "about 10^6 m deep"),
            ("(an area of 5 m) Tj {}(2) Tj", "an area of 5 m^2"),
            ("(5 m) Tj {}(2) Tj {}( of 7 m) Tj {}(2) Tj", "5 m^2 of 7 m^2"),
            ("(10) Tj {}(-6) Tj {}(kg) Tj", "10^-6kg"),
            ("(10) Tj {}(n+1) Tj {}( lamps) Tj", "10^(n+1) lamps"),
            ("(4) Tj 0 -16 Td (7) Tj 0 -16 Td (9) Tj", "4\n7\n9"),
            ("(H) Tj /F 7 Tf -3 Ts (2) Tj {1}(O) Tj", "H2O"),
            ("(about 10) Tj /F 7 Tf (6) Tj", "about 106"),
            ("(about 10) Tj 4 Ts (6) Tj", "about 106"),
            ("0 1 -1 0 100 100 Tm (Rent 1062 of 914) Tj", "Rent 1062 of 914"),
        ],
    )
    def test_raised_figures_and_no_others_stay_apart_from_the_number_before_them(
        self, tmp_path, drawn, text
    ):
        small, usual = "/F 7 Tf 5 Ts ", "/F 12 Tf 0 Ts "
        shown = drawn.format(*[small, usual] * 2)

        found = read(write_pdf(tmp_path / "a.pdf", f"BT {usual}20 100 Td {shown} ET".encode()))

        assert found.text.strip() == text

    def test_figures_of_a_table_stay_as_they_are(self, tmp_path):
        cells = [(50, 700, "Kiel 106"), (150, 700, "1062"), (50, 686, "Bonn 14"), (150, 686, "9")]

        text = read(write_pages(tmp_path / "a.pdf", [cells])).text

        assert text.split() == ["Kiel", "106", "1062", "Bonn", "14", "9"]

    @pytest.mark.parametrize("kind", [b"Text", b"StrikeOut"])
    def test_a_remark_on_a_page_without_a_form_is_read(self, tmp_path, kind):
        remark = b"<< /Type /Annot /Subtype /%b /Rect [0 0 9 9] /Contents (Too high.) >>" % kind
        drawn = b"BT /F 12 Tf 20 100 Td (The lease.) Tj ET"

        text = read(write_pdf(tmp_path / "a.pdf", drawn, more=b"/Annots [%b]" % remark)).text

        assert "The lease." in text
        assert "Too high." in text

    def test_links_and_attached_files_are_read_and_what_is_not_read_lowers_coverage(self, tmp_path):
        to = b"<< /Type /Annot /Subtype /Link /Rect [15 90 99 115] /A << /S /URI /URI (%b) >> >>"
        links = b"".join(to % address for address in (b"http://a.org/rent", b"http://lease."))
        path = write_pdf(
            tmp_path / "a.pdf",
            b"BT /F 12 Tf 20 100 Td (The lease.) Tj ET",
            more=b"/Annots [%b]" % links,
        )
        document = PdfDocument(path.read_bytes())
        for name, content in (("note.txt", b"Paid late."), ("x.bin", b"\0")):
            document.new_attachment(name).set_data(content)
        document.save(path)

        found = read(path)

        assert found.text.split("\n\n") == [
            *("The lease.", "The lease. <http://a.org/rent>", "\f## Attachment: note.txt"),
            "Paid late.",
        ]
        assert found.warnings == ("attachment x.bin was not read.",)
        assert found.lost == 1 / 3


def test_a_document_within_a_document_is_read_or_counted(tmp_path):
    sheet = write_sheets(tmp_path / "a.xlsx", {"Rents": [["Kiel", "900"]]}).read_bytes()
    files = [("a.xlsx", sheet), ("a.html", b"<p>Due in May</p>"), ("o.bin", b"\0")]
    body = '<w:p xmlns:r="r"><w:OLEObject r:id="r0"/></w:p><w:altChunk xmlns:r="r" r:id="r1"/>'
    body += '<w:p xmlns:r="r"><w:OLEObject r:id="r2"/></w:p>'
    path = write_parts(tmp_path / "a.docx", body, [("package", name, "<x>") for name, _ in files])
    with ZipFile(path) as whole, ZipFile(tmp_path / "b.docx", "w") as other:
        for name in whole.namelist():
            other.writestr(name, {f"word/{at}": it for at, it in files}.get(name, whole.read(name)))

    found = read(tmp_path / "b.docx")

    assert found.text == "## Rents\n\n| Kiel | 900 |\n| --- | --- |\n\nDue in May"
    assert found.warnings == ("did not read 1 embedded object.",)
    assert found.lost == 1 / 3


def item(*inner, more=""):
    said = "".join(one if one[0] == "<" else f"<text:p>{one}</text:p>" for one in inner)
    return f"<text:list-item {more}>{said}</text:list-item>"


def list_of(*items, more=""):
    return f"<text:list {more}>{''.join(items)}</text:list>"


def test_lists_and_headings_of_an_opendocument_have_the_numbers_that_are_shown(tmp_path):
    def at(level, style, more=""):
        named = f'text:level="{level}" style:num-format="{style}" style:num-suffix="."'
        return f"<text:list-level-style-number {named} {more}/>"

    levels = at(1, "1", 'text:start-value="3"') + at(2, "a", 'text:display-levels="2"')
    bullet = '<text:list-level-style-bullet text:level="1"/>'
    heading = '<text:outline-level-style text:level="1" style:num-format="I"/>'
    styles = (
        f'<text:list-style style:name="L">{levels}</text:list-style>'
        f'<text:list-style style:name="B">{bullet}</text:list-style>'
        f"<text:outline-style>{heading}</text:outline-style>"
        '<text:list-style style:name="F"><text:list-level-style-number text:level="1" '
        'style:num-format="1" style:num-list-format="Art. %1%:"/></text:list-style>'
        '<style:style style:name="P" style:list-style-name="F"/>'
        '<style:style style:name="Bare" style:list-style-name=""/>'
    )
    of = 'text:style-name="L"'
    numbered = f"<text:numbered-paragraph {of} {{}}><text:p>{{}}</text:p></text:numbered-paragraph>"
    body = (
        '<text:h text:outline-level="1">Lease</text:h>'
        + list_of(item("a", list_of(item("b"), item("c"))), item("d", "more"), more=of)
        + list_of(item("e"), more=f'{of} text:continue-numbering="true"')
        + list_of(item("f"), item("g", more='text:start-value="9"'), item("h"), more=of)
        + list_of(item("i"), more='text:style-name="B"')
        + list_of(item('<text:p text:style-name="P">j</text:p>'))
        + '<text:h text:style-name="Bare">Preface</text:h>'
        + '<text:h text:restart-numbering="true" text:start-value="5">Dues</text:h>'
        + numbered.format("", "k")
        + numbered.format('text:level="2"', "l")
    )

    text = read(write_opendocument(tmp_path / "a.odt", body, styles)).text

    assert text.split("\n\n") == [
        *("# I Lease", "3. a", "3.a. b", "3.b. c", "4. d", "more", "5. e"),
        *("3. f", "9. g", "10. h", "- i", "Art. 1: j", "# Preface", "# V Dues", "11. k", "11.a. l"),
    ]


def test_levels_ruby_and_notes_of_an_opendocument_are_as_they_are_shown(tmp_path):
    def text_style(name, settings, more=""):
        return (
            f'<style:style style:name="{name}" {more}><style:text-properties {settings}/>'
            "</style:style>"
        )

    def span(style, text):
        return f'<text:span text:style-name="{style}">{text}</text:span>'

    styles = (
        text_style("Up", 'style:text-position="33% 58%"')
        + text_style("Child", "", 'style:parent-style-name="Up"')
        + text_style("Flat", 'style:text-position="0% 100%"')
        + text_style("Line", 'style:text-line-through-style="solid"')
        + text_style("Greek", 'style:font-name="Symbol"')
        + text_style("Struck", "", 'style:parent-style-name="Line"')
        + '<text:list-style style:name="L"><text:list-level-style-number text:level="1" '
        'style:num-format="A"/></text:list-style>'
    )
    said = "<text:ruby-base>漢</text:ruby-base><text:ruby-text>kan</text:ruby-text>"
    note = "<office:annotation><text:p>per month</text:p></office:annotation><text:p>900</text:p>"
    formula = '<table:table-cell table:formula="of:=[.A1]*2"/>'
    body = (
        f"<text:p>10{span('Up', '6')}, 10{span('Child', '7')}, 1{span('Flat', '2')}, "
        f"{span('Struck', '900')}950, {span('Greek', 'm')}g, <text:ruby>{said}</text:ruby></text:p>"
        + list_of(item("a", more='text:start-value="28"'), more='text:style-name="L"')
        + f"<table:table><table:table-row><table:table-cell>{note}</table:table-cell>{formula}"
        "</table:table-row></table:table>"
    )

    text = read(write_opendocument(tmp_path / "a.odt", body, styles)).text

    assert text.split("\n\n") == [
        *("10^6, 10^7, 12, ~~900~~950, μg, 漢(kan)", "AB a"),
        "| [per month] 900 | =[.A1]*2 |\n| --- | --- |",
    ]


def test_hidden_sheets_rows_and_slides_of_an_opendocument_are_read_and_named(tmp_path):
    styles = (
        '<style:style style:name="T"><style:table-properties table:display="false"/></style:style>'
        '<style:style style:name="D"><style:drawing-page-properties '
        'presentation:visibility="hidden"/></style:style>'
    )
    cell = "<table:table-cell><text:p>{}</text:p></table:table-cell>"
    row = f"<table:table-row {{}}>{cell}</table:table-row>"
    hidden = 'table:visibility="collapse" table:number-columns-repeated="1000"'
    rows = (
        f"<table:table-column {hidden}/>"
        + row.format("", "a")
        + row.format('table:visibility="collapse"', "b")
    )
    box = '<draw:a xlink:href="http://a.org"><draw:frame><text:p>Box</text:p></draw:frame></draw:a>'
    rows += f"<table:shapes>{box}<draw:control/></table:shapes>"
    sheet = f'<table:table table:name="Costs" table:style-name="T">{rows}</table:table>'
    sheet = f"<office:spreadsheet>{sheet}</office:spreadsheet>"
    slide = '<draw:page draw:style-name="D"><text:p>Odo</text:p></draw:page>'

    sheets = read(write_opendocument(tmp_path / "a.ods", sheet, styles))
    slides = read(write_opendocument(tmp_path / "a.odp", slide, styles)).text

    assert sheets.text == (
        "## Costs (hidden)\n\n| a |\n| --- |\n| b |\n\nHidden rows: 2.\nHidden columns: A.\n\n"
        "<http://a.org>\n\nBox"
    )
    assert sheets.warnings == ("did not read 1 embedded object.",)
    assert slides == "<!-- Slide number: 1 (hidden) -->\n\nOdo"


def test_fields_of_forms_of_an_opendocument_have_their_values(tmp_path):
    option = '<form:option form:label="{}" form:current-selected="{}"/>'
    options = option.format("Kiel", "false"), option.format("Bonn", "true")
    fields = (
        '<form:text {} form:value="Bo" form:current-value="Ilse 7"/>',
        '<form:checkbox {} form:label="Smoker" form:current-state="checked" form:value="x"/>',
        '<form:radio {} form:label="Pets"/>',
        f"<form:listbox {{}}>{''.join(options)}</form:listbox>",
        "<form:textarea {}><text:p>Late</text:p></form:textarea>",
    )
    named = "".join(field.format(f'form:id="{at}"') for at, field in enumerate(fields))
    drawn = "".join(f'<draw:control draw:control="{at}"/> ' for at in range(len(fields)))
    forms = f'<office:forms xmlns:form="f">{named}</office:forms>'

    found = read(write_opendocument(tmp_path / "a.odt", f"{forms}<text:p>{drawn}</text:p>", ""))

    assert (found.text, found.lost) == ("Ilse 7 \u2612 Smoker \u2610 Pets Bonn Late", 0)


def test_a_chart_of_an_opendocument_has_its_values(tmp_path):
    cell = "<table:table-cell><text:p>{}</text:p></table:table-cell>"
    row = f"<table:table-row>{cell.format('Kiel')}{cell.format(5)}</table:table-row>"
    chart = f'<d xmlns:table="t" xmlns:text="x"><body><table:table>{row}</table:table></body></d>'
    body = '<draw:frame><draw:object xlink:href="./Object 1"/></draw:frame>'
    parts = {"Object 1/content.xml": chart}

    found = read(write_opendocument(tmp_path / "a.odt", body, "", parts))

    assert found.text == "| Kiel | 5 |\n| --- | --- |"
    assert found.warnings == ()


HIDDEN = " <i aria-hidden=true>{}</i>"
KATEX = (
    "<p><b><math><semantics><mi>E</mi><mo>=</mo><mfrac><mn>1</mn><mn>12</mn></mfrac></semantics>"
    "</math></b><b aria-hidden='true'><i>E</i>=<i><i>12</i><i></i><i>1</i></i></b></p>"
)
RULES = "<style>/* x */ .up { vertical-align: super } ol.r, p { list-style: upper-roman }</style>"
COUNTED = (
    "<style>@charset 'x'; h2{counter-increment:c;counter-reset:d} h3{counter-increment:d}"
    "h2::before, p{content:'Part ' counter(c, upper-roman) '\\00a7  '} ol{list-style:none}"
    "h3:before{content:counter(c) '.' counter(d) ' '} ol{counter-reset:i} li{counter-increment:i}"
    "li:before{content:counters(i,'.') ' '}</style><h2>a</h2><h3>b</h3><h3>c</h3><h2>d</h2>"
    "<ol><li>e<ol><li>f</ol><li>g</ol>"
)
APART = "<style>.b{display:block} .c{display:table-cell}</style><i class=b>1</i><i class=b>2</i>"
SCRIPTS = "<none/><mn>1</mn><mprescripts/><mn>6</mn><mn>14</mn></mmultiscripts>"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (KATEX, "E=1/12"),
        ("5 <i style='font-family:Symbol, serif'>m</i>g <font face=symbol>b</font>", "5 μg β"),
        ("<svg><text>47<tspan x=1>11</tspan></text><text>9</text></svg>", "47 11   9"),
        ("<table><tfoot><tr><td>Sum<tbody><tr><td>9</table>", "| 9 |\n| --- |\n| Sum |"),
        (
            "<table><tbody><tr><td rowspan=0>a<td>b<tr><td>c<tfoot><tr><td>Sum<td>9</table>",
            "| a | b |\n| --- | --- |\n|  | c |\n| Sum | 9 |",
        ),
        ("<switch><case></case><case>9</case><default>picture</default></switch>", "9"),
        ("<select><option label='C 3' selected></select>", "☒ C 3"),
        ("<i role=img aria-label='4 of 5'></i>", "[picture: 4 of 5]"),
        (f"<b>12 of 9</b>{HIDDEN.format('9, 12')}{HIDDEN.format('9, 9')}", "12 of 9  9, 9"),
        ("<ul style='list-style: \"Art. \" inside'><li>x</ul>", "Art. x"),
        ("<ol style='list-style-type:upper-roman;list-style:lower-alpha'><li>x</ol>", "a. x"),
        ("<ol style='list-style:url(decimal.png)'><li>x</ol>", "- x"),
        ("<math><mover><mi>x</mi><mo>→</mo></mover>, <mphantom>7</mphantom></math>", "x\u20d7,"),
        ("<math><munderover><mo>∑</mo><mn>1</mn><mn>9</mn></munderover>i</math>", "∑_1^9 i"),
        ("<math><menclose notation='horizontalstrike'>7</menclose></math>", "~~7~~"),
        (f"{RULES}10<b class=up>6</b><ol class=r><li>a<li>b</ol>", "10^6\n\nI. a\nII. b"),
        ("<ul style='list-style-type:decimal'><li>a</ul>", "1. a"),
        ("<ol style='list-style:none'><li>4.a) Rent</ol>", "- 4.a) Rent"),
        (
            COUNTED,
            "## Part I\xa7 a\n\n### 1.1 b\n\n### 1.2 c\n\n## Part II\xa7 d\n\n1 e\n  1.1 f\n2 g",
        ),
        ("<style>li::marker{content:'Art. ' counter(list-item) ' '}</style><ol><li>a", "Art. 1 a"),
        (f"{APART}<i class=c>3</i><i class=c>4</i>", "1\n\n2\n\n 3  4"),
        ("<p style='display:flex'><b>1</b><b>2</b></p><object>3</object>", "1  2\n\n 3"),
        (
            "10<i style='vertical-align:4px'>6</i>, 1<i style='vertical-align:-30%'>2</i>",
            "10^6, 1_2",
        ),
        ("<i style='text-decoration-line:line-through'>1</i>2<?x y?>3", "~~1~~23"),
        ("<a href='tel:+49'>Call</a> <a href='//a.org'>us</a>", "[Call](tel:+49) [us](//a.org)"),
        ("Ver&shy;trag <q>4&shy;711</q>", 'Vertrag "4711"'),
        (f"<math><mmultiscripts><mi>C</mi>{SCRIPTS}</math>", "_6^14 (C^1)"),
        ("<math><mfenced open='['><mn>1</mn><mn>2</mn></mfenced></math>", "[1,2)"),
        ("<math><mover><mn>1</mn><mn>2</mn></mover><mspace/><mn>3</mn></math>", "1^2  3"),
        ("<ol><li type=a>x<li type=I value=4>y<li>z</ol>", "a. x\nIV. y\n5. z"),
        ("<ol type=a start=27><li>x<li>y</ol>", "aa. x\nab. y"),
        ("<ol type=A start=703><li>x</ol>", "AAA. x"),
        ("<ol style='list-style-type: lower-greek'><li>x<li>y</ol>", "α. x\nβ. y"),
        ("<ol><div><li>a</div><div><li>b</div></ol>", "1. a\n\n2. b"),
        ("2<sup>10<sup>3</sup></sup>", "2^(10^3)"),
        ("H<sub>2</sub>O, 1<sup>st</sup>, log<sub>10</sub>5", "H2O, 1st, log_10 5"),
        ("2<sup>1</sup>&frasl;<sub>2</sub>, <math><msqrt><mn>16</mn></msqrt></math>", "2 1/2, √16"),
        (
            "<math><mfrac><mn>1</mn><mn>2</mn></mfrac><mn>3</mn><msup><mn>2</mn><mn>3</mn></msup><mn>5</mn></math>",
            "1/2 3 2^3 5",
        ),
        (
            "<ol start=3><li>a<ul><li>b</ul><li>c</ol><img alt=Map>",
            "3. a\n  - b\n4. c\n\n[picture: Map]",
        ),
        ("<p hidden>a<pre># b<br>c</pre><script>d</script>", "a\n\n```\n# b\nc\n```"),
        ("<pre>10<sup>6</sup>  a<div>b</div></pre>", "```\n10^6  a\n\nb\n```"),
        ("Rent <del>900</del><ins>950</ins>, <s>1</s>2", "Rent ~~900~~950, ~~1~~2"),
        ("<ruby>明日<rp>(</rp><rt>あした</rt><rp>)</rp></ruby>", "明日(あした)"),
        ("900<a role=doc-noteref href='#n'>1</a>, 900<a href='#n'>2</a>", "900^1, 900 2"),
        ("<frameset><noframes><p>No <b>frames</b></noframes></frameset>", "No frames"),
        ("<center>a</center><center>b</center><b style='display:block'>c</b>d", "a\n\nb\n\nc\n\nd"),
        ("<label>Name</label><button>Go</button><output>7</output>", "Name  Go  7"),
        ("<select><optgroup label='Kiel'><option>Nord</optgroup></select>", "Kiel\n\nNord"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><html xmlns="http://www.w3.org/1999/xhtml"><p>d</p>', "d"),
    ],
)
def test_a_page_shows_numbers_and_words_as_its_styles_do(page, text):
    assert convert(page.encode(), ".html").text == text


@pytest.mark.parametrize("fault", ["", "<b>"])
@pytest.mark.parametrize("tag", ["<title/>", "<script src='x.js'/>", "<textarea/>"])
def test_a_page_of_xml_goes_on_after_an_element_that_closes_itself(tmp_path, tag, fault):
    page = tmp_path / "a.xhtml"
    page.write_text(
        '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>T</title>'
        f"{tag}</head><body>{tag}<h:p xmlns:h='h'>Ann&nbsp;&amp; Bo<br/>in "
        f"<![CDATA[May < June]]>{fault}</h:p></body></html>"
    )

    assert read(page).text == "# T\n\nAnn\xa0& Bo\nin May < June"


def test_a_cell_stands_in_its_column_where_others_span_several(tmp_path):
    page, word = tmp_path / "a.html", tmp_path / "a.docx"
    page.write_text(
        "<table><tr><th colspan=2>Rent<th>Due<tr><td rowspan=2>Kiel<td>900<td>May"
        "<tr><td>700<td>June"
        "<tr><td colspan=x>Bonn<td>1<td>2</table>"
    )
    span = '<w:tcPr><w:gridSpan w:val="2"/></w:tcPr>'
    cells = [[(span, "Rent"), ("", "Due")], [("", "Kiel"), ("", "900"), ("", "May")]]
    rows = "".join(
        f"<w:tr>{''.join(f'<w:tc>{of}{paragraph(said)}</w:tc>' for of, said in row)}</w:tr>"
        for row in cells
    )
    write_docx(word, f"<w:tbl>{rows}</w:tbl>")

    assert read(page).text.split("\n") == [
        "| Rent |  | Due |",
        "| --- | --- | --- |",
        "| Kiel | 900 | May |",
        "|  | 700 | June |",
        "| Bonn | 1 | 2 |",
    ]
    assert read(word).text.split("\n")[::2] == ["| Rent |  | Due |", "| Kiel | 900 | May |"]


def test_a_book_is_read_in_its_order(tmp_path):
    pages = {"z%20.html": "<p>First.</p>", "a.html": "<p>Second.</p>", "gone.html": ""}
    title = '<metadata xmlns:dc="d"><dc:title>Tides</dc:title></metadata>'

    found = read(write_epub(tmp_path / "a.epub", pages, title))

    assert found.text == "# Tides\n\nFirst.\n\nSecond."
    assert found.warnings == ["did not read the chapter gone.html: it is missing."]


def test_a_book_is_read_with_its_style_sheet_and_with_pages_that_its_order_leaves_out(tmp_path):
    linked = '<link rel="stylesheet" href="a.css"/><p>10<b class="up">6</b></p>'
    book = write_epub(tmp_path / "a.epub", {"a.html": linked})
    spine = "<spine/><manifest>"
    for name in ("a.html", "b.html", "toc.html"):
        more = 'properties="nav"' if name == "toc.html" else ""
        spine += f'<item id="{name}" href="{name}" media-type="text/html" {more}/>'
    parts = {"o/a.html": linked, "o/b.html": "<p>Note</p>", "o/a.css": "@import url('b.css');"}
    parts["o/b.css"] = "@import 'a.css'; .up{vertical-align:super}"
    with ZipFile(book) as archive:
        container = archive.read("META-INF/container.xml")
    spine += '<item id="n" href="n.bin" media-type="image/x"/>'
    spine = spine.replace("<spine/>", '<spine><itemref idref="n"/></spine>')
    package = f"<package>{spine}</manifest></package>"
    parts["o/n.bin"] = "\0"
    write_archive(book, {"META-INF/container.xml": container, "o/a.opf": package, **parts})

    found = read(book)
    assert found.text == "10^6\n\nNote"
    assert (found.lost, found.warnings) == (1 / 3, ["n.bin was not read."])


def test_a_chapter_that_is_broken_is_named_and_the_others_are_read(tmp_path):
    pages = {"a.html": "<p>First.</p>", "b.html": f"<p>{'Second. ' * 99}</p>"}
    book = write_epub(tmp_path / "a.epub", pages)
    with ZipFile(book) as archive:
        place = archive.getinfo("o/a.html").header_offset + 40
    content = bytearray(book.read_bytes())
    content[place] ^= 255
    book.write_bytes(content)

    found = read(book)

    assert found.text.startswith("Second.")
    assert found.warnings[0].startswith("did not read the chapter a.html: it is broken")
    assert found.lost == 1 / 2


mails = st.recursive(
    st.sampled_from(["plain", "html", "file"]),
    lambda inner: st.tuples(
        st.sampled_from(["mixed", "alternative", "related"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


def write_mail(parts, words):
    """A message of parts of one word each, as nested as they come, as a mailer writes it."""
    if isinstance(parts, tuple):
        mark = f"={len(words)}{parts[0]}{len(repr(parts))}="
        inner = [f"--{mark}\n{write_mail(one, words)}\n" for one in parts[1]]
        return (
            f'Content-Type: multipart/{parts[0]}; boundary="{mark}"\n\n{"".join(inner)}--{mark}--\n'
        )
    words.append(f"word{len(words)}x")
    said = f"<p>{words[-1]}</p>" if parts == "html" else words[-1]
    kind, more = (parts, "") if parts != "file" else ("plain", "\nContent-Disposition: attachment")
    return f"Content-Type: text/{kind}; name=a.txt{more}\n\n{said}\n"


class TestMail:
    def test_a_signature_is_no_text_that_is_lost(self):
        kind = "Content-Type: application/pkcs7-signature; name=s.p7s"
        signed = PARTS.format("signed", f"Content-Type: text/plain\n\nOdo\n--x\n{kind}\n\nx")

        found = convert(signed.encode(), ".eml")

        assert (found.text, found.lost, found.warnings) == ("Odo", 0, ())

    def test_a_message_has_its_heads_and_its_attachments(self, tmp_path):
        message = EmailMessage()
        message["From"], message["Subject"] = "Ann <ann@example.org>", "Mietvertrag für Müller"
        message.set_content("See the lease.")
        message.add_alternative("<p>See the <b>lease</b>.</p>", subtype="html")
        lease = DOCUMENTS["a.docx"](tmp_path / "lease.docx", "Signed by Odo.").read_bytes()
        message.add_attachment(lease, maintype="application", subtype="x", filename="lease.docx")
        message.add_attachment(b"PNG", maintype="image", subtype="png", filename="map.png")
        message.add_attachment("late\n", filename="note.txt")
        (tmp_path / "a.eml").write_bytes(bytes(message))

        found = read(tmp_path / "a.eml")

        assert found.text.startswith(
            "From: Ann <ann@example.org>\nSubject: Mietvertrag für Müller\n"
        )
        assert "\n\nSee the lease.\n\n" in found.text
        assert "## Attachment: lease.docx\n\nSigned by Odo." in found.text
        assert "## Attachment: note.txt\n\nlate" in found.text
        assert found.warnings == ("attachment map.png was not read.",)
        assert found.lost == 0

    def test_an_attachment_that_is_not_read_is_named_and_counted(self):
        message = EmailMessage()
        message.set_content("See the lease.")
        message.add_attachment(b"PK", maintype="application", subtype="x", filename="lease.docx")

        found = convert(bytes(message), ".eml")

        assert found.warnings[0].startswith("attachment lease.docx was not read: ")
        assert found.lost == 1 / 2

    def test_what_is_cut_off_or_in_a_mailbox_is_counted_too(self):
        cut = "Subject: x\nContent-Transfer-Encoding: base64\n\nQ29kZSA0NzExI"

        found = convert(f"From a@b.c\n{cut}\n\nFrom a@b.c\nSubject: y\n\nOdo".encode(), ".mbox")

        assert found.text == "Subject: x\n\nCode 4711\n\n-----\n\nSubject: y\n\nOdo"
        assert found.warnings == ["attachment text is cut off."]
        assert found.lost == 1 / 4

    @given(mails)
    def test_each_word_of_each_part_is_read_in_order(self, parts):
        words = []
        message = write_mail(parts, words)

        text = convert(message.encode(), ".eml").text

        places = [text.find(word) for word in words]
        assert -1 not in places
        assert all(word not in text.replace(word, "", 1) for word in words)
        assert "Content-Type" not in text

    @pytest.mark.parametrize(
        ("forms", "text"),
        [
            (["See the list.", "<p>See <b>the</b> list.</p>"], "See the list."),
            ([" ", "<p>The rent</p>"], "The rent"),
            (["Use another program.", "<p>The rent</p>"], "Use another program.\n\nThe rent"),
            (["The rent", "<p>The rent is 900.</p>"], "The rent is 900."),
            (["Pay 5, then 5", "<p>Pay 5, then then</p>"], "Pay 5, then 5\n\nPay 5, then then"),
        ],
    )
    def test_forms_of_one_text_are_read_once_and_none_is_lost(self, forms, text):
        message = EmailMessage()
        message.set_content(forms[0])
        message.add_alternative(forms[1], subtype="html")

        assert convert(bytes(message), ".eml").text == text

    @pytest.mark.parametrize(
        ("pages", "encoding"),
        [
            ({}, "utf-16-le"),
            ({0x3FFD: 1251}, "cp1251"),
            ({0x3FDE: 1251}, "cp1251"),
            ({0x3FFD: 1251, 0x3FDE: 65001}, "cp1251"),
            ({0x3FFD: 20866}, "koi8_r"),
            ({0x3FFD: 99999}, "cp1251"),
        ],
    )
    def test_a_message_of_outlook_has_people_in_copy_and_messages_attached(self, pages, encoding):
        kind = "001F" if encoding == "utf-16-le" else "001E"

        def storage(name, texts, numbers=(), head=8, storages=()):
            kept = [
                Stream(f"{name}/__substg1.0_{tag:04X}{kind}", text.encode(encoding))
                for tag, text in texts.items()
            ]
            rows = [
                struct.pack("<IIII", tag << 16 | 3, 6, value, 0)
                for tag, value in dict(numbers).items()
            ]
            properties = Stream(f"{name}/__properties_version1.0", bytes(head) + b"".join(rows))
            return Storage(name, (*kept, properties), (*storages,))

        copied = storage("__recip_version1.0_#0", {0x3001: "Cy", 0x3003: "c@y.z"}, {0x0C15: 2})
        body = "Код двери снова назван в этом письме: 4711."
        heads = {0x1000: body, 0x007D: "From: =?iso-8859-1?q?Zo=EB?= <z@y.z>"}
        inner = storage("__substg1.0_3701000D", heads, {}, 24, [copied])
        attached = storage("__attach_version1.0_#0", {0x3001: "Письмо"}, storages=[inner])
        people = [
            storage(f"__recip_version1.0_#{kind}", {0x3001: name, 0x3003: "x@y.z"}, {0x0C15: kind})
            for name, kind in (("Анна Иванова", 1), ("Bo", 2))
        ]
        texts = {0x0037: "Аренда и договор", 0x1000: "Смотри ниже.", 0x0C1A: "Eve"}

        message = storage("", texts, pages, 32, [*people, attached])

        assert read_outlook_storage(message).text == (
            "From: Eve\nTo: Анна Иванова <x@y.z>\nCc: Bo <x@y.z>\nSubject: Аренда и договор\n\n"
            f"Смотри ниже.\n\n## Attachment: Письмо\n\nFrom: Zoë <z@y.z>\nCc: Cy <c@y.z>\n\n{body}"
        )

    def test_a_message_of_outlook_whose_text_is_packed_is_counted(self):
        packed = Stream("__substg1.0_10090102", b"LZFu")

        found = read_outlook_storage(Storage("", (packed,), ()))

        assert found.warnings == ("attachment text is packed RTF, and was not read.",)
        assert found.lost == 1 / 2


NUMBERS = st.integers(-(10**9), 10**9).map(str)
WORDS = st.one_of(st.from_regex("[a-z]{1,8}", fullmatch=True), NUMBERS)
ROWS = st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=4)


def words_of(text):
    return re.findall(r"[a-z]+|-?[0-9]+", text)


KINDS = st.sampled_from(["heading", "item", "line", "raised", "table"])
POWERS = st.lists(st.lists(NUMBERS, min_size=2, max_size=4), min_size=1, max_size=3)
BLOCKS = KINDS.flatmap(lambda kind: st.tuples(st.just(kind), POWERS if kind == "raised" else ROWS))


def pieces(kind, row):
    """The words of a line with their spaces, each with whether it is raised."""
    raised = [kind == "raised" and at % 2 == 1 for at in range(len(row))]
    return [(" " * (not up and at > 0) + row[at], up) for at, up in enumerate(raised)]


def write_office(path, blocks):
    deck = Presentation() if path.suffix == ".pptx" else None
    document = deck or pytest.importorskip("docx").Document()
    styles = {"heading": "Heading 1", "item": "List Number"}
    for kind, rows in blocks:
        shapes, size = None, (len(rows), max(map(len, rows)))
        if deck:
            shapes = deck.slides.add_slide(deck.slide_layouts[6]).shapes
        if kind == "table":
            of = shapes.add_table(*size, 0, 0, 9, 9).table if deck else document.add_table(*size)
            for at, column in ((at, column) for at in range(size[0]) for column in range(size[1])):
                of.cell(at, column).text = "".join(rows[at][column : column + 1])
        for row in rows if kind != "table" else ():
            of = shapes.add_textbox(0, 0, 9, 9).text_frame.paragraphs[0] if deck else None
            of = of or document.add_paragraph(style=styles.get(kind))
            for text, raised in pieces(kind, row):
                run = of.add_run()
                run.text = text
                run.font._element.set("baseline", "30000" if raised else "0") if deck else None
                run.font.superscript = raised
    document.save(path)


def write_book(path, blocks):
    book = pytest.importorskip("xlsxwriter").Workbook(path)
    up, usual = book.add_format({"font_script": 1}), book.add_format()
    for kind, rows in blocks:
        sheet = book.add_worksheet()
        for at, row in enumerate(rows):
            if kind == "raised":
                parts = ((up if raised else usual, text) for text, raised in pieces(kind, row))
                sheet.write_rich_string(at, 0, *chain.from_iterable(parts))
                continue
            for column, word in enumerate(row):
                sheet.write(at, column, int(word) if word[-1:].isdigit() else word)
    book.close()


def write_open(path, blocks):
    odf = pytest.importorskip("odf.opendocument")
    from odf import style, table, text

    def add(parent, kind, **more):
        made = kind(**more)
        parent.addElement(made)
        return made

    if path.suffix == ".ods":
        document = odf.OpenDocumentSpreadsheet()
        for kind, rows in blocks:
            sheet = add(document.spreadsheet, table.Table, name=f"Sheet{kind}")
            for row in rows:
                line = add(sheet, table.TableRow)
                for word in row:
                    add(add(line, table.TableCell), text.P).addText(word)
        return document.save(path)
    document = odf.OpenDocumentText()
    up = add(document.automaticstyles, style.Style, name="up", family="text")
    add(up, style.TextProperties, textposition="super 58%")
    of_list = add(document.automaticstyles, text.ListStyle, name="L")
    add(of_list, text.ListLevelStyleNumber, level=1, numformat="1", numsuffix=".")
    goes_on = {"stylename": of_list, "continuenumbering": "true"}
    for kind, rows in blocks:
        whole = add(document.text, text.List, **goes_on) if kind == "item" else document.text
        whole = add(document.text, table.Table) if kind == "table" else whole
        for row in rows:
            of = add(whole, text.ListItem) if kind == "item" else whole
            of = add(whole, table.TableRow) if kind == "table" else of
            for words in ([word] for word in row) if kind == "table" else [row]:
                cell = add(of, table.TableCell) if kind == "table" else of
                more = {"outlinelevel": 1} if kind == "heading" else {}
                line = add(cell, text.H if more else text.P, **more)
                for said, raised in pieces(kind, words):
                    add(line, text.Span, **({"stylename": up} if raised else {})).addText(said)
    return document.save(path)


def write_report(path, blocks):
    platypus, styles = (
        pytest.importorskip("reportlab.platypus"),
        import_module("reportlab.lib.styles"),
    )
    story, usual = [], styles.getSampleStyleSheet()["Normal"]
    for kind, rows in blocks:
        for row in rows:
            said = "".join(f"<super>{w}</super>" if up else w for w, up in pieces(kind, row))
            is_row = kind == "table"
            story.append(platypus.Table([row]) if is_row else platypus.Paragraph(said, usual))
        story.append(platypus.PageBreak())
    platypus.SimpleDocTemplate(str(path)).build(story)


HTML = {"raised": "<sup>{}</sup>", "line": "<p>{}</p>", "heading": "<h1>{}</h1>", "cell": "<td>{}"}
HTML |= {"row": "<tr>{}", "table": "<table>{}</table>", "item": "<ol start={1}><li>{0}</ol>"}
RTF = {"raised": r"{{\super {}}}", "line": r"{}\par ", "heading": r"{{\b {}}}\par ", "table": "{}"}
RTF |= {"cell": r"{}\cell ", "row": r"{}\row ", "item": r"{{\pntext {1}.\tab}}{0}\par "}


def write_markup(path, blocks):
    """A page, a book, or a text of RTF, for which no library is small."""
    markup, pages, numbers = RTF if path.suffix == ".rtf" else HTML, list[str](), count(1)
    for kind, rows in blocks:
        lines = list[str]()
        for row in rows:
            parts = (
                markup["raised"].format(word) if up else word for word, up in pieces(kind, row)
            )
            named, said = {"raised": "line", "table": "row"}.get(kind, kind), "".join(parts)
            said = "".join(map(markup["cell"].format, row)) if kind == "table" else said
            lines.append(markup[named].format(said, next(numbers) if kind == "item" else 0))
        pages.append(markup.get("table" if kind == "table" else "", "{}").format("".join(lines)))
    if path.suffix == ".epub":
        write_epub(path, {f"{at}.html": page for at, page in enumerate(pages)})
    else:
        path.write_text(rf"{{\rtf1 {''.join(pages)}}}" if markup is RTF else "".join(pages))


WRITERS = {".docx": write_office, ".pptx": write_office, ".xlsx": write_book, ".odt": write_open}
WRITERS[".ods"] = write_open
WRITERS |= {".pdf": write_report} | dict.fromkeys((".epub", ".html", ".rtf"), write_markup)


@pytest.mark.parametrize("suffix", WRITERS)
@settings(max_examples=15, deadline=None)
@given(st.lists(BLOCKS, min_size=1, max_size=3))
def test_each_word_and_number_that_another_library_writes_is_read_in_order(
    tmp_path_factory, suffix, blocks
):
    path = tmp_path_factory.getbasetemp() / f"random{suffix}"
    WRITERS[suffix](path, blocks)

    found = read(path)

    text = re.sub("^(?:<!-- .* -->|## Sheet[0-9a-z]+)$", "", found.text, flags=re.MULTILINE)
    rows, numbers = [(kind, row) for kind, rows in blocks for row in rows], count(1)
    is_counted = suffix not in {".ods", ".pdf", ".pptx", ".xlsx"}
    assert words_of(text) == [
        word
        for kind, row in rows
        for word in ([str(next(numbers))] if kind == "item" and is_counted else []) + row
    ]
    if suffix in {".pdf", ".pptx", ".xlsx"}:
        assert len(found.pages) == len(blocks)


def test_a_notebook_has_texts_code_and_results(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Tides\n", "of May"]},
        {
            "cell_type": "code",
            "source": "print(1)",
            "outputs": [
                {"text": ["1\n"]},
                {"data": {"text/plain": "plot", "image/png": "x"}},
                {"ename": "OSError", "evalue": "no tide", "traceback": []},
                {"data": {"text/plain": "<HTML object>", "text/html": "<p>Total <b>7</b>"}},
                {"data": {"application/json": {"a": 8}}},
            ],
        },
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))

    found = read(tmp_path / "a.ipynb")

    printed = "".join(f"\n\n```\n{line}\n```" for line in ("print(1)", "1", "plot", "no tide"))
    assert found.text == f"# Tides\nof May{printed}\n\nTotal 7"
    assert found.warnings == ("did not read 1 picture and 1 embedded object.",)
    assert found.lost > 0


DECLARED = '<?xml version="1.0" encoding="windows-1251"?><p>Код 4711</p>'
FLAT = '<d xmlns:o="o" xmlns:t="t" xmlns:table="a" xmlns:x="x"><o:body>{}</o:body></d>'
TEXT = (
    '<t:h t:outline-level="2">Lease</t:h><t:p>Ånn<t:s t:c="2"/>signed<t:note><t:p>in May</t:p>'
    '</t:note>.</t:p><t:p>See <t:a x:href="http://a.org">me</t:a>.</t:p>'
)
SHEET = (
    '<table:table><table:table-row><table:table-cell table:number-columns-repeated="2">'
    '<t:p>x</t:p></table:table-cell><table:table-cell o:value-type="float" o:value="900"/>'
    '<table:table-cell o:value-type="date" o:date-value="2026-05-01"/>'
    "</table:table-row></table:table>"
)
FRAME = (
    "<title>Rents &amp; dues</title><p>Kiel.<iframe srcdoc='<p>Rent <b>900</b></p>'>none</iframe>"
)
ORDERED = "<ol reversed><li>a<li>b</ol><ol type=A start=3><li>a<li value=7>b<li>c</ol>"
FORM = (
    "<p><input type=checkbox checked> Smoker <input type=radio> Pets<p>"
    "<select><option>Kiel<option selected>Husum</select>"
)
RTF_FORMULA = (
    rb"{\rtf1 Energy {\mmath {\*\moMath {\mr\mscr0 E=m}{\msSup{\msSupPr{\mctrlPr\f0 }}{\me{\mr c}}"
    rb"{\msup{\mr 2}}}}} in{\mmath{\*\moMath{\mf{\mfPr{\mctrlPr }}{\mnum{\mr 3}}{\mden{\mr 4}}}}}"
    rb" of {\*\moMathPara{\*\moMath{\mr 4711}}} lamps}"
)
RTF_FIELD = r"{{\*\fldinst {{{}{{\*\formfield{{\fftype{}\ffres{}\ffdefres1{}}}}}}}}}{{\fldrslt }} "
RTF_FORM = RTF_FIELD.format("FORMCHECKBOX", 1, 25, "") + RTF_FIELD.format("FORMCHECKBOX", 1, 0, "")
RTF_FORM += RTF_FIELD.format("FORMDROPDOWN", 2, 1, r"{\*\ffl Kiel}{\*\ffl Husum}")
RTF_PARTS = "super^1 2\n Top\n Note"
LINKS = '<a href="http://a.org/rent">rent</a> <a href="http://www.a.org/">a.org</a>'
STACKED = (
    '3<span style="color:red; Vertical-Align : super !important">4</span>, 2<sup>5</sup>6, '
    '<math><mfrac linethickness="0">'
    "<mn>5</mn><mn>2</mn></mfrac>, <mmultiscripts><mi>C</mi><mn>1</mn><mn>2</mn></mmultiscripts>, "
    "<mtable><mtr><mtd>1</mtd><mtd>2</mtd></mtr></mtable></math>"
)
HTML_ALONE = "Subject: x\nContent-Type: text/html; charset=unknown-9\n\n<p>Hello <b>Ann</b></p>"
MAILBOX = (
    "From ann@example.org Mon May  4 09:15:00 2026\nSubject: a\n\n"
    "From here on.\n\nFrom now: 12:30, lunch.\n\nFrom bo@example.org\nSubject: b\n\nTwo."
)
SAVED_PAGE = (
    "Subject: Tides\nContent-Type: multipart/related; boundary=x\n\n"
    "--x\nContent-Type: text/html\n\n<p>Odo</p>\n"
    "--x\nContent-Type: text/css\n\np {}\n--x\nContent-Type: image/png\n\nx\n--x--"
)
LETTER = "Content-Type: text/plain; charset={}\n\n"
FORWARDED = "Content-Type: message/rfc822\nContent-Transfer-Encoding: base64"
OTHER = "Content-Type: application/octet-stream; name=a.txt"
UUENCODED = "See it.\n\n## Attachment: a.txt\n\nOdo"
FONTS = rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}{\f1\fcharset204 Arial;}{\f2\fcharset128 M;}"
FONTS += rb"{\f3\fcharset2{\*\panose 05}Symbol;}{\f4\fcharset2 Wingdings;}}"
PARTS = "Content-Type: multipart/{}; boundary=x\n\n--x\n{}\n--x--"


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("g.eml", LETTER.format("gb2312").encode() + "朱镕基".encode("gbk"), "朱镕基"),
        ("h.eml", LETTER.format("iso-8859-1").encode() + b"\x80 900", "€ 900"),
        ("f.html", b"<meta charset=x-sjis><p>" + "①家賃".encode("cp932"), "①家賃"),
        ("i.eml", "Subject: Größe\n\nKiel".encode("latin-1"), "Subject: Größe\n\nKiel"),
        (
            "j.eml",
            b"\xef\xbb\xbf\r\nSubject: x\nBcc: a@b.c\n\nOdo",
            "Bcc: a@b.c\nSubject: x\n\nOdo",
        ),
        ("k.eml", "Content-Type: text/plain; format=flowed; delsp=yes\n\n90 \n0", "900"),
        (
            "l.eml",
            PARTS.format("mixed", "Content-Type: text/calendar\n\nSUMMARY:Ro\n om 4"),
            "SUMMARY:Room 4",
        ),
        (
            "m.eml",
            PARTS.format("mixed", f"{FORWARDED}\n\nU3ViamVjdDogeAoKT2Rv"),
            "## Attachment: message/rfc822\n\nSubject: x\n\nOdo",
        ),
        ("o.eml", "Content-Type: text/rtf\n\n{\\rtf1 Odo}", "## Attachment: text/rtf\n\nOdo"),
        ("m.rtf", FONTS + rb"\f1 \'c0{\f2\'83A}{\f3m\u-3993\'67}\f4\'81\plain m\'f6}", "Аアμγ①mö"),
        ("n.rtf", b"{\\rtf1\\ansi\\ansicpg65001 \xc3\xb6\\'c3\\'9f}", "öß"),
        ("o.rtf", rb"{\rtf1\ansi\ansicpg10000 \'9a}", "ö"),
        ("c.rtf", r"{\rtf1\mac \'9f}", "ü"),
        ("p.rtf", r"{\rtf1 Rent 900\chatn{\*\annotation Note} due}", "Rent 900 due\n Note"),
        ("q.rtf", RTF_FORMULA, "Energy E=m c^2 in 3/4 of 4711 lamps"),
        ("a.html", FRAME, "# Rents & dues\n\nKiel.\n\nRent 900"),
        ("b.html", ORDERED, "2. a\n1. b\n\nC. a\nG. b\nH. c"),
        ("c.html", FORM, "☒  Smoker  ☐  Pets\n\nKiel\n\n☒ Husum"),
        ("a.xhtml", '<?xml version="1.0"?><p>Ann<br><![x y]><![if z]>Bo & Co', "Ann\nBo & Co"),
        ("d.html", LINKS, "[rent](http://a.org/rent) a.org"),
        ("e.html", STACKED, "3^4, 2^5 6, 5¦2, C_1^2, [1 2]"),
        ("a.mht", SAVED_PAGE, "Subject: Tides\n\nOdo"),
        (
            "a.mbox",
            "From a\nSubject: x\n\nOdo\n\nFrom b\n\nAnn",
            "Subject: x\n\nOdo\n\n-----\n\nAnn",
        ),
        ("a.emlx", "16\nSubject: x\n\nOdo\n<plist>", "Subject: x\n\nOdo"),
        ("cr.eml", "Subject: x\r\rOdo\r", "Subject: x\n\nOdo"),
        ("a.eml", "Subject: x\n\nGröße".encode("latin-1"), "Subject: x\n\nGröße"),
        ("e.eml", HTML_ALONE, "Subject: x\n\nHello Ann"),
        (
            "b.mbox",
            MAILBOX,
            "Subject: a\n\nFrom here on.\n\nFrom now: 12:30, lunch.\n\n-----\n\nSubject: b\n\nTwo.",
        ),
        (
            "f.eml",
            PARTS.format("mixed", "Content-Type: text/calendar\n\nLOCATION:Room 4"),
            "LOCATION:Room 4",
        ),
        ("b.eml", "Content-Type: multipart/mixed\n\nOdo", "Odo"),
        ("u.eml", "\n\nSee it.\nbegin 644 a.txt\n#3V1O\n`\nend\n", UUENCODED),
        ("p.eml", "To: a@b.c\nTo: d@e.f\n\nOdo", "To: a@b.c, d@e.f\n\nOdo"),
        ("q.eml", LETTER.format("iso-8859-8-i").encode() + b"\xf9\xec\xe5\xed", "שלום"),
        ("r.eml", "Content-Type: text/x-amp-html\n\n<p>Odo</p>", "Odo"),
        (
            "s.eml",
            PARTS.format(
                "mixed", f"{FORWARDED.replace('base64', 'quoted-printable')}\n\nA: b\n\n4=\n7"
            ),
            "## Attachment: message/rfc822\n\n47",
        ),
        (
            "c.mbox",
            "From a@b.c Mon, 4 May 2026 09:15:00 +0000\nSubject: a\n\nOdo",
            "Subject: a\n\nOdo",
        ),
        ("d.mbox", "From a@b.c 2026-05-04\nSubject: a\n\nOdo", "Subject: a\n\nOdo"),
        (
            "c.eml",
            PARTS.format("mixed", "Content-Disposition: attachment; filename=a.txt\n\nOdo"),
            "## Attachment: a.txt\n\nOdo",
        ),
        (
            "t.eml",
            f"{PARTS.format('mixed', '')[:-10]}Due\n--x\n\nOdo\n--x--\nCode 7",
            "Due\n\nOdo\n\nCode 7",
        ),
        (
            "d.eml",
            PARTS.format("report", "Content-Type: message/delivery-status\n\nTo: Odo"),
            "## Attachment: message/delivery-status\n\nTo: Odo",
        ),
        (
            "v.eml",
            PARTS.format("mixed", f"{OTHER}\n\nGröße 5 und die Straße").encode("latin-1"),
            "## Attachment: a.txt\n\nGröße 5 und die Straße",
        ),
        ("a.rtf", r"{\rtf1 A{\footnote Odo}{\header Top}}", "A\n Odo\n Top"),
        ("b.rtf", r"{\rtf1 A{\shp{\*\shpinst{\sp{\sn k}{\sv 2}}{\shptxt Odo}}}}", "A\n\n Odo"),
        ("d.rtf", r"{\rtf1 \u-10179?\u-8704?}", "😀"),
        ("e.rtf", r"{\rtf1 Ann {\deleted Bo\'e9\u233?\par {\b E}\deleted0  signs}}", "Ann  signs"),
        ("f.rtf", r"{\rtf1\deleted A\plain B\mvf  C{\mvf0  D}\emdash{\bin3 }\}}}", "B D"),
        ("g.rtf", b"{\\rtf1 A{\\*\\shppict{\\pict\\bin4 }{\\*}}B{\\pict \\bin ff}C}", "ABC"),
        ("h.rtf", r"{\rtf1 A {\b\*\ul B} {\*\cs2 C}{\*\x D}{\*\footnote E}}", "A B C\n E"),
        (
            "i.rtf",
            r'{\rtf1 See {\field{\*\fldinst {\b HYPERLINK "http://a.org"}}{\fldrslt {\ul me}}}.}',
            "See me <http://a.org>.",
        ),
        (
            "j.rtf",
            r"{\rtf1{\header Top}su{\*\annotation Note}per{\super\chftn}{\super 1}2}",
            RTF_PARTS,
        ),
        ("k.rtf", r"{\rtf1{\pntext 1.\tab}A{\object{\*\objdata 01}{\result B}}}", "1.\tAB"),
        (
            "l.rtf",
            r"{\pard A\par}{\field{\*\fldinst HYPERLINK http://a.org}{\fldrslt B}}",
            "A\nB <http://a.org>",
        ),
        (
            "r.rtf",
            r"{\rtf1 {\strike 9{\super 2}}5 \striked1 7\striked0 8\column 9}",
            "~~9^2~~5 ~~7~~8\n9",
        ),
        ("u.rtf", r"{\rtf1 2{\super 10{\super 3}} 5{\up6 2\up0  7}}", "2^(10^3) 5^2 7"),
        ("s.rtf", rf"{{\rtf1 {RTF_FORM}}}", "\u2612 \u2610 Husum"),
        ("t.rtf", r"{\rtf1 A{\*\do{\dptxbxtext Odo\par}} 4\-711}", "A\n\n Odo\n\n 4711"),
        ("a.doc", r"{\rtf1 Odo}", "Odo"),
        (
            "w.eml",
            "\ufeffSubject: Lease\n\nOdo signed.".encode("utf-16-le"),
            "Subject: Lease\n\nOdo signed.",
        ),
        ("a.ics", b"SUMMARY:Ro\r\n om 47\r\n 11\r\n", "SUMMARY:Room 4711\n"),
        ("a.fb2", DECLARED.encode("cp1251"), DECLARED),
        ("b.doc", "<html><p>Odo</p></html>", "Odo"),
        (
            "a.fodt",
            f'<?xml version="1.0" encoding="latin-1"?><!DOCTYPE d SYSTEM "d">{FLAT.format(TEXT)}',
            "## Lease\n\nÅnn  signed [in May].\n\nSee me <http://a.org>.",
        ),
        ("b.fodt", FLAT.format("<t:p>Größe 5, Straße</t:p>").encode("cp1252"), "Größe 5, Straße"),
        (
            "c.fodt",
            FLAT.format("<t:p>Größe \udcff äöüäöüäöü</t:p>").encode("utf-8", "surrogateescape"),
            "Größe \ufffd äöüäöüäöü",
        ),
        ("a.fods", FLAT.format(SHEET), "| x | x | 900 | 2026-05-01 |\n| --- | --- | --- | --- |"),
        (
            "a.ipynb",
            '{"cells": [{"cell_type": "raw", "source": ["Odo \\ud83d"]}, 1]}',
            "Odo \ufffd",
        ),
        ("b.ipynb", '{"cells": [{"source": "Odo"}]}'.encode("utf-16"), "Odo"),
        (
            "c.ipynb",
            '{"cells": [{"source": null, "outputs": [{"data": {"text/html": "<p>Odo</p>"}}]}]}',
            "Odo",
        ),
    ],
)
def test_a_document_of_each_kind_is_read_as_what_it_is(tmp_path, name, content, text):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    source = open_source(path)

    assert source.read(0, source.length) == text


@pytest.mark.parametrize("document", ["a.pdf", "a.docx", "a.xlsx", "a.pptx", "a.odt", "a.epub"])
def test_a_document_is_known_by_its_content_where_its_name_says_nothing(tmp_path, document):
    DOCUMENTS[document](tmp_path / document, "Signed by Odo.")
    for name in ("lease", "lease.bin", "lease.doc"):
        (tmp_path / name).write_bytes((tmp_path / document).read_bytes())
        source = open_source(tmp_path / name)

        assert "Signed by Odo." in source.read(0, source.length)
        assert (source.locate(0).page == 1) == (document in {"a.pdf", "a.xlsx", "a.pptx"})


def test_an_older_document_is_refused_with_the_format_to_save_it_in(tmp_path):
    older = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(999)
    for name in ("a.doc", "b.docx", "c.zip"):
        (tmp_path / name).write_bytes(older)

    with pytest.raises(UnreadableSourceError, match=r"cannot be read, .doc: save it as .docx"):
        open_source(tmp_path / "a.doc")
    with pytest.raises(UnreadableSourceError, match=r"an older Office document.*save it as DOCX"):
        open_source(tmp_path / "b.docx")
    with pytest.raises(UnreadableSourceError, match=r"skipped .*/a.doc: it is in a format"):
        open_source(tmp_path)
    (tmp_path / "d.txt").write_text("Odo")
    skipped = skips_of(open_source(tmp_path))
    assert all(file.is_document for file in skipped)
    assert skipped[-1].reason.endswith(", .zip: save it as a folder.")
