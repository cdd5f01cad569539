"""Pictures in messages are described once, when they are folded, and their bytes are not kept."""

import base64
from io import BytesIO

import pytest

pytest.importorskip("PIL")
pytest.importorskip("lxml")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.store.memory import InMemoryStore
from PIL import Image

from memagent_graph import ConversationMemory, ReadingConfig
from memagent_graph.testing import ScriptedChatModel


def describe(messages):
    """Describe a picture by its colour, and keep as notes the line that has a mark."""
    content = messages[-1].content
    if isinstance(content, list):
        shown = Image.open(BytesIO(base64.b64decode(content[-1]["base64"])))
        return "a red door" if shown.getpixel((9, 9)) == (255, 0, 0) else "a blue door"
    lines = [line for line in content.splitlines() if "[picture 1" in line]
    return "\n".join(f"2026-03-05: Ann showed {line.strip()}" for line in lines[-1:]) or "unchanged"


def picture(colour="red"):
    kept = BytesIO()
    Image.new("RGB", (64, 64), colour).save(kept, "PNG")
    return base64.b64encode(kept.getvalue()).decode()


URL = "data:image/png;base64,"
FORMS = {
    "openai": lambda data: {"type": "image_url", "image_url": {"url": URL + data}},
    "langchain": lambda data: {"type": "image", "base64": data, "mime_type": "image/png"},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_is_described_once_and_only_its_description_is_kept(form):
    model, store, data = ScriptedChatModel(describe), InMemoryStore(), picture()
    memory = ConversationMemory(model, store=store, config=ReadingConfig(pictures=1000), window=1)
    content = [{"type": "text", "text": "My new door:"}, FORMS[form](data)]
    messages = [
        HumanMessage(content, id="1"),
        AIMessage("Nice.", id="2"),
        HumanMessage("I live in Berlin.", id="3"),
        AIMessage("Noted.", id="4"),
    ]

    for end in (2, 4, 4):
        memory.save(messages[:end], user="ann", thread="t")

    described = [call for call in model.calls if isinstance(call.messages[-1].content, list)]
    assert len(described) == 1
    assert "[picture 1: a red door]" in memory.load("ann")
    dumped = str(store._data)
    assert data[:60] not in dumped
    assert "a red door" in dumped
    assert not any(data[:60] in prompt for prompt in model.prompts)


def test_a_forgotten_message_leaves_no_description_among_the_kept_ones_and_a_user_none_at_all():
    model, store = ScriptedChatModel(describe), InMemoryStore()
    memory = ConversationMemory(model, store=store, config=ReadingConfig(pictures=1000), window=1)
    content = [{"type": "text", "text": "Look:"}, FORMS["openai"](picture())]
    memory.save([HumanMessage(content, id="1"), AIMessage("Nice.", id="2")], user="ann", thread="t")

    def kept_in():
        return {space[-1] for space, kept in store._data.items() if "red door" in str(kept)}

    assert kept_in() == {"episodes", "versions"}
    memory.forget_messages("ann", ["1"])
    assert kept_in() == {"versions"}  # the notes
    memory.forget("ann")
    assert kept_in() == set()
