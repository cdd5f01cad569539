"""`memagent memory`: look at stored memories, edit, move and forget them."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from memagent_graph import errors
from memagent_graph.cli.options import (
    Keeps,
    Named,
    Reads,
    User,
    bank_of,
    check_server,
    name_for,
    operator,
    takes_options,
)
from memagent_graph.cli.terminal import print_in_style, row
from memagent_graph.sync import wait_for
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from langgraph.checkpoint.sqlite import SqliteSaver

    from memagent_graph.conversation.exports import ExportForm
    from memagent_graph.conversation.user_memory import MemoryChange
    from memagent_graph.conversation.users import Users
    from memagent_graph.memory.bank import Forgotten, ForgottenSource, MemoryBank
    from memagent_graph.memory.version import History, MemoryVersion

_COLOURS = {"+": "green", "-": "red"}
_GAP = {"fg": "yellow"}


def day(time: str) -> str:
    """A time in ISO 8601 as a person reads it, in UTC."""
    return time[:16].replace("T", " ")


def print_history(versions: History, changes: Sequence[MemoryChange] | None) -> None:
    """Print what each version changed, newest first; of a user's memory, all `changes` as well."""
    from memagent_graph.memory.bank import diff

    gaps = {*versions.gaps} - {change.version for change in changes or ()}
    earlier = [*versions[1:], *[None] * bool(versions)]
    kept = {new.id: (new, old) for new, old in zip(versions, earlier, strict=True)}
    for key, head in _list_changes(versions, changes):
        version, before = kept.get(key, (None, None))
        if version is None:
            print_in_style(head, bold=True)
            if key:
                print_in_style("  this version is gone: it was thinned out, or it expired", **_GAP)
            continue
        cut = ", cut to its budget" if version.cut else ""
        print_in_style(f"{head}, {plural(version.tokens, 'token')}{cut}", bold=True)
        new = [f"+ {line}" for line in version.text.splitlines()]
        for line in diff(before, version) if before else new:
            print_in_style(f"  {line}", fg=_COLOURS.get(line[:1]))
        if version.parent in gaps:
            gap = "is gone: it expired, was evicted, thinned out or forgotten"
            print_in_style(f"{version.parent}  {gap}", **_GAP)


def _list_changes(
    versions: History, changes: Sequence[MemoryChange] | None
) -> list[tuple[str, str]]:
    """Return the version of each change, newest first, and what was done."""
    if changes is None:
        return [(version.id, f"{version.id}  {_describe(version)}") for version in versions]
    lined = {change.version for change in changes}
    said = [(change.at, change.version, _describe_change(change)) for change in changes]
    unlined = [version for version in versions if version.id not in lined]
    said += [(version.created_at, version.id, "nobody noted by whom") for version in unlined]
    return [
        (key, "  ".join(filter(None, (day(at), key, what))))
        for at, key, what in sorted(said, reverse=True)
    ]


def _describe(version: MemoryVersion) -> str:
    from memagent_graph.memory.version import VersionMerge

    what = "edited" if version.edited else f"chunk {version.step}"
    if isinstance(version.made_by, VersionMerge):
        what = f"merge of {plural(len(version.made_by.merged), 'memory')}"
    return "{}, {}-{} of {}".format(what, *version.span, version.document.name)


def _describe_change(change: MemoryChange) -> str:
    summary = f"{change.what} by {change.by or 'somebody'}"
    if change.messages:
        summary += f", thread {change.thread}, messages {' '.join(change.messages)}"
    return f"{summary}, model {change.model}" if change.model else summary


@takes_options
def list_users(*, keeps: Keeps) -> None:
    """List the users of a chatbot: id, size of the memory, when it changed last."""
    with keeps.open_users() as users:
        for user, version in users.list():
            size = "no memory yet" if version is None else plural(version.tokens, "token")
            print(row(user, size, "" if version is None else day(version.created_at)))


@takes_options
def list_memories(*, keeps: Keeps) -> None:
    """List memories of documents: name, size, what was asked, what was read.

    The memories of a chatbot's users are listed by `memagent memory users`.
    """
    with keeps.open_users() as users:
        for name, version in bank_of(users, None).list():
            read = f"{version.document.share:.0%} of {version.document.name}"
            print(row(name, plural(version.tokens, "token"), version.question, read))


@takes_options
def show(reference: Named = None, user: User = None, *, keeps: Keeps) -> None:
    """Print a memory."""
    with keeps.open_users() as users:
        if user is not None and reference is None:
            print(users.get(user).text)
        else:
            print(bank_of(users, user).get(name_for(reference)).text)


@takes_options
def history(reference: Named = None, user: User = None, *, keeps: Keeps) -> None:
    """Print every version of a memory, newest first, and what each changed.

    With --user, each line says who made the change, when, from which messages and with which
    model, also of versions that are gone. Of a user who was forgotten, it says only that.
    """
    with keeps.open_users() as users:
        if user is not None and reference is None:
            print_history(*users.history(user))
        else:
            print_history(bank_of(users, user).history(name_for(reference)), None)


@takes_options
def readings(*, keeps: Keeps) -> None:
    """List readings under way: memory, progress, question, document, start, and its last edit."""
    with keeps.open_users() as users:
        folds = bank_of(users, None).under_way()
    for fold in folds:
        chunks = f"chunk {fold.step} of about {fold.chunks}" if fold.step else "chunk 0"
        since = f"since {day(fold.since)}"
        taken = f"taken {day(fold.taken)}" if fold.taken else "taken at the next chunk"
        state = f"edited, {taken}" if fold.edit else ""
        print(row(fold.memory, chunks, fold.question, fold.source_name, since, state))
    if not folds:
        print("memagent: nothing is being read now.", file=sys.stderr)


@takes_options
def edit(reference: Named = None, user: User = None, *, keeps: Keeps) -> None:
    """Open a memory in $EDITOR, and store the edited text as a new version.

    A reading that is under way continues from your edit at its next chunk, and reads again what it
    has read meanwhile.

    With --user and a version's id, the editor opens that version: store it to go back to it.
    """
    with keeps.open_users() as users:
        bank = bank_of(users, user)
        read = None if user or reference is None else _find_read(bank, reference)
        newest = users.get(user) if user else bank.get(read or name_for(reference))
        opened = bank.get(reference) if user and reference else newest
        text = _edit_text(opened.text).strip()
        if text in ("", newest.text.strip()):
            print("memagent: nothing changed.", file=sys.stderr)
        elif user is None:
            print(bank.edit(name_for(reference), text, before=read).id)
        else:
            print(users.edit(user, text, by=operator(), before=newest.id).id)


@takes_options
def check(
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired, and print what is lost.")
    ] = False,
    user: User = None,
    *,
    keeps: Keeps,
) -> None:
    """Look for heads that lead nowhere, gaps, bad records and orphans.

    Exit code 1 if there is something to repair. Orphans are versions that no name leads to: of a
    reading under way, or of one that was broken off, which continues from there.
    """
    with keeps.open_users() as users:
        findings = bank_of(users, user).check(repair=repair)
    for finding in findings:
        print(row(finding.kind, finding.key, finding.text))
    broken = [finding for finding in findings if finding.kind in ("dangling", "bad")]
    print(f"memagent: {plural(len(findings), 'finding')}, {len(broken)} to mend.", file=sys.stderr)
    if broken and not repair:
        raise typer.Exit(1)


@takes_options
def export(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of memories; all by default.")
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option("--user", help="A user of a chatbot; can be given several times."),
    ] = None,
    all_users: Annotated[
        bool, typer.Option("--users", help="All users of a chatbot, and no other memories.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown to read, which nothing imports.")
    ] = False,
    *,
    keeps: Keeps,
) -> None:
    """Print memories as JSON lines.

    Of a user, everything that is stored is printed: the memory with its versions, who changed it,
    and messages that were kept. Markdown has what is known now, and where it is from.
    """
    with keeps.open_users() as users:
        if sum(map(bool, (names, user, all_users))) > 1:
            raise errors.ConfigurationError(
                "Give only one of names of memories, --user and --users."
            )
        if user or all_users:
            lines = users.export(user or None, markdown=markdown)
        else:
            lines = bank_of(users, None).export(names or None, markdown=markdown)
    for line in lines:
        print(line)


@takes_options
def import_lines(
    file: Annotated[Path, typer.Argument(help="The exported file; - is stdin.")],
    form: Annotated[
        Literal["chatgpt", "claude", "langmem", "letta", "mem0"] | None,
        typer.Option("--from", help="Who else exported it, for the memory of the --user."),
    ] = None,
    user: User = None,
    *,
    reads: Reads,
    keeps: Keeps,
) -> None:
    """Store what `export` printed; names and users that exist keep their memories.

    With --from and --user, fold what another library or chat exported: conversations.json of
    ChatGPT or Claude, an agent file of Letta, get_all of mem0, or the items of a store that LangMem
    wrote, as JSON. What was imported before is not folded again.
    """
    from memagent_graph.conversation.users import is_of_users

    with keeps.open_users(create=True) as users:
        if (form is None) != (user is None):
            raise errors.ConfigurationError("--from and --user go together: name both, or neither.")
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
        lines = text.splitlines()
        if form is not None and user is not None:
            _import_export(users, form, text, user, reads)
        elif is_of_users(lines):
            for name in users.import_(lines, by=operator()):
                print(row(name, "imported"))
        else:
            count = bank_of(users, None).import_(lines)
            print(f"{plural(count, 'version')} imported")


def _import_export(users: Users, form: ExportForm, text: str, user: str, reads: Reads) -> None:
    from memagent_graph.conversation.exports import import_export
    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.reader import for_notes

    config = reads.make_config()
    reader = reads.make_reader(config)
    check_server(reader)
    kept: Any = {"store": users.store, "namespace": users.namespace}
    memory = ConversationMemory(for_notes(reader), **kept, config=config, tokenizer=reads.tokenizer)
    done = import_export(memory, form, text, user=user)
    threads, messages = plural(done.threads, "thread"), plural(done.messages, "message")
    print(row(user, f"{messages} of {threads} imported"))
    for name, count in done.unread.most_common():
        print(row("left out", f"{count}", name))


def _find_read(bank: MemoryBank, memory: str) -> str | None:
    """The version that a reading under way continues from; None if nothing reads it."""
    if len(folds := bank.under_way(memory)) > 1:
        where = f"in {len(folds)} parts at once: edit one in `memagent inspect`."
        message = f"{memory!r} is read {where}"
        raise errors.ConfigurationError(message)
    return folds[0].version if folds else None


def _edit_text(text: str) -> str:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "memory.txt")
        file.write_text(text + "\n", "utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)  # noqa: S603 - the user's own
        except (OSError, subprocess.CalledProcessError) as error:
            message = f"The editor failed, nothing was changed: {error}"
            raise errors.MemAgentError(message) from error
        return file.read_text("utf-8")


@takes_options
def forget(
    name: Annotated[
        str | None, typer.Argument(help="A memory's name, or the key of a reading without one.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", help="A file, folder or glob; a document's name, or its digest."),
    ] = None,
    user: User = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="With --user: the SQLite file of the chatbot's checkpointer, in which the "
            "user's threads are deleted too.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be forgotten.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    *,
    keeps: Keeps,
) -> None:
    """Forget a memory (NAME), a document (--source), or a user of a chatbot (--user).

    A memory: its name and its versions are deleted, except those that other memories have or need.

    A document: all that came from it is deleted, in all memories and in the cache. A named memory
    falls back to what it was before; documents that are to be read into it again are named.

    A user: all that is stored of them is deleted, also from the free pages and the log of an SQLite
    file. One line stays, under a digest of the user's id: when they were forgotten, and by whom.
    """

    def agrees(question: str) -> bool:
        if not (dry_run or yes):
            typer.confirm(question, abort=True)
        return not dry_run

    with keeps.open_users() as users:
        bank = bank_of(users, None)
        if [name, source, user].count(None) != 2:  # noqa: PLR2004 - one of the three
            message = "Say what to forget: a NAME, a document with --source, or a --user."
            raise errors.ConfigurationError(message)
        if user is not None:
            _forget_user(users, user, checkpoints, agrees)
            return
        done: Forgotten | ForgottenSource | None
        if name is not None:
            found = bank.forget(name, preview=True)
            print(row(name, f"{plural(found.versions, 'version')} that no other memory has"))
            for other, count in found.shared.items():
                print(row(other, f"{plural(count, 'version')} that it has as well and keeps"))
            done = bank.forget(name) if agrees("Forget it?") else None
        else:
            done = _forget_source(bank, str(source), agrees)
    if done is not None:
        print(f"memagent: {plural(done.versions, 'version')} forgotten.", file=sys.stderr)


def _forget_source(
    bank: MemoryBank, source: str, agrees: Callable[[str], bool]
) -> ForgottenSource | None:
    if not (documents := [*_digests(source), *bank.digests_of(source)]):
        message = f"There is no file {source}, and no memory of a document of that name."
        raise errors.MemoryNotFoundError(message)
    found = bank.forget_source(*documents, preview=True)
    _print_forgotten_source(found)
    is_wanted = (found.versions or found.cached) and agrees("Forget it?")
    return bank.forget_source(*documents) if is_wanted else None


def _forget_user(
    users: Users, user: str, checkpoints: Path | None, agrees: Callable[[str], bool]
) -> None:
    from memagent_graph.conversation.catch_up import aforget, athreads_of

    held = users.held(user)
    items, versions = plural(held.items, "item"), plural(held.versions, "version")
    print(row(user, f"{items} stored, among them {versions}"))
    with nullcontext() if checkpoints is None else open_saver(checkpoints) as saver:
        if saver is not None:
            found = wait_for(athreads_of(saver, user, held.threads))
            print(row(str(checkpoints), plural(len(found.own), "thread"), *map(str, found.own)))
        if not agrees("Forget this user?"):
            return
        done = wait_for(aforget(users.of(user), by=operator(), checkpointer=saver))
    items, threads = plural(done.items, "item"), plural(len(done.deleted), "thread")
    print(f"{items} and {threads} deleted")
    if done.threads and saver is None:
        print(
            f"A checkpointer may still hold the threads {', '.join(done.threads)}. Delete them "
            "with checkpointer.delete_thread(id), or run this again with --checkpoints FILE: "
            "until then they may be folded again."
        )
    elif done.threads:
        print(
            f"Others spoke in the threads {', '.join(done.threads)}, which stay. Delete them "
            "with checkpointer.delete_thread(id) if you may."
        )
    if done.left:
        print(f"memagent: {done.left}", file=sys.stderr)


def _digests(document: str) -> list[str]:
    """Of a document that is there, and of all that it is joined from; a digest is its own."""
    from memagent_graph.text.files import open_source
    from memagent_graph.text.source import digests_of

    if re.fullmatch("[0-9a-fA-F]{64}", document):
        return [document.lower()]
    if Path(document).is_file():  # which need not be converted for it
        with Path(document).open("rb") as file:
            return [file_digest(file, "sha256").hexdigest()]
    try:
        return digests_of(open_source(Path(document)))
    except errors.SourceError:
        return []


def _print_forgotten_source(found: ForgottenSource) -> None:
    versions, texts = plural(found.versions, "version"), plural(found.cached, "kept text")
    print(f"{versions} and {texts} came from it")
    lines: list[tuple[str, ...]]
    lines = [(name, "falls back to what it was before") for name in found.fell_back]
    lines += [(name, "had nothing before and goes") for name in found.forgotten]
    lines += [(name, "is to read again", document) for name, document in found.unread]
    kept = "cannot be read and stays (memagent memory check --repair)"
    lines += [(key, kept) for key in found.unreadable]
    lines += [(name, "may have read it, as versions are lost, and stays") for name in found.unsure]
    for fields in lines:
        print(row(*fields))


app = typer.Typer(
    help="Look at stored memories, edit, move and forget them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("list")(list_memories)
app.command("users")(list_users)
app.command("import")(import_lines)
for command in (show, history, readings, edit, forget, check, export):
    app.command()(command)


@contextmanager
def open_saver(file: Path) -> Iterator[SqliteSaver]:
    """Open the checkpoints of an SQLite file; `StoreError` if it cannot be used."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    from memagent_graph.memory.stores import wait_for_others

    with ExitStack() as stack:
        try:
            saver = stack.enter_context(SqliteSaver.from_conn_string(str(file)))
            wait_for_others(saver.conn, saver.setup)
        except sqlite3.Error as error:
            message = (
                f"The checkpoint file {file} cannot be used: {error}. Check the disk and the "
                "permissions of its folder, or name another file."
            )
            raise errors.StoreError(message) from error
        yield saver
