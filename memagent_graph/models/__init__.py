"""Chat models to read with, and the strings that name them.

Why `ChatEndpoint` is built on the `openai` SDK and not on LangChain's `ChatOpenAI` (compared with
langchain-openai 1.7.3 and openai 3.54, November 2026):

- Event loops. `ChatOpenAI` shares one connection pool among all loops: a second `asyncio.run`
  fails with "Event loop is closed", even with another object. Synchronous code, notebooks, servers
  and Ray's actors each have a loop of their own; here one loop talks to servers for all of them.
- Replies. It drops parts that a reading needs: reasoning (`reasoning_content`), and the token ids
  and log-probabilities that training needs (`generation`).
- Failures. A truncated reply is a `JSONDecodeError`, and a prompt too long for vLLM an
  `OpenAIInvalidRequestError` like any other mistake. Only the messages tell apart what to repeat,
  what to shorten and what is lost, and `failures` reads those anyway.
- Limits over all threads and loops, and waiting for a server that is down, would have to be added
  around it.

The SDK alone lacks those limits, and LangChain's callbacks, through which `stream_mode="messages"`,
tracing and recording see a call.
"""
