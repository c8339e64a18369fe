"""A small Hugging Face Hub on this machine: what pushing and pulling a folder asks for, and ways to answer wrongly.

It serves, as the Hub does: `/api/repos/create`, `/api/datasets/…` (info, with `/revision/…` and `?blobs=True`),
`/api/validate-yaml`, `/api/datasets/…/branch/…`, `…/preupload/…` and `…/commit/…`, the Git LFS batch, upload and verify
addresses, `/datasets/…/resolve/…` with its headers, and the storage on another host that LFS files redirect to; the
same for models, at `/api/models/…` and `/OWNER/NAME/resolve/…`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_ofTheOwner"
READ_TOKEN = "hf_mayOnlyRead"


@dataclass
class Repo:
    """A dataset or a model: every commit holds all of its files by path."""

    kind: str = "dataset"
    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)  # the latest commit of each
    messages: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        return self.branches.get("main", "")

    def commit(self, files: dict[str, bytes], message: str, branch: str = "main") -> str:
        """Adds files to those of the branch; returns the id of the new commit."""
        head = self.branches.get(branch, "")
        tree = {**self.commits.get(head, {}), **files}
        seed = json.dumps([head, message, {k: hashlib.sha256(v).hexdigest() for k, v in sorted(tree.items())}])
        made = self.branches[branch] = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[made] = tree
        self.messages.append(message)
        return made


@dataclass
class Hub:
    """What the server has and what it was asked. A test may set any of it."""

    endpoint: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)  # what was uploaded, by SHA-256
    requests: list[str] = field(default_factory=list)  # method and path
    answers: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)  # by a part of method and path
    hang: str = ""  # a part of method and path that is never answered
    cut: str = ""  # the same, but half of the body comes first
    drip: str = ""  # the same, but the body comes a byte at a time
    flip: str = ""  # a path in the repository of which one bit is wrong
    ignored: str = ""  # a path that the repository's .gitignore holds
    released: threading.Event = field(default_factory=threading.Event)

    def repo(self, name: str = "owner/name", files: dict[str, bytes] | None = None, kind: str = "dataset") -> Repo:
        """A new dataset or model with one commit."""
        made = self.repos[name] = Repo(kind)
        made.commit({".gitattributes": b"*.parquet filter=lfs\n", **(files or {})}, "initial commit")
        return made

    def asked(self, part: str) -> list[str]:
        return [request for request in self.requests if part in request]


def is_lfs(path: str) -> bool:
    return path.endswith((".parquet", ".safetensors", ".pkl", ".bin"))


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serve() -> Iterator[Hub]:
    """A Hub that lives as long as the block."""
    hub = Hub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body after its headers would wait 40 ms
    state: Hub

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_GET(self) -> None:
        self._answered()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answered(self) -> None:
        hub, url = self.state, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, asked = unquote(url.path), f"{self.command} {unquote(self.path)}"
        hub.requests.append(asked)
        if hub.hang and hub.hang in asked:
            hub.released.wait()  # which comes when the test ends
            self.close_connection = True
            return
        for part, (status, headers) in hub.answers.items():
            if part in asked:
                self._send(status, b'{"error": "told to"}', headers)
                return
        routes = {
            r"POST /api/repos/create": self._create,
            r"POST /api/validate-yaml": self._validate,
            r"GET /api/(dataset|model)s/([^/]+/[^/]+)(?:/revision/(.+))?": self._info,
            r"POST /api/(dataset|model)s/([^/]+/[^/]+)/branch/([^/]+)": self._branch,
            r"POST /api/(dataset|model)s/([^/]+/[^/]+)/preupload/([^/]+)": self._preupload,
            r"POST /api/(dataset|model)s/([^/]+/[^/]+)/commit/([^/]+)": self._commit,
            r"POST /(datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch": self._batch,
            r"PUT /upload/(\w+)": self._upload,
            r"POST /verify": self._verify,
            r"(?:GET|HEAD) /(datasets/)?([^/]+/[^/]+)/resolve/(\w+)/(.+)": self._resolve,
            r"(?:GET|HEAD) /storage/(\w+)/(.+)": self._storage,
        }
        for pattern, route in routes.items():
            if match := re.fullmatch(pattern, f"{self.command} {path}"):
                route(body, *match.groups())  # type: ignore[operator]
                return
        self._send(404, b"{}")

    # -- rights

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _may(self, kind: str | None, name: str, *, write: bool = False) -> Repo | None:
        """The repository if the token may do that with it; the refusal has been sent otherwise."""
        token, repo = self._token(), self.state.repos.get(name)
        if repo is not None and repo.kind != ("dataset" if kind in ("dataset", "datasets/") else "model"):
            repo = None
        if token not in (TOKEN, READ_TOKEN, ""):
            self._send(401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repo is None or (repo.private and not token):
            self._send(404 if token else 401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif write and token != TOKEN:
            self._send(403, b"{}", {"X-Error-Message": "you must use a write token"})
        else:
            return repo
        return None

    # -- the addresses

    def _create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        kind = asked.get("type", "model")
        assert kind in ("dataset", "model")
        if self._token() != TOKEN:
            self._send(403, b"{}", {"X-Error-Message": f"no rights to create a {kind}"})
            return
        if name in self.state.repos:
            self._send(409, b"{}")
            return
        self.state.repo(name, kind=kind).private = asked.get("visibility") == "private"
        self._json({"url": f"{self.state.endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"})

    def _validate(self, body: bytes) -> None:
        content = json.loads(body)["content"]
        if "bad: [" in content:
            self._send(400, json.dumps({"errors": [{"message": "unclosed list"}]}).encode())
            return
        self._json({"errors": [], "warnings": [] if "---" in content else [{"message": "empty metadata"}]})

    def _info(self, _: bytes, kind: str, name: str, revision: str | None) -> None:
        if (repo := self._may(kind, name)) is None:
            return
        commit = repo.branches.get(revision or "main", revision)
        if commit not in repo.commits:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        blobs = "blobs" in parse_qs(urlsplit(self.path).query)
        siblings = [
            {"rfilename": path} | ({"size": len(content), "blobId": git_oid(content)} if blobs else {})
            for path, content in repo.commits[commit].items()
        ]
        self._json({"id": name, "sha": commit, "private": repo.private, "siblings": siblings, "tags": []})

    def _branch(self, _: bytes, kind: str, name: str, branch: str) -> None:
        if (repo := self._may(kind, name, write=True)) is None:
            return
        if branch in repo.branches:
            self._send(409, b"{}")
            return
        repo.branches[branch] = repo.head
        self._send(201, b"{}")

    def _preupload(self, body: bytes, kind: str, name: str, branch: str) -> None:
        if (repo := self._may(kind, name, write=True)) is None:
            return
        tree = repo.commits[repo.branches[branch]]

        def oid(path: str) -> str | None:
            if path not in tree:
                return None
            return hashlib.sha256(tree[path]).hexdigest() if is_lfs(path) else git_oid(tree[path])

        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if is_lfs(file["path"]) else "regular",
                "shouldIgnore": file["path"] == self.state.ignored,
                "oid": oid(file["path"]),
            }
            for file in json.loads(body)["files"]
        ]
        self._json({"files": files})

    def _batch(self, body: bytes, kind: str | None, name: str) -> None:
        if self._may(kind, name, write=True) is None:
            return
        objects: list[dict[str, Any]] = []
        for wanted in json.loads(body)["objects"]:
            actions = {
                "upload": {"href": f"{self.state.endpoint}/upload/{wanted['oid']}", "header": {}},
                "verify": {"href": f"{self.state.endpoint}/verify", "header": {}},
            }
            objects.append(wanted | ({} if wanted["oid"] in self.state.blobs else {"actions": actions}))
        self._json({"transfer": "basic", "objects": objects})

    def _upload(self, body: bytes, oid: str) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.state.blobs[oid] = body
        self._send(200, b"")

    def _verify(self, body: bytes) -> None:
        self._send(200 if json.loads(body)["oid"] in self.state.blobs else 404, b"{}")

    def _commit(self, body: bytes, kind: str, name: str, branch: str) -> None:
        if (repo := self._may(kind, name, write=True)) is None:
            return
        header, *lines = [json.loads(line) for line in body.splitlines()]
        if header["value"]["parentCommit"] != repo.branches[branch]:
            self._send(412, b'{"error": "A commit has happened since"}')
            return
        files: dict[str, bytes] = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "lfsFile":
                files[value["path"]] = self.state.blobs[value["oid"]]
            else:
                assert line["key"] == "file"
                files[value["path"]] = base64.b64decode(value["content"])
        commit = repo.commit(files, header["value"]["summary"], branch)
        url = f"{self.state.endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": url})

    def _resolve(self, _: bytes, kind: str | None, name: str, revision: str, path: str) -> None:
        if (repo := self._may(kind, name)) is None:
            return
        content = repo.commits[revision].get(path)
        if content is None:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": revision})
            return
        headers = {"X-Repo-Commit": revision, "ETag": f'"{git_oid(content)}"'}
        if not is_lfs(path):
            self._send(200, self._spoiled(path, content), headers)
            return
        digest = hashlib.sha256(content).hexdigest()
        self.state.blobs[digest] = content
        headers |= {
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(content)),
            "X-Xet-Hash": digest,  # the Hub offers its other transport for every such file
            "X-Xet-Refresh-Route": f"/api/{repo.kind}s/{name}/xet-read-token/{revision}",
            "Location": f"http://localhost:{urlsplit(self.state.endpoint).port}/storage/{digest}/{path}",
        }
        self._send(302, b"", headers)

    def _storage(self, _: bytes, digest: str, path: str) -> None:
        assert "Authorization" not in self.headers, "the token left the Hub"
        self._send(200, self._spoiled(path, self.state.blobs[digest]), {"ETag": f'"{digest}"'})

    # -- sending

    def _spoiled(self, path: str, content: bytes) -> bytes:
        if path != self.state.flip:
            return content
        return content[:-20] + bytes([content[-20] ^ 1]) + content[-19:]

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        hub, asked = self.state, f"{self.command} {unquote(self.path)}"
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if hub.cut and hub.cut in asked:
            self.wfile.write(body[: len(body) // 2])
            hub.released.wait()  # which comes when the test ends
            self.close_connection = True
        elif hub.drip and hub.drip in asked:
            for byte in body:
                if hub.released.wait(0.05):
                    break
                try:
                    self.wfile.write(bytes([byte]))
                except OSError:
                    break
            self.close_connection = True
        else:
            self.wfile.write(body)
