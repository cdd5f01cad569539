"""Models that see are shown the pictures of a section, and again those that the notes refer to."""

from __future__ import annotations

import base64
import json
from io import BytesIO

import pytest

pytest.importorskip("PIL")
pytest.importorskip("lxml")

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from PIL import Image
from pydantic import BaseModel
from servers.redis_server import RedisServer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.redis import RedisStore
from memagent_graph.pictures.picture import numbers_in
from memagent_graph.rl.recorder import TraceRecorder
from memagent_graph.rl.traces import ListSink
from memagent_graph.text.files import open_source

COLOURS = {
    (255, 0, 0): "red",
    (0, 0, 255): "blue",
    (0, 128, 0): "green",
    (0, 0, 0): "black",
    (255, 255, 0): "yellow",
}
COLOURS_IN_ORDER = [*COLOURS.values()]


class Seeing(BaseChatModel):
    """Notes the colour of each picture that it is shown, under its mark, and answers with them."""

    seen: list[list[str]] = []
    asked: list[str] = []
    refers: bool = True
    wants: str = "none"

    @property
    def _llm_type(self):
        return "seeing"

    def _generate(self, messages, stop=None, run_manager=None, **options):
        content = messages[0].content
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        prompt, marks, colours = blocks[0]["text"], [], []
        for block in blocks[1:]:
            if block["type"] == "image":
                shown = Image.open(BytesIO(base64.b64decode(block["base64"])))
                assert block["mime_type"].startswith("image/")
                colours.append(COLOURS[shown.getpixel((9, 9))])
            else:
                marks = numbers_in(block["text"]) or marks
            if block["type"] == "image":
                marks = [*marks]
                colours[-1] = f"- The door of [picture {marks[-1]}] is {colours[-1]}."
        if "<pictures>" in prompt:
            self.asked.append(prompt.partition("<pictures>")[2].partition("</pictures>")[0])
            return self._reply(self.wants)
        self.seen.append(colours)
        kept = (
            prompt.split("<notes>")[-1].split("</notes>")[0].strip() if "<notes>" in prompt else ""
        )
        lines = [line for line in kept.splitlines() if line.startswith("- The door")]
        if not self.refers:
            colours = [line.replace("[picture ", "[figure ") for line in colours]
        return self._reply("\n".join([*lines, *colours]) or "- Nothing about a door.")

    def _reply(self, text):
        metadata = {"prompt_token_ids": [7], "token_ids": [8], "logprobs": [-0.5]}
        message = AIMessage(text, response_metadata={"generation": metadata})
        return ChatResult(generations=[ChatGeneration(message=message)])


def write_page(path, *colours, words=""):
    parts = []
    for colour in colours:
        kept = BytesIO()
        Image.new("RGB", (64, 64), colour).save(kept, "PNG")
        data = base64.b64encode(kept.getvalue()).decode()
        parts.append(f'<p>A door {words}.</p><img alt="a door" src="data:image/png;base64,{data}">')
    path.write_text("".join(parts), "utf-8")
    return path


QUESTION = "Which colour is the door?"


def ask(model, document, store=None, shape=None, **settings):
    store, saver = store or InMemoryStore(), InMemorySaver()
    agent = create_memagent(
        model,
        config=ReadingConfig(**settings),
        store=store,
        checkpointer=saver,
        response_format=shape,
    )
    given = {"question": QUESTION, "document": document}
    output = agent.invoke(given, {"configurable": {"thread_id": "1"}})
    return output, store, saver


def test_a_model_that_sees_reads_what_only_the_picture_says(tmp_path):
    model = Seeing(seen=[])

    output, _, _ = ask(model, write_page(tmp_path / "a.html", "red"), pictures=1000)

    assert "The door of [picture 1] is red." in output["memory"]
    assert "red" in output["answer"]
    assert output["unsupported"] == []
    assert [len(one) for one in model.seen] == [1, 1]  # the section, and the answer once more


def test_an_answer_that_stands_on_a_picture_alone_is_found(tmp_path):
    agent = create_memagent(Seeing(seen=[]), config=ReadingConfig(pictures=1000))
    asked = "Which colour is the gate of the northern garden in the yard painted?"

    page = write_page(tmp_path / "a.html", "red", words="of the barn is in the yard")
    output = agent.invoke({"question": asked, "document": page})

    assert "red" in output["answer"]
    assert output["found"] is True


def test_without_the_setting_nothing_is_shown(tmp_path):
    model = Seeing(seen=[])

    output, _, _ = ask(model, write_page(tmp_path / "a.html", "red"))

    assert model.seen[0] == []
    assert "red" not in output["answer"]


def test_the_budget_says_how_many_pictures_a_step_shows(tmp_path):
    model = Seeing(seen=[])
    page = write_page(tmp_path / "a.html", "red", "blue", "green")

    output, _, _ = ask(model, page, pictures=2 * (85 + 170 + 32))

    assert len(model.seen[0]) == 2
    assert output["warnings"] == [
        "What was left out: 1 (a picture of a chunk, without room in pictures)."
    ]


def test_pictures_without_room_are_told_of_a_memory_that_is_taken_from_a_store(tmp_path):
    store, page = InMemoryStore(), write_page(tmp_path / "a.html", "red", "blue", "green")
    first, _, _ = ask(Seeing(seen=[]), page, store, pictures=2 * (85 + 170 + 32))

    output, _, _ = ask(Seeing(seen=[]), page, store, pictures=2 * (85 + 170 + 32))

    assert output["usage"]["calls"] < first["usage"]["calls"]
    assert "1 (a picture" in first["warnings"][0]
    assert output["warnings"] == first["warnings"]


def test_the_answer_sees_again_only_what_the_memory_refers_to(tmp_path):
    model = Seeing(seen=[], refers=False)

    ask(model, write_page(tmp_path / "a.html", "red"), pictures=1000)

    assert [len(one) for one in model.seen] == [1, 0]


@pytest.mark.parametrize(
    ("wants", "seen"),
    [
        ("2", ["blue"]),
        ("[picture 5, p. 1: a door], then [picture 3]", ["yellow", "green"]),
        ("Those would be 1, 99 and 1 again.", ["red"]),
        ("none", []),
        ("9" * 5000, []),
    ],
)
def test_where_not_all_fit_the_answer_sees_what_it_asks_for(tmp_path, wants, seen):
    model = Seeing(seen=[], asked=[], wants=wants)
    page = write_page(tmp_path / "a.html", *COLOURS_IN_ORDER)

    output, _, _ = ask(model, page, pictures=10_000)

    (asked,) = model.asked
    assert numbers_in(asked) == [1, 2, 3, 4, 5]
    assert [line.rpartition(" ")[2] for line in model.seen[-1]] == [f"{one}." for one in seen]
    assert output["usage"]["calls"] == 3
    assert not [line for line in output["warnings"] if "left out" in line]


def test_what_it_asks_for_keeps_to_the_budget_and_to_four(tmp_path):
    model = Seeing(seen=[], asked=[], wants="5, 4, 3, 2, 1")
    page = write_page(tmp_path / "a.html", *COLOURS_IN_ORDER, words="and then some " * 30)
    room = 85 + 170 + 32

    shown, warned = [], []
    for most in (10_000, 2 * room):
        agent = create_memagent(model, config=ReadingConfig(pictures=most, chunk_tokens=100))
        output = agent.invoke({"question": QUESTION, "document": page})
        shown.append(len(model.seen[-1]))
        warned.append(" ".join(output["warnings"]))

    assert shown == [4, 2]
    assert "1 (asked to see again, without room)" in warned[0]
    assert "3 (asked to see again, without room)" in warned[1]


def test_where_all_fit_nothing_is_asked(tmp_path):
    model = Seeing(seen=[], asked=[], wants="none")

    output, _, _ = ask(model, write_page(tmp_path / "a.html", "red", "blue"), pictures=10_000)

    assert model.asked == []
    assert len(model.seen[-1]) == 2
    assert output["usage"]["calls"] == 2


class Door(BaseModel):
    colour: str


class Shaped(Seeing):
    """Answers in the shape of a door as well."""

    def _generate(self, messages, stop=None, run_manager=None, **options):
        found = super()._generate(messages, **options)
        if "JSON" in str(messages[0].content):
            said = json.dumps({"colour": self.seen[-1][0].split()[-1].strip(".")})
            return ChatResult(generations=[ChatGeneration(message=AIMessage(said))])
        return found


def test_an_answer_in_a_shape_sees_the_pictures_as_well(tmp_path):
    config = ReadingConfig(pictures=1000)
    agent = create_memagent(Shaped(seen=[]), config=config, response_format=Door)
    page = write_page(tmp_path / "a.html", "red")

    output = agent.invoke({"question": QUESTION, "document": page})

    assert output["structured_response"] == Door(colour="red")


def test_each_section_has_its_own_pictures(tmp_path):
    model = Seeing(seen=[])
    page = write_page(tmp_path / "a.html", "red", "blue", words="and then some " * 30)

    output, _, _ = ask(model, page, pictures=1000, chunk_tokens=100)

    shown = [line for step in model.seen[:-1] for line in step]
    assert [line.rpartition(" ")[2] for line in shown] == ["red.", "blue."]
    assert "red" in output["memory"]
    assert "blue" in output["memory"]


def test_a_chunk_looks_at_the_documents_that_it_is_of_alone(tmp_path):
    for number in range(40):
        write_page(tmp_path / f"{number:02}.html", "red", words="and then some " * 20)
    source, looked = open_source(tmp_path), []
    for part in source.parts:
        part.__class__ = type(
            "Watched",
            (type(part),),
            {"pictures": property(lambda self: looked.append(self) or self.__dict__["pictures"])},
        )

    ask(Seeing(seen=[]), source, pictures=600, chunk_tokens=200)

    chunks = source.length // 600
    assert len(source.parts) == 40
    assert 40 <= len(looked) < 4 * chunks + 40


def test_another_picture_under_the_same_mark_is_read_anew(tmp_path):
    store = InMemoryStore()
    answers = []
    for colour in ("red", "blue"):
        page = write_page(tmp_path / "a.html", colour)
        agent = create_memagent(Seeing(seen=[]), config=ReadingConfig(pictures=1000), store=store)
        answers.append(agent.invoke({"question": QUESTION, "document": page})["answer"])

    assert "red" in answers[0]
    assert "blue" in answers[1]


WAYS = {
    "shown": lambda path: (Seeing(seen=[]), write_page(path, "red"), {"pictures": 1000}),
    "chosen": lambda path: (
        Seeing(seen=[], asked=[], wants="1, 2"),
        write_page(path, *COLOURS_IN_ORDER),
        {"pictures": 10_000},
    ),
    "shaped": lambda path: (
        Shaped(seen=[]),
        write_page(path, "red"),
        {"pictures": 1000, "shape": Door},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_stores_and_checkpoints_never_hold_the_bytes(tmp_path, way):
    model, page, settings = WAYS[way](tmp_path / "a.html")
    encoded = page.read_text("utf-8").partition("base64,")[2][:40]

    output, store, saver = ask(model, page, **settings)

    assert model.seen[-1]
    kept = [str(item.value) for item in store.search(("memagent",), limit=1000)]
    kept += [str(store._data), str(saver.storage), str(saver.blobs), str(saver.writes), str(output)]
    assert "picture 1" in "".join(kept)
    assert not [one for one in kept if encoded in one or "iVBORw0KGgo" in one]


@pytest.mark.parametrize(
    ("colours", "gone"),
    [(["red"], [1]), (["red", "blue"], [2, 1])],
    ids=["before the answer", "before its section"],
)
def test_a_picture_that_is_gone_is_said_to_be(tmp_path, colours, gone):
    page = write_page(tmp_path / "a.html", *colours, words="and then some " * 30)

    class Deleting(Seeing):
        def _generate(self, messages, stop=None, run_manager=None, **options):
            found = super()._generate(messages, **options)
            if self.seen[-1]:
                page.unlink()
            return found

    model = Deleting(seen=[])
    output, _, _ = ask(model, page, pictures=1000, chunk_tokens=100)

    reason = f"1 ({page} has changed or is gone, and with it "
    lost = ", ".join(f"{reason}[picture {number}: a door])" for number in gone)
    assert [len(one) for one in model.seen if one] == [1]
    assert f"What was left out: {lost}." in output["warnings"]
    assert "red" in output["answer"]


@pytest.mark.parametrize("way", WAYS)
def test_redis_never_holds_the_bytes(tmp_path, way):
    (model, page, settings), server = WAYS[way](tmp_path / "a.html"), RedisServer(tmp_path)
    encoded = page.read_text("utf-8").partition("base64,")[2][:40]

    with RedisStore.from_url(server.url) as store:
        ask(model, page, store=store, **settings)
    server.kill()

    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*.aof"))
    assert b"picture 1" in kept
    assert not [one for one in (encoded.encode(), b"iVBORw0KGgo") if one in kept]


@pytest.mark.parametrize("way", ["shown", "chosen"])
def test_rollouts_refer_to_pictures_without_their_bytes(tmp_path, way):
    (model, page, settings), sink = WAYS[way](tmp_path / "a.html"), ListSink()
    encoded = page.read_text("utf-8").partition("base64,")[2][:40]
    recorder = TraceRecorder(sink, tokenizer=Tokenizer(WordLevel({"a": 0}, unk_token="a")))
    agent = create_memagent(model, config=ReadingConfig(**settings))

    agent.invoke({"question": QUESTION, "document": page}, recorder.config())

    records = sink.take()
    kept = str(records)
    assert "The door of [picture 1] is red." in kept
    assert len(records) > 2
    assert not [one for one in (encoded, "iVBORw0KGgo") if one in kept]


def test_a_reference_to_a_picture_that_nobody_saw_is_unsupported(tmp_path):
    class Inventing(Seeing):
        def _generate(self, messages, stop=None, run_manager=None, **options):
            said = (
                "- The door of [picture 1] is red.\n- The vault of [picture 77] holds 9310 coins."
            )
            return ChatResult(generations=[ChatGeneration(message=AIMessage(said))])

    output, _, _ = ask(Inventing(), write_page(tmp_path / "a.html", "red"), pictures=1000)

    doubted = [item["text"] for item in output["unsupported"]]
    warned = " ".join(output["warnings"])
    assert "picture 77" in warned
    assert not any("picture 1]" in text for text in doubted)


@pytest.mark.parametrize("model", ["extractive", "blind"])
def test_a_reader_that_sees_nothing_is_refused_the_setting(model):
    if model == "blind":
        model = Seeing(seen=[], profile={"image_inputs": False})

    with pytest.raises(ConfigurationError, match="takes no pictures"):
        create_memagent(model, config=ReadingConfig(pictures=1000))
