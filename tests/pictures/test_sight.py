"""Models that see are shown the pictures of a section, and again those that the notes refer to."""

import base64
from io import BytesIO

import pytest

pytest.importorskip("PIL")
pytest.importorskip("lxml")

from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from PIL import Image
from pydantic import BaseModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.redis import RedisStore
from memagent_graph.pictures import numbers_in
from memagent_graph.rl.recorder import TraceRecorder
from memagent_graph.rl.traces import ListSink
from memagent_graph.testing import ScriptedChatModel

COLOURS = {
    (255, 0, 0): "red",
    (0, 0, 255): "blue",
    (0, 128, 0): "green",
    (0, 0, 0): "black",
    (255, 255, 0): "yellow",
}
COLOURS_IN_ORDER = [*COLOURS.values()]


class Seeing(ScriptedChatModel):
    """Notes the colour of each picture that it is shown, and answers with its notes.

    They name pictures by their marks if it `refers` to them; it `wants` to see some again.
    """

    def __init__(self, wants="none", *, refers=True, **fields):
        super().__init__(self.reply, **fields)
        self._wants, self._refers = wants, refers
        self._seen, self._asked = [], []

    def reply(self, messages):
        content = messages[0].content
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        prompt, mark, noted = blocks[0]["text"], None, []
        for block in blocks[1:]:
            if block["type"] == "image":
                assert block["mime_type"].startswith("image/")
                shown = Image.open(BytesIO(base64.b64decode(block["base64"])))
                colour = COLOURS[shown.getpixel((9, 9))]
                noted.append(f"- The door of [picture {mark}] is {colour}.")
            elif numbers := numbers_in(block["text"]):
                mark = numbers[-1]
        if "<pictures>" in prompt:
            self._asked.append(prompt.partition("<pictures>")[2].partition("</pictures>")[0])
            return with_ids(self._wants)
        self._seen.append(noted)
        if "JSON" in prompt:
            return {"colour": noted[0].split()[-1].strip(".")}
        kept = prompt.partition("<notes>")[2].partition("</notes>")[0].strip()
        lines = [line for line in kept.splitlines() if line.startswith("- The door")]
        if not self._refers:
            noted = [line.replace("[picture ", "[figure ") for line in noted]
        return with_ids("\n".join([*lines, *noted]) or "- Nothing about a door.")


def with_ids(text):
    metadata = {"prompt_token_ids": [7], "token_ids": [8], "logprobs": [-0.5]}
    return AIMessage(text, response_metadata={"generation": metadata})


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
ONE = 85 + 170 + 32
"""Tokens of one picture with its mark."""


def ask(model, document, store=None, shape=None, **settings):
    store, saver = store or InMemoryStore(), InMemorySaver()
    kept = {"store": store, "checkpointer": saver}
    config = ReadingConfig(**settings)
    agent = create_memagent(model, config=config, response_format=shape, **kept)
    given = {"question": QUESTION, "document": document}
    output = agent.invoke(given, {"configurable": {"thread_id": "1"}})
    return output, store, saver


def test_a_model_that_sees_reads_what_only_the_picture_says(tmp_path):
    model = Seeing()

    output, _, _ = ask(model, write_page(tmp_path / "a.html", "red"), pictures=1000)

    assert "The door of [picture 1] is red." in output["memory"]
    assert "red" in output["answer"]
    assert output["unsupported"] == []
    assert [len(one) for one in model._seen] == [1, 1]  # the section, and the answer once more


@pytest.mark.parametrize(
    ("pictures", "refers", "seen"), [(0, True, [0, 0]), (1000, False, [1, 0]), (1000, True, [1, 1])]
)
def test_the_answer_sees_again_only_what_the_memory_refers_to(tmp_path, pictures, refers, seen):
    model = Seeing(refers=refers)

    ask(model, write_page(tmp_path / "a.html", "red"), pictures=pictures)

    assert [len(one) for one in model._seen] == seen


def test_the_budget_says_how_many_pictures_a_step_shows(tmp_path):
    model, store = Seeing(), InMemoryStore()
    page = write_page(tmp_path / "a.html", "red", "blue", "green")

    first, again = (ask(model, page, store, pictures=2 * ONE)[0] for _ in range(2))

    assert len(model._seen[0]) == 2
    assert again["usage"]["calls"] < first["usage"]["calls"]
    left_out = "What was left out: 1 (a picture of a chunk, without room in pictures)."
    assert first["warnings"] == again["warnings"] == [left_out]


@pytest.mark.parametrize(
    ("wants", "seen"),
    [
        ("[picture 5, p. 1: a door], then [picture 3]", ["yellow", "green"]),
        ("Those would be 1, 99 and 1 again.", ["red"]),
        ("none", []),
        ("9" * 5000, []),
    ],
)
def test_where_not_all_fit_the_answer_sees_what_it_asks_for(tmp_path, wants, seen):
    model = Seeing(wants=wants)
    page = write_page(tmp_path / "a.html", *COLOURS_IN_ORDER)

    output, _, _ = ask(model, page, pictures=10_000)

    (asked,) = model._asked
    assert numbers_in(asked) == [1, 2, 3, 4, 5]
    assert [line.rpartition(" ")[2] for line in model._seen[-1]] == [f"{one}." for one in seen]
    assert output["usage"]["calls"] == 3
    assert not [line for line in output["warnings"] if "left out" in line]


@pytest.mark.parametrize(("most", "shown", "left"), [(10_000, 4, 1), (2 * ONE, 2, 3)])
def test_what_it_asks_for_keeps_to_the_budget_and_to_four(tmp_path, most, shown, left):
    model = Seeing(wants="5, 4, 3, 2, 1")
    page = write_page(tmp_path / "a.html", *COLOURS_IN_ORDER, words="and then some " * 30)

    output, _, _ = ask(model, page, pictures=most, chunk_tokens=100)

    assert len(model._seen[-1]) == shown
    assert f"{left} (asked to see again, without room)" in " ".join(output["warnings"])


class Door(BaseModel):
    colour: str


MANY = {"pictures": 10_000}
WAYS = {
    "shown": lambda path: (Seeing(), write_page(path, "red"), {"pictures": 1000}),
    "chosen": lambda path: (Seeing("1, 2"), write_page(path, *COLOURS_IN_ORDER), MANY),
    "shaped": lambda path: (Seeing(), write_page(path, "red"), {"pictures": 1000, "shape": Door}),
}


@pytest.mark.parametrize("way", WAYS)
def test_stores_checkpoints_and_redis_never_hold_the_bytes(tmp_path, redis, way):
    model, page, settings = WAYS[way](tmp_path / "a.html")
    encoded = page.read_text("utf-8").partition("base64,")[2][:40]

    output, store, saver = ask(model, page, **settings)
    with RedisStore.from_url(redis.url) as in_redis:
        ask(model, page, store=in_redis, **settings)

    assert model._seen[-1]
    kept = [str(item.value) for item in store.search(("memagent",), limit=1000)]
    kept += [str(store._data), str(saver.storage), str(saver.blobs), str(saver.writes), str(output)]
    in_redis = "".join(file.read_text("latin-1") for file in tmp_path.rglob("*.aof"))
    for whole in ("".join(kept), in_redis):
        assert "picture 1" in whole
        assert encoded not in whole
        assert "iVBORw0KGgo" not in whole


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
    assert encoded not in kept
    assert "iVBORw0KGgo" not in kept


@pytest.mark.parametrize(
    ("colours", "gone"),
    [(["red"], [1]), (["red", "blue"], [2, 1])],
    ids=["before the answer", "before its section"],
)
def test_a_picture_that_is_gone_is_said_to_be(tmp_path, colours, gone):
    page = write_page(tmp_path / "a.html", *colours, words="and then some " * 30)

    class Deleting(Seeing):
        def reply(self, messages):
            found = super().reply(messages)
            if self._seen[-1]:
                page.unlink()
            return found

    model = Deleting()
    output, _, _ = ask(model, page, pictures=1000, chunk_tokens=100)

    reason = f"1 ({page} has changed or is gone, and with it "
    lost = ", ".join(f"{reason}[picture {number}: a door])" for number in gone)
    assert [len(one) for one in model._seen if one] == [1]
    assert f"What was left out: {lost}." in output["warnings"]
    assert "red" in output["answer"]


def test_a_reference_to_a_picture_that_nobody_saw_is_unsupported(tmp_path):
    lines = ["- The door of [picture 1] is red.", "- The vault of [picture 77] holds 9310 coins."]
    model = ScriptedChatModel("\n".join(lines))
    output, _, _ = ask(model, write_page(tmp_path / "a.html", "red"), pictures=1000)

    assert "picture 77" in " ".join(output["warnings"])
    assert not any("picture 1]" in item["text"] for item in output["unsupported"])


@pytest.mark.parametrize("model", ["extractive", "blind"])
def test_a_reader_that_sees_nothing_is_refused_the_setting(model):
    if model == "blind":
        model = Seeing(profile={"image_inputs": False})

    with pytest.raises(ConfigurationError, match="takes no pictures"):
        create_memagent(model, config=ReadingConfig(pictures=1000))
