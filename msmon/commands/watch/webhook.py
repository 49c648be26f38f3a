"""The address that gets each verdict as a JSON document."""

from __future__ import annotations

import http.client
import os
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msmon
from msmon.bus.keys import require_private
from msmon.errors import MsmonError, UsageError

TIMEOUT_S = 10.0
"""How long connecting, and each wait for the answer, may take."""

RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between attempts; after the last one the document is given up."""

MOST_SECRET_BYTES = 8192

_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]+)")
"""A header line: name and printable value, RFC 9110 section 5."""


class _NotFollowed(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect an error: the secret would go to an address that nobody has named."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Posts one document at a time, and tries again where that may help.

    Answers 2xx mean that it was taken. Other answers than 408, 429 and 5xx would be the same the
    next time, so nothing is tried again after those. Proxies are those of the environment.
    """

    def __init__(self, url: str, secret_file: str = "") -> None:
        self._url = check_url(url)
        self._place = place_of(url)
        self._has_secret = bool(secret_file)
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"msmon/{msmon.__version__}",
            **(read_header(Path(secret_file)) if secret_file else {}),
        }
        self._opener = urllib.request.build_opener(_NotFollowed())
        self._ending = threading.Event()

    @property
    def shows_secret(self) -> bool:
        """Whether others on the network can read the secret."""
        parts = urlsplit(self._url)
        is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        return self._has_secret and parts.scheme == "http" and not is_local

    def send(self, item: bytes) -> str:
        """Post a document; return why it failed, or nothing."""
        failure = ""
        for pause_s in (*RETRY_S, 0.0):
            if self._ending.is_set():
                return failure
            failure, again = self._attempt(item)
            if not again:
                return failure
            self._ending.wait(pause_s)
        return f"{failure}; given up after {len(RETRY_S) + 1} attempts"

    def abort(self) -> None:
        """Try nothing again."""
        self._ending.set()

    def _attempt(self, item: bytes) -> tuple[str, bool]:
        """Return (why it failed, whether another attempt may help)."""
        request = urllib.request.Request(self._url, item, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=TIMEOUT_S):
                return "", False
        except urllib.error.HTTPError as error:
            error.close()
            again = error.code in (408, 429) or error.code >= 500
            told = " (redirects are not followed)" if 300 <= error.code < 400 else ""
            return f"{self._place} answers {error.code}{told}", again
        except urllib.error.URLError as error:
            return f"{self._place} can't be reached: {error.reason}", True
        except (OSError, http.client.HTTPException) as error:
            return f"{self._place} gives no answer: {error}", True


def check_url(url: str) -> str:
    """Return the address. Raises UsageError if it is none of http or https.

    Its path may be a secret, so no message quotes it.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or any(sign.isspace() or not sign.isprintable() for sign in url):
        raise UsageError("--webhook: it is no address", "write http://… or https://…")
    if parts.username is not None:
        raise UsageError(
            "--webhook: a name and a password can't stand in the address",
            "write the header in a file for --webhook-secret-file",
        )
    return url


def place_of(url: str) -> str:
    """Return "https://host:port" of an address."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def read_header(path: Path) -> dict[str, str]:
    """Return the header in a file: one line, such as "Authorization: Bearer 7f3a".

    Raises UsageError if it can't be read, holds something else, or others may read it.
    """
    shown = f"--webhook-secret-file: {path}"
    try:
        require_private(path)
        with path.open("rb") as file:
            text = file.read(MOST_SECRET_BYTES + 1).decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    except MsmonError as error:
        raise UsageError(f"--webhook-secret-file: {error.message}", error.next_step) from None
    except OSError as error:
        raise UsageError(f"{shown} can't be read: {os.strerror(error.errno or 0)}") from None
    found = _HEADER.fullmatch(text)
    if found is None or len(text) > MOST_SECRET_BYTES:
        raise UsageError(f"{shown} is no header", "write one line: Authorization: Bearer SECRET")
    return {found[1]: found[2]}
