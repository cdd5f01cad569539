"""Commands that change memories: edit, prune, check, export and import."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.memory.opening import (
    Named,
    Reference,
    Store,
    User,
    bank_of,
    named,
    open_users,
    operator,
)
from memagent_graph.cli.options import Namespace
from memagent_graph.cli.shown import row, shown
from memagent_graph.counted import counted

if TYPE_CHECKING:
    from memagent_graph.memory.bank import MemoryBank


def edit(
    reference: Named = None,
    user: User = None,
    store: Store = None,
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
            reference = _paused(bank, held.memory)
        newest = bank.get(named(reference, user)) if user is None else users.get(user)
        opened = newest if reference is None else bank.get(reference)
        text = _edited(opened.text).strip()
        if text in ("", newest.text.strip()):
            print("memagent: nothing changed.", file=sys.stderr)
        elif user is None:
            print(bank.edit(named(reference, user), text, hold=held).id)
        else:
            print(users.edit(user, text, by=operator(), before=newest.id).id)


def delete(name: Reference, store: Store = None, namespace: Namespace = None) -> None:
    """Remove a memory's name. Its versions stay: `memagent memory forget` deletes them too."""
    with open_users(store, namespace) as users:
        bank_of(users, None).delete(name)


def prune(
    versions: Annotated[
        int | None,
        typer.Option(min=1, help="Newest versions to keep of each memory."),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Days after which replaced versions, and messages kept word for word, are "
            "deleted.",
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
    store: Store = None,
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
    for name in sorted(done.versions | done.messages):
        counts = (done.versions.get(name), "version"), (done.messages.get(name), "message")
        gone = " and ".join(counted(count, what) for count, what in counts if count)
        print(row(name, f"{gone} {would}deleted"))
    for name in done.forgotten:
        print(row(name, f"{would}forgotten"))
    if done.left:
        print(f"memagent: {done.left}", file=sys.stderr)


def check(
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired, and print what is lost.")
    ] = False,
    user: User = None,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Look for heads that lead nowhere, gaps, bad records and orphans.

    Exit code 1 if there is something to repair. Orphans are versions that no name leads to: of a
    reading under way, or of one that was broken off, which goes on from there.
    """
    with open_users(store, namespace) as users:
        findings = bank_of(users, user).check(repair=repair)
    for finding in findings:
        print(row(finding.kind, finding.key, finding.text))
    broken = [finding for finding in findings if finding.kind in ("dangling", "bad")]
    found = counted(len(findings), "finding")
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
    store: Store = None,
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
        print(shown(line))


def import_lines(
    file: Annotated[Path, typer.Argument(help="The file that `export` printed; - is stdin.")],
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Store what `export` printed; names and users that exist keep their memories."""
    from memagent_graph.memory.moving import is_of_users

    with open_users(store, namespace) as users:
        text = sys.stdin.read() if str(file) == "-" else _read(file)
        lines = text.splitlines()
        if is_of_users(lines):
            for user in users.import_(lines, by=operator()):
                print(row(user, "imported"))
        else:
            count = bank_of(users, None).import_(lines)
            print(f"{counted(count, 'version')} imported")


def _paused(bank: MemoryBank, memory: str) -> str:
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


def _edited(text: str) -> str:
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
