"""Sources of text, chunking and token counting."""
