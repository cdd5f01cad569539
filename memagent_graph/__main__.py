"""`python -m memagent_graph` is the `memagent` command."""

from memagent_graph.cli import main

main()
