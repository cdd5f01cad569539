"""How to count tokens: with a Hugging Face tokenizer, or by an estimate that needs no network."""

from __future__ import annotations

from typing import Protocol


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
        """Length in code points of the longest known prefix of `text` of at most `tokens` tokens."""
        ...
