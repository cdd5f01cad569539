"""Remembers what other libraries and chats export, as messages of a user."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from langgraph.store.base import Item

from memagent_graph.conversation.episodes import KeptMessage
from memagent_graph.conversation.messages import ASSISTANT, USER, as_message, read_time
from memagent_graph.errors import ConfigurationError, SourceError
from memagent_graph.evidence.statements import instant
from memagent_graph.memory.items import label
from memagent_graph.sync import to_sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.memory.items import UserId

ExportForm: TypeAlias = Literal["chatgpt", "claude", "langmem", "letta", "mem0"]
"""Of ChatGPT and Claude their `conversations.json`, of LangMem the items of a store, of Letta an
agent file, of mem0 what `get_all` returns."""


class Imported(NamedTuple):
    """The result of an import.

    Attributes:
        threads: number of conversations; the memories of a library are one.
        messages: number of messages and memories, also of those that were imported before.
        unread: number of fields and records that were left out, by their name or kind.
    """

    threads: int
    messages: int
    unread: Counter[str]


async def aimport_export(
    memory: ConversationMemory[Any],
    form: ExportForm,
    data: object,
    *,
    user: UserId,
    store: BaseStore | None = None,
) -> Imported:
    """Fold an export into the memory of a user; what was imported before is not folded again.

    Messages and memories have the times of the export, and pass `redact`, `never` and the budget.
    A memory of another library counts as the user's own words. The export is JSON or parsed; of
    LangMem also items as a store returns them. `store` is for a memory without one of its own.

    Raises:
        SourceError: It is no export of this form.
        ConfigurationError: It has the memories of several users.
        ModelError: The model failed; the conversations before are imported.
    """
    unread = Counter[str]()
    threads: dict[str, list[KeptMessage]] = {}
    owners = set[str]()
    try:
        while isinstance(data, str):  # a file may have the JSON as a string
            data = json.loads(data)
        for thread, owner, said in _READERS[form](data, unread):
            owners.add(json.dumps(owner))
            if said.speaker not in (USER, ASSISTANT):
                unread[said.speaker] += 1
            elif said.text.strip():
                threads.setdefault(f"{form} {thread}".strip(), []).append(said)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"This is no export of {form}: {error!r}. Name the form that it has."
        raise SourceError(message) from error
    if len(owners) > 1:
        message = (
            "This export has the memories of several users: export those of one, since all that is "
            f"imported is remembered of {user!r}."
        )
        raise ConfigurationError(message)
    for kept in threads.values():
        if all(one.at for one in kept):
            kept.sort(key=lambda one: instant(one.at))
    for thread, kept in sorted(threads.items(), key=lambda one: one[1][0].at):
        messages = [*map(as_message, kept)]
        await memory.asave(messages, user=user, thread=thread, store=store)
    return Imported(len(threads), sum(map(len, threads.values())), +unread)


import_export = to_sync(aimport_export)

_Exported: TypeAlias = "tuple[str, object, KeptMessage]"
"""A thread, whose it is there, and a message or memory of it."""


def _take(record: Any, names: str, unread: Counter[str]) -> list[Any]:
    """Return fields of a record by their names; others that say something are counted."""
    fields = record.dict() if isinstance(record, Item) else record
    wanted = names.split()
    unread.update(name for name, value in fields.items() if value and name not in wanted)
    return [fields.get(name) for name in wanted]


def _keep(key: object, at: object, role: object, text: object) -> KeptMessage:
    """Return a message or memory; without an id, it has one of its time and text."""
    if not isinstance(text, str):
        raise TypeError("a text is none")
    speaker, when = USER if role == "human" else str(role), read_time(at) or ""
    return KeptMessage(str(key or label(f"{when} {text}")), "", when, speaker, text)


def _join(parts: Any, unread: Counter[str]) -> str:
    """Return the text in the parts of a message; other parts are counted by their type."""
    texts = []
    for part in [parts] if isinstance(parts, str) else parts or ():
        kind = "text" if isinstance(part, str) else part.get("type") or part.get("content_type")
        text = part if isinstance(part, str) else part.get("text")
        if kind == "text" and text:
            texts.append(text)
        elif kind != "text":
            unread[f"part {kind}"] += 1
    return "\n".join(texts)


def _read_chatgpt(data: Any, unread: Counter[str]) -> Iterator[_Exported]:
    """The branch of each conversation that it showed last, without hidden messages."""
    for chat in data:
        names = "id conversation_id mapping current_node"
        key, other, nodes, node = _take(chat, names, unread)
        said = {at: one["message"] for at, one in nodes.items() if one.get("message")}
        branch = dict[str, None]()
        while node in nodes and node not in branch:
            branch[node] = None
            node = nodes[node].get("parent")
        unread["message of another branch"] += len(said.keys() - branch.keys())
        for message in [said[at] for at in reversed(branch) if at in said]:
            names = "id author create_time content metadata"
            own, author, at, content, about = _take(message, names, unread)
            (kind, parts), role = _take(content, "content_type parts", unread), author["role"]
            if (about or {}).get("is_visually_hidden_from_conversation"):
                role = "hidden message"
            elif kind not in ("text", "multimodal_text"):
                role = f"content {kind}"
            yield other or key, None, _keep(own, at, role, _join(parts, unread))


def _read_claude(data: Any, unread: Counter[str]) -> Iterator[_Exported]:
    for chat in data:
        thread, account, said = _take(chat, "uuid account chat_messages", unread)
        owner, names = (account or {}).get("uuid"), "uuid sender text content created_at"
        for message in said:
            key, role, text, parts, at = _take(message, names, unread)
            yield thread, owner, _keep(key, at, role, _join(parts, unread) or text or "")


def _read_langmem(data: Any, unread: Counter[str]) -> Iterator[_Exported]:
    for item in data:
        names = "key namespace value created_at updated_at"
        key, namespace, value, made, changed = _take(item, names, unread)
        kind, text = _take(value, "kind content", unread)
        if isinstance(text, dict):  # a statement, or a record of the user's own schema
            is_plain = text.keys() == {"content"}
            text = (
                text["content"] if is_plain else f"{kind}: {json.dumps(text, ensure_ascii=False)}"
            )
        yield "", list(namespace), _keep(key, changed or made, USER, text)


def _read_letta(data: Any, unread: Counter[str]) -> Iterator[_Exported]:
    """The messages of each agent that talks with a user, and the blocks about the user.

    Ids are those of the file, and the same in another one: messages are known by time and text.
    """
    agents, groups, blocks, last = _take(data, "agents groups blocks created_at", unread)
    managed = {key for group in groups or () for key in group["agent_ids"]}
    for agent in agents:
        key, name, said = _take(agent, "id name messages", Counter())  # the rest is how it runs
        for message in said:
            role, content, at = _take(message, "role content created_at", unread)
            text, last = _join(content, unread), max(last or "", at or "")
            with suppress(ValueError):  # older agents have an event in JSON as a message
                event = json.loads(text)
                if isinstance(event, dict) and (kind := event.get("type")):
                    role = role if kind == "user_message" else kind
                    text = event.get("message") or ""
            role = "message of another agent" if key in managed else role
            yield name, None, _keep(None, at, role, text)
    for block in blocks:
        kind, text = _take(block, "label value", unread)
        role = USER if "human" in kind.split("/") else f"block {kind}"
        yield "", None, _keep(label(text), last, role, text)


def _read_mem0(data: Any, unread: Counter[str]) -> Iterator[_Exported]:
    rows = _take(data, "results", unread)[0] if isinstance(data, dict) else data
    for row in rows:
        names = "id memory user_id role created_at updated_at"
        key, text, owner, role, made, changed = _take(row, names, unread)
        yield "", owner, _keep(key, changed or made, role or USER, text)


_READERS = {
    "chatgpt": _read_chatgpt,
    "claude": _read_claude,
    "langmem": _read_langmem,
    "letta": _read_letta,
    "mem0": _read_mem0,
}
