"""RULER's prompts: what it writes around a document.

The templates are those of NVIDIA/RULER (Apache-2.0; arXiv 2404.06654), word for word: they are the
benchmark's format. The code is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from memagent_graph.text.tokens import Tokenizer

Kind = Literal["niah", "vt", "cwe", "fwe", "qa"]


@dataclass(frozen=True)
class Form:
    """The texts that RULER puts around a document, with fields in braces.

    Attributes:
        kind: kind of task.
        instruction: text before the document.
        link: text between the document and the question.
        question: the question.
        prefix: the beginning of the answer.
        tokens: the longest answer.
        gap: text after the answer of an example, where the kind has one.
    """

    kind: Kind
    instruction: str
    link: str
    question: str
    prefix: str
    tokens: int
    gap: str = ""

    def ask(self, **fields: object) -> str:
        """The question alone."""
        return self.question.format(**fields)

    def template(self, example: str = "", /, **fields: object) -> str:
        """The prompt with {memory} in the place of the document, and {question} of its own."""
        before, after = self.instruction.format(**fields), self.prefix.format(**fields)
        return f"{example}{before}{{memory}}{self.link}{{question}}{after}"

    def example(self, document: str, answer: str, **fields: object) -> str:
        """A prompt with its answer, to stand before another."""
        prompt = self.template(**fields).replace("{memory}", document)
        return prompt.replace("{question}", self.ask(**fields)) + f" {answer}{self.gap}"


def room(template: str, question: str, answer: int, *, length: int, tokenizer: Tokenizer) -> int:
    """Return the tokens left for the document: RULER counts the whole prompt and the answer.

    Args:
        template: template of the prompt.
        question: the question.
        answer: longest answer, in tokens.
        length: length of everything, in tokens.
        tokenizer: counts tokens.
    """
    around = template.replace("{memory}", "").replace("{question}", question)
    return length - tokenizer.count(around) - answer


NEEDLE = "One of the special magic {type}s for {query} is: {value}."
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
ONE_VALUE = Form(
    "niah",
    "A special magic {type} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {type} afterwards.\n",
    "\n",
    "What is the special magic {type} for {query} mentioned in the provided text?",
    " The special magic {type} for {query} mentioned in the provided text is",
    128,
)
SOME_VALUES = Form(
    "niah",
    "Some special magic {type}s are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {type}s afterwards.\n",
    "\n",
    "What are all the special magic {type}s for {query} mentioned in the provided text?",
    " The special magic {type}s for {query} mentioned in the provided text are",
    128,
)
TRACKING = Form(
    "vt",
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
    "\nQuestion: ",
    "Find all variables that are assigned the value {query} in the text above.",
    " Answer: According to the chain(s) of variable assignment in the text above, {count} "
    "variables are assigned the value {query}, they are: ",
    30,
    "\n\n",
)
COMMON_WORDS = Form(
    "cwe",
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n",
    "\nQuestion: ",
    "What are the {count} most common words in the above list?",
    " Answer: The top {count} words that appear most often in the list are:",
    120,
    "\n",
)
FREQUENT_WORDS = Form(
    "fwe",
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. ",
    "\nQuestion: ",
    "Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?",
    " Answer: According to the coded text above, the three most frequently appeared words are:",
    50,
)
_ONLY = (
    "Answer the question based on the given documents. "
    "Only give me the answer and do not output any other words."
)
PASSAGES = Form(
    "qa",
    f"{_ONLY}\n\nThe following are given documents.\n\n",
    f"\n\n{_ONLY}\n\nQuestion: ",
    "{query}",
    " Answer:",
    32,
)
FORMS = (ONE_VALUE, SOME_VALUES, TRACKING, COMMON_WORDS, FREQUENT_WORDS, PASSAGES)
