"""Pages that forget a memory, or a document in all memories, after showing what goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_inspector.http.forms import fields_of, form_of
from memagent_inspector.pages.requests import is_partial, needed, state_of
from memagent_inspector.rendering import page
from memagent_inspector.views.subject import find

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show_preview(request: Request) -> Response:
    """Show what forgetting a memory would delete."""
    bank, reference = state_of(request).bank, needed(fields_of(request), "of")
    subject = await find(bank, reference)
    found = await bank.aforget(reference, preview=True)
    return page("forget.html", {"subject": subject, "memory": found})


async def show_document(request: Request) -> Response:
    """Show what forgetting a memory's document would delete, in all memories."""
    bank = state_of(request).bank
    subject = await find(bank, needed(fields_of(request), "of"))
    source = subject.version.document.digest
    found = await bank.aforget_source(source, preview=True) if source else None
    name = "forget_document.html" if is_partial(request) else "forget_document_page.html"
    return page(name, {"subject": subject, "document": found})


async def forget(request: Request) -> Response:
    """Forget a memory, or a document."""
    form, bank = await form_of(request), state_of(request).bank
    what = needed(form, "what")
    if form.get("kind") == "document":
        versions = (await bank.aforget_source(what)).versions
    else:
        versions = (await bank.aforget(what)).versions
    return page("forgotten.html", {"name": form.get("name", what), "versions": versions})
