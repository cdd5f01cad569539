"""Pictures in a conversation that is read are documents, and a model that sees is shown them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from io import BytesIO

import pytest

pytest.importorskip("PIL")
pytest.importorskip("lxml")

from documents import write_scan
from langgraph.store.memory import InMemoryStore
from PIL import Image, ImageDraw, ImageFont

from memagent_graph.pictures.picture import numbers_in
from memagent_graph.text.converter import ConvertedSource

RESPONSES = "/v1/responses"


def picture(colour="white", words="ACCESS CODE 4711"):
    drawn = Image.new("RGB", (600, 200), colour)
    font = ImageFont.load_default(48)
    ImageDraw.Draw(drawn).text((20, 60), words, fill="black", font=font)
    kept = BytesIO()
    drawn.save(kept, "PNG")
    return f"data:image/png;base64,{b64encode(kept.getvalue()).decode()}"


def image(url: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url}}


def text(said: str) -> dict:
    return {"type": "text", "text": said}


def ask(server, *parts: dict, model: str = "small", **fields) -> dict:
    messages = [{"role": "user", "content": [*parts]}]
    reply = server.post(json={"model": model, "messages": messages, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def shown(upstream) -> list[list[str]]:
    """The marks of the pictures that each request to the model showed."""
    found = []
    for sent in upstream.requests:
        content = sent["messages"][0]["content"]
        if isinstance(content, list):
            assert any(block["type"] == "image_url" for block in content)
            found.append([block["text"] for block in content[2:] if block["type"] == "text"])
    return found


def test_a_model_that_sees_is_shown_the_pictures_of_what_is_read_in_their_order(
    serve, upstream, small, text_with, question
):
    config = small.model_copy(update={"pictures": 500})
    upstream.models[0]["max_model_len"] = 2600
    server = serve("openai:small", base_url=upstream.base_url, config=config)
    parts = [image(picture("red")), text_with, image(picture("blue")), text(question)]

    reply = ask(server, *parts)

    assert shown(upstream) == [["[picture 1]"], ["[picture 2]"]]
    assert not [line for line in reply["memagent"]["warnings"] if "not read" in line]


@pytest.mark.slow
def test_without_the_setting_the_words_in_a_picture_are_read(behind, upstream, text_with):
    pytest.importorskip("rapidocr")

    reply = ask(behind, text_with, image(picture()), text("What is the access code?"))

    prompts = json.dumps(upstream.requests)
    assert "[picture 1]" in prompts
    assert "ACCESS CODE 4711" in prompts
    assert "base64" not in prompts
    assert "picture 1.png: words of picture 1 come from OCR." in reply["memagent"]["warnings"]


def test_a_picture_that_is_linked_or_broken_is_named_and_the_rest_is_read(shared, question):
    broken = "data:image/png;base64,iVBORw0KGgo="
    parts = [image("http://127.0.0.1:9/a.png"), image(broken), text("The vault opens at 6:40.")]

    reply = ask(shared, *parts, text(question), model="extractive")

    linked, unread = (one for one in reply["memagent"]["warnings"] if "was not read" in one)
    assert linked.startswith("picture 1 was not read, since it is only linked")
    assert unread.startswith("picture 2 was not read: ")
    assert reply["choices"][0]["message"]["content"].startswith("The vault opens at 6:40")


@pytest.mark.slow
def test_a_response_reads_pictures_as_well(shared, question):
    pytest.importorskip("rapidocr")
    made = {"type": "input_image", "image_url": picture()}
    asked = [{"role": "user", "content": [made, {"type": "input_text", "text": "Which code?"}]}]

    reply = shared.post(RESPONSES, json={"model": "extractive", "input": asked})

    assert "4711" in reply.json()["output"][-1]["content"][0]["text"]


def test_marks_of_a_file_are_not_those_of_the_conversation(behind, upstream, text_with, question):
    data = picture("red").partition(",")[2]
    file = {"type": "file", "file": {"filename": "door.png", "file_data": data}}

    ask(behind, file, image(picture("blue")), text_with, text(question))

    prompts = json.dumps(upstream.requests)
    assert prompts.count("[picture 1]") == 1
    assert "[picture]" in prompts


def as_file(content: bytes, name: str) -> dict:
    return {"type": "file", "file": {"filename": name, "file_data": b64encode(content).decode()}}


def write_slides(*colours: str) -> bytes:
    pptx = pytest.importorskip("pptx")
    presentation, kept = pptx.Presentation(), BytesIO()
    for colour in colours:
        slide = presentation.slides.add_slide(presentation.slide_layouts[6])
        content = BytesIO(b64decode(picture(colour).partition(",")[2]))
        slide.shapes.add_picture(content, 0, 0)
    presentation.save(kept)
    return kept.getvalue()


@pytest.fixture
def seeing(serve, upstream, small):
    """A server in front of a model that sees."""
    upstream.models[0]["max_model_len"] = 3600
    config = small.model_copy(update={"pictures": 1000})
    return serve("openai:small", base_url=upstream.base_url, config=config)


def test_pictures_in_files_are_seen_under_numbers_of_the_conversation(
    seeing, upstream, text_with, question
):
    slides = as_file(write_slides("red", "green"), "doors.pptx")
    parts = [image(picture("blue")), text_with, slides, text_with, image(picture("white"))]

    reply = ask(seeing, *parts, text(question))

    marks = [mark for section in shown(upstream) for mark in section]
    assert [numbers_in(mark) for mark in marks] == [[1], [2], [3], [4]]
    assert "p. 2" in marks[2]
    assert "iVBORw0KGgo" not in json.dumps(reply)


def test_a_request_that_fits_reaches_a_model_that_sees_with_the_pictures_of_its_files(
    seeing, upstream
):
    slides = as_file(write_slides("red", "green", "blue"), "doors.pptx")

    ask(seeing, slides, text("Which doors are there?"))

    said, *seen, asked = upstream.requests[-1]["messages"][0]["content"]
    assert said["text"].count("[picture: image.png]") == 3
    assert [one["type"] for one in seen] == ["text", "image_url"] * 2  # of a third is no room
    assert {one["text"] for one in seen[::2]} == {"[picture: image.png]"}
    assert asked == text("Which doors are there?")


def test_the_pictures_of_several_files_each_stand_behind_the_text_of_their_file(seeing, upstream):
    files = [as_file(write_slides(colour), f"{colour}.pptx") for colour in ("red", "blue")]

    ask(seeing, *files, text("Which doors are there?"))

    content = upstream.requests[-1]["messages"][0]["content"]
    assert [one["type"] for one in content] == ["text", "text", "image_url"] * 2 + ["text"]
    assert ["red.pptx" in content[0]["text"], "blue.pptx" in content[3]["text"]] == [True, True]
    for place, colour in ((2, (255, 0, 0)), (5, (0, 0, 255))):
        encoded = content[place]["image_url"]["url"].partition(",")[2]
        assert Image.open(BytesIO(b64decode(encoded))).convert("RGB").getpixel((1, 1)) == colour


def test_a_request_of_a_remembered_user_loads_each_picture_once(
    serve, upstream, small, monkeypatch
):
    upstream.models[0]["max_model_len"] = 3600
    server = serve(
        "openai:small",
        base_url=upstream.base_url,
        config=small.model_copy(update={"pictures": 1000}),
        store=InMemoryStore(),
        remember=True,
    )
    loaded, load = [], ConvertedSource.load_picture
    monkeypatch.setattr(
        ConvertedSource,
        "load_picture",
        lambda source, one: loaded.append(one.number) or load(source, one),
    )
    said = {"model": "small", "user": "joe"}
    server.post(json={**said, "messages": [{"role": "user", "content": "I breed quokkas."}]})
    slides = as_file(write_slides("red", "green"), "doors.pptx")
    content = [slides, text("What do I breed, and which doors are there?")]

    server.post(json={**said, "messages": [{"role": "user", "content": content}]})

    system, user = upstream.requests[-1]["messages"]
    assert "quokkas" in system["content"]
    assert sum(part["type"] == "image_url" for part in user["content"]) == 2
    assert loaded == [1, 2]


def test_a_scanned_page_in_a_file_is_seen(seeing, upstream, text_with, question, tmp_path):
    pytest.importorskip("pypdfium2")
    scan = write_scan(tmp_path / "scan.pdf", [[(72, 700, "Ann signed.")]]).read_bytes()

    ask(seeing, text_with, as_file(scan, "scan.pdf"), text(question))

    assert shown(upstream) == [["[picture 1, p. 1]"]]


@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=["whole", "streamed"])
def test_the_answer_sees_again_the_pictures_that_the_notes_refer_to(
    seeing, upstream, text_with, question, fields
):
    upstream.reply = lambda _: "The sign of [picture 2] says that the vault opens at 6:40."
    messages = [
        {
            "role": "user",
            "content": [image(picture("red")), text_with, image(picture("blue")), text(question)],
        }
    ]

    reply = seeing.post(json={"model": "small", "messages": messages, **fields})

    assert reply.status_code == 200
    assert shown(upstream)[-1] == ["[picture 2]"]
    assert "<notes>" in upstream.requests[-1]["messages"][0]["content"][0]["text"]


@pytest.mark.parametrize(
    "later",
    [
        [],
        [{"role": "assistant", "content": "At 6:40."}, {"role": "user", "content": "Who says so?"}],
    ],
    ids=["the same once more", "a follow-up"],
)
def test_a_later_answer_sees_the_pictures_of_earlier_turns(
    seeing, upstream, text_with, question, later
):
    upstream.reply = lambda _: "The sign of [picture 2] says that the vault opens at 6:40."
    parts = [image(picture("red")), text_with, image(picture("blue")), text(question)]
    messages = [{"role": "user", "content": parts}]
    first = seeing.post(json={"model": "small", "messages": messages})
    memory = {"memory": first.headers["x-memagent-memory"]}
    upstream.requests.clear()

    reply = seeing.post(
        json={"model": "small", "messages": [*messages, *later], "memagent": memory}
    )

    assert reply.status_code == 200
    assert shown(upstream) == [["[picture 2]"]]


def test_an_answer_in_a_shape_is_shown_the_pictures_that_the_notes_refer_to(
    seeing, upstream, text_with, question
):
    upstream.reply = lambda _: "The sign of [picture 2] says that the vault opens at 6:40."
    schema = {"name": "time", "schema": {"type": "object"}}
    parts = [image(picture("red")), text_with, image(picture("blue")), text(question)]

    ask(seeing, *parts, response_format={"type": "json_schema", "json_schema": schema})

    asked = upstream.requests[-1]
    assert asked["response_format"]["json_schema"] == schema
    said, mark, seen = asked["messages"][-1]["content"]
    assert (said, mark) == (text(question), text("[picture 2]"))
    assert seen["image_url"]["url"].startswith("data:image/png;base64,")


def test_another_picture_in_its_place_is_another_conversation(shared):
    from memagent_openai_server.conversation import prefixes
    from memagent_openai_server.files import read_pictures

    asked = [[{"role": "user", "content": [image(picture(colour))]}] for colour in ("red", "blue")]
    ends = [[*prefixes(read_pictures(one, in_files=False))][-1] for one in asked]

    assert ends[0] != ends[1]


def test_a_request_that_fits_reaches_the_model_with_a_picture_of_any_size(behind, upstream):
    noise = Image.effect_noise((300, 300), 90)
    kept = BytesIO()
    noise.save(kept, "PNG")
    url = f"data:image/png;base64,{b64encode(kept.getvalue()).decode()}"
    parts = [image(url), text("What is this?")]
    assert len(url) > 80_000

    ask(behind, *parts)

    assert upstream.requests[-1]["messages"][0]["content"] == parts


@pytest.fixture
def text_with():
    return text("Item 7 stands on shelf 3. " * 900)
