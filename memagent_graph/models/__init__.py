"""Chat models to read with, and how a string names one."""
