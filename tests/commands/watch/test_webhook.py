"""The address that gets a verdict, as a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from msmon.commands.watch import webhook as webhook_module
from msmon.commands.watch.webhook import Webhook, read_header
from msmon.errors import UsageError


@dataclass
class Receiver:
    """Answers with these codes, one after another; the last one stays."""

    url: str = ""
    codes: list[int] = field(default_factory=lambda: [200])
    location: str = ""
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def receiver(monkeypatch) -> Iterator[Receiver]:
    monkeypatch.setattr(webhook_module, "RETRY_S", (0.0, 0.0))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append((self.path, dict(self.headers), body))
            self.send_response(receiver.codes.pop(0) if receiver.codes[1:] else receiver.codes[0])
            if receiver.location:
                self.send_header("Location", receiver.location)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    yield receiver
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def secret_file(tmp_path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("Authorization: Bearer 7f3a\n")
    return path


def test_the_document_is_posted_with_the_secret(receiver, secret_file) -> None:
    assert Webhook(f"{receiver.url}/hook?a=1", str(secret_file)).send(b'{"ranks":[3]}') == ""
    ((path, headers, body),) = receiver.got
    assert (path, body) == ("/hook?a=1", b'{"ranks":[3]}')
    assert headers["Authorization"] == "Bearer 7f3a"
    assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("codes", [[503, 429, 204], [500, 201]])
def test_what_may_pass_is_tried_again(receiver, codes) -> None:
    attempts = len(codes)
    receiver.codes = codes
    assert Webhook(receiver.url).send(b"{}") == ""
    assert len(receiver.got) == attempts


def test_it_gives_up_after_some_attempts(receiver) -> None:
    receiver.codes = [503]
    told = Webhook(receiver.url).send(b"{}")
    assert told == f"{receiver.url} answers 503; given up after 3 attempts"
    assert len(receiver.got) == 3


def test_a_refusal_is_final_and_the_path_is_never_told(receiver) -> None:
    receiver.codes = [403]
    assert Webhook(f"{receiver.url}/T0/secret").send(b"{}") == f"{receiver.url} answers 403"
    assert len(receiver.got) == 1


def test_a_redirect_is_not_followed(receiver, secret_file) -> None:
    receiver.codes, receiver.location = [302], f"{receiver.url}/elsewhere"
    told = Webhook(f"{receiver.url}/hook", str(secret_file)).send(b"{}")
    assert told == f"{receiver.url} answers 302 (redirects are not followed)"
    assert [path for path, _, _ in receiver.got] == ["/hook"]


def test_a_server_that_says_nothing_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(webhook_module, "RETRY_S", (0.0,))
    monkeypatch.setattr(webhook_module, "TIMEOUT_S", 0.2)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:  # accepts, never answers
        told = Webhook(f"http://127.0.0.1:{silent.server_port}").send(b"{}")
    assert "timed out; given up after 2 attempts" in told


def test_after_the_end_nothing_is_sent(receiver) -> None:
    webhook = Webhook(receiver.url)
    webhook.abort()
    assert (webhook.send(b"{}"), receiver.got) == ("", [])


@pytest.mark.parametrize(
    "url",
    ["", "chat.example/hook", "file:///etc/passwd", "ftp://chat.example/", "http://", "http://a b/",
     "https://me:word@chat.example/", "http://chat.example:port/"],
)  # fmt: skip
def test_other_addresses_are_refused_and_not_quoted(url) -> None:
    with pytest.raises(UsageError) as caught:
        Webhook(url)
    assert url.partition("//")[2] not in str(caught.value) or not url.partition("//")[2]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_may_read_is_refused(secret_file, mode) -> None:
    secret_file.chmod(mode)
    with pytest.raises(UsageError, match="open to other users"):
        read_header(secret_file)


@pytest.mark.parametrize("text", ["", "7f3a", "A: b\nC: d", "A B: c", "A: b\r\nHost: x", "A: é"])
def test_what_is_no_header_is_refused(secret_file, text) -> None:
    secret_file.write_text(text)
    with pytest.raises(UsageError, match="is no header"):
        read_header(secret_file)


def test_a_secret_on_an_open_network_is_seen(secret_file) -> None:
    assert Webhook("http://chat.example/", str(secret_file)).shows_secret
    assert not Webhook("https://chat.example/", str(secret_file)).shows_secret
    assert not Webhook("http://localhost:1/", str(secret_file)).shows_secret
