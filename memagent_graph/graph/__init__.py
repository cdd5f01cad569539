"""The fold as a LangGraph state machine."""
