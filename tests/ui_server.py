"""`kcg.ui` in this process, for tests: a server of a folder, and folders with runs in them."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kcg.optimize.live import FILE_NAME, Live, LiveFile
from kcg.report.page import write_report
from kcg.report.phases import BASELINES
from kcg.report.result import write_result
from kcg.types import Result
from kcg.ui.runs import Folder
from kcg.ui.server import LOOPBACK, Server
from tests.sample_result import sample_result
from tests.waiting import PATIENCE_S


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server of `folder`, which answers inside."""
    with Server(Folder(folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: Server, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request, as it is written here; `_` in a header's name stands for `-`."""
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=PATIENCE_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host="Host" in named, skip_accept_encoding=True)
        for name, value in named.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def page(server: Server) -> str:
    """The page, as whoever has the token gets it."""
    status, _, body = ask(server, f"/?token={server.token}")
    assert status == 200
    return body.decode()


def write_run(folder: Path, *, name: str = "RESULT.json", faster: float = 1.0, **changes: object) -> Result:
    """A finished run in `folder`, whose chosen schedules are so many times as fast as the sample's."""
    result = replace(sample_result(), **changes)  # type: ignore[arg-type]
    if faster != 1.0:
        rows = tuple(replace(r, chosen=replace(r.chosen, cold_s=r.chosen.cold_s / faster)) for r in result.regions)
        result = replace(result, regions=rows)
    write_result(result, folder / name)
    return result


def write_reported_run(folder: Path) -> Result:
    """The same with its report."""
    result = write_run(folder)
    write_report(result, folder)
    return result


def live_file(folder: Path, **changes: object) -> LiveFile:
    """The state of a run that has timed tinygrad's own schedules: 0.5 s for all of them."""
    live = Live("flux", "mini", "CPU:X86", "mcts", "60 s", "2026-03-14T15:09:26+00:00")
    folder.mkdir(parents=True, exist_ok=True)
    file = LiveFile(folder / FILE_NAME, replace(live, **changes), clock=iter(range(10**6)).__next__)  # type: ignore[arg-type]
    file.begin(BASELINES, 3.0)
    file.show(7.0, 16, 0.5, budget_s=60.0, kernels=(16, 16))
    return file


def edited(path: Path, **fields: object) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
