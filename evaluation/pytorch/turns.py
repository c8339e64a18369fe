"""Contenders timed in turns, so that a drift hits all alike, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.pytorch.serving import STATES
from evaluation.rows import FAR, distance, figures, rounded
from kcg.errors import KcgError
from kcg.measure.canary import tolerance
from kcg.measure.isolated import clean_environment
from kcg.measure.protocol import PROTOCOL, SLOWDOWN_WAITS_S, samples_for

ROOT = Path(__file__).parent.parent.parent
SAMPLE_TIMEOUT_S = 120.0


class Lost(KcgError):
    """The process of a contender died, or did not answer in time and was killed."""


class Side:
    """One process: `python -m MODULE`. `ask` sends a command; an `error` in the answer is the caller's."""

    def __init__(self, module: str, job: dict[str, Any]) -> None:
        self.module, self._buffer = module, b""
        self._folder = tempfile.TemporaryDirectory(prefix="kcg-side-", ignore_cleanup_errors=True)
        environment = clean_environment(
            job["dev"],
            job.get("cachedb") or f"{self._folder.name}/cache.db",
            paths=[ROOT],
            TORCHINDUCTOR_CACHE_DIR=f"{self._folder.name}/inductor",
            TRITON_CACHE_DIR=f"{self._folder.name}/triton",
        )
        self._err = (Path(self._folder.name) / "err").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._err,
            start_new_session=True,
        )
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


@dataclass(frozen=True)
class Contender:
    """What runs a case: a module of a side, and how (its own words); `settings` go with every case."""

    name: str
    module: str  # that serves, as `IN_TINYGRAD` and `IN_TORCH` do
    settings: dict[str, Any] = field(default_factory=dict)


IN_TINYGRAD, IN_TORCH = "evaluation.pytorch.in_tinygrad", "evaluation.pytorch.in_pytorch"
KCG = "kcg"
TINYGRAD = (
    Contender("tinygrad", IN_TINYGRAD, {"how": "hand-coded"}),
    Contender("BEAM=2", IN_TINYGRAD, {"how": "beam", "beam": 2}),
    Contender(KCG, IN_TINYGRAD, {"how": KCG}),
)
"""Of these, `KCG` needs a result, which `comparing.compare` gives it."""


def in_torch(ways: Mapping[str, str]) -> list[Contender]:
    """PyTorch's contenders: their names, and how each runs."""
    return [Contender(name, IN_TORCH, {"how": how}) for name, how in ways.items()]


def by_hand(name: str, kernels: str, only: str) -> Contender:
    """A program that is one kernel, in whose place kcg puts one of a file of `kernels/`, on one kind of device."""
    return Contender(name, IN_TINYGRAD, {"how": KCG, "program": "one kernel", "kernels": kernels, "only": only})


class Pool:
    """The processes of a comparison on one device. Use as a context manager: leaving it kills all of them."""

    def __init__(self, dev: str, *, prepare_s: float = 300.0, work: Path | None = None) -> None:
        """`prepare_s` limits making a case ready; `work` keeps what BEAM found, for a call that goes on."""
        self.dev, self.prepare_s, self.work = dev, prepare_s, work
        self.sides: dict[str, Side] = {}
        self._canaries: dict[str, float] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.sides):
            self.end(name)

    def end(self, name: str) -> None:
        """End the process of a contender; the next case starts a fresh one."""
        if name in self.sides:
            self.sides.pop(name).close()

    def ask(self, contender: Contender, order: dict[str, Any], timeout_s: float = SAMPLE_TIMEOUT_S) -> dict[str, Any]:
        """The answer to one command. Raises Lost where it fails, dies, or takes too long."""
        name = contender.name
        if name not in self.sides or not self.sides[name].alive:
            keeps = self.work is not None and contender.settings.get("how") == "beam"
            kept = {"cachedb": str(self.work / "beam.db")} if keeps else {}
            self.sides[name] = Side(contender.module, {"dev": self.dev, **kept})
        answer = self.sides[name].ask({**order, "dev": self.dev}, timeout_s)
        if "error" in answer:
            raise Lost(answer["error"])
        return answer

    def canary(self, contender: Contender) -> float:
        """Seconds of the canary in its process. Raises Lost where it is wrong, or far slower than the first was."""
        answer = self.ask(contender, {"do": "canary"})
        first = self._canaries.setdefault(contender.module, answer["s"])
        slow = answer["s"] > tolerance(self.dev) * first and not self.dev.startswith("CPU")  # a CPU has other work
        if answer["wrong"] or slow:
            raise Lost(f"canary: {answer['wrong'] or 'slow'}, {answer['s']:.3g} s, at first {first:.3g} s")
        return float(answer["s"])


class Turns:
    """Times contenders by kcg's protocol; each sample asks for another one's process. At least `least` samples each."""

    def __init__(self, pool: Pool, *, least: int = 0) -> None:
        self.pool, self.least = pool, least

    def row(
        self,
        contenders: Sequence[Contender],
        case: dict[str, Any],
        reference: Sequence[float] | None = None,
        profiles: dict[str, str] | None = None,
        keep_values: bool = False,
    ) -> dict[str, Any]:
        """Time all contenders on one case: name -> what was found, or why not. The first whose output the others must
        have stands in where there is no `reference`: it has no `error` of its own, since nothing says how far it is
        from what is right. `keep_values` keeps its output for a later row; `profiles` takes what profilers say."""
        found: dict[str, Any] = {}
        ready: list[Contender] = []
        for contender in contenders:
            with self._noted(contender, found):
                order = {"do": "prepare", **case, **contender.settings}
                facts = self.pool.ask(contender, order, self.pool.prepare_s)
                values = facts.pop("values")
                error = distance(values, values if reference is None else reference)
                if not error <= case.get("far", FAR[case["dtype"]]):
                    raise Lost(f"wrong: its output is {error:.2g} of its size from the reference")
                if reference is None:
                    reference = values
                else:
                    facts["error"] = error
                found[contender.name] = {**facts, "canary_s": [self.pool.canary(contender)]}
                if keep_values:
                    found[contender.name]["values"] = [rounded(v) for v in values]
                ready.append(contender)
        samples = self._trusted(ready, found)
        for contender in (c for c in ready if c.name in samples):
            with self._noted(contender, found):
                found[contender.name]["canary_s"].append(self.pool.canary(contender))
                found[contender.name].update(figures(samples[contender.name]), status="ok", protocol=PROTOCOL)
                if profiles is not None and (text := self.pool.ask(contender, {"do": "profile"})["text"]):
                    profiles[contender.name] = text
        return found

    @contextlib.contextmanager
    def _noted(self, contender: Contender, found: dict[str, Any]) -> Iterator[None]:
        """What becomes of a contender that fails: its reason."""
        try:
            yield
        except Lost as error:
            found[contender.name] = {"status": "failed", "reason": str(error)}

    def _trusted(self, ready: Sequence[Contender], found: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
        """Samples in turns; all again where the device slowed down meanwhile, a bounded number of times."""
        for wait_s in (*SLOWDOWN_WAITS_S, None):
            samples = self._samples(ready, found)
            reasons = []
            for contender in [c for c in ready if c.name in samples]:
                answer = self.pool.ask(contender, {"do": "readings"})
                found[contender.name].update(clocks=answer["clocks"], noisy=answer["slowdown"])
                reasons.append(answer["slowdown"])
            if not any(reasons) or wait_s is None:
                break
            time.sleep(wait_s)
        return samples

    def _samples(self, ready: Sequence[Contender], found: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
        samples: dict[str, dict[str, list[float]]] = {c.name: {state: [] for state in STATES} for c in ready}

        def take(contender: Contender, state: str) -> float:
            """Take one sample; how long it took in all."""
            if contender.name not in samples:
                return 0.0
            try:
                answer = self.pool.ask(contender, {"do": "sample", "state": state})
            except Lost as error:
                del samples[contender.name]
                found[contender.name] = {"status": "failed", "reason": str(error)}
                return 0.0
            samples[contender.name][state].append(answer["s"])
            return float(answer["spent_s"])

        for contender in ready:
            self.pool.ask(contender, {"do": "begin"})
        spent_s = max((take(c, "cold") for c in ready), default=0.0)
        first_s = max((s["cold"].pop() for s in samples.values()), default=0.0)
        wanted = max(self.least, samples_for(first_s, flush_s=max(spent_s - first_s, 0.0)))
        for state in STATES:
            for turn in range(wanted):
                for place in range(len(ready)):  # every round another one begins
                    take(ready[(turn + place) % len(ready)], state)
        return samples
