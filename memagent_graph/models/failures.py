"""Convert the errors of model calls to ours, and repeat calls after transient ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from html import unescape
from time import time
from typing import TYPE_CHECKING, Any

from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelInvalidRequestError,
    ModelNotFoundError,
    ModelPermissionDeniedError,
    ModelRateLimitError,
)

from memagent_graph import errors
from memagent_graph.templates import late

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet


_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
_NO_LENGTH = frozenset({401, 403, 404, 408, 425, 503, 504, 522, 524, 529})
"""HTTP statuses of a key, an address, an overload or a time-out: never of a long prompt."""
_TRANSIENT_NAME = re.compile(
    r"Timeout|TimedOut|Connect|Network|RemoteProtocol|IncompleteRead|ReadError|WriteError"
    r"|Overloaded|Unavailable|Throttl|RateLimit|\bAPIError$"  # the last: an error within a stream
)
_BROKEN_NAME = re.compile(
    r"Connect|Network|RemoteProtocol|IncompleteRead|ReadError|WriteError|BrokenResource"
)
_LASTING_OS_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_LASTING_TEXT = re.compile(
    r"certificate.verify.failed|unsupported protocol|missing an 'http", re.IGNORECASE
)
_MALFORMED_NAME = re.compile(r"JSONDecodeError|UnicodeDecodeError|ResponseValidationError")
_TOO_LONG = late(
    r"""
    context[ _-]?(?:the[ ])?(?:length|window|size|limit|overflow) | \btoken[ _]limit
    | \b(?:input|prompt|sequence|message|request)s?[ _-](?:token[ _-])?(?:length|count|size|limit)\b
    | (?:prompt|input|context|message)s?_too_(?:long|large) | above_max_length  # codes
    | max(?:imum)?[ ]length[ ]of[ ](?:the[ ])?(?:current[ ])?(?:question|prompt|message)
    # "prompt is too long" (Anthropic), "`inputs` must have less than" (TGI), "exceeds max length"
    | \b(?:prompt|input|content|message|conversation|request|query|text|history|payload|context)s?\b
      (?!\[\d{1,9}\]\.(?!content))(?:(?!max_)[^\n]){0,60}?
      (?:too[ ](?:long|large|big)|(?:long|larg|great)er[ ]than|exceed|(?:not|n't)[ ]fit|\bis[ ]full
        |(?:above|over|more[ ]than)[ ](?:the[ ])?(?:\w+[ ])?(?:max|limit)
        |must[ ](?:be[ ](?:<=|less|at[ ]most|under|shorter)|have[ ](?:less|fewer|at[ ]most)))
    # "too many tokens" (Cohere), "requested tokens exceed"
    | (?<!max_)(?<!completion_)(?<!output_)(?<!new_)(?<!completion\ )(?<!output\ )
      tokens?\b[^\n]{0,60}?
      (?:exceed|over[ ](?:the[ ])?limit|too[ ](?:long|large|many)|must[ ]be[ ]<=)
    # what to do about it: Groq, Cerebras, llama-cpp-python, Mistral, Bedrock
    | (?:reduce|decrease|shorten)[ ](?:the[ ]length|(?:your[ ]|the[ ])?(?:prompt|input|messages))
    | shorter[ ](?:prompt|input|text|message) | (?:prompt|input|text|messages?)[ ]shorter
    | at[ ]most[ ]\d{4,12}[ ]character | cannot[ ]truncate | expected[ ]maxLength
    | max_tokens[ ]must[ ]be[ ]at[ ]least[ ]1,[ ]got[ ]-  # vLLM, where nothing is left for a reply
    # in other languages: too long; over the tokens, or the length of the context
    | 超长 | trop[ ]long | слишком[ ]длин
    | (?:长度|上下文|[Tt]oken|输入)[^\n]{0,20}(?:超[过出限]|限制)
    | (?:tokens?|kontext|トークン|토큰)[^\n]{0,60}?(?:超え|초과|überschr)
    | (?:dépass|превы)[^\n]{0,60}?(?:contexte?|контекст)
    """,
    re.IGNORECASE | re.VERBOSE,
    library=re,
)
"""How servers say that a prompt is too long; the tests list them, with the source of each."""
_OF_REPLY = re.compile(
    r"max_\w{0,40}tokens|max(?:imum)? (?:output|completion|new) tokens|completion tokens"
    r"|(?<!and )(?<!\+ )output tokens|too (?:short|few)|at least",
    re.IGNORECASE,
)
"""How errors speak of the tokens of a reply, or of a prompt that is too short."""
_AMOUNT = re.compile(r"\d{3,12}")
_FEWER = "fewer output tokens"
"""In vLLM's error for `max_tokens` above its window, where a shorter prompt does not help."""
_RATE = re.compile(
    r"rate[ _-]?limit|too many requests|throttl|quota|per (?:second|minute|min|hour|day|month)\b"
    r"|wait before|try again (?:in|later)|请求频率|速率|并发|余额|额度|配额"
    r"|overload|concurren|queue|waiting|timed?[ -]?out|took too long"
    r"|\b(?:dai|month)ly\b|billing|spend",
    re.IGNORECASE,
)
_NEVER_FITS = re.compile(r"request too large|prompt tokens limit", re.IGNORECASE)
"""In errors of a quota that the request exceeds on its own, so that waiting is no help."""
_QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_SPENT = re.compile(
    r"insufficient (?:balance|credit|quota|funds)|(?:spend(?:ing)?|billing) (?:limit|cap)"
    r"|余额不足|欠费",
    re.IGNORECASE,
)
_OTHER_CAUSE = re.compile(
    r"un(?:supported|known|recogni[sz]ed|expected)|n[o']t (?:\w+ )?(?:support|permit|exist|found)"
    r"|extra_forbidden|deprecated|required|missing|temperature|\btop_?[pk]\b|\bstop\b|\bseed\b"
    r"|response_format|schema|\btools?\b|tool_choice|\bstream|logprobs|\bimages?\b|\broles?\b"
    r"|\bapi.?key",
    re.IGNORECASE,
)
"""Words of errors for other fields of a request than the prompt."""
_SIZE = re.compile(
    r"long|length|size|larg|big|short|token|context|window|limit|exceed|character|maxim",
    re.IGNORECASE,
)
_FILTER = re.compile(
    r"content[ _-]?(?:filter|policy|management policy)|safety (?:system|setting)"
    r"|responsible_?ai|usage polic(?:y|ies)|data_inspection|inappropriate content|guardrail"
    r"|content exists risk|considered high risk|requires moderation|new_sensitive"
    r"|(?:unsafe|sensitive) (?:or \w+ )?(?:content|word|information)|敏感",
    re.IGNORECASE,
)
_SAYING = (
    "message msg error_description error errors detail details error_message error_msg "
    "errorMessage status_msg base_resp title reason description raw metadata"
)
_SPOKEN = tuple(_SAYING.split())
"""Names under which servers put what an error says, or what holds it."""
_CODED = ("code", "type", "status", "status_code", "error_code", "error_type")
_STANDARD = {
    ModelInvalidRequestError: 400,
    ModelAuthenticationError: 401,
    ModelPermissionDeniedError: 403,
    ModelNotFoundError: 404,
    ModelRateLimitError: 429,
    ModelAPIError: 500,
}
"""HTTP status of LangChain's exceptions, which clients without HTTP raise too."""
_STATUS_CODES = frozenset(map(str, range(400, 600)))
_MARKUP = re.compile(r"<(style|script)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>", re.DOTALL | re.IGNORECASE)
_PAGE = re.compile(r"\s*<(?:!doctype|html|\?xml|head|body)\b", re.IGNORECASE)
_LONGEST_TEXT = 600
"""Characters passed on of a provider's message."""
_LONGEST_PAGE = 20_000
"""Characters read of a provider's error page."""
_DEEPEST = 8
_SILENCE = "it gave no reason."


def model_error(error: Exception, *, served: Sequence[str] = ()) -> errors.ModelError:
    """Return the `ModelError` whose class says what a caller can do about `error`.

    Errors are classified by status code, name and words, not by class, so that the clients of all
    providers are covered and none needs to be installed. `served` are the names of the server's
    models, for the message of a 404.
    """
    if isinstance(error, errors.ModelError):
        return error
    body, status = _body(error), _status(error)
    text, codes = error_text(error), {_code(error), *_codes(body)}
    overflow, wait = isinstance(error, ContextOverflowError), _retry_after(error)
    if status is not None or overflow or is_too_long(text, None, codes):
        return _from_status(status, text, codes, overflow=overflow, wait=wait, served=served)
    lineage = " ".join(kind.__name__ for kind in reversed(type(error).__mro__))
    if "ModelRefusalError" in lineage:  # LangChain's, since langchain-core 1.7.5
        return errors.RefusalError(f"The model refused: {text}")
    if (error_within := getattr(error, "body", None)) and not hasattr(error, "response"):
        return reply_error({"error": error_within}) or errors.TransientModelError(
            text
        )  # of a stream
    if _MALFORMED_NAME.search(lineage):
        return errors.TransientModelError(f"The model's reply is malformed: {text}")
    if _is_transient(error, lineage, text):
        return errors.TransientModelError(
            f"The model cannot be reached{_place(error)}: {text}", retry_after=wait
        )
    return errors.ModelError(f"The model call failed: {type(error).__name__}: {text}")


def reply_error(reply: object) -> errors.ModelError | None:
    """Return the error in a server's reply of status 200, or in a part of one; None without one.

    Gateways send errors that occur behind them in place of a completion, and MiniMax all errors.
    """
    if not isinstance(reply, Mapping):
        return None
    base = reply.get("base_resp")
    failed = isinstance(base, Mapping) and base.get("status_code") not in (None, 0, "0")
    error = reply.get("error") or (base if failed else None)
    if not error and not reply.get("choices"):
        named = {name: reply[name] for name in (*_SPOKEN, *_CODED) if reply.get(name)}
        # A message with a role is a reply in another format.
        error = {name: value for name, value in named.items() if "role" not in fields_of(value)}
        if not words_of(error):
            return None
    if not error or (reply.get("choices") and not words_of(error)):
        return None
    text, codes = words_of(error) or _SILENCE, _codes(error)
    status = next((int(code) for code in codes if code in _STATUS_CODES), None)
    text = _with_code(text, next(iter(codes), ""))[:_LONGEST_TEXT]
    return _from_status(status, text, codes)


def words_of(body: object, depth: int = 0) -> str:
    """Return what the body of an error says to people, whatever its shape; "" if it says nothing.

    It is parsed JSON, text, or bytes; text may itself be JSON, or a page of HTML.
    """
    if depth > _DEEPEST:
        return ""
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    if isinstance(body, str):
        return _words_of_text(body.strip(), depth)
    if isinstance(body, Mapping):
        if "loc" in body and "msg" in body:  # FastAPI: the place, without the input it repeats
            place = body["loc"]
            place = ".".join(map(str, place)) if isinstance(place, list | tuple) else place
            return f"{place}: {body['msg']}"
        named = [body[name] for name in _SPOKEN if body.get(name)]
        found = [words_of(part, depth + 1) for part in named]
        if not any(found):  # a sentence under a name of its own
            found = [words_of(part, depth + 1) for part in body.values() if _may_speak(part)]
    elif isinstance(body, list | tuple):
        found = [words_of(part, depth + 1) for part in body]
    else:
        return ""
    kept: list[str] = []
    for words in found:
        if words and not any(words in other for other in kept):
            kept.append(words)
    return "; ".join(kept)[:_LONGEST_PAGE]


def fields_of(value: object) -> Mapping[str, Any]:
    """Return the fields of parsed JSON; {} if it is no object."""
    return value if isinstance(value, Mapping) else {}


def _words_of_text(text: str, depth: int) -> str:
    text = text.removeprefix("data:").lstrip()
    if text[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return words_of(json.loads(text), depth + 1)
    if _PAGE.match(text):
        text = unescape(_MARKUP.sub(" ", text[:_LONGEST_PAGE]))
    return " ".join(text.split())


def _may_speak(part: object) -> bool:
    return " " in part.strip() if isinstance(part, str) else isinstance(part, Mapping | list)


def _codes(body: object, depth: int = 0) -> set[str]:
    if depth > _DEEPEST or not isinstance(body, Mapping):
        return set()
    found = {str(body[name]) for name in _CODED if isinstance(body.get(name), str | int)}
    for name in _SPOKEN:
        found |= _codes(body.get(name), depth + 1)
    return found - {""}


def is_unreachable(error: Exception) -> bool:
    """Whether there is no server, or its connection broke; a slow server does not count.

    A gateway answers 502 or 503 for a server behind it that is down or starting.
    """
    status = _status(error)
    if status is not None:
        return status in (502, 503)
    root = _root_of(error)
    lineage = " ".join(kind.__name__ for each in (error, root) for kind in type(each).__mro__)
    if "Timeout" in lineage and "ConnectTimeout" not in lineage:
        return False
    return isinstance(error, OSError) or bool(_BROKEN_NAME.search(lineage))


def is_too_long(text: str, status: int | None, codes: AbstractSet[str] = frozenset()) -> bool:
    """Return whether an error, by its words, HTTP status and codes, is of a prompt too long."""
    said = " ".join((text, *codes))
    if status in _NO_LENGTH or _FEWER in said.lower():
        return False
    if status == 413 or _NEVER_FITS.search(said):  # noqa: PLR2004 - HTTP's number
        return True
    if status in (402, 429) or _RATE.search(said):
        return False
    return bool(_TOO_LONG.search(said)) or (status in (400, 422) and _compares_tokens(said))


def _compares_tokens(said: str) -> bool:
    """Whether a text gives two amounts of tokens, and they are not those of a reply."""
    if "tokens" not in said.lower() or _OF_REPLY.search(said):
        return False
    return len({*_AMOUNT.findall(said)}) > 1


def _is_transient(error: Exception, lineage: str, text: str) -> bool:
    if isinstance(error, _LASTING_OS_ERRORS) or _LASTING_TEXT.search(text):
        return False
    if isinstance(error, OSError) or getattr(error, "is_retryable", False):
        return True
    return bool(_TRANSIENT_NAME.search(lineage))


def _from_status(
    status: int | None,
    text: str,
    codes: AbstractSet[str],
    *,
    overflow: bool = False,
    wait: float | None = None,
    served: Sequence[str] = (),
) -> errors.ModelError:
    if overflow or is_too_long(text, status, codes):
        return errors.ContextLengthError(
            f"The prompt is too long for the model; lower chunk_tokens or memory_tokens. {text}"
        )
    said = " ".join((text, *codes))
    if status in (None, 400, 403, 422) and _FILTER.search(said):
        return errors.RefusalError(f"The provider refused the prompt: {text}")
    spent = codes & _QUOTA_CODES or _SPENT.search(said)
    if status == 402 or (status in (None, 400, 429) and spent):  # noqa: PLR2004 - HTTP's
        return errors.ModelError(
            f"The account's quota is spent: check its plan and billing. {text}"
        )
    if status is None:
        return errors.TransientModelError(f"The server replied with an error: {text}")
    rated = status == 400 and _RATE.search(said)  # noqa: PLR2004 - HTTP's number
    if rated or status in _TRANSIENT_STATUS or status >= 500:  # noqa: PLR2004 - HTTP's number
        return errors.TransientModelError(f"The server answered {status}: {text}", retry_after=wait)
    if status in (401, 403):
        return errors.ModelError(
            f"The server refused the credentials ({status}): check OPENAI_API_KEY or the "
            f"provider's own variable, and the base URL. The server said: {text}"
        )
    if status == 404:  # noqa: PLR2004 - HTTP's number
        hint = (
            f"it serves {', '.join(served)}"
            if served
            else "GET /v1/models lists its models, and the base URL usually ends in /v1"
        )
        return errors.ModelError(
            f"The server does not know this model or path (404): {hint}. The server said: {text}"
        )
    named = _OTHER_CAUSE.search(said) and not _SIZE.search(said)
    lasting = named or _FEWER in said.lower() or status not in (400, 422)
    kind = errors.ModelError if lasting else errors.BadRequestError
    return kind(f"The server answered {status}: {text}")


def _place(error: Exception) -> str:
    """The URL of the request, if the client reports it."""
    with suppress(Exception):  # some clients raise when there was no request
        url = str(error.request.url).partition("?")[0]  # type: ignore[attr-defined]
        return f" at {url.removesuffix('/chat/completions').removesuffix('/models')}"
    return ""


def error_text(error: Exception) -> str:
    """Return what an error of any client says, with the words of the server's reply."""
    text, status = words_of(_body(error)), _status(error)
    if status is None or not text:
        own = str(error) or type(error).__name__
        silent = own == f"Error code: {status}"
        text = _SILENCE if silent else own if text in own else f"{own}: {text}"
    text = _with_code(text, _code(error))
    root = _root_of(error)
    if root is not error and str(root) not in text:  # "Connection error." without the reason
        text = f"{text} ({root})"
    return text[:_LONGEST_TEXT]


def _root_of(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _root_of(error.__cause__)


def _with_code(text: str, code: str) -> str:
    has_code = code in text or code.isdecimal()
    return text if has_code else f"{text} ({code})"


def _body(error: Exception) -> object:
    """The body of the server's reply, parsed or not; None if the client does not keep it."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        return response.get("Error")
    with suppress(Exception):  # a stream that was not read
        if text := response.text:
            return text
    names = ("body", "details", "error")  # OpenAI and Anthropic; Google; Ollama
    return next((found for name in names if (found := getattr(error, name, None))), None)


def _code(error: Exception) -> str:
    code = getattr(error, "code", None)
    return str(code) if isinstance(code, str | int) else ""


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    found = [getattr(error, "status_code", None), getattr(response, "status_code", None)]
    if isinstance(response, Mapping):  # botocore
        found.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    code = _code(error)  # Google's errors, and errors within a stream
    found.append(int(code) if code.isdecimal() else None)
    found += [status for kind, status in _STANDARD.items() if isinstance(error, kind)]
    return next((n for n in found if isinstance(n, int) and str(n) in _STATUS_CODES), None)


def _retry_after(error: Exception) -> float | None:
    """The pause that the server asks for, in seconds; sent as a number or as a date."""
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    said = headers.get("retry-after", "")
    reads: Sequence[Callable[[], float]] = (
        lambda: float(headers.get("retry-after-ms", "")) / 1000,
        lambda: float(said),
        lambda: parsedate_to_datetime(said).timestamp() - time(),
    )
    for read in reads:
        with suppress(TypeError, ValueError):
            return max(0.0, read())
    return None


_AFTER = r"(?:: |[`'\"“\[({.]|\b(?:parameter|field|argument|property|supplied|name|key)s?\W{1,4})"
"""Signs that a word is the name of a field."""
_OPTIONAL = {  # fields that a request can do without, and how errors write them
    name: re.compile(written, re.IGNORECASE)
    for name, written in {
        "temperature": r"\btemperature\b",
        "top_p": r"\btop_?p\b",
        "seed": rf"{_AFTER}seed\b|\bseed[`'\"”:]|^seed\b",
        "max_tokens": r"\bmax_?tokens\b",
        "max_completion_tokens": r"\bmax_?completion_?tokens\b",
        "stop": rf"{_AFTER}stop\b|\bstop[`'\"”:]|^stop\b|\bstop_?sequences?\b",
        "stream_options": r"\bstream_?options\b",
    }.items()
}
_NOT_TAKEN = (400, 422, 501)
_UNSUPPORTED = re.compile(
    r"un(?:supported|known|recogni[sz]ed|expected)|extra(?:neous)?\b|extra_forbidden|deprecated"
    r"|(?:not|n't|no longer)(?: \w+){0,2} (?:support|permit|allow|accept|valid|recogni|avail)"
    r"|not a valid|cannot find field|does ?n[o']t (?:have|exist)|forbidden|incompatible|drop_params"
    r"|不支持",
    re.IGNORECASE,
)
"""Words by which servers' errors reject a field."""
_BAD_VALUE = re.compile(
    r"invalid|must|should|only|cannot|can't|out of|between|greater|less|positive|range|参数",
    re.IGNORECASE,
)
"""Words by which servers' errors reject the value of a field."""
_SCHEMA = re.compile(r"response_format|schema|grammar|structured|guided", re.IGNORECASE)
"""Words by which servers' errors name a constraint to a JSON schema."""


def find_refused_field(
    error: Exception, request: Mapping[str, object], *, constrained: bool = False
) -> str | None:
    """Return the optional field that the server refused; None if the error is another.

    OpenAI's reasoning models refuse a temperature, and have another name for `max_tokens`. Some
    servers do not support schemas, seeds or usage in streams. Each has words of its own for it.
    The request is `constrained` if its `response_format` was made from `json_schema`.
    """
    text, status = error_text(error), getattr(error, "status_code", None)
    if status not in _NOT_TAKEN or is_too_long(text, status):
        return None
    if constrained and "response_format" in request and _SCHEMA.search(text):
        return "json_schema"
    named, code = getattr(error, "param", None), getattr(error, "code", None)
    unsupported = "unsupported" in str(code) or bool(_UNSUPPORTED.search(text))
    if not (unsupported or _BAD_VALUE.search(text)):
        return None
    # A limit with a wrong value is the user's to correct.
    sent = [name for name in _OPTIONAL if name in request and (unsupported or "max_" not in name)]
    if named in sent:
        return str(named)
    places = {name: _OPTIONAL[name].search(text) for name in sent}
    found = {name: match.start() for name, match in places.items() if match}
    return min(found, key=lambda name: found[name], default=None)
