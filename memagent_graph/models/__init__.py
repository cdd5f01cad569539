"""Chat models to read with, and the strings that name them.

Why `ChatEndpoint` is built on the `openai` SDK and not on LangChain's `ChatOpenAI` (compared with
langchain-openai 1.7.3 and openai 3.54, November 2026):

- Event loops. `ChatOpenAI` shares one connection pool among all loops: a second `asyncio.run`
  fails with "Event loop is closed", even with another object. Synchronous code, notebooks, servers
  and Ray's actors each have a loop of their own, and `connections` keeps a pool for each.
- Replies. It drops parts that a reading needs: reasoning (`reasoning_content`), and the token ids
  and log-probabilities that training needs (`generation`).
- Failures. A truncated reply is a `JSONDecodeError`, and a prompt too long for vLLM an
  `OpenAIInvalidRequestError` like any other mistake. Only the messages tell apart what to repeat,
  what to shorten and what is lost, and `failures` reads those anyway.
- Limits over all threads and loops (`turns`), and waiting for a server that is down (`circuit`),
  would have to be added around it.
- It is no faster. Processor time per call with 2,000 and 20,000 characters, 32 at once, one run
  against an instant server: the SDK alone 1.24 and 1.28 ms, ours 1.54 and 1.81, `ChatOpenAI` 2.05
  and 1.81.

The SDK alone lacks those limits, and LangChain's callbacks, through which `stream_mode="messages"`,
tracing and recording see a call.
"""
