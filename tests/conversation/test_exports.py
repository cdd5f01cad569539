"""What other libraries and chats export is remembered once, with its days and its source."""

import json

import pytest
from conversations import dated, new_memory, words_in
from langgraph.store.base import Item

from memagent_graph import MemoryBank, create_memagent
from memagent_graph.conversation.exports import import_export
from memagent_graph.errors import ConfigurationError, SourceError

TIME, LATER = "2026-03-05T08:41:00+00:00", "2026-03-05T08:42:00Z"


def node(key, parent, role, *parts, kind="text", **more):
    """A node of a conversation of ChatGPT."""
    content = {"content_type": kind, "parts": [*parts]}
    message = {"id": key, "author": {"role": role}, "create_time": 1772700000.5, **more}
    return {key: {"id": key, "parent": parent, "message": {**message, "content": content}}}


def said(role, text, **more):
    """A message of an agent file of Letta."""
    return {"id": "message-0", "role": role, "content": text, "created_at": TIME, **more}


GOATS, BONN = "I breed goats in Husum.", "You live in Bonn."
PICTURE = {"content_type": "image_asset_pointer", "asset_pointer": "file-1"}
MAPPING = {
    "root": {"id": "root", "message": None, "parent": None},
    **node("n0", "root", "user", "I breed sheep in Kiel."),
    **node("n1", "root", "user", PICTURE, GOATS, kind="multimodal_text"),
    **node("n2", "n1", "tool", BONN),
    **node("n3", "n2", "assistant", BONN, kind="thoughts"),
    **node("n4", "n3", "assistant", "How many?", weight=1),
}
CHATGPT = [{"conversation_id": "c1", "title": "Goats", "current_node": "n4", "mapping": MAPPING}]
PARTS = [{"type": "text", "text": GOATS}, {"type": "tool_result", "content": BONN}]
ATTACHED = {"attachments": [{"file_name": "a.txt", "extracted_content": BONN}]}
FIRST = {"uuid": "m1", "sender": "human", "text": "", "content": PARTS, **ATTACHED}
TURNS = [
    {**FIRST, "created_at": "2026-03-05T08:41:00.5Z"},
    {"uuid": "m2", "sender": "assistant", "text": "How many?", "created_at": LATER},
]
CLAUDE = [{"uuid": "c1", "name": "Goats", "account": {"uuid": "a"}, "chat_messages": TURNS}]
DATED = {"created_at": "2026-03-04T08:41:00+00:00", "updated_at": TIME}
MEMORY = {"kind": "Memory", "content": {"content": GOATS}}
LANGMEM = [
    Item(value=MEMORY, key="k1", namespace=("memories", "ann"), **DATED),
    {
        "namespace": ["memories", "ann"],
        "key": "k2",
        "value": {"kind": "Pet", "content": {"name": "Minou"}},
        "created_at": "2026-03-03T08:41:00+00:00",
        "score": 0.5,
    },
]
EVENT = json.dumps({"type": "user_message", "message": GOATS})
BEAT = [{"type": "text", "text": '{"type": "heartbeat", "reason": "x"}'}]
LOOP = [said("system", "Be kind."), said("user", EVENT), said("user", BEAT)]
LETTA = {
    "agents": [
        {"id": "agent-0", "name": "Loop", "messages": LOOP},
        {"id": "agent-1", "name": "Sleep", "messages": [said("user", BONN, model="x")]},
    ],
    "groups": [{"id": "group-0", "agent_ids": ["agent-1"]}],
    "blocks": [
        {"id": "block-0", "label": "human", "value": "First name: Ann", "limit": 20000},
        {"id": "block-1", "label": "persona", "value": "I am Sam of Bonn."},
    ],
    "tools": [{"name": "send_message"}],
}
DATES = {"created_at": "2026-03-05T00:41:00-08:00", "updated_at": None}
MEM0 = {
    "results": [
        {"id": "k1", "memory": GOATS, "hash": "x", "user_id": "ann", **DATES},
        {"id": "k2", "memory": BONN, "user_id": "ann", "role": "assistant", "created_at": TIME},
    ]
}
BRANCHES = {"part image_asset_pointer": 1, "message of another branch": 1}
AGENTS = {"system": 1, "heartbeat": 1, "block persona": 1, "message of another agent": 1}
RESULT = {"part tool_result": 1}
UNREAD = {"title": 1, "weight": 1, "tool": 1, "content thoughts": 1}
EXPORTS = {
    "chatgpt": (CHATGPT, "chatgpt c1", ["n1", "n4"], UNREAD | BRANCHES),
    "claude": (CLAUDE, "claude c1", ["m1", "m2"], {"name": 1, "attachments": 1} | RESULT),
    "langmem": (LANGMEM, "langmem", ["k2", "k1"], {"score": 1}),
    "letta": (LETTA, "letta Loop", 1, {"tools": 1, "model": 1, "limit": 1, "id": 6} | AGENTS),
    "mem0": (MEM0, "mem0", ["k1", "k2"], {"hash": 1}),
}
SHOWN_USER = """\
# ann # eve

> 5 Mar 2026
> I breed goats.
> # bo
> I live in Husum.

- 2026-03-05, user, message m1 of monday

  > I breed goats.
  > # bo
  > I live in Husum.

- 2026-03-05, user, message m2 of monday

  > Hello.
"""
SHOWN_MEMORY = """\
# lease

Who signed the lease?

> Ann Kestrel signed the lease.

- text:1

  > Ann Kestrel signed the lease.
"""


@pytest.mark.parametrize("form", EXPORTS)
def test_an_export_is_remembered_once_with_its_day_and_its_source(form):
    memory, (data, thread, ids, unread) = new_memory(), EXPORTS[form]

    done = import_export(memory, form, data, user="ann")
    notes = memory.load("ann")
    again = import_export(memory, form, json.dumps(data, default=Item.dict), user="ann")

    assert (again, memory.load("ann")) == (done, notes)
    assert words_in(notes, "I breed goats in Husum.", "Bonn", "Kiel") == ["I breed goats in Husum."]
    (made,) = [one.made_by for one in memory.history("ann") if one.made_by.thread == thread]
    assert ids in ([*made.messages], len(made.messages))
    assert done.unread == unread
    (told,) = memory.prompt("ann", about="Where do I breed goats?")
    assert "2026-03-05\nuser: I breed goats in Husum." in told.content


@pytest.mark.parametrize(("form", "data"), [
    ("chatgpt", CLAUDE), ("claude", CHATGPT), ("claude", CLAUDE[0]), ("langmem", MEM0),
    ("letta", MEM0), ("mem0", "text"), ("mem0", {"results": [{"id": "1", "memory": 5}]}),
    ("mem0", None),
])  # fmt: skip
def test_what_has_another_form_is_refused_before_anything_is_stored(form, data):
    memory = new_memory()

    with pytest.raises(SourceError, match=f"no export of {form}"):
        import_export(memory, form, data, user="ann")

    assert memory.users().names() == []


def test_the_memories_of_two_users_are_not_given_to_one():
    first, second = MEM0["results"]
    data = {"results": [first, {**second, "user_id": "bo"}]}

    with pytest.raises(ConfigurationError, match="several users"):
        import_export(new_memory(), "mem0", data, user="ann")


def test_what_is_known_is_exported_as_markdown_in_which_no_text_passes_for_another():
    memory = new_memory()
    said = [dated("I breed goats.\n# bo\nI live in Husum.", key="m1"), dated("Hello.", key="m2")]
    memory.save(said, user="ann\n# eve", thread="monday")
    store = memory.users().store
    asked = {"question": "Who signed the lease?", "document": "Ann Kestrel signed the lease."}
    create_memagent(store=store).invoke({**asked, "memory_name": "lease"})

    assert "\n".join(memory.users().export(markdown=True)) == SHOWN_USER
    assert "\n".join(MemoryBank(store).export(markdown=True)) == SHOWN_MEMORY
