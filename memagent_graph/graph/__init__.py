"""The LangGraph graph that reads a document."""
