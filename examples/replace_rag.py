"""python examples/replace_rag.py.

For teams that replace a RAG pipeline: the same chain with a BM25 retriever before, and with a
retriever that reads after. The question needs two passages, and the second shares no word with it.
Set MEMAGENT_MODEL (openai:gpt-4o, say) for a model that reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from rank_bm25 import BM25Okapi

from memagent_graph import MemAgentRetriever

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable

QUESTION = "In which city does the translator of the Winter Book live?"
TEXTS = {
    "catalogue": "The Winter Book was translated by Ada Lund.",
    "review": "The Winter Book is a book that one reads in winter, in one city or another.",
    "cities": "Which city a book is set in matters less than who has lived in the city.",
    "staff": "Ada Lund moved to Trondheim in spring and works there since.",
    "weather": "Snow fell on the harbour for the whole of a week.",
}
CORPUS = [Document(text, metadata={"source": name}) for name, text in TEXTS.items()]


class BM25Retriever(BaseRetriever):
    """What one would use instead: the passages that share most words with the query."""

    documents: list[Document]
    k: int = 2

    def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
        index = BM25Okapi([document.page_content.lower().split() for document in self.documents])
        return index.get_top_n(query.lower().split(), self.documents, self.k)


def told(documents: list[Document]) -> str:
    """The step that formats what was found for the next prompt."""
    return "\n".join(f"  [{found.metadata['source']}] {found.page_content}" for found in documents)


before: Runnable[str, str] = BM25Retriever(documents=CORPUS) | told
after: Runnable[str, str] = MemAgentRetriever(corpus=CORPUS, k=2) | told

if __name__ == "__main__":
    print(QUESTION)
    print(f"before:\n{before.invoke(QUESTION)}")
    print(f"after:\n{after.invoke(QUESTION)}")
