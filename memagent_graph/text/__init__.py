"""Where chunks come from: sources, chunking and token counting."""
