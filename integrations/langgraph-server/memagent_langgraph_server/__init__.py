"""The reading graph as an assistant of a LangGraph server."""
