"""What every request passes: who may come in, how much, and how an answer leaves."""
