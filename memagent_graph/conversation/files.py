"""A user's memory as files, for agents of `deepagents`, and a tool that reads their long files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangChain reads the annotation
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.config import get_config, get_store
from langgraph.runtime import get_runtime
from langgraph.store.memory import InMemoryStore

from memagent_graph import errors
from memagent_graph.conversation.proposal import propose_edit
from memagent_graph.conversation.thread import Speakers, UserOf, access_of
from memagent_graph.conversation.tools import find_turn
from memagent_graph.graph.build import create_memagent
from memagent_graph.memory.items import name_user
from memagent_graph.sync import to_sync, wait_for

with errors.install_hint("MemoryBackend needs deepagents 0.7 or later: pip install deepagents"):
    from deepagents.backends.protocol import (
        BackendProtocol,
        EditResult,
        FileDownloadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )
    from deepagents.backends.store import StoreBackend
    from deepagents.backends.utils import create_file_data

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langgraph.store.base import BaseStore

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.fold import Folding
    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.user_memory import UserMemory
    from memagent_graph.readers.base import Reader

NOTES = "/notes.md"
"""The memory itself, the one file that can be edited."""
_ROOT = "/memories"
_PAGE = 2_000
"""Lines of a file that are read at once."""
_FILES = ("files",)


class MemoryBackend(BackendProtocol):  # type: ignore[misc]
    """Shows the memory of a run's user as files.

    | file | is |
    |---|---|
    | /notes.md | the memory |
    | /versions/003.md | an earlier version; the highest number is the newest |
    | /passages/2026-03-05.md | messages of a day, word for word |

    Mount it under `/memories/` of an agent with `CompositeBackend`. An edit of the notes is a new
    version, as by `Users.edit`, or a proposal if the memory needs approval. The other files cannot
    be changed. A run whose `memory_access` does not allow it reads or writes nothing.

    Args:
        memory: the memory of the users.
        editable: whether the agent may edit `/notes.md`.
        user: function of the run's runtime and config that returns the id of the user, as for
            `MemAgentMiddleware`; or the id itself, for use without an agent.
        strict: whether a run without a user is an error; otherwise its thread has a memory.

    Raises:
        MissingDependencyError: On import, if `deepagents` is not installed.
    """

    def __init__(
        self,
        memory: ConversationMemory[Any],
        *,
        editable: bool = False,
        user: UserOf | str | None = None,
        strict: bool = False,
    ) -> None:
        self._memory = memory
        self._editable = editable and not memory.read_only
        self._id = user if isinstance(user, str) else None
        self._speakers = Speakers(None if isinstance(user, str) else user, strict=strict)

    def ls(self, path: str) -> LsResult:
        """List a directory."""
        return self._copy_files().ls(_inside(path))

    def read(self, file_path: str, offset: int = 0, limit: int = _PAGE) -> ReadResult:
        """Return lines of a file."""
        return self._copy_files().read(_inside(file_path), offset, limit)

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
    ) -> GrepResult:
        """Return the lines that have a text."""
        return self._copy_files().grep(pattern, _inside(path or "/"), glob, max_count=max_count)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Return the files whose names match."""
        pattern = _inside(pattern) if "/" in pattern else pattern
        return self._copy_files().glob(pattern, _inside(path or "/"))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Begin the notes of a user who has none yet; from then on, they are edited."""
        if _text_of(self._copy_files(), file_path) is not None:
            message = f"{_name(file_path)} exists already: edit it instead."
            return WriteResult(error=message)
        if error := self._store(file_path, content, ""):
            return WriteResult(error=error)
        return WriteResult(path=file_path)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's
    ) -> EditResult:
        """Replace a text of the notes."""
        shown = self._copy_files()
        before = _text_of(shown, file_path) or ""
        done = shown.edit(_inside(file_path), old_string, new_string, replace_all)
        if done.error is None:
            done.error = self._store(file_path, _text_of(shown, file_path) or "", before)
        return EditResult(error=done.error) if done.error else done

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Return whole files."""
        shown, inside = self._copy_files(), [*map(_inside, paths)]
        found: list[FileDownloadResponse] = shown.download_files(inside)
        return found

    def _store(self, path: str, text: str, before: str) -> str | None:
        """Store the notes; an error says why they were not."""
        if _inside(path) != NOTES or not self._editable:
            what = "cannot be changed here" if self._editable else "is read-only"
            return f"Error: {_name(path)} {what}."
        if not access_of().writes:
            return "Error: in this run, the memory cannot be changed."
        user, store = self._whose()
        folding, personal = self._memory.get_folding(user), self._memory.people.of(user, store)
        approves = self._memory.approves
        try:
            wait_for(_edit_notes(folding, personal, text, before, approves=approves))
        except (errors.ConfigurationError, errors.MemoryConflictError) as error:
            return f"Error: {error}"
        if self._memory.approves:
            return f"The change waits for approval: {_name(path)} stays as it is until then."
        return None

    def _copy_files(self) -> StoreBackend:
        """Return all files that the run may read, as they are now."""
        store = InMemoryStore()
        if access_of().reads:
            user, own = self._whose()
            for name, found in wait_for(_list_files(self._memory.people.of(user, own))).items():
                store.put(_FILES, name, {**create_file_data(*found)})
        return StoreBackend(store=store, namespace=lambda _: _FILES)

    def _whose(self) -> tuple[str, BaseStore | None]:
        if self._id is not None:
            return name_user(self._id), None
        try:
            config = get_config()
        except RuntimeError as error:
            message = "Outside a run of an agent, say whose memory it is: MemoryBackend(user=...)."
            raise errors.ConfigurationError(message) from error
        user = wait_for(find_turn(self._memory, self._speakers, get_runtime(), config)).user
        try:
            return user, get_store()
        except (KeyError, RuntimeError):
            return user, None


async def _edit_notes(
    folding: Folding, personal: UserMemory, text: str, before: str, *, approves: bool
) -> None:
    """Replace a user's notes for an agent: as a new version, or as a proposal.

    What is stored passes `redact`, and has nothing that `never` bans. Raises `ConfigurationError`
    if it is over the budget, empty, or would begin notes that need approval.
    """
    text, budget = folding.kept.clean(text), folding.reading.config.memory_tokens
    if (tokens := folding.reading.tokenizer.count(text)) > budget:
        message = (
            f"The notes would have {tokens} tokens, and have room for {budget}: nothing was "
            "stored. Shorten the text, or drop what matters least."
        )
        raise errors.ConfigurationError(message)
    head = await personal.head()
    if ("" if head is None else head.text) != before:
        raise errors.MemoryConflictError("The notes changed meanwhile: read them again.")
    if not text.strip() or text == before:
        raise errors.ConfigurationError("Nothing was stored: no change of the notes may be kept.")
    if head is None and approves:
        message = "There are no notes yet. They begin with what the user says and approves."
        raise errors.ConfigurationError(message)
    if head is None:
        await personal.begin(text, folding.reading.fingerprint, by="assistant")
    elif approves:
        await propose_edit(personal, head, text, by="assistant")
    else:
        await personal.edit(text, by="assistant", before=head.id)


async def _list_files(personal: UserMemory) -> dict[str, tuple[str, str]]:
    files: dict[str, tuple[str, str]] = {}
    history = await personal.history()
    if history:
        files[NOTES] = history[0].text, history[0].created_at
    for number, version in enumerate(reversed(history[1:]), 1):
        files[f"/versions/{number:03}.md"] = version.text, version.created_at
    days: dict[str, list[str]] = {}
    for one in (await personal.episodes.read()).said:
        days.setdefault(one.day or "undated", []).append(f"{one.speaker}: {one.text}")
    for day, lines in sorted(days.items()):
        files[f"/passages/{day}.md"] = "\n".join(lines), day
    return files


def _text_of(shown: StoreBackend, path: str) -> str | None:
    found = shown.download_files([_inside(path)])[0].content
    return None if found is None else found.decode()


def _inside(path: str) -> str:
    """Return a path below `/memories/`, which `CompositeBackend` takes off, from either form."""
    path = "/" + path.strip("/")
    return path.removeprefix(_ROOT) or "/" if f"{path}/".startswith(f"{_ROOT}/") else path


def _name(path: str) -> str:
    """Return the name of a file for errors: `CompositeBackend` takes off where it is mounted."""
    return f"The file {_inside(path).lstrip('/')!r} of the memory"


def create_file_reading_tool(
    backend: Any,
    model: str | BaseChatModel | Reader | None = None,
    *,
    config: ReadingConfig | None = None,
    store: BaseStore | None = None,
    name: str = "ask_file",
) -> BaseTool:
    """Create a tool that answers questions from a file that is longer than the agent's window.

    The file, of the agent's backend, is read from beginning to end by the model of the tool,
    whatever its length; what is in the store is not read again. Model, config and store are as for
    `create_memagent`. An error is returned as the tool's message.
    """
    agent: Any = create_memagent(model, config=config, store=store, name=name)

    async def ask(path: str, question: str, config: RunnableConfig) -> str:
        try:
            found = await agent.ainvoke(
                {"question": question, "document": await _read_file(backend, path)}, config
            )
        except errors.MemAgentError as error:
            raise ToolException(str(error)) from error
        return str(found["answer"])

    return StructuredTool.from_function(
        to_sync(ask),
        ask,
        name=name,
        description=(
            "Read a file from beginning to end, however long it is, and answer a question from it. "
            "Use it in place of read_file when a file is longer than a few hundred lines. The "
            "question is complete and can be understood without this conversation."
        ),
        handle_tool_error=True,
    )


async def _read_file(backend: Any, path: str) -> str:
    """Return the whole text of a file of a backend; `ConfigurationError` if there is none."""
    lines: list[str] = []
    offset: int | None = 0
    while offset is not None:
        found = await backend.aread(path, offset, _PAGE)
        if found.error or found.file_data is None:
            message = f"{path} cannot be read: {found.error or 'it is empty'}."
            raise errors.ConfigurationError(message)
        if found.file_data["encoding"] != "utf-8":
            message = f"{path} is no text: convert it first."
            raise errors.ConfigurationError(message)
        lines.append(found.file_data["content"])
        offset = found.next_offset
    return "\n".join(part.rstrip("\n") for part in lines)
