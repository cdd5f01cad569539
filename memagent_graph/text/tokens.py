"""How to count tokens: with a Hugging Face tokenizer, or by an estimate that needs no network."""

from __future__ import annotations

import re
from bisect import bisect_right
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Protocol, TypeAlias

from tokenizers import Tokenizer as BackendTokenizer

from memagent_graph.errors import ConfigurationError
from memagent_graph.text.estimate import EstimatingTokenizer

__all__ = [
    "EstimatingTokenizer",
    "HuggingFaceTokenizer",
    "Tokenizer",
    "TokenizerLike",
    "load_tokenizer",
]


class Tokenizer(Protocol):
    """Counts and cuts.

    Attributes:
        name: tells two tokenizers apart in fingerprints.
    """

    name: str

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        ...

    def prefix(self, text: str, tokens: int) -> int:
        """Length in code points of a prefix of about `tokens` tokens, all of `text` if it fits.

        Cutting a text may change how its last word is tokenized: who needs a hard limit
        counts the prefix.
        """
        ...


TokenizerLike: TypeAlias = "Tokenizer | BackendTokenizer | str | Path | None"


def load_tokenizer(spec: TokenizerLike) -> Tokenizer:
    """Make a tokenizer of whatever names one.

    Args:
        spec: a `tokenizers.Tokenizer`, a path of a tokenizer.json or of the folder that has it,
            a Hugging Face hub id (only as a `str`), anything with `count` and `prefix`, or None
            for the estimate.

    Raises:
        ConfigurationError: Nothing can be loaded by that name.
    """
    if spec is None:
        return EstimatingTokenizer()
    if isinstance(spec, BackendTokenizer):
        return HuggingFaceTokenizer(spec)
    if isinstance(spec, str | Path):
        return HuggingFaceTokenizer(_load(spec))
    if hasattr(spec, "count") and hasattr(spec, "prefix"):
        return spec
    message = (
        "A tokenizer is a tokenizers.Tokenizer, a path, a hub id, an object with count and "
        f"prefix, or None for an estimate, not {type(spec).__name__}."
    )
    raise ConfigurationError(message)


def _load(spec: str | Path) -> BackendTokenizer:
    path = Path(spec)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        if path.exists() or not isinstance(spec, str):
            return BackendTokenizer.from_file(str(file))
        return BackendTokenizer.from_pretrained(spec)
    except Exception as error:  # the backend raises bare Exceptions
        message = (
            f"No tokenizer could be loaded from {str(spec)!r}: {error} Name a tokenizer.json, "
            "a folder that has one, or a hub id that this machine can reach."
        )
        raise ConfigurationError(message) from error


class HuggingFaceTokenizer:
    """Counts with a tokenizer of the `tokenizers` library, special tokens left out.

    A tokenizer that splits text into words first (any byte-level BPE) counts each word by
    itself, so every distinct word is encoded once and its count kept: many times as fast as
    encoding the text, with the same result.

    Args:
        backend: the tokenizer; truncation and padding that it may have do not count.
    """

    def __init__(self, backend: BackendTokenizer) -> None:
        definition = backend.to_str()
        self.name = f"tokenizer:{sha256(definition.encode()).hexdigest()[:16]}"
        self.backend = BackendTokenizer.from_str(definition)
        self.backend.no_truncation()
        self.backend.no_padding()
        self._separable = _is_separable(self.backend)
        self._known: dict[str, int] = {}
        self._known_size = 0

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        return sum(self._counts(self._pieces(text)))

    def prefix(self, text: str, tokens: int) -> int:
        """Length in code points of the first `tokens` tokens of `text`, or of all of it."""
        pieces = self._pieces(text)
        start, left, number = 0, tokens, 0
        while number < len(pieces):
            batch = pieces[number : number + left // 2 + 1]
            ends = list(accumulate(self._counts(batch)))
            fitting = bisect_right(ends, left)
            start += sum(map(len, batch[:fitting]))
            left -= ends[fitting - 1] if fitting else 0
            if fitting < len(batch):
                encoding = self.backend.encode(batch[fitting], add_special_tokens=False)
                place = encoding.token_to_chars(left)
                return start + (place[0] if place else 0)
            number += fitting
        return len(text)

    def _pieces(self, text: str) -> list[str]:
        try:
            text.encode()
        except UnicodeEncodeError:  # no tokenizer takes lone surrogates
            text = _SURROGATE.sub("\ufffd", text)
        return _WORD_END.split(text) if self._separable else [text]

    def _counts(self, pieces: list[str]) -> list[int]:
        known = self._known
        if new := list({piece for piece in pieces if piece not in known}):
            if self._known_size > _KNOWN_SIZE:
                known = self._known = {}
                self._known_size, new = 0, list(set(pieces))
            encodings = self.backend.encode_batch_fast(new, add_special_tokens=False)
            known.update(zip(new, map(len, encodings), strict=True))
            self._known_size += sum(map(len, new))
        return [known[piece] for piece in pieces]


_KNOWN_SIZE = 1 << 20
"""Code points of the pieces whose counts are kept."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_WORD_END = re.compile(r"(?<=[a-z\u4e00-\u9fff])(?=[\0-&(-/:-@\[-`{-~，。])")
"""Before an ASCII mark or space after a letter. Every pattern of byte-level BPEs ends a word here,
and none looks behind. The apostrophe is left out for its contractions."""

_PROBE = "one two(three)\n\nfour, 漢字，五。"


def _is_separable(backend: BackendTokenizer) -> bool:
    """Whether pieces of a text are encoded as they are within it."""
    words = backend.pre_tokenizer.pre_tokenize_str(_PROBE) if backend.pre_tokenizer else []
    pieces = _WORD_END.split(_PROBE)
    starts = accumulate(map(len, pieces[:-1]), initial=0)
    encodings = backend.encode_batch_fast([_PROBE, *pieces], add_special_tokens=False)
    whole, *parts = [encoding.ids for encoding in encodings]
    added = (token.content for token in backend.get_added_tokens_decoder().values())
    return (
        {start for _, (start, _) in words}.issuperset(starts)
        and whole == [token for part in parts for token in part]
        and not any(map(_WORD_END.search, added))
    )
