"""Pictures in a conversation that is read are documents: the words in them are read."""

from __future__ import annotations

import json
from base64 import b64encode
from io import BytesIO

import pytest

pytest.importorskip("PIL")
pytest.importorskip("lxml")

from PIL import Image, ImageDraw, ImageFont


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


def test_marks_of_a_file_are_not_those_of_the_conversation(behind, upstream, text_with, question):
    data = picture("red").partition(",")[2]
    file = {"type": "file", "file": {"filename": "door.png", "file_data": data}}

    ask(behind, file, image(picture("blue")), text_with, text(question))

    prompts = json.dumps(upstream.requests)
    assert prompts.count("[picture 1]") == 1
    assert "[picture]" in prompts


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
