"""The processes of a comparison: one of each contender, started when it is first asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcg.measure.canary import tolerance

from .sides import Lost, Side

SAMPLE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Contender:
    """What runs a case: a module of a side, and how (its own words); `settings` go with every case."""

    name: str
    module: str  # "tiny_side" or "torch_side"
    settings: dict[str, Any] = field(default_factory=dict)


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
        told = self.ask(contender, {"do": "canary"})
        first = self._canaries.setdefault(contender.module, told["s"])
        slow = told["s"] > tolerance(self.dev) * first and not self.dev.startswith("CPU")  # a CPU has other work
        if told["wrong"] or slow:
            raise Lost(f"canary: {told['wrong'] or 'slow'}, {told['s']:.3g} s, at first {first:.3g} s")
        return float(told["s"])
