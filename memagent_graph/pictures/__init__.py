"""Pictures of documents and messages: their marks in the text, their limits, and what they cost."""
