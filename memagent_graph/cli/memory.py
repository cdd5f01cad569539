"""`memagent memory`: look at stored memories, edit, move and forget them."""

from __future__ import annotations

import asyncio
import os
import shlex
import string
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.catch_up import catch_up
from memagent_graph.cli.options import Namespace, chosen_namespace
from memagent_graph.cli.reporting import reporting
from memagent_graph.cli.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.memory.bank import Forgotten, ForgottenSource, MemoryBank
    from memagent_graph.memory.version import MemoryVersion

app = typer.Typer(
    help="Look at stored memories, edit, move and forget them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("catch-up")(catch_up)

Reference = Annotated[str, typer.Argument(help="A memory's name or a version's id.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="MEMAGENT_STORE",
        help="A Redis URL or an SQLite file; by default a file in your data folder.",
    ),
]


@contextmanager
def _bank(store: str | None, namespace: str | None) -> Iterator[MemoryBank]:
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.stores import open_store

    with reporting("memagent: stopped."), open_store(store) as found:
        if found is None:
            raise ConfigurationError("There are no memories in the store 'none'.")
        yield MemoryBank(found, chosen_namespace(namespace))


@app.command("list")
def list_memories(store: Store = None, namespace: Namespace = None) -> None:
    """List memories: name, size, what was asked, what was read."""
    with _bank(store, namespace) as bank:
        for name, version in bank.list():
            read = f"{version.end / version.length:.0%} of {version.source_name}"
            print(shown(f"{name}\t{version.tokens} tokens\t{version.question}\t{read}"))


@app.command()
def show(reference: Reference, store: Store = None, namespace: Namespace = None) -> None:
    """Print a memory."""
    with _bank(store, namespace) as bank:
        print(shown(bank.get(reference).text))


@app.command()
def history(reference: Reference, store: Store = None, namespace: Namespace = None) -> None:
    """Print every version of a memory, newest first, and what each changed."""
    from memagent_graph.memory.bank import diff

    with _bank(store, namespace) as bank:
        versions = bank.history(reference)
    for version, before in zip(versions, [*versions[1:], None], strict=True):
        what = "edited" if version.edited else f"chunk {version.step}"
        cut = ", cut to its budget" if version.cut else ""
        span = f"{version.start}-{version.end} of {version.source_name}"
        line = f"{version.id}  {what}, {span}, {version.tokens} tokens{cut}"
        typer.secho(shown(line), bold=True)
        changes = diff(before, version) if before else (f"+ {s}" for s in version.text.splitlines())
        _print_diff(changes)
        if version.parent in versions.gaps:
            gap = f"{version.parent}  is gone: it expired, was evicted, thinned out or forgotten"
            typer.secho(gap, fg="yellow")


@app.command("diff")
def show_diff(
    before: Reference, after: Reference, store: Store = None, namespace: Namespace = None
) -> None:
    """Print what changed from one version to another."""
    from memagent_graph.memory.bank import diff

    with _bank(store, namespace) as bank:
        _print_diff(diff(bank.get(before), bank.get(after)))


@app.command()
def edit(reference: Reference, store: Store = None, namespace: Namespace = None) -> None:
    """Open a memory in $EDITOR, and store what you make of it as a new version."""
    with _bank(store, namespace) as bank:
        before = bank.get(reference)
        text = _edited(before.text)
        if text.strip() in ("", before.text.strip()):
            print("memagent: nothing changed.", file=sys.stderr)
            return
        print(bank.edit(reference, text.strip()).id)


@app.command()
def delete(
    name: Reference,
    versions: Annotated[
        bool, typer.Option("--versions", help="And all its versions that no other memory has.")
    ] = False,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Take a memory's name away, or forget it altogether."""
    with _bank(store, namespace) as bank:
        if versions:
            _print_forgotten(bank.forget(name))
        else:
            bank.delete(name)


@app.command()
def forget(
    source: Annotated[
        str,
        typer.Option("--source", help="A file, folder or glob; a document's name, or its digest."),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be forgotten.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before.")] = False,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Forget a document: delete all that came from it, in all memories and in the cache.

    Statements that came from elsewhere stay: a named memory that has some is rewritten.
    """
    from memagent_graph.errors import MemoryNotFoundError

    with _bank(store, namespace) as bank:
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
    print(f"memagent: {done.versions} versions forgotten.", file=sys.stderr)


def _digests(document: str) -> list[str]:
    """Of a document that is there, and of all that it is joined from; a digest is its own."""
    from memagent_graph.errors import SourceError
    from memagent_graph.text.opening import open_source
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


@app.command()
def check(
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what can be mended, and say what is lost.")
    ] = False,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Look for heads that lead nowhere, gaps, bad records and orphans.

    Exit code 1 when there is something to mend. Orphans are versions that no name leads to: of a
    reading under way, or of one that was broken off, which goes on from there.
    """
    with _bank(store, namespace) as bank:
        findings = bank.check(repair=repair)
    for finding in findings:
        print(shown(f"{finding.kind}\t{finding.key}\t{finding.text}"))
    broken = [finding for finding in findings if finding.kind in ("dangling", "bad")]
    print(f"memagent: {len(findings)} findings, {len(broken)} to mend.", file=sys.stderr)
    if broken and not repair:
        raise typer.Exit(1)


@app.command()
def export(
    names: Annotated[list[str] | None, typer.Argument(help="Which; all by default.")] = None,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Print memories as JSON lines."""
    with _bank(store, namespace) as bank:
        for line in bank.export(names or None):
            print(line)


@app.command("import")
def import_lines(
    file: Annotated[Path, typer.Argument(help="What `export` printed; - is stdin.")],
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Store what `export` printed; names that exist stay as they are."""
    with _bank(store, namespace) as bank:
        text = sys.stdin.read() if str(file) == "-" else _read(file)
        print(f"{bank.import_(text.splitlines())} versions imported")


@app.command()
def watch(
    reference: Reference,
    everything: Annotated[
        bool, typer.Option("--all", help="Begin with the versions that there are.")
    ] = False,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Follow a memory live: print each new version's changes until you stop it."""
    from memagent_graph.memory.bank import diff

    async def follow(bank: MemoryBank) -> None:
        topic = await _topic(bank, reference)
        before: MemoryVersion | None = None
        async for version in bank.watch(topic, after="0" if everything else "$"):
            typer.secho(f"{version.id}  chunk {version.step}", bold=True)
            _print_diff(diff(before or version, version))
            before = version
            sys.stdout.flush()

    with _bank(store, namespace) as bank:
        asyncio.run(follow(bank))


async def _topic(bank: MemoryBank, reference: str) -> str:
    """What a memory's versions are announced under; a name may come to be later."""
    from memagent_graph.errors import MemoryNotFoundError

    if await bank.ahead(reference) is not None:
        return reference
    try:
        return (await bank.aget(reference)).root
    except MemoryNotFoundError:
        return reference


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


_DIGEST = 64
"""Digits of a document's digest."""

_COLOURS = {"+": "green", "-": "red"}


def _print_forgotten(forgotten: Forgotten) -> None:
    print(f"{forgotten.versions} versions forgotten")
    for name, count in forgotten.shared.items():
        print(shown(f"{count} stay: they are {name}'s as well"))


def _print_forgotten_source(found: ForgottenSource) -> None:
    print(f"{found.versions} versions and {found.cached} kept texts came from it")
    for name in found.rewritten:
        print(shown(f"{name}\tis rewritten without it"))
    for name in found.forgotten:
        print(shown(f"{name}\thas nothing else and goes"))
    for key in found.unreadable:
        print(shown(f"{key}\tcannot be read and stays (memagent memory check --repair)"))


def _print_diff(lines: Iterator[str]) -> None:
    for line in lines:
        typer.secho(f"  {shown(line)}", fg=_COLOURS.get(line[:1]))
