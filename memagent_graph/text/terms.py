"""Terms by which texts are compared: stems, parts of identifiers, numbers, unspaced bigrams."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from itertools import chain
from operator import add

import regex
import Stemmer

from memagent_graph.templates import same_line_ends

# Line_Break=SA: Thai, Lao, Khmer, Burmese, and the other Tai and Mon scripts.
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Bopomofo}\p{Yi}\p{Tangut}\p{Nushu}"
    r"\p{Javanese}\p{Balinese}\p{Line_Break=SA}"
)
_TOKEN = regex.compile(
    rf"(?P<unspaced>[{_UNSPACED}]+)"
    r"|(?P<number>\d+(?:[.,:]\d+)*)"
    rf"|(?P<word>[^\W\d{_UNSPACED}][^\W{_UNSPACED}]*(?:['’][\p{{L}}]+)?)"
)
_IS_UNSPACED = regex.compile(f"[{_UNSPACED}]")
_SPACED_TOKEN = regex.compile(r"\d+(?:[.,:]\d+)*|[^\W\d]\w*(?:['’]\p{L}+)?")
"""`_TOKEN` for text without unspaced scripts, in half the time."""
_LETTER, _MARKED = regex.compile(r"\X"), regex.compile(r"\p{M}")
_PARTS = regex.compile(r"\p{Lu}+(?=\p{Lu}\p{Ll})|\p{Lu}?\p{Ll}+|\p{Lu}+|\p{N}+|[\p{Lo}\p{M}]+")
_SHORTEST_AGENT = 5
_SNOWBALL = Stemmer.Stemmer("english").stemWord


def stem(word: str) -> str:
    """Return the stem of a lower-case word; "director" and "directed" share theirs."""
    found: str = _SNOWBALL(word)
    return found[:-2] if found.endswith("tor") and len(found) > _SHORTEST_AGENT else found


# Stop words: words of questions that answers do not repeat, and words without content.
_EMPTY = frozenset(
    [
        "a",
        "about",
        "after",
        "all",
        "also",
        "am",
        "an",
        "and",
        "another",
        "any",
        "are",
        "as",
        "at",
        "be",
        "been",
        "before",
        "being",
        "between",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "doing",
        "done",
        "during",
        "each",
        "either",
        "for",
        "from",
        "get",
        "had",
        "has",
        "have",
        "having",
        "he",
        "her",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "just",
        "kind",
        "many",
        "may",
        "me",
        "might",
        "more",
        "most",
        "much",
        "must",
        "my",
        "name",
        "nor",
        "not",
        "of",
        "on",
        "one",
        "or",
        "other",
        "our",
        "out",
        "over",
        "own",
        "part",
        "please",
        "say",
        "shall",
        "she",
        "should",
        "so",
        "some",
        "such",
        "tell",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "through",
        "to",
        "type",
        "under",
        "up",
        "upon",
        "us",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "while",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
    ]
)
_EMPTY_CJK = frozenset("的了吗呢吧和与或在是有为被从到把对于及其这那之所由着过们个种些以而")
_QUESTION_CJK = regex.compile(
    "什么时候|什么|多少|怎么|怎样|如何|哪里|哪些|哪个|哪种|哪位|哪年|哪|谁|几|为何|何时|何"
)


@lru_cache(1 << 16)
def word_terms(word: str) -> tuple[str, ...]:
    """Return the terms of a word: its stem; for an identifier, itself and its parts' stems.

    A number is one term, without the commas between its digits.
    """
    if word[0].isdecimal():
        return (word.replace(",", ""),)
    lower = word.lower()
    if word.isalpha() and (word[1:].islower() or word.isupper() or len(word) == 1):
        return (stem(lower),)
    plain = lower.replace("’", "'").removesuffix("'s").strip("_")
    parts = [
        stem(part.lower()) for part in _PARTS.findall(word.replace("’s", "").replace("'s", ""))
    ]
    if len(parts) <= 1:
        return (stem(plain),) if plain else ()
    return (plain, *parts)


_HYPHEN = r"[-\u00ad\u2010][ \t\r]*+\n[ \t]*+"
BROKEN_END = regex.compile(r"\p{L}[-\u00ad\u2010]\Z")
"""The end of a line that breaks off within a word."""
_BROKEN = regex.compile(rf"(?<=\p{{L}}){_HYPHEN}(?=\p{{Ll}})")
_LINE_HYPHEN = regex.compile(_HYPHEN)
_BROKEN_WORD = regex.compile(rf"(?<!\p{{L}})(\p{{L}}++){_HYPHEN}(\p{{Ll}}\p{{L}}*+)")
_INVISIBLE = regex.compile("[\u00ad\u200b\u2060\ufeff]")
_JOINERS = regex.compile("[\u200c\u200d]")
_WIDE = regex.compile("[\ufb00-\ufb06\uff10-\uff19\uff21-\uff3a\uff41-\uff5a]+")
"""Ligatures, and full-width letters and digits; full-width marks are those of Chinese."""


def join_lines(text: str) -> str:
    """Return a text as it reads: words are not broken at a line's end, nothing is invisible.

    Ligatures, full-width letters and full-width digits are plain, and letters composed (NFC).
    """
    text = same_line_ends(text)
    if _LINE_HYPHEN.search(text):
        text = _BROKEN.sub("", text)
    if text.isascii():
        return text
    text = _WIDE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", text))


def one_form(text: str) -> str:
    """Return a text in the one form in which texts are compared.

    A word that is broken at a line's end comes whole and in its parts: only a reader knows whether
    "well-known" or "lighthouse" was broken.
    """
    text = same_line_ends(text)
    if _LINE_HYPHEN.search(text):
        text = _BROKEN_WORD.sub(r"\1\2 \1 \2", text)
    text = join_lines(text)
    return text if text.isascii() else _JOINERS.sub("", text)


def terms(text: str) -> list[str]:
    """Return all terms of a text, in order, with repetitions."""
    text = one_form(text)
    if text.isascii() or not _IS_UNSPACED.search(text):
        return [*chain.from_iterable(map(word_terms, _SPACED_TOKEN.findall(text)))]
    found: list[str] = []
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind != "unspaced":
            found += word_terms(token)
        else:
            # A vowel or tone mark belongs to its letter.
            letters = _LETTER.findall(token) if _MARKED.search(token) else token
            found += map(add, letters, letters[1:]) if len(letters) > 1 else letters
    return found


def content_terms(question: str) -> list[str]:
    """Return the terms of a question that an answer is likely to repeat, each once."""
    return specific_terms(_QUESTION_CJK.sub(" ", question)) or list(dict.fromkeys(terms(question)))


def specific_terms(text: str) -> list[str]:
    """Return the terms of a text without stop words, each once."""
    return [*(_of_long(text) if len(text) >= _LONG else _select_terms(text))]


def _select_terms(text: str) -> dict[str, None]:
    found = [
        term
        for term in terms(text)
        if term not in _EMPTY_STEMS and (term.isascii() or _EMPTY_CJK.isdisjoint(term))
    ]
    return dict.fromkeys(found)


_LONG = 500
"""Code points from which on a text's terms are kept: a chunk is compared with several notes."""
_of_long = lru_cache(16)(_select_terms)
_EMPTY_STEMS = _EMPTY | {stem(word) for word in _EMPTY}

_SOLID = rf"(?![{''.join(sorted(_EMPTY_CJK))}])[\p{{Han}}\p{{Katakana}}\p{{Hangul}}]"
_NAME = regex.compile(
    r"(?<![.!?]\s|^)\b\p{Lu}[\p{L}\p{M}'’-]+(?:\s+(?:(?:of|de|van|von|da|the)\s*)?\p{Lu}[\p{L}\p{M}'’-]+)*"
    r"|\b\p{Lu}[\p{L}\p{M}'’-]+(?:\s+\p{Lu}[\p{L}\p{M}'’-]+)+"
    r"|\b\p{L}+(?:_\p{L}+)+\b|\b\p{Ll}+(?:\p{Lu}\p{Ll}+)+\b|\b(?:\p{Lu}\p{Ll}+){2,}\b"
    r"|[《「“\"]([^》」”\"]{2,40})[》」”\"]"
    rf"|(?<!{_SOLID}){_SOLID}{{2,4}}(?!{_SOLID})"
)


def names(text: str) -> list[str]:
    """Return the names, titles and identifiers in a text."""
    return [match[0] for match in _NAME.finditer(join_lines(text))]


_OPENING = regex.compile(
    r"\p{Lu}[\p{L}\p{M}'’-]*(?:\s+(?:(?:of|de|van|von|da|the|and)\s+)*\p{Lu}[\p{L}\p{M}'’-]*)*"
)


def subject(text: str) -> str:
    """Return the name that opens a sentence, or else its first name; "" if it has none."""
    text = join_lines(text)
    opening = _OPENING.match(text)
    if opening and opening[0].lower() not in _EMPTY:
        return opening[0]
    return next(iter(names(text)), "")
