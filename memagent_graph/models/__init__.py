"""Chat models to read with, and how a string names one.

Why `ChatEndpoint` is a client of our own on the `openai` SDK, and no subclass of LangChain's
`ChatOpenAI` (tried with langchain-openai 1.7.3 and openai 3.54, November 2026):

- Event loops. `ChatOpenAI` shares one connection pool among all of them: a second `asyncio.run`
  fails with "Event loop is closed", for another object too. Here synchronous code, notebooks,
  servers and Ray's actors each bring a loop, and `connections` keeps a pool for each.
- What a reading needs of a reply is dropped: the model's thoughts (`reasoning_content`), the token
  ids and log-probabilities by which recorded runs are learned from (`generation`).
- Failures. A reply cut short is a `JSONDecodeError`, a prompt that vLLM finds too long an
  `OpenAIInvalidRequestError` as any other mistake: what may be repeated, what must be shortened
  and what is lost would be told apart by reading messages, which `failures` does anyway.
- Limits that hold over threads and loops (`turns`), and waiting for a server that is down
  (`circuit`), would have to be added around it.
- It is no faster: processor time of a call with 2,000 and 20,000 characters, 32 at once, one run
  on an instant server: the SDK alone 1.24 and 1.28 ms, ours 1.54 and 1.81, `ChatOpenAI` 2.05
  and 1.81.

The SDK alone has none of LangChain's callbacks, by which `stream_mode="messages"`, tracing and
recording see a call, and neither of the limits. So what is ours is what these lack.
"""
