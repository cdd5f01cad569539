"""Count tokens with a Hugging Face tokenizer, or by an estimate that needs no download."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from hashlib import sha256
from itertools import accumulate, chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import regex
from tokenizers import Tokenizer as BackendTokenizer

from memagent_graph.errors import ConfigurationError
from memagent_graph.templates import replace_surrogates

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Tokenizer(Protocol):
    """Counts tokens, and cuts text by them.

    Attributes:
        name: identifies the tokenizer in fingerprints.
    """

    name: str

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`."""
        ...

    def prefix(self, text: str, tokens: int) -> int:
        """Return the length, in code points, of a prefix of about `tokens` tokens, or of all.

        Cutting a text may change how its last word is tokenized: for a hard limit, count the
        prefix.
        """
        ...


TokenizerLike: TypeAlias = "Tokenizer | BackendTokenizer | str | Path | None"


def load_tokenizer(spec: TokenizerLike) -> Tokenizer:
    """Load a tokenizer.

    Args:
        spec: a tokenizer of `tokenizers`, or a fast one of `transformers`; the path of a
            tokenizer.json or of its folder; a Hugging Face hub id; a `Tokenizer`; or None for
            the estimate.

    Raises:
        ConfigurationError: There is no tokenizer at this path or hub id.
    """
    if spec is None:
        return EstimatingTokenizer()
    spec = getattr(spec, "backend_tokenizer", spec)
    if isinstance(spec, BackendTokenizer):
        return HuggingFaceTokenizer(spec)
    if not isinstance(spec, str | Path):
        return spec
    path = Path(spec)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        if file.is_file():
            return HuggingFaceTokenizer(BackendTokenizer.from_file(str(file)))
        return HuggingFaceTokenizer(BackendTokenizer.from_pretrained(str(spec)))
    except Exception as error:  # the backend raises bare Exceptions
        message = (
            f"No tokenizer could be loaded from {str(spec)!r}: {error} Give the path of a "
            "tokenizer.json or of its folder, or a hub id that this machine can reach."
        )
        raise ConfigurationError(message) from error


def control_tokens(tokenizer: object) -> frozenset[str]:
    """Return the tokens that a tokenizer recognizes wherever they are written out in a text.

    Left out are names of HTML elements, spaces and words, which some have as tokens of their own.

    Args:
        tokenizer: of this module, of `tokenizers`, or of `transformers`; others have none.
    """
    holders = (getattr(tokenizer, name, None) for name in ("backend", "backend_tokenizer"))
    backend = next(
        (one for one in (tokenizer, *holders) if isinstance(one, BackendTokenizer)), None
    )
    if backend is None:
        added = getattr(tokenizer, "added_tokens_decoder", {})
    else:
        added = backend.get_added_tokens_decoder()
    return frozenset(
        token.content for token in added.values() if token.special or _SIGNED.match(token.content)
    )


_SIGNED = re.compile(r"(?!</?[a-z]+\d?>)(?=\W*+\w)[^\w\s].*[^\w\s]\Z", re.DOTALL)


class HuggingFaceTokenizer:
    """Encodes and counts with a tokenizer of the `tokenizers` library, without special tokens.

    If the tokenizer splits text between words before it looks for tokens, as most do, the text is
    encoded word by word, and known words are looked up. The result is the same, several times as
    fast.

    Args:
        backend: the tokenizer; its settings for truncation and padding are ignored.
    """

    def __init__(self, backend: BackendTokenizer) -> None:
        definition = backend.to_str()
        self.name = f"tokenizer:{sha256(definition.encode()).hexdigest()[:16]}"
        self.backend = BackendTokenizer.from_str(definition)
        self.backend.no_truncation()
        self.backend.no_padding()
        self._separable = _splits_words(self.backend)
        self._known: dict[str, list[int]] = {}
        self._known_size = 0  # code points

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`; special tokens written out in it are recognized."""
        return list(chain.from_iterable(self._tokens(self._words(text))))

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`."""
        return sum(map(len, self._tokens(self._words(text))))

    def prefix(self, text: str, tokens: int) -> int:
        """Return the length, in code points, of the first `tokens` tokens of `text`, or of all."""
        start, left = 0, tokens
        while left and start < len(text):
            gap = _WORD_GAP.search(text, start + _LEAST_SIZE * left)
            end = gap.start() if gap and self._separable else len(text)
            words = self._words(text[start:end])
            ends = list(accumulate(map(len, self._tokens(words))))
            fitting = bisect_right(ends, left)
            start += sum(map(len, words[:fitting]))
            left -= ends[fitting - 1] if fitting else 0
            if fitting < len(words):
                encoding = self.backend.encode(words[fitting], add_special_tokens=False)
                place = encoding.token_to_chars(left)
                return start + (place[0] if place else 0)
        return start

    def _words(self, text: str) -> list[str]:
        text = replace_surrogates(text)  # the backend refuses them
        return _WORD_GAP.split(text) if self._separable else [text]

    def _tokens(self, words: list[str]) -> list[list[int]]:
        known = self._known
        new = [word for word in dict.fromkeys(words) if word not in known]
        if new:
            self._known_size += sum(map(len, new))
            if self._known_size > _MOST_KNOWN:  # other threads continue with their dict
                known = {word: known[word] for word in words if word in known}
                self._known, self._known_size = known, sum(map(len, known)) + sum(map(len, new))
            encodings = self.backend.encode_batch_fast(new, add_special_tokens=False)
            known.update(zip(new, [encoding.ids for encoding in encodings], strict=True))
        return [known[word] for word in words]


_WORD_GAP = re.compile(r'(?<=[A-Za-z])(?=[ \n,.;:!?"-])')
_LEAST_SIZE = 4
"""Code points per token, at least, on average: so that few words are encoded in vain."""
_MOST_KNOWN = 500_000
"""Code points of the words whose tokens are kept, about ten megabytes in memory."""


def _splits_words(backend: BackendTokenizer) -> bool:
    """Whether no token crosses the end of a word, or depends on what follows the word."""
    normalizer, splitter = backend.normalizer, backend.pre_tokenizer
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    if splitter is None or any(_WORD_GAP.search(content) for content in added):
        return False

    def split(text: str) -> list[tuple[str, tuple[int, int]]]:
        normal = normalizer.normalize_str(text) if normalizer else text
        return list(splitter.pre_tokenize_str(normal))

    for before, after in product(("ab", "Ab", " ab", "AB"), _AFTER_WORDS):
        parts = [part for part, _ in split(before) + split(after)]
        whole = split(before + after)
        if [part for part, _ in whole] != parts or whole[-1][1][1] != len(before + after):
            return False
    return True


_AFTER_WORDS = (
    " cd",
    " Cd",
    "\ncd",
    "\n\n cd",
    ", cd",
    ",cd",
    ".\nCd",
    ";",
    ": 1",
    '!"',
    "? ",
    "-cd",
    "  cd",
)


def least_tokens(text: str) -> int:
    """Return a number of tokens that no common vocabulary goes below for this text.

    Vocabularies differ by three times in some scripts, but none has tokens of several words, and
    few have tokens of more than three Chinese, Japanese or Thai characters.
    """
    return sum(1 for _ in _PIECES.finditer(text))


_PIECES = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{1,4}"
    r"|[^\s\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+|\p{N}{1,3}|[^\s\p{L}\p{M}\p{N}]+",
)
"""Where the vocabularies of GPT-4 and its successors split a text before they look for tokens."""


class EstimatingTokenizer:
    """Estimates the count of a byte-level BPE with about 100,000 entries.

    Characters and word starts have weights fitted to the mean of two public vocabularies, Qwen's
    and cl100k. The estimate is within 6% of that mean over each test text (two English novels,
    Wikipedia in English and Chinese, Python, JavaScript, a JSON file) and within 19% over any
    4,000 characters of them, except for JSON of mostly digits (31% too low). The two vocabularies
    themselves differ by 63% on the Chinese text. `benchmarks/token_estimate.py` repeats the
    measurement. Over other scripts, digits, symbols and marks it is within 1.5 times of that mean.
    """

    name = "estimate-2"

    def count(self, text: str) -> int:
        """Return the estimated number of tokens of `text`; it never falls as text is added."""
        return -(-int(_weigh(text).sum()) // _TOKEN)

    def prefix(self, text: str, tokens: int) -> int:
        """Return the length, in code points, of the longest prefix of at most `tokens` tokens."""
        return int(np.searchsorted(np.cumsum(_weigh(text)), tokens * _TOKEN, "right"))


def _weigh(text: str) -> NDArray[np.int64]:
    """Return the weight of each code point, with that of a word that begins at it."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    for point in np.unique(points[_CLASSES[points] == 0]).tolist():
        _CLASSES[point] = ord(_class(chr(point)))
    classes = _CLASSES[points]
    before = np.concatenate([[ord("n")], classes[:-1]])[: len(classes)]
    return _OWN[classes] + np.where(classes == ord("a"), _BEGIN[before], 0)


_CLASSES = np.zeros(0x110000, np.uint8)
"""The class of each code point, computed once; 0 if it was not met before."""
_CJK = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\u3000-\u303f\uff00-\uffef]")
_TOKEN = 100
_WEIGHTS = {  # of a character, and of a word that begins after it, in hundredths of a token
    "a": (3, 0),  # letter of an alphabet with short words
    "A": (42, 58),  # its capital
    "d": (90, 100),  # digit
    "p": (43, 100),  # ASCII punctuation
    "n": (100, 100),  # line end
    "s": (4, 100),  # other space: it mostly joins the next word
    "q": (50, 100),  # other punctuation
    "c": (98, 100),  # CJK character
    "e": (250, 100),  # emoji and the like
    "b": (65, 100),  # box drawing
    "m": (125, 100),  # mathematical and other symbols
    "k": (150, 60),  # combining mark of any script
    "r": (43, 100),  # Cyrillic
    "t": (74, 100),  # Arabic, Hebrew
    "g": (100, 100),  # Greek
    "w": (92, 100),  # Thai, Lao
    "h": (115, 100),  # Devanagari
    "i": (150, 100),  # other scripts of India
    "o": (175, 100),  # letter of another script
    "x": (210, 100),  # letter of a script with few tokens, digit of another script
}
_OWN, _BEGIN = (
    np.array([_WEIGHTS.get(chr(sign), (0, 0))[at] for sign in range(128)], np.int64)
    for at in (0, 1)
)
_BY_BLOCK = (  # first code point of a range of scripts, and their class
    (0x0370, "g"),
    (0x0400, "r"),
    (0x0530, "o"),
    (0x0590, "t"),
    (0x0780, "o"),
    (0x0900, "h"),
    (0x0980, "i"),
    (0x0E00, "w"),
    (0x0F00, "o"),
    (0x1200, "x"),
    (0x13A0, "o"),
    (0x1F00, "g"),
    (0x2000, "o"),
    (0x10000, "x"),
)


def _class(character: str) -> str:
    category = unicodedata.category(character)
    if character == "\n":
        return "n"
    if character.isspace():
        return "s"
    if category[0] == "N":
        return "d" if category != "Nd" or character.isascii() else "x"
    if _CJK.match(character):
        return "c"
    if "\u0300" <= character <= "\u036f" or (category == "Mn" and character >= "\u1ab0"):
        return "k"
    if category[0] in "LM":
        return _class_of_letter(character, category)
    if character >= "\U00010000":
        return "e"
    if character.isascii():
        return "p"
    if "\u2500" <= character <= "\u259f":
        return "b"
    return "m" if category in ("Sm", "So") else "q"


def _class_of_letter(character: str, category: str) -> str:
    if unicodedata.name(character, "").startswith("LATIN"):
        return "A" if category == "Lu" else "a"
    block = bisect_right(_BY_BLOCK, ord(character), key=lambda each: each[0]) - 1
    return _BY_BLOCK[max(block, 0)][1]
