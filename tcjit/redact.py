"""Texts without the passwords in them: what is shown, kept or raised and may name a database goes through ``redacted``."""
from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"
_SECRET = r"(?:pass(?!file|ive)|pwd|secret|token|credential|api[-_.]?key|access[-_.]?key|private[-_.]?key)"
_KEY = re.compile(_SECRET, re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"""([\w.%-]*{_SECRET}[\w.%-]*["']?\s*[=:]\s*)("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\s&;'"]+)""", re.IGNORECASE
)
# scheme, slashes and user; what stands between the user and the last @ is the password
_USER = re.compile(r"""([A-Za-z][A-Za-z0-9+.-]*:/{0,3}[^\s:/@"']*):[^\s"']*@""")
_OF_URL = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:/{0,3}[^:/@?]*:(.*)@", re.DOTALL)
_PAIR = re.compile(r"(?:^|[?&;\s])([^?&;=\s]+)\s*=\s*('(?:\\.|[^'\\])*'|[^&;\s]*)")


def redacted(text: str, url: str | None = None) -> str:
    """``text`` with ``***`` for passwords: those after a user, those after names such as ``password=``, and wherever they stand
    those of ``url``, by default the text itself, as they are written there and percent-encoded or decoded.

    >>> redacted("postgresql://me:S3CRET@host/db?sslpassword=T0P&connect_timeout=5")
    'postgresql://me:***@host/db?sslpassword=***&connect_timeout=5'
    >>> redacted("host=server password='a b' dbname=studies")
    'host=server password=*** dbname=studies'
    """
    return _ASSIGNED.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1:{HIDDEN}@", _literally(text, text if url is None else url)))


def _literally(text: str, url: str) -> str:
    """Without the secrets of a URL, in any of their forms."""
    forms = {form for secret in _secrets(url) for form in _forms(secret)} - {"", HIDDEN}
    for form in sorted(forms, key=lambda form: (-len(form), form)):
        text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", HIDDEN, text)
    return text


def _secrets(url: str) -> Iterator[str]:
    """The passwords of a URL or of key=value words; where an @ stands in one, whoever reads it may take any part for it."""
    user = _OF_URL.match(url)
    if user is not None:
        parts = user[1].split("@")
        yield from ("@".join(parts[first:last]) for last in range(1, len(parts) + 1) for first in range(last))
    for key, value in _PAIR.findall(url):
        if _KEY.search(unquote_plus(key)):
            yield value.strip("'")


def _forms(secret: str) -> Iterator[str]:
    """As it is written, decoded, and encoded again; and each as Python shows it."""
    for plain in (secret, unquote(secret), unquote_plus(secret)):
        for form in (plain, quote(plain, safe=""), quote_plus(plain)):
            yield form
            yield repr(form)[1:-1]
