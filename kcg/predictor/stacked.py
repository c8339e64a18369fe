"""Networks of one shape as one, for predicting: the same answers as from each alone, in a fraction of the time.

A graph has about 20 nodes and 80 edges, so that a network spends nearly all of its time on starting operations. Here
one operation does the work of all networks, whose weights are stacked. And no edge is looked up: every axis of a graph
has an edge to every load, store and group of it, so that messages are blocks of axes by others, padded where graphs
differ in size. Messages are never below 0, so that what is padded and shut by its gate changes neither their sum nor
their maximum. Answers differ from those of the trained network (`kcg.training.network`) by rounding alone.

Graphs stand last but one in every block: what is summed over axes or others is then one long row after another.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from threadpoolctl import ThreadpoolController

from kcg.errors import DataError
from kcg.predictor.features import Array, Graphs
from kcg.predictor.network import LEAST_LOG_SIGMA, MOST_LOG_SIGMA, MOST_SCALED, NODES, OTHERS, SIZES, Network

EDGES_AT_ONCE: Final = 4096
"""Edges times networks whose messages are made together: more would not stay in a processor's own cache."""
SHUT: Final = -1e4
"""What is added to the gate of an edge that is not there: its hyperbolic tangent is -1 whatever else is."""
LEAST_VARIANCE: Final = 1e-5  # of a normalisation, as PyTorch's


@dataclass(frozen=True)
class Answers:
    """What K networks say of n graphs, float32."""

    rank: Array  # (K, n) log-seconds
    log_sigma: Array  # (K, n)
    failure: Array  # (K, n) logits
    hidden: Array  # (K, n, hidden)


@dataclass(frozen=True)
class Linear:
    """K layers: `weight` (K, in, out), `bias` (K, 1, out)."""

    weight: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        """(K, m, out) of (K, m, in)."""
        found: Array = np.matmul(x, self.weight)
        found += self.bias
        return found


def relu(x: Array) -> Array:
    """In place."""
    return np.maximum(x, 0, out=x)


@dataclass(frozen=True)
class _Blocks:
    """n graphs as blocks: `x` (size * n, features) of each kind of nodes, (axes * others * n, features) of edges. Masks
    (size, n) of nodes and (axes, others, n) of edges, where not all of a block is there."""

    n: int
    sizes: dict[str, int]  # of each kind of nodes
    x: dict[str, Array]
    there: dict[str, Array | None]


class Stacked:
    """See the module. The networks, one at least, are all of one shape."""

    @np.errstate(all="ignore")  # weights may be anything
    def __init__(self, nets: Sequence[Network]) -> None:
        """Raises DataError where they compare the candidates of a kernel, which is an experiment of training alone."""
        self.settings, self.count = nets[0].settings, len(nets)
        assert all(net.settings == self.settings for net in nets)
        if self.settings.compare:
            raise DataError("networks that compare candidates (net.compare) predict in training alone: train without")
        self._weights = {name: np.stack([net.numbers[name] for net in nets]) for name in nets[0].numbers}
        self._known = ["target_x"]
        self._known += ["schedule"] * self.settings.schedule + ["kernel_x"] * self.settings.kernel
        rows: dict[str, Sequence[str]] = {**{name: [name] for name in SIZES}, "known": self._known}
        self._mean, scale = (
            {
                name: np.concatenate([self._weights[f"{part}_{what}"] for part in parts], 1)[:, None]
                for name, parts in rows.items()
            }
            for what in ("mean", "scale")
        )
        self._rate = {name: 1 / values for name, values in scale.items()}
        self._layers = range(self.settings.layers if self.settings.messages else 0)
        self._whole, self._out = self._linear("whole.0"), self._linear("whole.2")
        self._embed = {name: self._linear(f"embed.{name}") for name in NODES}
        relations = [(i, way, other) for i in self._layers for other in OTHERS for way in ("to", "from")]
        self._sources = {(i, way, other): self._half(f"layers.{i}.{way}_{other}.source") for i, way, other in relations}
        self._edges = {(i, way, other): self._of_edges(f"layers.{i}.{way}_{other}") for i, way, other in relations}
        changes = {(i, name): f"layers.{i}.{name}.change" for i in self._layers for name in NODES}
        self._updates = {k: (self._after_norm(name, 0, 1), self._linear(f"{name}.4")) for k, name in changes.items()}
        self._read = self._after_norm("read", 0, 1), self._linear("read.4")
        self._heads = self._linear("heads")
        self._skip = self._linear("skip") if self.settings.schedule else None
        self._log_s_mean = self._weights["log_s_mean"][:, None]

    def _linear(self, name: str) -> Linear:
        weight = np.ascontiguousarray(self._weights[f"{name}.weight"].transpose(0, 2, 1))
        return Linear(weight, self._weights[f"{name}.bias"][:, None])

    def _half(self, name: str) -> Linear:
        """A message is relu(x) · sigmoid(y) = relu(x / 2) · (1 + tanh(y / 2)), which NumPy computes sooner. Halves of
        weights are exact."""
        found = self._linear(name)
        return Linear(found.weight / 2, found.bias / 2)

    def _after_norm(self, name: str, norm: int, linear: int) -> Linear:
        """A linear layer that takes in the weights of the normalisation before it."""
        found = self._linear(f"{name}.{linear}")
        gain, shift = (self._weights[f"{name}.{norm}.{what}"] for what in ("weight", "bias"))
        return Linear(gain[:, :, None] * found.weight, found.bias + np.matmul(shift[:, None], found.weight))

    def _of_edges(self, relation: str) -> Array:
        """What a relation makes of an edge, (2, K, in + 2, hidden): shifts and gates. The last rows are the bias and
        what shuts the gate: an edge has a 1 for the first, one that is not there for both, which is cheaper than adding
        to so many numbers."""
        half = self._half(f"{relation}.edge")
        shift, gate = np.split(np.concatenate([half.weight, half.bias, np.zeros_like(half.bias)], 1), 2, -1)
        gate[:, -1] = SHUT
        return np.stack([shift, gate])

    # asking

    def __call__(self, made: Graphs, kernel_x: Array, target_x: Array) -> Answers:
        """What each says of n graphs; `kernel_x` (n, …) and `target_x` (n, …) stand beside them."""
        return self.with_axes(made, kernel_x, target_x, None)

    def with_axes(self, made: Graphs, kernel_x: Array, target_x: Array, axes: Array | None) -> Answers:
        """The same, and the last states of the axes of each graph into `axes` (K, n, most axes, hidden), zeros until
        then."""
        parts = {"target_x": target_x, "schedule": made.schedule, "kernel_x": kernel_x}
        with one_thread, np.errstate(all="ignore"):  # weights may be anything
            known = self._scaled("known", np.concatenate([parts[name] for name in self._known], 1))
            whole = self._out(relu(self._whole(known)))
            order, blocks = _blocks(made, max(EDGES_AT_ONCE // self.count, 1))
            pooled = np.empty((self.count, len(made), 2 * len(NODES) * self.settings.hidden), np.float32)
            scratch = np.empty(self._most_scratch(blocks), np.float32)
            first = 0
            for block in blocks:
                places = slice(first, first + block.n) if order is None else order[first : first + block.n]
                nodes = self._node_states(block, whole[:, places], scratch)
                pooled[:, places] = _pooled(block, nodes)
                if axes is not None:
                    axes[:, places, : block.sizes["axes"]] = _alone(block, nodes["axes"]).swapaxes(1, 2)
                first += block.n
            hidden = self._last(np.concatenate([whole, pooled], -1))
            time, rank, sigma, failure = self._heads(hidden).transpose(2, 0, 1)
            if self._skip is not None:
                time = time + self._skip(self._scaled("schedule", made.schedule))[..., 0]
            log_sigma = np.clip(sigma, LEAST_LOG_SIGMA, MOST_LOG_SIGMA)
            return Answers(time + self._log_s_mean + rank, log_sigma, failure, hidden)

    def _last(self, states: Array) -> Array:
        first, second = self._read
        return relu(second(relu(first(_normed(states)))))

    def _scaled(self, name: str, x: Array) -> Array:
        found: Array = x - self._mean[name]
        found *= self._rate[name]
        np.minimum(found, MOST_SCALED, out=found)
        return np.maximum(found, -MOST_SCALED, out=found)

    def _most_scratch(self, blocks: Sequence[_Blocks]) -> int:
        """Numbers that the messages of a block take."""
        edges = max(len(block.x[name]) for block in blocks for name in OTHERS.values()) if self._layers else 0
        return 2 * self.count * edges * self.settings.hidden

    def _node_states(self, block: _Blocks, whole: Array, scratch: Array) -> dict[str, Array]:
        """(K, size, n, hidden) of each kind of nodes: their last states."""
        k, hidden = self.count, self.settings.hidden
        nodes = {}
        for name, size in block.sizes.items():
            nodes[name] = self._embed[name](self._scaled(name, block.x[name])).reshape(k, size, block.n, hidden)
            nodes[name] += whole[:, None]
        edges = {other: self._edge_inputs(block, other) for other in OTHERS} if self._layers else {}
        for i in self._layers:
            for other in OTHERS:
                received = self._received(i, "to", other, block, nodes, edges, scratch)
                nodes[other] = self._updated(i, other, nodes[other], received)
            heard = [self._received(i, "from", other, block, nodes, edges, scratch) for other in OTHERS]
            nodes["axes"] = self._updated(i, "axes", nodes["axes"], list(itertools.chain(*heard)))
        return nodes

    def _edge_inputs(self, block: _Blocks, other: str) -> Array:
        """(K, axes * others * n, in + 2): what `_of_edges` is multiplied by."""
        name = OTHERS[other]
        x, there = block.x[name], block.there[name]
        found = np.empty((self.count, len(x), x.shape[1] + 2), np.float32)
        found[..., :-2] = self._scaled(name, x)
        found[..., -2] = 1
        found[..., -1] = 0 if there is None else ~there.reshape(-1)
        return found

    def _received(
        self,
        i: int,
        way: str,
        other: str,
        block: _Blocks,
        nodes: dict[str, Array],
        edges: dict[str, Array],
        scratch: Array,
    ) -> list[Array]:
        """Sum and maximum of what reaches each axis `from` the others, or each other from the axes (`to`)."""
        k, n, hidden = self.count, block.n, self.settings.hidden
        shape = k, block.sizes["axes"], block.sizes[other], n, hidden
        from_, axis = ("axes", 1) if way == "to" else (other, 2)
        size = block.sizes[from_]
        source = self._sources[i, way, other](nodes[from_].reshape(k, size * n, hidden))
        source = source.reshape((k, size, 1, n, hidden) if way == "to" else (k, 1, size, n, hidden))
        length = edges[other].shape[1]
        sent = scratch[: 2 * k * length * hidden].reshape(2, k, length, hidden)
        shift, gate = np.matmul(edges[other], self._edges[i, way, other], out=sent)
        np.tanh(gate, out=gate)
        gate += 1
        messages = shift.reshape(shape)
        messages += source
        relu(shift)
        shift *= gate
        return [np.add.reduce(messages, axis), np.maximum.reduce(messages, axis)]

    def _updated(self, i: int, name: str, state: Array, received: list[Array]) -> Array:
        first, second = self._updates[i, name]
        k, size, n, _ = state.shape
        both = np.concatenate([state, *received], -1).reshape(k, size * n, -1)
        found = second(relu(first(_normed(both)))).reshape(state.shape)
        found += state
        return found


def _normed(x: Array) -> Array:
    """Over the last axis, in place."""
    x -= np.add.reduce(x, -1, keepdims=True) * np.float32(1 / x.shape[-1])
    variance = np.einsum("...i,...i->...", x, x)[..., None] * np.float32(1 / x.shape[-1])
    variance += np.float32(LEAST_VARIANCE)
    x /= np.sqrt(variance, out=variance)
    return x


def _alone(block: _Blocks, axes: Array) -> Array:
    """(K, size, n, hidden): the states of axes, 0 where there is none."""
    there = block.there["axes"]
    return axes if there is None else axes * there[..., None]


def _pooled(block: _Blocks, nodes: dict[str, Array]) -> Array:
    """(K, n, 6 * hidden): sum and maximum of the states of each kind of nodes."""
    found = []
    for name, state in nodes.items():
        if (there := block.there[name]) is None:
            found += [np.add.reduce(state, 1), np.maximum.reduce(state, 1)]
        else:
            mask = there[..., None]
            most = np.where(mask, state, np.float32(-np.inf)).max(1)
            found += [(state * mask).sum(1), np.where(mask.any(0), most, np.float32(0))]
    return np.concatenate(found, -1)


# graphs as blocks


def _blocks(made: Graphs, most_edges: int) -> tuple[Array | None, list[_Blocks]]:
    """All graphs in blocks of at most about so many edges each, and their order there: None where it is theirs. Graphs
    of a size stand together, so that little is padded."""
    counts = {name: getattr(made, f"n_{name}") for name in NODES}
    if len(made) * int(counts["axes"].max() * (counts["accesses"].max() + counts["groups"].max())) <= most_edges:
        return None, [_block(made, counts)]
    order = np.lexsort((counts["groups"], counts["axes"]))
    made = made.take(order)
    counts = {name: number[order] for name, number in counts.items()}
    edges = {other: counts["axes"] * counts[other] for other in OTHERS}
    rows = {**counts, **{OTHERS[other]: number for other, number in edges.items()}}
    ends = {name: np.concatenate([[0], np.cumsum(number)]) for name, number in rows.items()}
    first, found = 0, list[_Blocks]()
    while first < len(made):
        most = {name: np.maximum.accumulate(number[first : first + most_edges]) for name, number in counts.items()}
        padded = most["axes"] * (most["accesses"] + most["groups"]) * np.arange(1, len(most["axes"]) + 1)
        last = first + max(int(np.searchsorted(padded, most_edges, "right")), 1)
        part = {name: getattr(made, name)[at[first] : at[last]] for name, at in ends.items()}
        found.append(_block(replace(made, **part), {name: number[first:last] for name, number in counts.items()}))
        first = last
    return order, found


def _block(made: Graphs, counts: dict[str, Array]) -> _Blocks:
    n = len(counts["axes"])
    sizes = {name: max(int(number.max()), 1) for name, number in counts.items()}
    there = {
        name: None if (counts[name] == size).all() else np.arange(size) < counts[name][:, None]
        for name, size in sizes.items()
    }
    for other, edges in OTHERS.items():
        a, b = there["axes"], there[other]
        if a is None and b is None:
            there[edges] = None
            continue
        a = np.ones((n, sizes["axes"]), bool) if a is None else a
        b = np.ones((n, sizes[other]), bool) if b is None else b
        there[edges] = (a[:, :, None] & b[:, None]).reshape(n, -1)
    x = {name: _padded(getattr(made, name), n, mask) for name, mask in there.items()}
    return _Blocks(n, sizes, x, {name: None if mask is None else mask.T for name, mask in there.items()})


def _padded(values: Array, n: int, there: Array | None) -> Array:
    """(size * n, features) of the rows of n graphs, one graph after another; `there` (n, size)."""
    features = values.shape[1]
    if there is None:
        return values.reshape(n, -1, features).swapaxes(0, 1).reshape(-1, features)
    made = np.zeros((there.shape[1], n, features), values.dtype)
    made.swapaxes(0, 1)[there] = values
    return made.reshape(-1, features)


# threads


class _OneThread:
    """NumPy's BLAS on one thread, for as long as any thread of this process is inside. Graphs are small, so that more
    gain little, and where compilers hold the cores every operation waits for all of its threads: predicting was seen to
    take 50 times longer."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._blas: Any = None  # found once, in a millisecond
        self._limit: Any = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                if self._blas is None:  # one without any is false
                    self._blas = ThreadpoolController().select(user_api="blas")
                self._let_go()
                self._limit = self._blas.limit(limits=1, user_api="blas")
                self._let_go()
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._restore()

    def _restore(self) -> None:
        self._let_go()
        self._limit.restore_original_limits()
        self._let_go()

    def _let_go(self) -> None:
        """Since threadpoolctl 3.8 the first thread that sets a limit of OpenBLAS is the only one that can, until it
        ends. Here any may come first, and any go last."""
        for library in self._blas.lib_controllers:
            if (clear := getattr(library, "clear_controlling_thread", None)) is not None:
                clear(force=True)

    def _forked(self) -> None:
        """In a child, where no other thread is: whoever was inside is not, nor holds the lock."""
        self._lock = threading.Lock()
        if self._inside:
            self._inside = 0
            self._restore()


one_thread: Final = _OneThread()
