"""Contenders timed in turns, so that a drift hits all alike, each in a process of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from kcg.measure.protocol import PROTOCOL, SLOWDOWN_WAITS_S, samples_for

from .clocks import STATES
from .figures import FAR, distance, figures, rounded
from .pool import Contender, Pool
from .sides import Lost


class Turns:
    """Times contenders by kcg's protocol; each sample asks for another one's process. At least `least` samples each."""

    def __init__(self, pool: Pool, *, least: int = 0) -> None:
        self.pool, self.least = pool, least

    def row(
        self, contenders: Sequence[Contender], case: dict[str, Any], reference: Sequence[float] | None = None,
        profiles: dict[str, str] | None = None, keep_values: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Time all contenders on one case: name -> what was found, or why not. The first whose output the others must
        have stands in where there is no `reference`; `keep_values` keeps it for a later row. What profilers say is put
        into `profiles`."""
        found: dict[str, Any] = {}
        ready: list[Contender] = []
        for contender in contenders:
            with self._noted(contender, found):
                order = {"do": "prepare", **case, **contender.settings}
                facts = self.pool.ask(contender, order, self.pool.prepare_s)
                values = facts.pop("values")
                reference = values if reference is None else reference
                error = distance(values, reference)
                if not error <= case.get("far", FAR[case["dtype"]]):
                    raise Lost(f"wrong: its output is {error:.2g} of its size from the reference")
                found[contender.name] = {**facts, "error": error, "canary_s": [self.pool.canary(contender)]}
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
                told = self.pool.ask(contender, {"do": "readings"})
                found[contender.name].update(clocks=told["clocks"], noisy=told["slowdown"])
                reasons.append(told["slowdown"])
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
                told = self.pool.ask(contender, {"do": "sample", "state": state})
            except Lost as error:
                del samples[contender.name]
                found[contender.name] = {"status": "failed", "reason": str(error)}
                return 0.0
            samples[contender.name][state].append(told["s"])
            return float(told["spent_s"])

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
