"""Read messages of e-mail and Outlook, with their attachments.

This runs in the process that converts documents.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from email import policy
from email.parser import BytesParser
from io import BytesIO
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any, TypeAlias

from memagent_graph.pictures.picture import without_marks, without_numbers
from memagent_graph.text.formats import (
    FORMATS,
    PICTURE_HEADS,
    PICTURES,
    convert,
    decode,
    html_to_text,
)
from memagent_graph.text.source import Converted, warn_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_mail(content: bytes) -> Converted:
    """Read a message of e-mail with its attachments, or all of a mailbox."""
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    if content.startswith(b"From "):
        found = [_read_message(_parse(mail)) for mail in _FROM.split(content)[1:]]
        warnings = [line for mail in found for line in mail.warnings]
        return Converted("\n\n-----\n\n".join(mail.text for mail in found), (), warnings)
    if counted := _COUNT.match(content):  # Apple Mail: the length, the message, its properties
        content = content[counted.end() :][: int(counted[1])]
    return _read_message(_parse(content))


_FROM = re.compile(rb"(?:\A|\n\r?\n)From [^ \r\n]++(?: (?=[^\r\n]*\d:\d\d)[^\r\n]*+)?\r?\n")
"""Between messages: an address, alone or with a time."""
_COUNT = re.compile(rb"[ \t]{0,20}(\d{1,18})[ \t]{0,20}\r?\n")


def _parse(content: bytes) -> Any:
    return BytesParser(policy=policy.default).parsebytes(content)


_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def _header(message: Any, name: str) -> str:
    try:
        return str(message[name] or "")
    except Exception:  # noqa: BLE001 - the parser of headers trips over broken ones
        return next((said for key, said in message.raw_items() if key.lower() == name.lower()), "")


def _read_message(message: Any) -> Converted:
    heads = [f"{name}: {said}" for name in _HEADERS if (said := _header(message, name))]
    texts, attached, pictures = _read_parts(message)
    found = _append_attachments([*heads, "", "\n\n".join(texts).strip()], attached)
    return replace(found, warnings=(*found.warnings, *warn_of(picture=pictures)))


def _read_parts(part: Any) -> tuple[list[str], list[Attachment], int]:
    """Return the texts of a part of a message, its attachments, and the number of its pictures."""
    kind, name = part.get_content_type(), part.get_filename()
    if kind.startswith("multipart/"):
        if not part.is_multipart():  # it says that it has parts
            return [part.get_payload()], [], 0
        found = [_read_parts(inner) for inner in part.iter_parts()]
        texts = [said for inner, _, _ in found if (said := "\n\n".join(inner).strip())]
        attached = [one for _, inner, _ in found for one in inner]
        is_choice = kind == "multipart/alternative"
        return _choose_forms(texts) if is_choice else texts, attached, sum(at[2] for at in found)
    if kind.startswith("image/") and not name:
        return [], [], 1
    if kind in _OF_PAGES:
        return [], [], 0
    if not kind.startswith("text/") or name or part.is_attachment():
        return [], [_attach(part)], 0
    text = _text_of(part)
    return [html_to_text(text) if kind == "text/html" else text], [], 0


_WORDS = re.compile(r"\w+")


def _choose_forms(forms: Sequence[str]) -> list[str]:
    """Return forms of one text without those all of whose words an earlier or longer one has."""
    words = [{*_WORDS.findall(form.lower())} for form in forms]
    return [
        form
        for at, form in enumerate(forms)
        if not any(words[at] <= other for other in words[:at])
        and not any(words[at] < other for other in words[at + 1 :])
    ]


_OF_PAGES = {"text/css", "text/javascript", "application/javascript"}
"""Parts of a saved page that are not its text."""


def _attach(part: Any) -> Attachment:
    name = part.get_filename() or part.get_content_type()
    if part.get_content_type() == "message/rfc822":
        inner = _read_message(part.get_payload(0))
        return name, inner.text, inner.warnings
    if part.is_multipart():  # a report on the delivery
        return name, "".join(map(str, part.get_payload())).strip(), ()
    if part.get_content_maintype() == "text" and _suffix(name) not in FORMATS:
        return name, _text_of(part), ()
    return _convert_attachment(name, part.get_payload(decode=True) or b"")


def _text_of(part: Any) -> str:
    content, charset = part.get_payload(decode=True) or b"", part.get_content_charset() or "ascii"
    try:
        text = content.decode(charset)
    except (LookupError, UnicodeError):  # not what it says, or an encoding that Python lacks
        text = decode(content)
    return text.replace("\r\n", "\n")


def _suffix(name: str) -> str:
    return posixpath.splitext(name.lower())[1]


Attachment: TypeAlias = "tuple[str, str, Sequence[str]]"


def _convert_attachment(name: str, content: bytes) -> Attachment:
    """Return name, text and warnings of an attached file."""
    is_picture = _suffix(name) in PICTURES
    if _suffix(name) not in FORMATS or (is_picture and not content.startswith(PICTURE_HEADS)):
        is_text = _is_text(name, content)
        return name, decode(content) if is_text else "", () if is_text else ("was not read.",)
    try:
        found = convert(content, _suffix(name))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a parser may raise anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return name, "", (f"was not read: {reason}",)
    if is_picture:
        words = without_marks(found.text).strip()
        return name, words, found.warnings if words else ("was not read.",)
    return name, without_numbers(found.text), found.warnings


def _is_text(name: str, content: bytes) -> bool:
    """Whether an attachment of an unknown type is text: in UTF-8, or with a mark of UTF-16."""
    if (guess_type(name)[0] or "").startswith(("audio", "image", "video")):
        return False
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in content


def _append_attachments(lines: Sequence[str], attached: Sequence[Attachment]) -> Converted:
    texts = [f"## Attachment: {name}\n\n{text}" for name, text, _ in attached if text.strip()]
    warnings = [f"attachment {name} {line}" for name, _, lines in attached for line in lines]
    whole = "\n\n".join(filter(None, ["\n".join(lines).strip(), *texts]))
    return Converted(whole, (), tuple(warnings))


def read_outlook(content: bytes) -> Converted:
    """Read a message of Outlook with its attachments."""
    from oxmsg import Message

    return read_outlook_message(Message.load(BytesIO(content)))


def read_outlook_message(message: Any) -> Converted:
    """Return the text of a message that `oxmsg` loaded."""
    people: dict[int, list[str]] = {}
    for at in message.recipients:
        kind = at.properties.int_prop_value(_RECIPIENT_TYPE) or _TO
        people.setdefault(kind, []).append(f"{at.name} <{at.email_address}>")
    heads = {
        "From": message.sender,
        "To": ", ".join(people.get(_TO, ())),
        "Cc": ", ".join(people.get(_CC, ())),
        "Date": message.sent_date,
        "Subject": message.subject,
    }
    text = message.body or html_to_text(message.html_body or "")
    attached = [*map(_attach_of_outlook, message.attachments)]
    return _append_attachments(
        [*(f"{name}: {said}" for name, said in heads.items() if said), "", text], attached
    )


_RECIPIENT_TYPE, _TO, _CC = 0x0C15, 1, 2
_HEAD_OF_INNER = 24
"""Bytes before the properties of an attached message; those of a file have 8 more."""


def _attach_of_outlook(attached: Any) -> Attachment:
    storages = attached._storage.storages  # noqa: SLF001 - no public name leads there
    inner = next((one for one in storages if one.name == "__substg1.0_3701000D"), None)
    if inner is None:
        return _convert_attachment(attached.file_name or "", attached.file_bytes or b"")
    from oxmsg import Message

    streams = [
        replace(one, bytes_=one.bytes_[:_HEAD_OF_INNER] + bytes(8) + one.bytes_[_HEAD_OF_INNER:])
        if one.name == "__properties_version1.0"
        else one
        for one in inner.streams
    ]
    found = read_outlook_message(Message(replace(inner, streams=tuple(streams))))
    return "message", found.text, found.warnings
