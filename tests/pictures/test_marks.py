"""Pictures of documents: their marks in the text, their words, and the limits on them."""

import base64
from io import BytesIO
from pathlib import Path

import pytest

pytest.importorskip("PIL")
pytest.importorskip("lxml")

from PIL import Image, ImageDraw, ImageFont

from memagent_graph import pictures
from memagent_graph.errors import SourceChangedError, UnreadableSourceError
from memagent_graph.text import ocr
from memagent_graph.text.files import open_source


def draw_words(words="ACCESS CODE 4711", size=(600, 200), colour="white"):
    picture = Image.new("RGB", size, colour)
    font = ImageFont.load_default(48)
    ImageDraw.Draw(picture).text((20, 60), words, fill="black", font=font)
    return picture


def to_bytes(picture, kind="PNG", **options):
    kept = BytesIO()
    picture.save(kept, kind, **options)
    return kept.getvalue()


def pixels_of(source, number=0):
    media_type, encoded = source.load_picture(source.pictures[number])
    return media_type, Image.open(BytesIO(base64.b64decode(encoded)))


class TestMark:
    def test_a_mark_has_number_page_and_caption_on_one_line(self):
        write = pictures.write_mark
        assert write("a [map]\nof Rome", 2, 12) == "[picture 2, p. 12: a (map) of Rome]"
        assert write("", 3) == "[picture 3]"
        assert write("a map") == "[picture: a map]"

    def test_a_text_refers_to_pictures_by_their_numbers(self):
        notes = "- The code is 4711 [picture 2, p. 1]. See [picture 10: a map] and [picture 2]."

        assert pictures.numbers_in(notes) == [2, 10]
        assert pictures.without_marks("A [picture 2, p. 1: b] c [picture 1].") == "A  c ."
        assert pictures.without_numbers("[picture 2, p. 1: b]") == "[picture: b]"

    @pytest.mark.parametrize(
        ("kind", "size", "tokens"),
        [
            ("openai-chat", (1024, 1024), 765),  # OpenAI's examples
            ("openai-chat", (2048, 4096), 1105),
            ("anthropic-chat", (1000, 750), 1000),
            ("anthropic-chat", (4096, 4096), 5593),  # of 2,048 pixels square
        ],
    )
    def test_openai_charges_by_tiles_and_a_model_may_know_better(self, kind, size, tokens):
        class Model:
            _llm_type = kind

        class Own(Model):
            def picture_tokens(self, width, height):
                return width + height

        picture = pictures.Picture(1, "", "", "image/png", *size)

        prices = [pictures.price(picture, model) for model in (Model(), Own())]
        assert prices == [tokens, sum(size)]


class TestDocuments:
    def test_a_word_document_has_marks_where_its_pictures_stand(self, tmp_path):
        docx = pytest.importorskip("docx")
        document = docx.Document()
        document.add_paragraph("Before.")
        document.add_picture(BytesIO(to_bytes(draw_words(), "PNG")))
        document.add_paragraph("After.")
        document.save(tmp_path / "a.docx")

        source = open_source(tmp_path / "a.docx")

        assert "Before.\n\n[picture 1]" in source.text
        assert source.text.endswith("After.")
        assert source.text[source.pictures[0].start :].startswith("[picture 1]")
        assert pixels_of(source)[1].size == (600, 200)

    @pytest.mark.slow
    def test_a_page_has_its_own_pictures_and_only_the_text_of_others(self, tmp_path):
        data = base64.b64encode(to_bytes(draw_words())).decode()
        page = f'<p>Hi</p><img alt="the door" src="data:image/png;base64,{data}"><p>End</p>'
        page += '<img alt="far" src="https://example.org/a.png">'
        (tmp_path / "a.html").write_text(page, "utf-8")

        source = open_source(tmp_path / "a.html")

        assert "Hi\n\n[picture 1: the door]" in source.text
        assert source.text.endswith("End\n\n[picture: far]")
        assert [pixels_of(source)[0], len(source.pictures)] == ["image/png", 1]

    def test_a_page_of_a_pdf_ends_with_the_marks_of_its_pictures(self, tmp_path):
        write_figure(tmp_path / "a.pdf")

        source = open_source(tmp_path / "a.pdf")

        assert source.text.startswith("First page.\n\n\fSecond page.\n\n[picture 1, p. 2]")
        assert source.locate(source.pictures[0].start).page == 2
        assert pixels_of(source)[1].size == (600, 200)

    def test_with_ocr_the_words_in_a_picture_follow_its_mark(self, tmp_path):
        pytest.importorskip("rapidocr")
        (tmp_path / "a.png").write_bytes(to_bytes(draw_words()))
        write_figure(tmp_path / "a.pdf")

        alone, within = open_source(tmp_path / "a.png"), open_source(tmp_path / "a.pdf")

        assert alone.text == "[picture 1]\n\nACCESS CODE 4711"
        assert alone.warnings == (f"{alone.name}: words of picture 1 come from OCR.",)
        assert "[picture 1, p. 2] (words in it: ACCESS CODE 4711)" in within.text

    def test_a_document_that_changed_has_lost_its_pictures(self, tmp_path):
        (tmp_path / "a.png").write_bytes(to_bytes(draw_words()))
        source = open_source(tmp_path / "a.png")
        (tmp_path / "a.png").write_bytes(to_bytes(draw_words("OTHER")))

        with pytest.raises(SourceChangedError, match="changed or is gone"):
            source.load_picture(source.pictures[0])

        (tmp_path / "a.png").unlink()
        with pytest.raises(SourceChangedError, match=r"picture 1"):
            source.load_picture(source.pictures[0])


def write_figure(path: Path) -> Path:
    """A PDF of two pages of text, the second with a picture."""
    canvas = pytest.importorskip("reportlab.pdfgen.canvas").Canvas(str(path), pagesize=(612, 792))
    canvas.drawString(72, 700, "First page.")
    canvas.showPage()
    canvas.drawString(72, 700, "Second page.")
    (path.parent / "figure.png").write_bytes(to_bytes(draw_words()))
    canvas.drawImage(str(path.parent / "figure.png"), 72, 400, 300, 100)
    canvas.save()
    return path


KINDS = {
    "cmyk.jpg": lambda: to_bytes(draw_words().convert("CMYK"), "JPEG"),
    "sixteen.png": lambda: to_bytes(Image.new("I;16", (90, 60), 30_000)),
    "animated.gif": lambda: to_bytes(
        draw_words(), "GIF", save_all=True, append_images=[draw_words("two")]
    ),
    "clear.png": lambda: to_bytes(Image.new("RGBA", (90, 60), (255, 0, 0, 0))),
    "a.webp": lambda: to_bytes(draw_words(), "WEBP"),
    "grey.tif": lambda: to_bytes(draw_words().convert("L"), "TIFF"),
    "palette.png": lambda: to_bytes(draw_words().convert("P")),
}


@pytest.mark.parametrize("name", KINDS)
def test_all_kinds_of_pictures_are_shown_in_rgb(tmp_path, name):
    (tmp_path / name).write_bytes(KINDS[name]())

    media_type, shown = pixels_of(open_source(tmp_path / name))

    assert shown.mode == "RGB"
    assert media_type == ("image/jpeg" if name.endswith(".jpg") else "image/png")
    if name == "clear.png":
        assert shown.getpixel((5, 5)) == (255, 255, 255)


def test_where_a_picture_was_taken_is_not_shown(tmp_path):
    exif = Image.Exif()
    exif[0x8825] = {1: "N", 2: (52.0, 31.0, 0.0)}
    (tmp_path / "a.jpg").write_bytes(to_bytes(draw_words(), "JPEG", exif=exif))

    source = open_source(tmp_path / "a.jpg")

    assert not pixels_of(source)[1].getexif()


def write_bomb():
    """A PNG that claims 30,000 x 30,000 pixels."""
    content = bytearray(to_bytes(Image.new("L", (1, 1))))
    content[16:24] = (30_000).to_bytes(4, "big") * 2
    import zlib

    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


BAD = {
    "bomb.png": (write_bomb, "900,000,000 pixels"),
    "cut.png": (lambda: to_bytes(draw_words())[:1500], "truncated|broken|end is missing"),
    "cut.jpg": (lambda: to_bytes(draw_words(), "JPEG")[:900], "truncated|broken|end is missing"),
    "wrong.png": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9, "broken, or not PNG"),
    "icon.webp": (lambda: b"RIFF" + bytes(5000), "broken, or not PNG"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_is_refused_and_said_to_be(tmp_path, name):
    write, said = BAD[name]
    (tmp_path / name).write_bytes(write())

    with pytest.raises(UnreadableSourceError, match=said):
        open_source(tmp_path / name)


def test_a_bad_picture_in_a_document_costs_that_picture_alone(tmp_path):
    data = [base64.b64encode(one).decode() for one in (write_bomb(), to_bytes(draw_words()))]
    begin = '<img alt="n{}" src="data:image/png;base64,{}">'
    page = "".join(begin.format(*one) for one in enumerate(data))
    (tmp_path / "a.html").write_text(page, "utf-8")

    source = open_source(tmp_path / "a.html")

    assert source.text.startswith("[picture: n0][picture 1: n1]")
    refused = "refused 1 picture: it has 900,000,000 pixels, more than 80,000,000."
    assert f"{source.name}: {refused}" in source.warnings


def test_a_picture_without_pixels_or_with_too_many_bytes_is_refused(monkeypatch):
    with pytest.raises(ocr.PictureError, match="no pixels"):
        ocr.check_size(0, 5)
    monkeypatch.setattr(ocr, "MOST_BYTES", 10)
    with pytest.raises(ocr.PictureError, match="more than 10"):
        ocr.open_picture(to_bytes(draw_words()))
