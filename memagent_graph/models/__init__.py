"""Chat models to read with, and the strings that name them.

Why `ChatEndpoint` is built on the `openai` SDK and not on LangChain's `ChatOpenAI` (compared with
langchain-openai 1.7.3 and openai 3.54, November 2026): `ChatOpenAI` shares one connection pool
among all event loops, so that a second `asyncio.run` fails with "Event loop is closed"; it drops
reasoning (`reasoning_content`), token ids and log-probabilities; a truncated reply is a
`JSONDecodeError`, and a prompt too long for vLLM an `OpenAIInvalidRequestError` like any other
mistake. Limits over all threads and loops, and waiting for a server that is down, are in neither.
"""
