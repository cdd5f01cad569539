"""`python -m memagent_openai_server` is `memagent serve`."""

from memagent_openai_server.cli import app

app(prog_name="memagent serve")
