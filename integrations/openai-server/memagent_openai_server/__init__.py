"""An OpenAI-compatible server with an unlimited context, in front of any model."""

from memagent_openai_server.app import create_app
from memagent_openai_server.limits import Limits

__all__ = ["Limits", "create_app"]
