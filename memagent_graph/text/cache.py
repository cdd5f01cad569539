"""A cache of converted texts and indexes in the user's cache folder.

An entry is a file whose name begins with the document's digest. It is written atomically. A
damaged or foreign entry, or one that cannot be decrypted, is removed and counts as missing.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from stat import S_ISDIR
from tempfile import mkstemp
from threading import Event
from time import time
from typing import TYPE_CHECKING

from memagent_graph.config import from_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langgraph.checkpoint.serde.base import CipherProtocol

_FORM, _PLAIN = "memagent-cached 3", "plain"
"""Format of an entry, with which it begins, raised when it changes; and one not encrypted."""


def seal(key: str, content: bytes, cipher: CipherProtocol | None = None) -> bytes:
    """Return the bytes of the entry of a key; without a cipher they are plain text."""
    kind, body = _PLAIN, f"{key}\n".encode() + content
    if cipher is not None:
        kind, body = cipher.encrypt(body)
    return f"{_FORM} {kind} {sha256(body).hexdigest()}\n".encode() + body


def unseal(key: str, entry: bytes, cipher: CipherProtocol | None = None) -> bytes:
    """Return what `seal` put into an entry; other bytes, or another key's, are a `ValueError`."""
    head, _, body = entry.partition(b"\n")
    form, kind, checksum = head.decode().rsplit(" ", 2)
    is_whole = form == _FORM and checksum == sha256(body).hexdigest()
    if not is_whole or (kind == _PLAIN) != (cipher is None):
        raise ValueError
    if cipher is not None:
        body = cipher.decrypt(kind, body)
    named, _, content = body.partition(b"\n")
    if named.decode() != key:
        raise ValueError
    return content


_PARTS = 16  # parts of the limit; entries are pruned after each part that is written
_NAME = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}(\..+\.new)?")
"""File name of an entry, finished or being written; other files are left alone."""
_UNFINISHED, _UNFINISHED_SECONDS = ".new", 3600
"""An entry that is being written, and the age at which that of a killed process is removed."""


class Cache:
    """Entries in a folder that only this user can enter; several processes may use it at once.

    The least recently used are removed beyond the limit, in bytes; a cipher encrypts them.
    """

    def __init__(self, folder: Path, limit: int, cipher: CipherProtocol | None = None) -> None:
        self.folder = folder
        self._unseen_limit = limit // _PARTS
        self._seen_limit = limit - self._unseen_limit
        self._cipher = cipher
        self._unseen = limit  # bytes written since entries were last pruned

    def find(self, key: str, most: int) -> bytes | None:
        """Return the entry of a key; None without one, or if it is longer than `most` bytes."""
        path = self.folder / key
        found: bytes | None = None
        with suppress(OSError):
            if self._is_private():
                try:
                    found = unseal(key, path.read_bytes(), self._cipher)
                except ValueError:
                    path.unlink()
                else:
                    os.utime(path)
        return found if found is not None and len(found) <= most else None

    def keep(self, key: str, content: bytes) -> None:
        """Keep an entry. If the folder cannot be written or the disk is full, nothing happens.

        A key is the document's digest in hex, a hyphen, and 16 hexadecimal digits.
        """
        entry = seal(key, content, self._cipher)
        if len(entry) > self._seen_limit:
            return
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_private():
                self._write(key, entry)
                self._prune(len(entry))

    def forget(self, digest: str | None = None, *, preview: bool = False) -> int:
        """Remove the entries of the document with this digest, or all; return how many."""
        prefix = "" if digest is None else f"{digest}-"
        named = [path for path, _ in self._entries() if path.name.startswith(prefix)]
        for path in named if not preview else ():
            path.unlink(missing_ok=True)
        return len(named)

    def _is_private(self) -> bool:
        """Whether only this user can read or replace entries; without a folder, an `OSError`."""
        found = self.folder.lstat()
        if sys.platform == "win32":
            return True
        own = found.st_uid == os.geteuid() and not found.st_mode & 0o077
        return own and S_ISDIR(found.st_mode)

    def _write(self, key: str, entry: bytes) -> None:
        handle, name = mkstemp(_UNFINISHED, f"{key}.", self.folder)  # readable by its owner
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(entry)
            Path(name).replace(self.folder / key)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise

    def _prune(self, written: int) -> None:
        self._unseen += written
        if self._unseen <= self._unseen_limit:
            return
        self._unseen = 0
        left = self._seen_limit
        for path, found in sorted(self._entries(), key=lambda entry: -entry[1].st_mtime_ns):
            left -= found.st_size
            old = found.st_mtime < time() - _UNFINISHED_SECONDS
            if left < 0 or (old and path.suffix == _UNFINISHED):
                with suppress(OSError):
                    path.unlink()

    def _entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        files = list[os.DirEntry[str]]()
        with suppress(OSError):
            files += os.scandir(self.folder)
        for file in files:
            with suppress(OSError):  # another process may just have removed it
                if _NAME.fullmatch(file.name) and not file.is_dir():
                    yield Path(file.path), file.stat(follow_symlinks=False)


OFF, _FOLDER = "off", "converted"
_MB, _LIMIT_MB = 1 << 20, 1024
_no_plain_text = Event()


def keep_no_plain_text() -> None:
    """Keep texts and indexes in the cache only if they can be encrypted, from now on."""
    _no_plain_text.set()


def open_cache() -> Cache | None:
    """Return the cache that the environment asks for; None if there is none.

    `MEMAGENT_CACHE` is a folder or "off"; `MEMAGENT_CACHE_MB` is its limit. `LANGGRAPH_AES_KEY`,
    the key of LangGraph's `EncryptedSerializer`, also encrypts the entries. If encryption fails, or
    after `keep_no_plain_text` there is no key, nothing is kept.
    """
    folder = folder_of_converted()
    if os.environ.get("MEMAGENT_CACHE") == OFF or folder is None:
        return None
    limit = int(from_environment("MEMAGENT_CACHE_MB", _LIMIT_MB) * _MB)
    key = os.environ.get("LANGGRAPH_AES_KEY")
    return None if _no_plain_text.is_set() and not key else _cache(folder, limit, key)


def forget_converted(digest: str | None = None, *, preview: bool = False) -> int:
    """Remove a document's text and index, or all entries, and return how many.

    The cache may be off now. The digest is that of the document's source; a preview only counts.
    """
    folder = folder_of_converted()
    return Cache(folder, 0).forget(digest, preview=preview) if folder else 0


@lru_cache(maxsize=8)
def _cache(folder: Path, limit: int, key: str | None) -> Cache | None:
    if not key:
        return Cache(folder, limit)
    try:
        from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

        serializer = EncryptedSerializer.from_pycryptodome_aes(key=key.encode())
        serializer.cipher.encrypt(b"")
    except (ImportError, ValueError):
        return None
    return Cache(folder, limit, serializer.cipher)


def folder_of_converted() -> Path | None:
    """Return the folder of texts and indexes; None if the user has no home folder."""
    named = os.environ.get("MEMAGENT_CACHE")
    if named and named != OFF:
        return Path(named).absolute() / _FOLDER
    variable, usual = _PLACES.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    with suppress(RuntimeError):
        base = Path(os.environ.get(variable) or Path.home() / usual)
        return base.absolute() / "memagent" / _FOLDER
    return None


_PLACES = {"win32": ("LOCALAPPDATA", "AppData/Local"), "darwin": ("", "Library/Caches")}
"""Variables and folders of caches, by the system; others have those of the XDG."""
