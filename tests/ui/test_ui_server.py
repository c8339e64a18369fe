"""Who may ask `kcg.ui` for what: only with its token, only by the machine's own name, only for what kcg wrote."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcg.errors import ExitCode
from kcg.ui.__main__ import main
from kcg.ui.server import Server
from tests.commands import ended
from tests.ui_server import ask, page, serving, write_reported_run, write_run
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_reported_run(root / "out" / "flux")
    (root / "out" / "secret.txt").write_text("a secret")
    (root / "secret.txt").write_text("a secret")
    (root / "out" / "report.html").write_text("a report of no run")
    return root / "out"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder) as found:
        yield found


@pytest.fixture(scope="module")
def cookie(server: Server) -> str:
    return f"{server.cookie}={server.token}"


@pytest.fixture(scope="module")
def report(server: Server) -> str:
    return re.findall(r'href="(/report/[^"]*)"', page(server))[0]


def test_only_this_machine_is_listened_to(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=wrong", "/ui.js", "/ui.css", "/nothing", "/report/0"])
def test_without_the_token_there_is_nothing(path: str, server: Server) -> None:
    for headers in ({}, {"Cookie": f"{server.cookie}=wrong"}, {"Cookie": "=;=\x01"}):
        status, answered, body = ask(server, path, **headers)
        assert status == 403 and "set-cookie" not in answered and b"flux" not in body and len(body) < 100


def test_the_token_of_the_address_becomes_a_cookie_of_this_site_alone(server: Server) -> None:
    status, headers, _ = ask(server, f"/?token={server.token}")
    name, *rules = headers["set-cookie"].split("; ")
    assert status == 200 and {"HttpOnly", "SameSite=Strict"} <= set(rules) and "Domain" not in headers["set-cookie"]
    assert ask(server, "/", Cookie=name)[0] == 200
    assert len(server.token) >= 43, "256 random bits"
    assert headers["referrer-policy"] == "no-referrer", "the address is told to nobody"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "", "[::1]:1"])
def test_another_name_of_this_machine_is_refused_even_with_the_token(host: str, server: Server, cookie: str) -> None:
    assert ask(server, "/", Host=host, Cookie=cookie)[0] == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9999"])
def test_a_forwarded_port_is_fine(host: str, server: Server, cookie: str) -> None:
    assert ask(server, "/", Host=host, Cookie=cookie)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt", "/%2e%2e/secret.txt", "/secret.txt", "//etc/passwd", "/etc/passwd", "/flux/RESULT.json",
        "/report/../../secret.txt", "/report/%2e%2e%2fsecret.txt", "/report/0123456789abcdef", "/report/",
        "/report.html", "/report/flux/report.html", "/ui.js/../ui.css", "/flux/report.html",
    ],
)  # fmt: skip
def test_no_path_of_a_request_is_a_path_of_a_file(path: str, server: Server, cookie: str) -> None:
    status, _, body = ask(server, path, Cookie=cookie)
    assert status == 404 and b"secret" not in body and b"root:" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_written(method: str, server: Server, cookie: str) -> None:
    assert ask(server, "/", method=method, Cookie=cookie)[0] == 501


def test_a_report_is_whole_and_in_a_sandbox(report: str, server: Server, cookie: str, folder: Path) -> None:
    status, headers, body = ask(server, report, Cookie=cookie)
    assert (status, body) == (200, (folder / "flux" / "report.html").read_bytes())
    policy = headers["content-security-policy"].split("; ")
    assert policy[0] == "sandbox allow-scripts" and "default-src 'none'" in policy
    assert "allow-same-origin" not in headers["content-security-policy"]


def test_a_report_of_what_is_no_run_is_not_there(server: Server) -> None:
    assert len(re.findall(r'href="/report/', page(server))) == 1


def test_the_page_runs_no_script_but_its_own(server: Server, cookie: str) -> None:
    _, headers, _ = ask(server, "/", Cookie=cookie)
    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert "unsafe" not in headers["content-security-policy"] and headers["x-content-type-options"] == "nosniff"


def test_a_page_that_did_not_change_is_not_sent_again(server: Server, cookie: str) -> None:
    _, headers, _ = ask(server, "/", Cookie=cookie)
    assert ask(server, "/", Cookie=cookie, If_None_Match=headers["etag"])[::2] == (304, b"")
    assert ask(server, "/", method="HEAD", Cookie=cookie)[::2] == (200, b"")


def ids(server: Server) -> list[str]:
    return re.findall(r'name="run" id="pick-([0-9a-f]{16})"', page(server))


def test_two_runs_are_compared_in_a_sandbox_the_older_one_first(tmp_path: Path) -> None:
    write_run(tmp_path / "new", created="2026-04-01T00:00:00+00:00", faster=1.25)
    write_run(tmp_path / "old", created="2026-03-01T00:00:00+00:00")
    with serving(tmp_path) as server:
        cookie = f"{server.cookie}={server.token}"
        one, other = ids(server)
        for pair in ((one, other), (other, one)):
            status, headers, body = ask(server, f"/compare?run={pair[0]}&run={pair[1]}", Cookie=cookie)
            text = body.decode()
            assert status == 200 and headers["content-security-policy"].startswith("sandbox allow-scripts;")
            assert text.index("old/RESULT.json") < text.index("new/RESULT.json")
            assert "drift: the same binaries" in text


@pytest.mark.parametrize("asked", ["", "?run=", "?run=0123456789abcdef&run=fedcba9876543210", "?" + "run=a&" * 100])
def test_what_cannot_be_compared_is_said_on_a_page(asked: str, tmp_path: Path) -> None:
    result = write_run(tmp_path / "a")
    write_run(tmp_path / "b", regions=result.regions[:1], expectations=(), recomputes=())
    write_run(tmp_path / "c", regions=result.regions[1:], expectations=(), recomputes=())
    with serving(tmp_path) as server:
        cookie = f"{server.cookie}={server.token}"
        status, _, body = ask(server, f"/compare{asked}", Cookie=cookie)
        assert status == 404 and b"select two" in body and b'href="/"' in body
        found = {run.place: run.id for run in server.folder.look().runs}
        status, _, body = ask(server, f"/compare?run={found['b']}&run={found['c']}", Cookie=cookie)
        assert status == 404 and b"b/RESULT.json and c/RESULT.json have no kernel in common" in body


@pytest.mark.parametrize("path", ["/run/0123456789abcdef", "/run/", "/run/../../secret.txt", "/run/flux", "/kernels/x"])
def test_a_run_is_asked_for_by_its_id_alone(path: str, server: Server, cookie: str) -> None:
    status, _, body = ask(server, path, Cookie=cookie)
    assert status == 404 and b"secret" not in body


def test_runs_and_kernels_have_pages_of_their_own(server: Server, cookie: str) -> None:
    (one,) = ids(server)
    for path, says in ((f"/run/{one}", b"There is no journal"), ("/kernels", b"Every kernel over all runs")):
        status, headers, body = ask(server, path, Cookie=cookie)
        assert status == 200 and says in body
        assert "unsafe" not in headers["content-security-policy"]
        assert ask(server, path, Cookie=cookie, If_None_Match=headers["etag"])[0] == 304


def test_a_page_that_cannot_be_made_is_one_line_and_the_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> str:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr("kcg.ui.page.render_kernels", fails)
    with serving(tmp_path) as server:
        cookie = f"{server.cookie}={server.token}"
        status, _, body = ask(server, "/kernels", Cookie=cookie)
        assert (status, body) == (500, b"this page cannot be shown (RuntimeError)\n")
        assert ask(server, "/", Cookie=cookie)[0] == 200


def test_foreign_names_are_text(tmp_path: Path) -> None:
    place = tmp_path / "<img src=x onerror=alert(1)>\udcff"
    write_run(place, workload="<script>alert(2)</script>", preset="\"'&")
    with serving(tmp_path) as server:
        text = page(server)
    assert "<img" not in text and "<script>alert" not in text and "&lt;script&gt;alert(2)" in text


def test_what_cannot_be_shown_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, says in ((tmp_path / "gone", "is not there"), (tmp_path / "file", "is no folder")):
        done = ended(main, folder, "--no-browser")
        assert done.returncode == ExitCode.USAGE and says in done.stderr and done.stderr.count("\n") == 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = ended(main, tmp_path, "--port", str(port), "--no-browser")
        assert done.returncode == ExitCode.USAGE and done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"kcg: cannot listen on port {port}: Address already in use: choose another")
    assert ended(main, tmp_path, "--port", "70000").returncode == ExitCode.USAGE


def test_an_empty_folder_is_one_line_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kcg.ui", str(tmp_path), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert "no run in" in process.stderr.readline()
        assert re.search(r"http://127\.0\.0\.1:\d+/\?token=\S{43}$", process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == ExitCode.INTERRUPTED
        assert process.stderr.read() == "kcg: interrupted\n"
