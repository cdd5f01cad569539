"""Commands that change memories: edit, prune, check, export, import, forget, catch up."""

from __future__ import annotations

import os
import shlex
import string
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from hashlib import file_digest
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memagent_graph.cli.checkpoints import open_saver
from memagent_graph.cli.memory.show import day, print_diff
from memagent_graph.cli.options import (
    BaseUrl,
    MemoryStore,
    MemoryTokens,
    Model,
    Named,
    Namespace,
    Reference,
    User,
    bank_of,
    name_for,
    open_users,
    operator,
    parse_namespace,
)
from memagent_graph.cli.options import Store as StoreOption
from memagent_graph.cli.terminal import print_in_style, report_errors, row
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from memagent_graph.conversation.users import Users
    from memagent_graph.memory.bank import Forgotten, ForgottenSource, MemoryBank


def edit(
    reference: Named = None,
    user: User = None,
    store: MemoryStore = None,
    namespace: Namespace = None,
) -> None:
    """Open a memory in $EDITOR, and store the edited text as a new version.

    A reading that `memagent memory hold` paused continues from your edit.

    With --user and a version's id, the editor opens that version: store it to go back to it.
    """
    with open_users(store, namespace) as users:
        bank = bank_of(users, user)
        held = None if user or reference is None else bank.held(reference)
        if held is not None:
            reference = _find_paused(bank, held.memory)
        newest = bank.get(name_for(reference, user)) if user is None else users.get(user)
        opened = newest if reference is None else bank.get(reference)
        text = _edit_text(opened.text).strip()
        if text in ("", newest.text.strip()):
            print("memagent: nothing changed.", file=sys.stderr)
        elif user is None:
            print(bank.edit(name_for(reference, user), text, hold=held).id)
        else:
            print(users.edit(user, text, by=operator(), before=newest.id).id)


def delete(name: Reference, store: MemoryStore = None, namespace: Namespace = None) -> None:
    """Remove a memory's name. Its versions stay: `memagent memory forget` deletes them too."""
    with open_users(store, namespace) as users:
        bank_of(users, None).delete(name)


def proposals(
    user: Annotated[
        str | None, typer.Option("--user", help="User of a chatbot; all by default.")
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", help="Id of a proposal; can be given several times."),
    ] = None,
    refuse: Annotated[
        list[str] | None,
        typer.Option("--refuse", help="Id of a proposal; can be given several times."),
    ] = None,
    store: MemoryStore = None,
    namespace: Namespace = None,
) -> None:
    """List what waits for approval, or accept and refuse it.

    A chatbot with `approve=True` remembers what is accepted. What is refused is deleted. After one
    was accepted, the chatbot folds the messages of the others again at the user's next turn.
    """
    from memagent_graph.conversation.proposal import Decision, decide, list_proposals
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.sync import wait_for

    with open_users(store, namespace) as users:
        if accept or refuse:
            if user is None:
                raise ConfigurationError("Say whose proposals these are: give --user.")
            decision = Decision(accept or (), refuse or ())
            wait_for(decide(users.of(user), decision, by=operator()))
            return
        waiting = [
            (name, one)
            for name in (users.names() if user is None else [user])
            for one in wait_for(list_proposals(users.of(name)))
        ]
    for name, proposal in waiting:
        print_in_style(row(name, proposal.id, day(proposal.at), proposal.thread), bold=True)
        print_diff(str(proposal).splitlines())


def prune(
    versions: Annotated[
        int | None,
        typer.Option(min=1, help="Newest versions to keep of each memory."),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Days after which replaced versions, messages kept word for word, lines of the "
            "log and marks of threads are deleted.",
        ),
    ] = None,
    idle_days: Annotated[
        float | None,
        typer.Option(min=0, help="Days without a change after which a user is forgotten."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted.")
    ] = False,
    user: User = None,
    store: MemoryStore = None,
    namespace: Namespace = None,
) -> None:
    """Delete old versions and messages of users, and forget those who have been away for long.

    The newest version of a memory stays, unless its user is forgotten.
    """
    from memagent_graph.errors import ConfigurationError

    with open_users(store, namespace) as users:
        if (versions, days, idle_days) == (None, None, None):
            message = "Say what to delete: give --versions, --days or --idle-days."
            raise ConfigurationError(message)
        done = users.prune(
            versions=versions,
            days=days,
            idle_days=idle_days,
            users=None if user is None else [user],
            by=operator(),
            preview=dry_run,
        )
    would = "would be " if dry_run else ""
    for name in sorted(done.versions | done.messages | done.marks):
        kinds = ("version", "message", "mark")
        found = (done.versions, done.messages, done.marks)
        counts = [(part.get(name), kind) for part, kind in zip(found, kinds, strict=True)]
        gone = " and ".join(plural(count, what) for count, what in counts if count)
        print(row(name, f"{gone} {would}deleted"))
    for name in done.forgotten:
        print(row(name, f"{would}forgotten"))
    if done.left:
        print(f"memagent: {done.left}", file=sys.stderr)


def check(
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired, and print what is lost.")
    ] = False,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="With --repair: the SQLite file of a checkpointer, from which gaps are filled.",
        ),
    ] = None,
    user: User = None,
    store: MemoryStore = None,
    namespace: Namespace = None,
) -> None:
    """Look for heads that lead nowhere, gaps, bad records and orphans.

    Exit code 1 if there is something to repair. Orphans are versions that no name leads to: of a
    reading under way, or of one that was broken off, which continues from there.
    """
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.graph.ids import versions_in

    with open_users(store, namespace) as users:
        if checkpoints is not None and not repair:
            raise ConfigurationError("--checkpoints is for --repair: give both.")
        with nullcontext() if checkpoints is None else open_saver(checkpoints) as saver:
            spare = [] if saver is None else versions_in(saver)
        findings = bank_of(users, user).check(repair=repair, spare=spare)
    for finding in findings:
        print(row(finding.kind, finding.key, finding.text))
    broken = [finding for finding in findings if finding.kind in ("dangling", "bad")]
    found = plural(len(findings), "finding")
    print(f"memagent: {found}, {len(broken)} to mend.", file=sys.stderr)
    if broken and not repair:
        raise typer.Exit(1)


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
    store: MemoryStore = None,
    namespace: Namespace = None,
) -> None:
    """Print memories as JSON lines.

    Of a user, everything that is stored is printed: the memory with its versions, who changed it,
    and messages that were kept.
    """
    from memagent_graph.errors import ConfigurationError

    with open_users(store, namespace) as users:
        if sum(map(bool, (names, user, all_users))) > 1:
            message = "Give only one of names of memories, --user and --users."
            raise ConfigurationError(message)
        if user or all_users:
            lines = users.export(user or None)
        else:
            lines = bank_of(users, None).export(names or None)
    for line in lines:
        print(line)


def import_lines(
    file: Annotated[Path, typer.Argument(help="The file that `export` printed; - is stdin.")],
    store: MemoryStore = None,
    namespace: Namespace = None,
) -> None:
    """Store what `export` printed; names and users that exist keep their memories."""
    from memagent_graph.conversation.users import is_of_users

    with open_users(store, namespace, create=True) as users:
        text = sys.stdin.read() if str(file) == "-" else _read(file)
        lines = text.splitlines()
        if is_of_users(lines):
            for user in users.import_(lines, by=operator()):
                print(row(user, "imported"))
        else:
            count = bank_of(users, None).import_(lines)
            print(f"{plural(count, 'version')} imported")


def _find_paused(bank: MemoryBank, memory: str) -> str:
    """The version that a held reading continues from; the memory itself if nothing reads it.

    Raises:
        ConfigurationError: The reading is not paused yet, or several parts of it are.
    """
    from memagent_graph.errors import ConfigurationError

    folds = bank.under_way(memory)
    if len(folds) > 1:
        message = (
            f"{memory!r} is read in {len(folds)} parts at once: edit one in `memagent inspect`."
        )
        raise ConfigurationError(message)
    if folds and not (folds[0].held and folds[0].version):
        message = f"{memory!r} is not paused yet: try again when its call to the model has ended."
        raise ConfigurationError(message)
    return folds[0].version or memory if folds else memory


def _edit_text(text: str) -> str:
    from memagent_graph.errors import MemAgentError

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "memory.txt")
        file.write_text(text + "\n", "utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)  # noqa: S603 - the user's own
        except (OSError, subprocess.CalledProcessError) as error:
            message = f"The editor failed, nothing was changed: {error}"
            raise MemAgentError(message) from error
        return file.read_text("utf-8")


def _read(file: Path) -> str:
    from memagent_graph.errors import StoreError

    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{file} cannot be read: {error}"
        raise StoreError(message) from error


_DIGEST = 64
"""Digits of a document's digest."""


def forget(
    name: Annotated[
        str | None, typer.Argument(help="A memory's name, or the key of a reading without one.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", help="A file, folder or glob; a document's name, or its digest."),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="The user of a chatbot to forget.")
    ] = None,
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
    store: MemoryStore = None,
    namespace: Namespace = None,
) -> None:
    """Forget a memory (NAME), a document (--source), or a user of a chatbot (--user).

    A memory: its name and its versions are deleted, except those that other memories have or need.

    A document: all that came from it is deleted, in all memories and in the cache. A named memory
    falls back to what it was before; documents that are to be read into it again are named.

    A user: all that is stored of them is deleted, also from the free pages and the log of an SQLite
    file. One line stays, under a digest of the user's id: when they were forgotten, and by whom.
    """
    from memagent_graph.errors import ConfigurationError

    with open_users(store, namespace) as users:
        if [name, source, user].count(None) != 2:  # noqa: PLR2004 - one of the three
            message = "Say what to forget: a NAME, a document with --source, or a --user."
            raise ConfigurationError(message)
        if name is not None:
            _forget_memory(users, name, dry_run=dry_run, yes=yes)
        elif source is not None:
            _forget_source(users, source, dry_run=dry_run, yes=yes)
        elif user is not None:
            _forget_user(users, user, checkpoints, dry_run=dry_run, yes=yes)


def _forget_memory(users: Users, name: str, *, dry_run: bool, yes: bool) -> None:
    bank = bank_of(users, None)
    _print_forgotten(name, bank.forget(name, preview=True))
    if dry_run:
        return
    if not yes:
        typer.confirm("Forget it?", abort=True)
    done = bank.forget(name)
    print(f"memagent: {plural(done.versions, 'version')} forgotten.", file=sys.stderr)


def _forget_source(users: Users, source: str, *, dry_run: bool, yes: bool) -> None:
    from memagent_graph.errors import MemoryNotFoundError

    bank = bank_of(users, None)
    documents = [*_digests(source), *bank.digests_of(source)]
    if not documents:
        message = f"There is no file {source}, and no memory of a document of that name."
        raise MemoryNotFoundError(message)
    found = bank.forget_source(*documents, preview=True)
    _print_forgotten_source(found)
    if dry_run or not (found.versions or found.cached):
        return
    if not yes:
        typer.confirm("Forget it?", abort=True)
    done = bank.forget_source(*documents)
    print(f"memagent: {plural(done.versions, 'version')} forgotten.", file=sys.stderr)


def _forget_user(
    users: Users, user: str, checkpoints: Path | None, *, dry_run: bool, yes: bool
) -> None:
    from memagent_graph.conversation.privacy import aforget, athreads_of
    from memagent_graph.sync import wait_for

    held = users.held(user)
    items, versions = plural(held.items, "item"), plural(held.versions, "version")
    print(row(user, f"{items} stored, among them {versions}"))
    with nullcontext() if checkpoints is None else open_saver(checkpoints) as saver:
        if saver is not None:
            found = wait_for(athreads_of(saver, user, held.threads))
            threads = plural(len(found.own), "thread")
            print(row(str(checkpoints), threads, *found.own))
        if dry_run:
            return
        if not yes:
            typer.confirm("Forget this user?", abort=True)
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
    from memagent_graph.errors import SourceError
    from memagent_graph.text.files import open_source
    from memagent_graph.text.source import digests_of

    if len(document) == _DIGEST and not document.strip(string.hexdigits):
        return [document.lower()]
    if Path(document).is_file():  # which need not be converted for it
        with Path(document).open("rb") as file:
            return [file_digest(file, "sha256").hexdigest()]
    try:
        return digests_of(open_source(Path(document)))
    except SourceError:
        return []


def _print_forgotten(name: str, found: Forgotten) -> None:
    print(row(name, f"{plural(found.versions, 'version')} that no other memory has"))
    for other, count in found.shared.items():
        print(row(other, f"{plural(count, 'version')} that it has as well and keeps"))


def _print_forgotten_source(found: ForgottenSource) -> None:
    versions, texts = plural(found.versions, "version"), plural(found.cached, "kept text")
    print(f"{versions} and {texts} came from it")
    for name in found.fell_back:
        print(row(name, "falls back to what it was before"))
    for name in found.forgotten:
        print(row(name, "had nothing before and goes"))
    for name, document in found.unread:
        print(row(name, "is to read again", document))
    for key in found.unreadable:
        print(row(key, "cannot be read and stays (memagent memory check --repair)"))
    for name in found.unsure:
        print(row(name, "may have read it, as versions are lost, and stays"))


def catch_up(
    checkpoints: Annotated[
        Path, typer.Argument(help="The SQLite file of the chatbot's checkpointer.", exists=True)
    ],
    model: Model = None,
    base_url: BaseUrl = None,
    memory_tokens: MemoryTokens = 1024,
    store: StoreOption = None,
    namespace: Namespace = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="The pydantic model of the profiles, if the chatbot keeps them. Modules are "
            "also looked for in this folder.",
        ),
    ] = None,
) -> None:
    """Fold messages that a killed chatbot left unfolded, each once.

    Give the model, the memory's size, the schema and the namespace of the chatbot. Exit code 1 when
    a thread could not be folded. For other checkpointers there is `catch_up` in
    `memagent_graph.conversation.catch_up`.
    """
    from memagent_graph.cli.options import check_server, make_reader
    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation import catch_up as catching_up
    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.reader import for_notes
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.memory.stores import open_store

    with (
        report_errors("memagent: stopped."),
        open_store(store) as found,
        open_saver(checkpoints) as kept,
    ):
        if found is None:
            raise ConfigurationError("There are no memories in the store 'none'.")
        config = ReadingConfig(memory_tokens=memory_tokens)
        reader = make_reader(model, base_url, None, None, config)
        check_server(reader)
        memory: ConversationMemory[Any] = ConversationMemory(
            for_notes(reader),
            schema=str if schema is None else _import_schema(schema),
            store=found,
            config=config,
            namespace=parse_namespace(namespace),
        )
        done = catching_up.catch_up(memory, kept)
    print(f"{plural(done.messages, 'message')} folded, of {plural(done.threads, 'thread')}")
    if done.failed:
        threads = plural(done.failed, "thread")
        print(f"memagent: {threads} could not be folded.", file=sys.stderr)
        raise typer.Exit(1)


def _import_schema(schema: str) -> type[Any]:
    """The class that --schema names.

    Raises:
        ConfigurationError: There is no such class.
    """
    from memagent_graph.errors import ConfigurationError

    module, _, name = schema.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: type[Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        message = (
            f"--schema is MODULE:CLASS, as my_chatbot.profiles:Profile, not {schema!r}: {error}"
        )
        raise ConfigurationError(message) from error
    return found
