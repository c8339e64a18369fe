"""The page of all runs over HTTP, for one user of this machine.

It listens on the loopback interface only. Whoever asks needs the token of this process, from the address that was
printed or from the cookie that this sets, and has to call the server by a name of the loopback interface, so that no
other site's name can lead here. There is no way to write, and no path of a request becomes a path of a file: a report
is asked for by an id out of what was found. A report runs in a sandbox: it may come from anywhere, and cannot ask the
server for anything.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import socketserver
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from kcg.errors import KcgError, ResultError, UsageError
from kcg.ui import page
from kcg.ui.runs import Folder

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
NAMES: Final = ("127.0.0.1", "localhost")  # any port: one may be forwarded
REQUEST_TIMEOUT_S: Final = 20.0
MOST_FIELDS: Final = 50  # of an address

OWN_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
REPORT_POLICY: Final = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HTML, CSS, SCRIPT, TEXT = (f"text/{kind}; charset=utf-8" for kind in ("html", "css", "javascript", "plain"))


class Answer(NamedTuple):
    """What is sent."""

    status: int
    body: bytes
    kind: str = TEXT
    policy: str = OWN_POLICY


def _html(text: str, *, status: int = 200) -> Answer:
    return Answer(status, text.encode("utf-8", "replace"), HTML)


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A server of one folder. Use it as a context manager, and `serve_forever` inside."""

    daemon_threads = True
    allow_reuse_address = True  # of a server that has just ended

    def __init__(self, folder: Folder, *, port: int = 0) -> None:
        """On a free port where none is given. Raises UsageError where the port is not to be had."""
        self.folder, self.token = folder, secrets.token_urlsafe(32)
        try:
            super().__init__((LOOPBACK, port), Handler)
        except OSError as error:
            raise UsageError(
                f"cannot listen on port {port}: {error.strerror}: choose another --port, or leave it out"
            ) from None
        self.port: int = self.server_address[1]

    @property
    def url(self) -> str:
        """The address with the token."""
        return f"http://{LOOPBACK}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """Its name: cookies do not tell ports apart."""
        return f"kcg-{self.port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away in the middle is no news."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    server_version, sys_version = "kcg", ""
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        try:
            answer = self._answer()
        except Exception as error:  # no file that anybody may have put there leaves a browser without an answer
            log.warning("%s cannot be shown", urlsplit(self.path).path, exc_info=error)
            answer = Answer(500, f"this page cannot be shown ({type(error).__name__})\n".encode())
        self._send(answer)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not listed: the first has the token."""

    def _answer(self) -> Answer:
        host = self.headers.get("Host", "")
        if re.sub(r":\d+$", "", host) not in NAMES:
            return Answer(403, b"kcg ui is asked for by the address that it printed\n")
        if not self._has_token():
            return Answer(403, b"kcg ui needs the whole address that it printed, with its token\n")
        path, query = urlsplit(self.path).path, self._query()
        folder = self.server.folder
        if path == "/":
            return _html(page.render(folder.look(), folder.root))
        if path == "/kernels":
            return _html(page.render_kernels(folder.look(), folder.root, query))
        if asked := re.fullmatch(r"/run/([0-9a-f]{16})", path):
            if (opened := folder.open(asked[1])) is None:
                return self._refusal("There is no such run any more: go back to all runs.")
            return _html(page.render_run(opened, folder.root, query))
        if path == "/compare":
            return self._compared(query.get("run", []))
        if path == "/ui.css":
            return Answer(200, page.style().encode(), CSS)
        if path == "/ui.js":
            return Answer(200, page.script().encode(), SCRIPT)
        if asked := re.fullmatch(r"/report/([0-9a-f]{16})", path):
            try:
                report = self.server.folder.report(asked[1])
            except ResultError as error:
                return Answer(404, f"{error}\n".encode("utf-8", "replace"))
            if report is not None:
                return Answer(200, report, HTML, REPORT_POLICY)
        return Answer(404, b"there is no such page\n")

    def _compared(self, ids: list[str]) -> Answer:
        """Two runs side by side, the older one as A, on a page in a sandbox as a report is: both may be foreign."""
        if len(set(ids)) != 2:
            return self._refusal("Two runs are compared: select two in the list of all runs.")
        try:
            text = self.server.folder.compared(*sorted(set(ids)))
        except KcgError as error:
            return self._refusal(str(error))
        return Answer(200, text.encode("utf-8", "replace"), HTML, REPORT_POLICY)

    def _refusal(self, words: str) -> Answer:
        return _html(page.render_refusal(words, self.server.folder.root), status=404)

    def _query(self) -> dict[str, list[str]]:
        try:
            return parse_qs(urlsplit(self.path).query, max_num_fields=MOST_FIELDS)
        except ValueError:  # there are more
            return {}

    def _has_token(self) -> bool:
        given = [*self._query().get("token", [])]
        try:
            if (morsel := SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)) is not None:
                given.append(morsel.value)
        except CookieError:
            pass
        return any(hmac.compare_digest(one.encode("utf-8", "replace"), self.server.token.encode()) for one in given)

    def _send(self, answer: Answer) -> None:
        tag = f'"{hashlib.sha256(answer.body).hexdigest()[:32]}"'
        if answer.status == 200 and self.headers.get("If-None-Match") == tag:
            answer = Answer(304, b"")
        self.send_response(answer.status)
        for name, value in {
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.body)),
            "Content-Security-Policy": answer.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
            "ETag": tag,
        }.items():
            self.send_header(name, value)
        if answer.status == 200:
            self.send_header(
                "Set-Cookie", f"{self.server.cookie}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
            )
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
