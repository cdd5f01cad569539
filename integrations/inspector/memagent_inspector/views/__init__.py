"""What pages show, as typed records."""
