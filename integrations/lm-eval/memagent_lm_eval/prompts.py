"""Split a prompt of the harness into document and question."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memagent_graph.text.tokens import Tokenizer

_MARKER = re.compile(
    r"^[ \t]*(?:question|query|q|instruction)[ \t]*:", re.IGNORECASE | re.MULTILINE
)
_ASKS = re.compile(r"(?m)^.*[?？].*$")
_PARAGRAPH = re.compile(r"(?<!\s)[^\S\n]*+\n(?:[^\S\n]*+\n)++(?=[^\S\n]*+\S)")


def split(prompt: str, tokenizer: Tokenizer, question_tokens: int = 1024) -> tuple[str, str]:
    r"""Split a prompt into document and question; joined, they are the prompt.

    Within the last `question_tokens` of the prompt, the question begins at the last line that opens
    with a marker such as "Question:", or at the last line with a question mark, or else at the last
    paragraph.

    Args:
        prompt: the harness's prompt.
        tokenizer: counts tokens.
        question_tokens: longest question, in tokens.

    Returns:
        The document, "" if the prompt has nothing before its question; and the question.

    Examples:
        >>> from memagent_graph.text.tokens import load_tokenizer
        >>> from memagent_lm_eval import split
        >>> prompt = "The vault opens at 6:40.\n\nQuestion: When does the vault open?"
        >>> document, question = split(prompt, load_tokenizer(None))
        >>> question
        'Question: When does the vault open?'
    """
    tail = _tail(prompt, tokenizer, question_tokens)
    start = len(prompt) - len(tail)
    marked = [match.start() for match in _MARKER.finditer(tail)]
    asking = [match.start() for match in _ASKS.finditer(tail)]
    paragraphs = [match.end() for match in _PARAGRAPH.finditer(tail)]
    begins = next((found[-1] for found in (marked, asking, paragraphs) if found), 0)
    document = prompt[: start + begins]
    return (document, prompt[start + begins :]) if document.strip() else ("", prompt)


def _tail(prompt: str, tokenizer: Tokenizer, tokens: int) -> str:
    """The longest end of the prompt within the tokens, in whole lines if possible."""
    lines = prompt.splitlines(keepends=True)
    tail = ""
    while lines and tokenizer.count(lines[-1] + tail) <= tokens:
        tail = lines.pop() + tail
    if tail.strip():
        return tail
    words = re.findall(r"\S+\s*|\s+", prompt)  # the last line is longer than a question may be
    tail = ""
    while words and tokenizer.count(words[-1] + tail) <= tokens:
        tail = words.pop() + tail
    return tail
