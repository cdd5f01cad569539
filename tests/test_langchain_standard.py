"""LangChain's own standard tests, for what this library offers to its agents."""

import pytest
from langchain_tests.integration_tests import RetrieversIntegrationTests, ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from memagent_graph import MemAgentRetriever, create_reading_tool
from memagent_graph.errors import ConfigurationError

VAULTS = [f"Vault {name} opens at {hour}." for name, hour in zip("ABCD", range(6, 10), strict=True)]
QUESTION = "When do the vaults open?"


class TestRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return MemAgentRetriever

    @property
    def retriever_constructor_params(self):
        return {"corpus": VAULTS, "model": "extractive"}

    @property
    def retriever_query_example(self):
        return QUESTION


class Reading:
    @property
    def tool_constructor(self):
        return create_reading_tool("extractive", sources={"vaults": "\n\n".join(VAULTS)})

    @property
    def tool_invoke_params_example(self):
        return {"questions": [QUESTION], "source": "vaults"}


class TestToolUnits(Reading, ToolsUnitTests):
    pass


class TestTool(Reading, ToolsIntegrationTests):
    pass


async def test_k_of_a_call_counts_in_batches_too_and_must_be_a_number_of_documents():
    retriever = MemAgentRetriever(corpus=VAULTS, model="extractive")

    assert [len(found) for found in retriever.batch([QUESTION, QUESTION], k=2)] == [2, 2]
    assert len(await retriever.ainvoke(QUESTION, k=3)) == 3
    assert len(retriever.invoke(QUESTION)) == 4
    with pytest.raises(ConfigurationError, match="at least 1, not 0"):
        retriever.invoke(QUESTION, k=0)
