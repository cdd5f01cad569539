"""The responses API, on top of chat completions."""
