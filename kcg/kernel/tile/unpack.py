"""Prototype."""

from __future__ import annotations
from types import SimpleNamespace
from kcg.compat.tiny import Ops, UOp
from kcg.kernel.reading.packed import Unpacked
from kcg.kernel.tile.emit import Frame
from kcg.kernel.tile import packed


class Words(packed._Sum):
    def __init__(self, unpacked: Unpacked, frame: Frame) -> None:
        super().__init__(SimpleNamespace(loads=()), unpacked, frame)
        self.loaded = False

    def bind(self, node: UOp) -> None:
        mine = [n for n in node.toposort() if n in self.unpacked.bits]
        writer = self.frame.writer
        for n, load in self.unpacked.loads.items():
            writer.accesses.setdefault(n, load)
        if not mine:
            return
        self._need(mine)
        self._exact(node)

    def _need(self, nodes) -> None:
        """Load the words of some loads."""
        wanted = {bit[0] for n in nodes for bit in self.unpacked.bits[n] if not isinstance(bit, int)}
        if not self.loaded:
            self._load_words()
            self.loaded = True

    def _exact(self, node) -> None:
        waiting, seen = [node], set()
        while waiting:
            one = waiting.pop()
            if one in seen or one.op is Ops.INDEX or one in self.frame.bound:
                continue
            seen.add(one)
            linear = self._linear(one) if one.op in (Ops.CAST, Ops.WHERE) else None
            if linear is not None:
                block = self._exactly(linear)
                self.frame.bound[one] = self.frame.values[one] = block
                continue
            linear = self.unpacked.linear(one) if one.op is not Ops.CONST else None
            if linear is not None and linear.terms:
                self.frame.bound[one] = self.frame.values[one] = self._integer(linear, one)
                continue
            waiting.extend(one.src)

    def _neighbours(self, pointer, axes, mask, numbers, most, slot, hint):
        return super()._neighbours(pointer, axes, mask, numbers, 1, slot, hint)
