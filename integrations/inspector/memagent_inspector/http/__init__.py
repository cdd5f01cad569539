"""Who may send a request, how much, and within which time."""
