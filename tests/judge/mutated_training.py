"""A training loop in which one kernel after the other is made wrong, and what its steps then come to.

`python -m tests.judge.mutated_training OPTIMISER [EVERY]` prints a line of JSON for each kernel and change of what it
stores (every so manieth of them), the first for kernels that are right and unoptimised: the change, and what was found.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kcg.compat.capture import choosing_opts
from kcg.compat.lockstep import Lockstep, Step
from kcg.compat.observing import Observer
from kcg.handover.installing import kernel_id
from kcg.judge.lockstep import Steps
from kcg.judge.whole import Rounding
from kcg.kernel.sums import summed_otherwise
from kcg.types import ModelCheck

EPS = 2.0**-23
ROUNDING = Rounding(sums=16 * EPS, stored=EPS, floats=True)
CHANGES = {"negated": (-1.0, 0.0), "a hundredth off": (1.01, 0.0), "zero": (0.0, 0.0), "one more": (1.0, 1.0)}
"""By what each stored value is multiplied, and what is added to it."""
STEPS = 5


class Loop:
    """Runs a small network's training in this process, with one kernel changed."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}  # ids of the kernels that store floats, and their names
        self.constant = set[str]()  # those that read nothing
        self.mutant, self.change, self._unoptimised = "", (1.0, 0.0), False
        self._ids: dict[bytes, str] = {}
        self._off = threading.local()
        self._steps = Steps(ROUNDING, seed=0)
        self._made: dict[Any, Any] = {}
        self._observer = Observer(self._id, self._prepare, seed=0)
        self._lockstep = Lockstep(self._own, _Everything(), self._judge, otherwise=summed_otherwise, most_bytes=1 << 28)
        self._stays = self._observer.watch()
        self._stays.enter_context(self._lockstep.watch())

    def check(
        self,
        mutant: str,
        change: tuple[float, float],
        *,
        optimiser: str,
        unoptimised: bool = False,
        left: list[Any] | None = None,
    ) -> ModelCheck:
        """What the steps of the loop come to where what the `mutant` stores is changed. What it leaves is put into
        `left`."""
        self.mutant, self.change, self._unoptimised = mutant, change, unoptimised
        self._steps = Steps(ROUNDING, seed=0)
        self._lockstep._realised.clear()
        found = train(optimiser)
        if left is not None:
            left.extend(found)
        return self._steps.check([mutant] if mutant else [*self.seen], why_not=self._lockstep.why_not)

    def _judge(self, step: Step) -> None:
        self._steps.judge(step)

    @contextmanager
    def _own(self) -> Iterator[None]:
        self._off.now = True
        try:
            yield
        finally:
            self._off.now = False

    def _id(self, ast: Any) -> str:
        from kcg.compat.tiny import Ops, dtypes

        if ast.key not in self._ids:
            self._ids[ast.key] = name = kernel_id(ast) or ""
            stored = [node for node in ast.toposort() if node.op is Ops.STORE]
            if name and all(dtypes.is_float(node.src[1].dtype) for node in stored):
                self.seen[name] = f"{name[:8]} {'+'.join(node.op.name for node in stored[0].toposort())}"
                if not any(node.op is Ops.PARAM for node in stored[0].src[1].toposort()):
                    self.constant.add(name)  # zeros stay zeros
        return self._ids[ast.key]

    def _prepare(self) -> None:
        from kcg.compat.lowering import lowering_together

        self._stays.enter_context(lowering_together())
        self._stays.enter_context(choosing_opts(self._opts, self._program))
        self._lockstep.watch_planning()

    def _opts(self, ast: Any) -> tuple[Any, ...] | None:
        is_own = getattr(self._off, "now", False)
        return () if self._unoptimised and not is_own and self._id(ast) else None

    def _program(self, call: Any) -> Any:
        from kcg.compat.tiny import Device, Ops, to_program

        ast = call.src[0]
        if getattr(self._off, "now", False) or not self.mutant or self._id(ast) != self.mutant:
            return None
        if (ast, self.change) not in self._made:
            factor, added = self.change
            wrong = {
                node: node.replace(src=(node.src[0], node.src[1] * factor + added, *node.src[2:]))
                for node in ast.toposort()
                if node.op is Ops.STORE
            }
            self._made[ast, self.change] = to_program(ast.substitute(wrong), Device[call.device].renderer)
        return self._made[ast, self.change]


class _Everything(frozenset[str]):
    """All kernels may be changed."""

    def intersection(self, *others: Any) -> frozenset[str]:
        return frozenset(name for one in others for name in one if name)

    def __and__(self, other: Any) -> Any:
        return frozenset(other)


def train(optimiser: str) -> list[Any]:
    """A convolution with a bias before a batch norm, whose gradient is noise, dropout, a maximum, and two layers. Gives
    its losses, and its weights and the optimiser's state after it."""
    from tinygrad import Context, Tensor, TinyJit, nn

    class Net:
        def __init__(self) -> None:
            self.wide, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm(4)
            self.hidden, self.out = nn.Linear(4 * 3 * 3, 16), nn.Linear(16, 4)

        def __call__(self, x: Any) -> Any:
            x = self.norm(self.wide(x)).relu().max_pool2d()
            return self.out(self.hidden(x.flatten(1)).tanh().dropout(0.25))

    Tensor.manual_seed(0)
    rng = np.random.default_rng(0)
    x = Tensor(rng.random((64, 1, 8, 8), dtype=np.float32)).realize()
    y = Tensor(rng.random((64, 4), dtype=np.float32)).realize()  # no classes: the scale of their logits is free
    net = Net()
    make: Callable[..., Any] = {"adam": nn.optim.Adam, "sgd": nn.optim.SGD}[optimiser]
    optim = make(nn.state.get_parameters(net), lr=0.01)

    @TinyJit
    @Context(TRAINING=1)
    def step() -> Any:
        drawn = Tensor.randint(16, high=64)
        optim.zero_grad()
        loss = (net(x[drawn]) - y[drawn]).square().mean().backward()
        return loss.realize(*optim.schedule_step())

    losses = [step().numpy() for _ in range(STEPS)]
    return losses + [one.numpy() for one in (*nn.state.get_parameters(net), *nn.state.get_parameters(optim))]


def main() -> None:
    """See above."""
    optimiser, every = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    loop = Loop()
    right = loop.check("", (1.0, 0.0), optimiser=optimiser, unoptimised=True)
    print(json.dumps(["", "right", right.passed, right.reason, right.compared]), flush=True)
    names = [name for name in loop.seen for _ in CHANGES]
    pairs = zip(names, itertools.cycle(CHANGES))
    wanted = [(name, change) for name, change in pairs if name not in loop.constant or change == "one more"][::every]
    for name, change in wanted:
        found = loop.check(name, CHANGES[change], optimiser=optimiser)
        print(json.dumps([loop.seen[name], change, found.passed, found.reason, found.compared]), flush=True)


if __name__ == "__main__":
    main()
