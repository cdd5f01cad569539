"""Choose the documents of a corpus by their names, and give them metadata."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import EmptyDocumentError
from memagent_graph.text.files import open_path, open_source
from memagent_graph.text.source import (
    JoinedSource,
    Skipped,
    Source,
    flat_parts,
    flat_skips,
    metadata_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memagent_graph.text.files import DocumentLike


@dataclass(frozen=True)
class Corpus:
    """Documents of which some are read, with metadata; `corpus` makes one, of its arguments."""

    documents: DocumentLike
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    metadata: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]] | None = None

    def wants(self, name: str) -> bool:
        """Whether a document of this name is read."""
        included = not self.include or any(_matches(name, pattern) for pattern in self.include)
        return included and not any(_matches(name, pattern) for pattern in self.exclude)

    def open_sources(self) -> JoinedSource:
        """Open the documents anew."""
        parts, skipped = list[Source](), list[Skipped]()
        for source in self._open_all():
            parts += flat_parts(source)
            skipped += flat_skips(source)
        parts = [part for part in parts if self.wants(part.name)]
        if not parts:
            patterns = ", ".join([*self.include, *(f"not {name}" for name in self.exclude)])
            message = f"No document is included ({patterns}): change include or exclude."
            raise EmptyDocumentError(message)
        for part in parts:
            if found := {**metadata_of(part), **self._metadata(part.name)}:
                part.metadata = found  # type: ignore[attr-defined]
        return JoinedSource(parts, "corpus", skipped=skipped)

    def _open_all(self) -> list[Source]:
        documents = self.documents
        items = documents if isinstance(documents, list | tuple) else [documents]
        return [
            open_path(Path(item), wants=self.wants)
            if isinstance(item, os.PathLike) and not Path(item).is_file()
            else open_source(item)
            for item in items
            if not isinstance(item, os.PathLike) or Path(item).is_dir() or self.wants(str(item))
        ]

    def _metadata(self, name: str) -> Mapping[str, Any]:
        if self.metadata is None or callable(self.metadata):
            return self.metadata(name) if self.metadata else {}
        found = [value for pattern, value in self.metadata.items() if _matches(name, pattern)]
        return {key: item for value in found for key, item in value.items()}


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*/{pattern}")


def corpus(
    documents: DocumentLike,
    *,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    metadata: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]] | None = None,
) -> Corpus:
    """Choose the documents to read, and give them metadata.

    A pattern is a name with wildcards (`*`, `?`, `[ab]`), or the end of one after a `/`: "*.md",
    "drafts/*", "2024/lease.pdf". `*` matches `/` as well. Names are those of the output: files of a
    folder begin with its name.

    Args:
        documents: as for `open_source`: a `Path` is a file, a folder or a glob.
        include: patterns; what matches none is not opened. All documents by default.
        exclude: patterns; what matches one is not opened.
        metadata: metadata by pattern, or a function from a name to them. Documents of LangChain
            keep their own as well.

    Returns:
        A document, for the retriever's `corpus`, the tool's `sources`, or a reading.

    Examples:
        >>> from memagent_graph import MemAgentRetriever, corpus
        >>> from langchain_core.documents import Document
        >>> lease = Document("Ann signed the lease.", metadata={"source": "lease.md", "year": 2023})
        >>> draft = Document("Odo signed the lease.", metadata={"source": "drafts/lease.md"})
        >>> chosen = corpus([lease, draft], exclude="drafts/*")
        >>> retriever = MemAgentRetriever(corpus=chosen, model="extractive")
        >>> [found.page_content for found in retriever.invoke("Who signed?", filter={"year": 2023})]
        ['Ann signed the lease.']
    """
    chosen, left_out = (
        (patterns,) if isinstance(patterns, str) else tuple(patterns)
        for patterns in (include, exclude)
    )
    return Corpus(documents, chosen, left_out, metadata)
