"""Templates, and how the words of others are shown in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).parent

_BIDI = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""Characters that change the order in which others are shown."""
_VISIBLE: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    **{code: f"\\x{code:02x}" for code in range(0x7F, 0xA0)},
    **{code: f"[U+{code:04X}]" for code in _BIDI},
}


def show(value: object) -> object:
    """A text as all see it: what a browser would obey or hide has a mark in its place."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = value.replace("\r\n", "\n").translate(_VISIBLE)
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def exact(text: str) -> Markup:
    """A text that comes back with a form: every character is as it was."""
    return escape(text.encode("utf-8", "replace").decode())


def url(path: str, **fields: object) -> str:
    """An address of this server; fields that are None are left out."""
    given = {name: str(value) for name, value in fields.items() if value is not None}
    query = urlencode(given, errors="replace")
    return f"{path}?{query}" if query else path


def moment(time: str) -> str:
    """A time in ISO 8601 as a person reads it, in UTC."""
    return time[:16].replace("T", " ")


def grouped(number: float) -> str:
    """A number with its thousands apart."""
    return f"{number:,}"


def duration(seconds: float) -> str:
    """A time as a person reads it."""
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {left} s"  # noqa: PLR2004


def page(name: str, values: Mapping[str, Any], *, status: int = 200) -> Response:
    """A page made from a template."""
    html = _templates.get_template(name).render(values)
    return Response(html, status, media_type="text/html")


_templates = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=show,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals.update(url=url)
_templates.filters.update(
    moment=moment, counted=plural, exact=exact, grouped=grouped, duration=duration
)
