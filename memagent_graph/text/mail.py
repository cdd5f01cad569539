"""Read messages of e-mail and Outlook, with their attachments."""

from __future__ import annotations

import codecs
import re
from base64 import b64decode
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email import message_from_string, policy
from email.errors import InvalidBase64LengthDefect
from email.parser import BytesParser
from io import BytesIO
from typing import TYPE_CHECKING, Any

from memagent_graph.text.charset import decode, widen
from memagent_graph.text.conversion import FORMATS, Attachment, convert_within, write_attachments
from memagent_graph.text.html import WebPage
from memagent_graph.text.notation import count_words
from memagent_graph.text.source import Converted, warn_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def read_mail(content: bytes) -> Converted:
    """Read a message of e-mail with its attachments, or all of a mailbox."""
    if content.startswith((codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE)):
        content = decode(content).encode()
    content = content.removeprefix(codecs.BOM_UTF8).lstrip()
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    if content.startswith(b"From "):
        found = [_read_message(_parse(mail)) for mail in _FROM.split(content) if mail]
        warnings = [line for mail in found for line in mail.warnings]
        text, lost = "\n\n-----\n\n".join(one.text for one in found), sum(one.lost for one in found)
        return Converted(text, (), warnings, lost=lost / len(found))
    if counted := _COUNT.match(content):  # Apple Mail: the length, the message, its properties
        content = content[counted.end() :][: int(counted[1])]
    return _read_message(_parse(content))


_FROM = re.compile(
    rb"(?:\A|\n\r?\n)From [^ \r\n]++"
    rb"(?: (?=[^\r\n]*[a-z] {1,2}(?:\d\d? |[12]\d{3} )\d\d?:\d\d)[^\r\n]*+)?\r?\n"
)
"""Between messages: an address, alone or with a day and a time."""
_COUNT = re.compile(rb"[ \t]{0,20}(\d{1,18})[ \t]{0,20}\r?\n")


def _parse(content: bytes) -> Any:
    return BytesParser(policy=policy.default).parsebytes(content)


def _header(message: Any, name: str) -> str:
    raw = next((said for key, said in message.raw_items() if key.lower() == name.lower()), "")
    if not (raw.isprintable() or raw.isascii()):  # bytes of another encoding, which is not named
        return decode(raw.encode("utf-8", "surrogateescape"))
    try:
        return ", ".join(map(str, message.get_all(name, [])))
    except Exception:  # noqa: BLE001 - the parser of headers trips over broken ones
        return str(raw)


def _read_message(message: Any) -> Converted:
    attached = list[Attachment]()
    heads = {name: _header(message, name) for name in _HEADERS}
    text = "\n\n".join(_read_parts(message, attached))
    named = [(name, one) for name, one in attached if name]
    said = warn_of(picture=len(attached) - len(named))
    return _write_message(heads, text, named, said)


_HEADERS = ("From", "To", "Cc", "Bcc", "Date", "Subject")


def _read_parts(part: Any, attached: list[Attachment]) -> list[str]:
    kind, name = part.get_content_type(), part.get_filename()
    if kind == "multipart/encrypted":
        unread = Converted(warnings=("was not read.",), lost=1.0)
        attached.append(("encrypted message", unread))
        return []
    if kind.startswith("multipart/"):
        if not part.is_multipart():  # it says that it has parts
            return [part.get_payload()]
        found = ("\n\n".join(_read_parts(inner, attached)).strip() for inner in part.iter_parts())
        texts = [*filter(None, found)]
        texts = _choose_forms(texts) if kind == "multipart/alternative" else texts
        around = ((said or "").strip() for said in (part.preamble, part.epilogue))
        before, behind = ([said] * bool(said) for said in around)
        return [*before, *texts, *behind]
    if kind in _WORDLESS:
        return []
    if not kind.startswith("text/") or name or part.is_attachment() or kind == "text/rtf":
        is_shown = kind.startswith("image/") and not name
        attached.append(("", Converted()) if is_shown else _attach(part, name or kind))
        return []
    text = _text_of(part)
    for file in _UUENCODED.finditer(text):
        with suppress(ValueError):  # it only looks like one
            content: Any = codecs.decode(f"{file[0]}\n".encode(), "uu")
            attached.append(convert_within(file[1], content))
            text = text.replace(file[0], "")
    if _is_cut(part):
        attached.append(("text", Converted(warnings=("is cut off.",), lost=1.0)))
    return [WebPage(text).write() if kind.endswith("html") else text]


def _choose_forms(forms: Sequence[str]) -> list[str]:
    """Return forms of one text without those all of whose words an earlier or longer one has."""
    words = [count_words(form) for form in forms]
    before = [any(own <= other for other in words[:at]) for at, own in enumerate(words)]
    behind = [any(own < other for other in words[at + 1 :]) for at, own in enumerate(words)]
    return [form for at, form in enumerate(forms) if not (before[at] or behind[at])]


_UUENCODED = re.compile(r"(?m)^begin [0-7]{3,4} (\S.{0,255})\n(?:[ -`]{1,90}+\n)++end$")
"""A file within a text, as programs wrote it before there were parts."""
_WORDLESS = {"text/css", "text/javascript", "application/javascript"}  # of saved pages
_WORDLESS |= {f"application/{kind}-signature" for kind in ("pgp", "pkcs7", "x-pkcs7")}


def _attach(part: Any, name: str) -> Attachment:
    kind = part.get_content_type()
    if kind == "message/rfc822":
        inner, encoding = part.get_payload(0), str(part["Content-Transfer-Encoding"] or "").lower()
        codec: Any = {"base64": "base64", "quoted-printable": "quopri"}.get(encoding)
        if codec:  # which the standard forbids
            inner = _parse(codecs.decode(inner.as_bytes(), codec))
        return name, _read_message(inner)
    if part.is_multipart():  # a report on the delivery
        return name, Converted("".join(map(str, part.get_payload())).strip())
    is_text = kind.startswith("text/") and kind != "text/rtf"
    if is_text and not name.lower().endswith((*FORMATS,)):
        return name, Converted(_text_of(part))
    return convert_within(name, _bytes_of(part))


def _bytes_of(part: Any) -> bytes:
    """Return the content of a part; of one that is cut off, what there is."""
    content: bytes = part.get_payload(decode=True) or b""
    if _is_cut(part):
        known = re.sub(rb"[^A-Za-z0-9+/]", b"", content)
        content = b64decode(known[: len(known) // 4 * 4])
    return content


def _is_cut(part: Any) -> bool:
    return any(isinstance(defect, InvalidBase64LengthDefect) for defect in part.defects)


def _text_of(part: Any) -> str:
    content, charset = _bytes_of(part), part.get_content_charset() or "ascii"
    try:
        text = content.decode(charset if charset in {"ascii", "us-ascii"} else widen(charset))
    except (LookupError, UnicodeError):  # not what it says, or an encoding that Python lacks
        text = decode(content)
    text = text.replace("\r\n", "\n")
    if part.get_content_type() in {"text/calendar", "text/vcard"}:
        return _FOLD.sub("", text)
    return text.replace(" \n", "") if part.get_param("delsp") == "yes" else text


def read_card(content: bytes) -> Converted:
    """Read a calendar or a card of contacts, whose lines are folded amid words."""
    return Converted(_FOLD.sub("", decode(content).replace("\r\n", "\n")))


_FOLD = re.compile(r"\n[ \t]")


def _write_message(
    heads: Mapping[str, str], text: str, attached: Sequence[Attachment], said: Sequence[str] = ()
) -> Converted:
    lines = [f"{name}: {said}" for name, said in heads.items() if said]
    texts, warnings, lost = write_attachments(attached)
    whole = "\n\n".join(filter(None, ["\n".join([*lines, "", text.strip()]).strip(), *texts]))
    return Converted(whole, (), (*warnings, *said), lost=lost / (len(attached) + 1))


def read_outlook(content: bytes) -> Converted:
    """Read a message of Outlook with its attachments."""
    from oxmsg import Message

    storage = Message.load(BytesIO(content))._storage  # noqa: SLF001 - it decodes strictly
    return read_outlook_storage(storage)


class _Item:
    """The properties of a message, recipient or attachment, with the message's code pages."""

    def __init__(self, storage: Any, pages: Sequence[int]) -> None:
        self._streams: dict[str, bytes] = {one.name: one.bytes_ for one in storage.streams}
        rows = self._streams.get("__properties_version1.0", b"")
        self._numbers = {  # the head of the rows is as long as one, one and a half, or two
            int.from_bytes(rows[at + 2 : at + 4], "little"): rows[at + 8 : at + 16]
            for at in range(len(rows) % 16, len(rows), 16)
        }
        self.pages = [*filter(None, map(self.number, (_MESSAGE_PAGE, _BODY_PAGE)))] or pages

    def number(self, tag: int, size: int = 4) -> int:
        """Return a number of so many bytes; 0 if there is none."""
        return int.from_bytes(self._numbers.get(tag, b"")[:size], "little")

    def binary(self, tag: int, kind: str = "0102") -> bytes:
        """Return the bytes of a property; none if there are none."""
        return self._streams.get(f"__substg1.0_{tag:04X}{kind}", b"")

    def text(self, *tags: int) -> str:
        """Return the first text that there is of these; "" without any.

        It is in UTF-16, in the code page of the message or of its body or, if neither fits,
        in the one that fits its letters.
        """
        for tag in tags:
            if wide := self.binary(tag, "001F"):
                return wide.decode("utf-16-le", "replace").rstrip("\0")
            narrow = self.binary(tag, "001E") or self.binary(tag)
            for page in self.pages[:: -1 if tag in {_BODY, _HTML} else 1] if narrow else ():
                with suppress(LookupError, UnicodeError):
                    return narrow.decode(_PAGES.get(page) or f"cp{page}").rstrip("\0")
            if narrow:
                return decode(narrow).rstrip("\0")
        return ""


_MESSAGE_PAGE, _BODY_PAGE, _SENT, _TYPE = 0x3FFD, 0x3FDE, 0x0039, 0x0C15
_BODY, _HTML, _RTF, _HEADERS_SENT, _SUBJECT = 0x1000, 0x1013, 0x1009, 0x007D, 0x0037
_SENDER, _SENDER_ADDRESS = (0x0C1A, 0x0042), (0x5D01, 0x0C1F, 0x0065)
_NAME, _ADDRESS, _FILE, _FILE_NAME = 0x3001, (0x39FE, 0x3003), 0x3701, (0x3707, 0x3704, 0x3001)
_PEOPLE = {1: "To", 2: "Cc", 3: "Bcc"}
_PAGES = {20127: "ascii", 20866: "koi8_r", 20932: "euc_jp", 21866: "koi8_u", 54936: "gb18030"}
_PAGES |= {28590 + part: f"iso8859_{part}" for part in range(1, 16)}
_PAGES |= {50220: "iso2022_jp", 50221: "iso2022_jp", 51949: "euc_kr"}
"""Encodings whose names in Python do not have the number of the code page."""
_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)


def read_outlook_storage(storage: Any, pages: Sequence[int] = ()) -> Converted:
    """Return the text of a message from its storage; the arguments are those of `_Item`."""
    item, attached = _Item(storage, pages), list[Attachment]()
    headers = message_from_string(item.text(_HEADERS_SENT), policy=policy.default)
    name, address = item.text(*_SENDER), item.text(*_SENDER_ADDRESS)
    heads = {"From": _header(headers, "From") or (f"{name} <{address}>" if address else name)}
    for inner in storage.storages:
        if inner.name.startswith("__recip"):
            one = _Item(inner, item.pages)
            kind = _PEOPLE.get(one.number(_TYPE) & 3, "To")
            person = f"{one.text(_NAME)} <{one.text(*_ADDRESS)}>"
            heads[kind] = ", ".join(filter(None, [heads.get(kind), person]))
        elif inner.name.startswith("__attach"):
            attached.append(_attach_of_outlook(inner, item.pages))
    sent = timedelta(microseconds=item.number(_SENT, 8) // 10)
    heads |= {"Date": f"{_EPOCH + sent}" if sent else "", "Subject": item.text(_SUBJECT)}
    text = item.text(_BODY) or WebPage(item.text(_HTML)).write()
    if not text and item.binary(_RTF):
        unread = Converted(warnings=("is packed RTF, and was not read.",), lost=1.0)
        attached.append(("text", unread))
    return _write_message(heads, text, attached)


def _attach_of_outlook(storage: Any, pages: Sequence[int]) -> Attachment:
    item = _Item(storage, pages)
    name = item.text(*_FILE_NAME)
    for inner in storage.storages:
        if inner.name == f"__substg1.0_{_FILE:04X}000D":
            return name or "message", read_outlook_storage(inner, pages)
    return convert_within(name, item.binary(_FILE))
