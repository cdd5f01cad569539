"""What a text is about, as terms that can be compared: stems, parts of identifiers, bigrams."""

from __future__ import annotations

from functools import lru_cache

import regex
import Stemmer

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}"
_TOKEN = regex.compile(
    rf"(?P<cjk>[{_UNSPACED}]+)"
    r"|(?P<number>\d+(?:[.,:]\d+)*)"
    rf"|(?P<word>[^\W\d{_UNSPACED}][^\W{_UNSPACED}]*(?:['’][\p{{L}}]+)?)"
)
_PARTS = regex.compile(r"\p{Lu}+(?=\p{Lu}\p{Ll})|\p{Lu}?\p{Ll}+|\p{Lu}+|\p{N}+|[\p{Lo}\p{M}]+")
_SHORTEST_AGENT = 5
_SNOWBALL = Stemmer.Stemmer("english").stemWord


def stem(word: str) -> str:
    """The stem of a lower-case word; "director" and "directed" share theirs."""
    found: str = _SNOWBALL(word)
    return found[:-2] if found.endswith("tor") and len(found) > _SHORTEST_AGENT else found


# Words of a question that its answer does not repeat, and words that say nothing by themselves.
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
    """Terms of one word: its stem, or for an identifier the whole of it and its parts' stems."""
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


def terms(text: str) -> list[str]:
    """All terms of a text, in order, repeated as often as they occur."""
    found: list[str] = []
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind == "word":
            found += word_terms(token)
        elif kind == "number":
            found.append(token.replace(",", ""))
        elif len(token) == 1:
            found.append(token)
        else:
            found += [token[i : i + 2] for i in range(len(token) - 1)]
    return found


def content_terms(question: str) -> list[str]:
    """Terms of a question that an answer is likely to repeat, each once."""
    return telling_terms(_QUESTION_CJK.sub(" ", question)) or list(dict.fromkeys(terms(question)))


def telling_terms(text: str) -> list[str]:
    """Terms of a text except for those that say nothing by themselves, each once."""
    found = [
        term
        for term in terms(text)
        if term not in _EMPTY_STEMS and not _EMPTY_CJK.intersection(term)
    ]
    return list(dict.fromkeys(found))


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
    """Names, titles and identifiers in a text: what a reader would look up next."""
    return [match[0] for match in _NAME.finditer(text)]


_OPENING = regex.compile(
    r"\p{Lu}[\p{L}\p{M}'’-]*(?:\s+(?:(?:of|de|van|von|da|the|and)\s+)*\p{Lu}[\p{L}\p{M}'’-]*)*"
)


def subject(text: str) -> str:
    """The name that a sentence opens with, or else its first name; empty if it has none."""
    opening = _OPENING.match(text)
    if opening and opening[0].lower() not in _EMPTY:
        return opening[0]
    return next(iter(names(text)), "")
