"""A cache of converted texts and indexes in the user's cache folder.

An entry is a file whose name begins with the document's digest. It is written atomically. A
damaged or foreign entry, or one that cannot be decrypted, is removed and counts as missing.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from tempfile import mkstemp
from time import time
from typing import TYPE_CHECKING

from memagent_graph.text.entry import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langgraph.checkpoint.serde.base import CipherProtocol

_PARTS = 16
"""Parts of the limit; entries are pruned after each part that is written."""

_NAME = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}(\..+\.new)?")
"""File name of an entry, finished or being written; other files are left alone."""

_UNFINISHED = ".new"
_UNFINISHED_SECONDS = 3600
"""Age, in seconds, at which an unfinished entry of a killed process is removed."""


class Cache:
    """Entries in a folder that only this user can enter.

    Several processes may use it at once.

    Args:
        folder: the folder; created with the first entry.
        limit: size of all entries, in bytes; the least recently used are removed first.
        cipher: encrypts the entries; None keeps plain text.
    """

    def __init__(self, folder: Path, limit: int, cipher: CipherProtocol | None = None) -> None:
        self.folder = folder
        self._unseen_limit = limit // _PARTS
        self._seen_limit = limit - self._unseen_limit
        self._cipher = cipher
        self._unseen = limit  # bytes written since entries were last pruned

    def find(self, key: str, most: int) -> tuple[bytes, ...] | None:
        """Return the entry of a key; None without one, or if it is longer than `most` bytes."""
        path = self.folder / key
        if not self._is_private():
            return None
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        try:
            found = unseal(key, entry, self._cipher)
        except (ValueError, KeyError, TypeError):
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return found if sum(map(len, found)) <= most else None

    def keep(self, key: str, parts: Sequence[bytes]) -> None:
        """Keep an entry. If the folder cannot be written or the disk is full, nothing happens.

        Args:
            key: the document's digest in hex, a hyphen, and 16 hexadecimal digits.
            parts: the content, in parts that `find` returns as they are.
        """
        entry = seal(key, parts, self._cipher)
        if len(entry) > self._seen_limit:
            return
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_private():
                self._write(key, entry)
                self._prune(len(entry))

    def forget(self, digest: str) -> int:
        """Remove the entries of the document with this digest, and return their number.

        Raises:
            OSError: An entry cannot be removed.
        """
        return self._remove(f"{digest}-")

    def count(self, digest: str) -> int:
        """Return the number of entries of the document with this digest."""
        return len(self._named(f"{digest}-"))

    def clear(self) -> int:
        """Remove all entries, and return their number.

        Raises:
            OSError: One cannot be removed.
        """
        return self._remove("")

    def size(self) -> int:
        """Return the size of all entries, in bytes."""
        return sum(found.st_size for _, found in self._entries())

    def _remove(self, prefix: str) -> int:
        named = self._named(prefix)
        for path in named:
            path.unlink(missing_ok=True)
        return len(named)

    def _named(self, prefix: str) -> list[Path]:
        return [path for path, _ in self._entries() if path.name.startswith(prefix)]

    def _is_private(self) -> bool:
        """Whether only this user can read or replace entries."""
        try:
            found = self.folder.lstat()
        except OSError:
            return False
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
        try:
            files = list(os.scandir(self.folder))
        except OSError:
            return
        for file in files:
            with suppress(OSError):  # another process may just have removed it
                if _NAME.fullmatch(file.name) and not file.is_dir():
                    yield Path(file.path), file.stat(follow_symlinks=False)
