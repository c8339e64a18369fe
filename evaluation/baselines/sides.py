"""A process that runs one contender, as its parent sees it: started once, asked many times, killed at the end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kcg.errors import KcgError
from kcg.measure.alone import clean_environment

ROOT = Path(__file__).parent.parent.parent


class Lost(KcgError):
    """The process of a contender died, or did not answer in time and was killed."""


class Side:
    """One process: `python -m baselines.<module>`. `ask` sends a command; an `error` in the answer is the caller's."""

    def __init__(self, module: str, job: dict[str, Any]) -> None:
        self.module, self._buffer = module, b""
        self._folder = tempfile.TemporaryDirectory(prefix="kcg-side-", ignore_cleanup_errors=True)
        environment = clean_environment(
            job["dev"], job.get("cachedb") or f"{self._folder.name}/cache.db", paths=[ROOT, ROOT / "evaluation"],
            TORCHINDUCTOR_CACHE_DIR=f"{self._folder.name}/inductor", TRITON_CACHE_DIR=f"{self._folder.name}/triton",
        )  # fmt: skip
        self._err = (Path(self._folder.name) / "err").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"baselines.{module}"], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._err, start_new_session=True,
        )  # fmt: skip
        self._send(job)

    def ask(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer to one command. Raises Lost."""
        self._send(order)
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(timeout_s):
                    self.close()
                    raise Lost(f"it did not answer in {timeout_s:.0f} s: {order['do']}")
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    words = self._last_words()
                    self.close()
                    raise Lost(f"its process ended: {words}")
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _send(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it ended is seen when its answer is read
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def _last_words(self) -> str:
        self._err.seek(0)
        return (self._err.read().strip().splitlines() or ["no message"])[-1][:300]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Kill it with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._err):
            with contextlib.suppress(OSError, AttributeError):
                stream.close()  # type: ignore[union-attr]
        self._folder.cleanup()
