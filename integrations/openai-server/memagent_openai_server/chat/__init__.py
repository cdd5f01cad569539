"""Chat completions: passed on, or read and answered from memory."""
