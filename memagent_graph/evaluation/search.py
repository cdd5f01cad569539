"""The searches that stand for what people use today, over passages of a document.

By words it is BM25 with stems and stopwords. Of nine variants (plain words, stems and stopwords,
this project's terms; Okapi's, Lucene's and BM25+; k1 and b) none found clearly more on questions
of SQuAD, HotpotQA and NQ, and plain words found less (docs/benchmarks.md).
"""

from __future__ import annotations

from math import hypot
from operator import mul
from typing import TYPE_CHECKING, TypeVar

from rank_bm25 import BM25Okapi

from memagent_graph.errors import ConfigurationError, MissingDependencyError
from memagent_graph.models.failures import model_error
from memagent_graph.models.retry import repeat
from memagent_graph.readers.ranking import ranked
from memagent_graph.text.terms import content_terms, terms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from langchain_core.embeddings import Embeddings

    from memagent_graph.config import ReadingConfig

T = TypeVar("T")

PASSAGE_TOKENS = 256
"""Length of a passage, in tokens."""


class Passages:
    """Passages that a question can be asked of.

    Args:
        texts: the passages.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        # BM25 takes no empty document, and a passage of marks alone has no terms.
        self._index = BM25Okapi([terms(text) or [""] for text in texts])

    def scores(self, question: str) -> list[float]:
        """Return the score of each passage: terms are stems, and stopwords do not count."""
        found: list[float] = self._index.get_scores(content_terms(question)).tolist()
        return found

    def ranked(self, question: str) -> list[int]:
        """The passages' numbers, from the best match to the worst."""
        return ranked(self.scores(question))


async def nearness(
    embedder: Embeddings, passages: list[str], question: str, config: ReadingConfig
) -> list[float]:
    """The cosines of the passages' embeddings with the question's.

    Raises:
        ModelError: The provider failed for good.
    """
    vectors = await repeat(lambda: _ours(embedder.aembed_documents(passages)), config)
    wanted = await repeat(lambda: _ours(embedder.aembed_query(question)), config)
    return [_cosine(wanted, vector) for vector in vectors]


def make_embedder(model: str) -> Embeddings:
    """Embeddings of a name that LangChain's `init_embeddings` knows.

    Raises:
        ConfigurationError: It knows no such name.
        MissingDependencyError: The provider's package is not installed.
    """
    try:
        from langchain.embeddings import init_embeddings

        found: Embeddings = init_embeddings(model)
    except ImportError as error:
        message = f"embeddings:{model} needs: pip install langchain and the provider's package."
        raise MissingDependencyError(message) from error
    except ValueError as error:
        message = f"LangChain does not know the embeddings {model!r}: {error}"
        raise ConfigurationError(message) from error
    return found


async def _ours(call: Awaitable[T]) -> T:
    """Await the call of a provider's client; its errors become ours."""
    try:
        return await call
    except Exception as error:
        raise model_error(error) from error


def _cosine(one: list[float], other: list[float]) -> float:
    lengths = hypot(*one) * hypot(*other)
    return sum(map(mul, one, other)) / lengths if lengths else 0.0
