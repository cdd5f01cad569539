"""What computes `update` and `respond`: a chat model, or the built-in extractive reader."""
