"""Chat models to read with, and the strings that name them.

`ChatEndpoint` is built on the `openai` SDK: LangChain's `ChatOpenAI` (1.7.3) shares connections
among event loops, so that a second `asyncio.run` fails; it drops reasoning, token ids and
log-probabilities, and a prompt too long for vLLM is an error like any other.
"""
