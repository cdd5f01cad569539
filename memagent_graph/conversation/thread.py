"""A run's thread: whose it is, what the run may do, what is kept of it, and what a model sees."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import get_checkpoint_metadata
from langgraph.config import get_config
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime, get_runtime

from memagent_graph.conversation.messages import (
    CALLING,
    as_messages,
    is_human,
    is_instruction,
    last_owner,
)
from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.items import UserId, name_user
from memagent_graph.models.reply import text_in
from memagent_graph.seams import runs_of, saver_of
from memagent_graph.sync import ask_saver, name_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Container, Iterable, Sequence

    from langchain_core.messages import BaseMessage, SystemMessage
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

    from memagent_graph.conversation.episodes import Recorded
    from memagent_graph.seams import GraphRun

_log = logging.getLogger(__name__)


class AnonymousUser(str):
    """The id under which the memory of a thread without a user is kept.

    Operators see it as a text. In a conversation, a text with this beginning is refused, so that no
    user can be given an id by which the memory is reached.
    """

    __slots__ = ()
    PREFIX = "anonymous thread "

    @classmethod
    def of(cls, thread: object) -> AnonymousUser:
        """Return the id for a thread."""
        return cls(f"{cls.PREFIX}{thread}")

    @classmethod
    def restore(cls, user: str) -> str:
        """Return an id from the private state of a thread as what it was."""
        return cls(user) if user.startswith(cls.PREFIX) else user


ACCESS_KEY = "memory_access"
"""Key of the context, or of `configurable`, with what a run may do."""


class Access(NamedTuple):
    """Whether a run may read the memory, and whether it may write it."""

    reads: bool
    writes: bool


_ACCESS = ("all", "read", "write", "none")


def access_of(config: RunnableConfig | None = None, context: object = None) -> Access:
    """Return what a run may do: `memory_access` in its context, or in `configurable`.

    The configuration is that of the run under way by default. Raises `ConfigurationError` for
    another value than "all", "read", "write" or "none".
    """
    found = in_context(context, ACCESS_KEY)
    if found is None:
        found = ensure_config(config).get("configurable", {}).get(ACCESS_KEY)
    found = "all" if found is None else found
    if found not in _ACCESS:
        message = f"{ACCESS_KEY} must be one of {', '.join(map(repr, _ACCESS))}, not {found!r}."
        raise ConfigurationError(message)
    return Access(reads=found in ("all", "read"), writes=found in ("all", "write"))


def in_context(context: object, key: str) -> object:
    """Return a field or key of a run's context, or of its input; None without one."""
    return context.get(key) if isinstance(context, Mapping) else getattr(context, key, None)


UserOf = Callable[[Runtime[Any], RunnableConfig], UserId | None]
"""A function from a run's runtime and config to the id of who talks."""


USER_KEY = "user_id"


_HOW = (
    'Invoke with context={"user_id": "..."} (a context_schema with that field) or with '
    '{"configurable": {"user_id": "...", "thread_id": "..."}}, or give user= a function.'
)


def read_channel(run: GraphRun, name: str) -> Any:
    """Return what a key of the state of a run has now; None if it has nothing."""
    channel = run.channels.get(name)
    return channel.get() if channel is not None and channel.is_available() else None


def find_run() -> tuple[Runtime[Any], RunnableConfig]:
    """Return runtime and config of the run of which this is part; raise an error outside of one."""
    if (runtime := get_runtime()) is None:
        message = "The summarizer of a memory works for the user of a run: call it in a graph."
        raise ConfigurationError(message)
    return runtime, get_config()


class Speaker(NamedTuple):
    """Whose memory it is, and which conversation with them."""

    user: str
    thread: str


class Speakers:
    """Finds the user by a function, the run's context or its config, in this order.

    A run without a user continues with the user of its thread, which may have been resumed;
    otherwise the thread has a memory of its own, unless `strict`.
    """

    def __init__(self, user: UserOf | None = None, *, strict: bool = False) -> None:
        self._user = user
        self._strict = strict
        self._warned = False

    def of(self, runtime: Runtime[Any], config: RunnableConfig, known: str | None) -> Speaker:
        """Return the user and the thread of a run; `known` is the user in the thread's state.

        Raises `ConfigurationError` if it names neither, or no user and `strict`.
        """
        configurable = config.get("configurable", {})
        thread = str(_first_id(configurable.get("thread_id")))
        given = (in_context(runtime.context, USER_KEY), configurable.get(USER_KEY))
        found = _first_id(*(given if self._user is None else [self._user(runtime, config)]))
        named = "" if found == "" else name_user(found)
        if named or known:
            return Speaker(named or AnonymousUser.restore(known or ""), thread)
        if self._strict or not thread:
            message = f"The run does not say which user is talking. {_HOW}"
            raise ConfigurationError(message)
        if not self._warned:
            self._warned = True
            _log.warning("A run names no user, so its thread has a memory of its own. %s", _HOW)
        return Speaker(AnonymousUser.of(thread), thread)

    def of_earlier(
        self,
        runtime: Runtime[Any],
        config: RunnableConfig,
        known: str | None,
        earlier: CheckpointTuple,
    ) -> str | None:
        """Return the user of the run that wrote a checkpoint of the thread; None if not known.

        Checkpoints keep the texts and numbers of `configurable`, and nothing of a context.
        """
        given, named = config.get("configurable", {}), earlier.metadata.get(USER_KEY)
        kept: Mapping[str, Any] = {**get_checkpoint_metadata(config, {})}
        if kept.get(USER_KEY) != given.get(USER_KEY) or self._user is not None:
            return None
        if named is None and _first_id(in_context(runtime.context, USER_KEY)) != "":
            return None
        if _first_id(named) == "":
            return AnonymousUser.restore(known or AnonymousUser.of(given.get("thread_id")))
        return str(named)


def turn_of(now: Speaker, state: Mapping[str, Any]) -> Speaker:
    """Return whose turn it is: the user's who spoke last, also if another one resumes the run."""
    known = state.get("memory_user") or ""
    ours = known and last_owner(state.get("messages", ())) == known
    return now._replace(user=AnonymousUser.restore(known)) if ours else now


def _first_id(*ids: object) -> object:
    """Return the first id that is one: 0 is, None and "" are not."""
    return next((one for one in ids if one is not None and one != ""), "")


_MOST_BACK = 1_000
"""Checkpoints from which a branch is followed back, at most."""


class KeptThread(NamedTuple):
    """A thread that a checkpointer keeps, as a run saw it at a checkpoint.

    `nested`: the run is one within another graph, whose state may lack the messages; `above` are
    those that it has. `writes`: its step writes messages, which only a later checkpoint has.
    """

    saver: BaseCheckpointSaver[Any]
    thread: UserId
    checkpoint: str
    nested: bool
    above: Collection[str] = ()
    writes: bool = False

    @classmethod
    def of(cls, config: RunnableConfig | None) -> KeptThread | None:
        """Return the thread of a run; None if no checkpointer keeps it."""
        configurable = (config or {}).get("configurable", {})
        saver, seen = saver_of(config), configurable.get("checkpoint_map", {}).get("")
        if saver is None or not seen:
            return None
        nested = "|" in str(configurable.get("checkpoint_ns"))
        found = (read_channel(runs_of(config)[-1], "messages") or ()) if nested else ()
        above = {str(getattr(message, "id", None)) for message in found}
        return cls(saver, name_thread(configurable), str(seen), nested, above)

    async def read(self, checkpoint: str = "") -> CheckpointTuple | None:
        """Return a checkpoint, the newest by default; None if there is none."""
        of = {"checkpoint_id": checkpoint} if checkpoint else {}
        place = {"configurable": {"thread_id": self.thread, "checkpoint_ns": "", **of}}
        found: CheckpointTuple | None = await ask_saver(self.saver, "get_tuple", place)
        return found

    async def walk_back(
        self, newest: CheckpointTuple | None, since: str = ""
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield a checkpoint and those that it continues, back to `since`."""
        at = newest
        for _ in range(_MOST_BACK):
            if at is None:
                break
            yield at
            before = (at.parent_config or {}).get("configurable", {}).get("checkpoint_id")
            at = await self.read(before) if before and at.checkpoint["id"] > since else None

    async def find_gone(
        self,
        noted: Iterable[Recorded],
        newest: CheckpointTuple | None,
        ids_of: Callable[[Sequence[BaseMessage]], set[str]] | None = None,
    ) -> list[Recorded]:
        """Return those of some messages, which are not there now, that the thread has left behind.

        It went back behind the checkpoint in which they were seen, or has had them since, as
        `ids_of` says.
        """
        had, branch, left = set[str](), set[str](), [one for one in noted if one.checkpoint]
        if left:
            async for at in self.walk_back(newest, min(one.checkpoint for one in left)):
                branch.add(at.checkpoint["id"])
                had |= ids_of(await messages_in(self.saver, at) or ()) if ids_of else set()
        away = {one.checkpoint for one in left} - branch
        away = {key for key in away if await self.read(key)}  # else the thread was deleted
        return [one for one in left if one.id in had or one.checkpoint in away]

    async def find_marks(
        self,
        wanted: set[Recorded],
        record: Callable[[Sequence[BaseMessage]], Collection[Recorded]],
        user_of: Callable[[CheckpointTuple], str | None],
        began: float = math.inf,
        made: Collection[Recorded] = (),
    ) -> dict[str, Mapping[str, str]]:
        """Return the marks, by id, of messages that a checkpoint has from before the step `began`.

        Each is of the run that wrote the oldest checkpoint with it, whose user `user_of` returns; a
        run that might not write is remembered for nobody. What a run `made`, so that no checkpoint
        has it, came with the input of its turn.
        """
        found: dict[Recorded, CheckpointTuple] = {}
        seen = await self.read(self.checkpoint) or await self.read()
        async for at in self.walk_back(seen):
            if at.metadata["step"] < began:
                if at.metadata["source"] == "input":
                    found = dict.fromkeys(made, at) | found
                there = wanted.difference(made) & {*record(await messages_in(self.saver, at) or ())}
                found |= dict.fromkeys(there, at)
                if not there and found.keys() >= {*made}:
                    break
        marks: dict[str, Mapping[str, str]] = {}
        for one, first in found.items():
            writes = first.metadata.get(ACCESS_KEY, "all") in ("all", "write")
            user = (user_of(first) or "") if writes else ""
            marks[one.id] = {"user": user, "at": first.checkpoint["ts"]}
        return marks


async def messages_in(
    saver: BaseCheckpointSaver[Any], checkpoint: CheckpointTuple | None
) -> list[BaseMessage] | None:
    """Return the messages in a checkpoint; None if it does not have them as a list.

    A checkpoint of a `DeltaChannel` has only what its step wrote: earlier ones have the rest.
    """
    if checkpoint is None or "messages" not in checkpoint.checkpoint["channel_versions"]:
        return None
    found, writes = checkpoint.checkpoint["channel_values"].get("messages"), []
    if found is None:
        options = {"config": checkpoint.config, "channels": ["messages"]}
        history = (await ask_saver(saver, "get_delta_channel_history", **options))["messages"]
        found, writes = history.get("seed"), history["writes"]
    channel = DeltaChannel(lambda old, new: reduce(add_messages, new, old or []), list)
    channel = channel.from_checkpoint(found)
    channel.replay_writes(writes)
    found = channel.get()
    return as_messages(found) if isinstance(found, list) else None


def groups(messages: Iterable[BaseMessage]) -> list[list[BaseMessage]]:
    """Messages that may only go together: one that calls tools with what the tools returned.

    Messages of the application are in no group.
    """
    found: list[list[BaseMessage]] = []
    calls: dict[str, list[BaseMessage]] = {}
    for message in messages:
        if isinstance(message, ToolMessage) and message.tool_call_id in calls:
            calls[message.tool_call_id].append(message)
        elif not is_instruction(message):
            found.append([message])
            if isinstance(message, AIMessage):
                called = [*message.tool_calls, *message.invalid_tool_calls]
                calls |= {call["id"]: found[-1] for call in called if call["id"]}
    return found


def beyond(
    messages: Sequence[BaseMessage],
    *,
    window: int,
    tokens: int,
    count: Callable[[BaseMessage], int],
    turn_tokens: float = math.inf,
) -> list[BaseMessage]:
    """The messages to be folded: none while there are few, else all but the last half.

    What stays begins where it would if the messages had come one by one, so that it begins at the
    same one for many turns. It begins with the human message of a turn, and no group is split. The
    turn that runs stays, since an agent calls again what it no longer sees; of one that is longer
    than `turn_tokens`, its beginning and the last half. System messages always stay, and do not
    count. `count` measures tokens.
    """
    found, stays = groups(messages), list[int]()
    sizes = [(len(group), sum(map(count, group))) for group in found]
    number = size = 0
    for at, group in enumerate(found):
        stays.append(at)
        number, size = number + sizes[at][0], size + sizes[at][1]
        asks = isinstance(group[-1], HumanMessage | ToolMessage) or at == len(found) - 1
        if asks and (number > window or size > tokens):
            half = _take_last(stays, sizes, max(1, window // 2), tokens // 2)
            begins = [one for one in stays if isinstance(found[one][0], HumanMessage)]
            first, *_ = [one for one in begins if one >= half[0]] or begins[-1:] or half
            stays, before = stays[stays.index(first) :], begins[-2:-1]
            if first == at and before:  # of the turn before, its beginning and its end
                room = tokens // 2 - sizes[before[0]][1]
                end = _take_last(half, sizes, window // 2 - 1, room)
                stays = [*before, *end] if len(end) > 1 else end
            if sum(sizes[one][1] for one in stays) > turn_tokens:
                warn_of_cut(found[stays[0]][0].id)
                half = _take_last(stays, sizes, len(messages), turn_tokens / 2)
                stays = sorted({stays[0], *half})
            number, size = (sum(sizes[one][of] for one in stays) for of in (0, 1))
    return [message for at, group in enumerate(found) if at not in stays for message in group]


@lru_cache(1 << 10)
def warn_of_cut(message: str | None) -> None:
    """Log that a model does not see all of a turn, once for the id of a message of it."""
    _log.warning(
        "A model sees only parts of the turn of message %s, for which it has no room: give the "
        "agent `create_reading_tool` for long texts, or a model with a longer window.",
        message,
    )


def _take_last(
    groups: Sequence[int], sizes: Sequence[tuple[int, int]], number: int, tokens: float
) -> list[int]:
    """Return those groups, from the end, that have room: one at least."""
    kept: list[int] = []
    for one in reversed(groups):
        number, tokens = number - sizes[one][0], tokens - sizes[one][1]
        if kept and (number < 0 or tokens < 0):
            break
        kept.insert(0, one)
    return kept


def count_tokens(message: BaseMessage) -> int:
    """Return an estimate of the tokens of a message: four ASCII letters each, or three other bytes.

    A part that is no text counts the same whatever its size: models do not read its bytes as text.
    """
    content = message.content
    parts = [] if isinstance(content, str) else content
    texts = [text_in(p) for p in parts if isinstance(p, str) or p.get("type") not in CALLING]
    said = [content] if isinstance(content, str) else filter(None, texts)
    whole = "".join([*said, *map(str, getattr(message, "tool_calls", ()))])
    size, plain = (len(whole.encode(to, "ignore")) for to in ("utf-8", "ascii"))
    return _MESSAGE_TOKENS + plain // 4 + (size - plain) // 3 + _PART_TOKENS * texts.count(None)


_MESSAGE_TOKENS = 4
"""What delimits a message and says whose it is."""
_PART_TOKENS = 85
"""LangChain's figure for an image."""


def first_leaving(folding: Sequence[BaseMessage], wait: Container[str]) -> list[BaseMessage]:
    """Return the first messages beyond the window of which none waits, up to a human's."""
    leave: list[BaseMessage] = []
    turn: list[BaseMessage] = []
    for group in groups(folding):
        if isinstance(group[0], HumanMessage):
            leave, turn = leave + turn, []
        if any(str(message.id) in wait for message in group):
            return leave
        turn += group
    return leave + turn


def view(messages: Sequence[BaseMessage], left: str | None) -> list[BaseMessage]:
    """Return the messages of a thread that the model still sees; `left` is as of `find_left`.

    They begin with a human's, though it may stand before those that have left.
    """
    at = next((at for at in reversed(range(len(messages))) if messages[at].id == left), None)
    if left is None or at is None:
        return [*messages]
    later = groups(messages[at:])[1:]
    kept = {id(m) for group in later if not isinstance(group[0], ToolMessage) for m in group}
    begun = next((m for m in reversed(messages[: at + 1]) if is_human(m)), None)
    human = None if later and is_human(later[0][0]) else begun
    return [m for m in messages if id(m) in kept or m is human or is_instruction(m)]


def find_left(messages: Sequence[BaseMessage], stays: Sequence[BaseMessage]) -> str | None:
    """Return the id of the first message of the last group that is not among those that stay."""
    ids = {message.id for message in stays}
    gone = (group[0].id for group in reversed(groups(messages)) if group[0].id not in ids)
    return next(gone, None)


def remind(messages: Sequence[BaseMessage], memory: Sequence[SystemMessage]) -> list[BaseMessage]:
    r"""Return messages for a model, whose last human one begins with what is remembered.

    Small models heed it more there than at the beginning, and caches of prompts keep what precedes.

    Examples:
        >>> from langchain_core.messages import HumanMessage, SystemMessage
        >>> from memagent_graph.conversation.thread import remind
        >>> remind([HumanMessage("Where do I live?")], [SystemMessage("In Lyon.")])[0].text
        'In Lyon.\nWhere do I live?'
    """
    return put_before(messages, {[*list_said(messages)][-1]: "\n".join(m.text for m in memory)})


def put_before(messages: Sequence[BaseMessage], texts: Mapping[str, str]) -> list[BaseMessage]:
    """Return messages that begin with texts, by the keys of `list_said`; that of "" comes last."""
    shown = []
    for at, message in enumerate(messages):
        said, text = message.content, texts.get(_key_of(at, message))
        part = {"type": "text", "text": text}
        more = f"{text}\n{said}" if isinstance(said, str) else [part, *said]
        shown.append(message.model_copy(update={"content": more}) if text else message)
    return [*shown, *(HumanMessage(text) for key, text in texts.items() if text and not key)]


def list_said(messages: Sequence[BaseMessage]) -> dict[str, str]:
    """Return the texts of the humans' messages by what they are known by; "" if there is none."""
    found = (one for one in enumerate(messages) if isinstance(one[1], HumanMessage))
    return {_key_of(at, message): message.text for at, message in found} or {"": ""}


def _key_of(at: int, message: BaseMessage) -> str:
    return message.id or f"message {at}"


def drop_passing(message: BaseMessage) -> BaseMessage:
    """Return a message without a random id, which LangGraph gives in each run without memory."""
    try:
        random = UUID(message.id).version == 4  # noqa: PLR2004 - of RFC 9562
    except (ValueError, AttributeError, TypeError):
        return message
    return message.model_copy(update={"id": None}) if random else message
