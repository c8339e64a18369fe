"""The learned predictor: the networks of a checkpoint, asked about schedules of a kernel in batches."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, pad

from kcg.errors import ScheduleError
from kcg.predictor.checkpoint import Checkpoint
from kcg.predictor.correction import CorrectingKernel
from kcg.predictor.ensemble import Outputs, averaged
from kcg.predictor.features import (
    Array,
    Graphs,
    ScheduleFeatures,
    encode,
    graphs,
    kernel_features,
    operations_of,
    side_by_side,
    target_features,
)
from kcg.predictor.interface import Judge
from kcg.predictor.network import LEAST_LOG_SIGMA, MOST_LOG_SIGMA, SIZES, GraphSet, Net
from kcg.types import Prediction, Schedule, Target

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space


# ---- Networks of one shape as one, for predicting: the same answers as from each alone, in a fraction of the time.
#
# A graph has about 20 nodes and 80 edges, so that a network spends nearly all of its time on starting operations. Here
# one operation does the work of all networks, whose weights are stacked. And no edge is looked up: every axis of a
# graph has an edge to every load, store and group of it, so that messages are blocks of axes by others, padded where
# graphs differ in size. Messages are never below 0, so that what is padded and shut by its gate changes neither their
# sum nor their maximum. Answers differ from those of `Net` by rounding alone.

EDGES_AT_ONCE: Final = 4096
"""Edges times networks whose messages are made together: more would not stay in a processor's own cache."""
NODES: Final = {"axes": "n_axes", "accesses": "n_accesses", "groups": "n_groups"}
OTHERS: Final = {"accesses": "access_edges", "groups": "group_edges"}
"""What axes have edges to, and the features of these edges."""


@dataclass(frozen=True)
class Answers:
    """What K networks say of n graphs."""

    rank: Tensor  # (K, n) log-seconds
    log_sigma: Tensor  # (K, n)
    failure: Tensor  # (K, n) logits
    hidden: Tensor  # (K, n, hidden)


@dataclass(frozen=True)
class _Linear:
    """K layers: `weight` (K, in, out), `bias` (K, 1, out)."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


@dataclass(frozen=True)
class _Blocks:
    """Some graphs as blocks: `x` (n * size, features) of each kind of nodes and edges. Masks (n, size, …, 1), where not
    all of a block is there."""

    n: int
    sizes: dict[str, int]  # of each kind of nodes
    x: dict[str, Tensor]
    nodes: dict[str, Tensor | None]
    edges: dict[str, Tensor | None]


class Stacked:
    """See the module. `of` says which networks can be stacked."""

    @staticmethod
    def of(nets: Sequence[Net]) -> Stacked | None:
        """The networks in their order; None where they are not all of one shape, or compare the schedules of a kernel.
        What changes in them later is not seen."""
        if not nets or any(net.settings != nets[0].settings for net in nets):
            return None
        return None if nets[0].settings.compare else Stacked(nets)

    def __init__(self, nets: Sequence[Net]) -> None:
        states = [net.state_dict() for net in nets]
        self._weights = {name: torch.stack([s[name].detach().float() for s in states]) for name in states[0]}
        self.settings, self.count = nets[0].settings, len(nets)
        self._known = ["target_x"]
        self._known += ["schedule"] * self.settings.schedule + ["kernel_x"] * self.settings.kernel
        rows: dict[str, Sequence[str]] = {**{name: [name] for name in SIZES}, "known": self._known}
        self._mean, self._scale = (
            {
                name: torch.cat([self._weights[f"{part}_{what}"] for part in parts], 1)[:, None]
                for name, parts in rows.items()
            }
            for what in ("mean", "scale")
        )
        self._layers = range(self.settings.layers if self.settings.messages else 0)
        self._whole, self._out = self._linear("whole.0"), self._linear("whole.2")
        self._embed = {name: self._linear(f"embed.{name}") for name in NODES}
        self._edges = {other: self._of_edges(other) for other in OTHERS} if self._layers else {}
        self._sources = {
            (i, way): self._linear(f"layers.{i}.{way}.source")
            for i in self._layers
            for other in OTHERS
            for way in (f"to_{other}", f"from_{other}")
        }
        changes = {(i, name): f"layers.{i}.{name}.change" for i in self._layers for name in NODES}
        self._updates = {k: (self._after_norm(name, 0, 1), self._linear(f"{name}.4")) for k, name in changes.items()}
        self._read = self._after_norm("read", 0, 1), self._linear("read.4")
        self._heads = self._linear("heads")
        self._skip = self._linear("skip") if self.settings.schedule else None
        self._log_s_mean = self._weights["log_s_mean"][:, None]

    def _linear(self, name: str) -> _Linear:
        weight = self._weights[f"{name}.weight"].transpose(1, 2).contiguous()
        return _Linear(weight, self._weights[f"{name}.bias"][:, None])

    def _after_norm(self, name: str, norm: int, linear: int) -> _Linear:
        """A linear layer that takes in the weights of the normalisation before it."""
        found = self._linear(f"{name}.{linear}")
        gain, shift = (self._weights[f"{name}.{norm}.{what}"] for what in ("weight", "bias"))
        return _Linear(gain[:, :, None] * found.weight, torch.baddbmm(found.bias, shift[:, None], found.weight))

    def _of_edges(self, other: str) -> Tensor:
        """What every relation with these nodes makes of an edge, (2 * relations * K, in + 1, hidden): all shifts, then
        all gates. The last row is the bias: an edge has a 1 there, which is cheaper than adding to so many numbers."""
        each = [self._linear(f"layers.{i}.{way}_{other}.edge") for i in self._layers for way in ("to", "from")]
        halves = [torch.cat([one.weight, one.bias], 1).chunk(2, -1) for one in each]
        return torch.cat([half[side] for side in (0, 1) for half in halves]).contiguous()

    # asking

    def __call__(self, made: Graphs, kernel_x: Array, target_x: Array) -> Answers:
        """What each says of n graphs; `kernel_x` (n, …) and `target_x` (n, …) stand beside them."""
        schedule = torch.from_numpy(made.schedule)
        parts = {"target_x": torch.from_numpy(target_x), "schedule": schedule, "kernel_x": torch.from_numpy(kernel_x)}
        known = self._scaled("known", torch.cat([parts[name] for name in self._known], 1))
        whole = self._out(torch.relu_(self._whole(known)))
        order, blocks = _blocks(made, max(EDGES_AT_ONCE // self.count, 1))
        if order is None:
            nodes = self._pooled(blocks[0], whole)
        else:
            beside = torch.split(whole[:, torch.from_numpy(order)], [block.n for block in blocks], 1)
            pooled = torch.cat([self._pooled(block, x) for block, x in zip(blocks, beside, strict=True)], 1)
            nodes = torch.empty_like(pooled)
            nodes[:, torch.from_numpy(order)] = pooled
        first_read, second_read = self._read
        hidden = torch.relu_(second_read(torch.relu_(first_read(_normed(torch.cat([whole, nodes], -1))))))
        time, rank, sigma, failure = self._heads(hidden).unbind(-1)
        if self._skip is not None:
            time = time + self._skip(self._scaled("schedule", schedule)).squeeze(-1)
        return Answers(time + self._log_s_mean + rank, sigma.clamp(LEAST_LOG_SIGMA, MOST_LOG_SIGMA), failure, hidden)

    def _scaled(self, name: str, x: Tensor) -> Tensor:
        return ((x - self._mean[name]) / self._scale[name]).clamp_(-8.0, 8.0)

    def _pooled(self, blocks: _Blocks, whole: Tensor) -> Tensor:
        """(K, n, 6 * hidden): sum and maximum of the last states of each kind of nodes."""
        n, k, hidden = blocks.n, self.count, self.settings.hidden
        nodes = {}
        for name, size in blocks.sizes.items():
            embedded = self._embed[name](self._scaled(name, blocks.x[name]))
            nodes[name] = embedded.view(k, n, size, hidden).add_(whole[:, :, None]).view(k, n * size, hidden)
        shifts, gates = {}, {}
        for other, edges in self._edges.items():
            scaled, ways = pad(self._scaled(OTHERS[other], blocks.x[OTHERS[other]]), (0, 1), value=1.0), len(edges) // k
            sent = torch.bmm(scaled.expand(ways, *scaled.shape).reshape(-1, *scaled.shape[1:]), edges)
            sent = sent.view(2, ways // 2, k, n, blocks.sizes["axes"], blocks.sizes[other], hidden)
            shifts[other], gates[other] = sent[0], sent[1].sigmoid_()
            if (mask := blocks.edges[other]) is not None:
                gates[other].mul_(mask)
        for i in self._layers:
            heard = []
            for other in OTHERS:
                source = self._sources[i, f"to_{other}"](nodes["axes"]).view(k, n, -1, 1, hidden)
                messages = shifts[other][2 * i].add_(source).relu_().mul_(gates[other][2 * i])
                received = [messages.sum(2), messages.amax(2)]
                nodes[other] = self._updated(i, other, nodes[other], received)
            for other in OTHERS:
                source = self._sources[i, f"from_{other}"](nodes[other]).view(k, n, 1, -1, hidden)
                messages = shifts[other][2 * i + 1].add_(source).relu_().mul_(gates[other][2 * i + 1])
                heard += [messages.sum(3), messages.amax(3)]
            nodes["axes"] = self._updated(i, "axes", nodes["axes"], heard)
        pooled = []
        for name, size in blocks.sizes.items():
            state, mask = nodes[name].view(k, n, size, hidden), blocks.nodes[name]
            if mask is None:
                pooled += [state.sum(2), state.amax(2)]
            else:
                most = state.masked_fill(~mask, -torch.inf).amax(2)
                pooled += [(state * mask).sum(2), most.masked_fill_(~mask.any(1), 0.0)]
        return torch.cat(pooled, -1)

    def _updated(self, i: int, name: str, state: Tensor, received: list[Tensor]) -> Tensor:
        first, second = self._updates[i, name]
        both = torch.cat([state, *(r.view(state.shape) for r in received)], -1)
        return second(torch.relu_(first(_normed(both)))).add_(state)


def _normed(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:])


def _blocks(made: Graphs, most_edges: int) -> tuple[Array | None, list[_Blocks]]:
    """All graphs in blocks of at most about so many edges each, and their order there: None where it is theirs. Graphs
    of a size stand together, so that little is padded."""
    counts = {name: getattr(made, how_many) for name, how_many in NODES.items()}
    if len(made) * int(counts["axes"].max() * (counts["accesses"].max() + counts["groups"].max())) <= most_edges:
        return None, [_block(made, counts)]
    order = np.lexsort((counts["groups"], counts["axes"]))
    made = made.take(order)
    counts = {name: number[order] for name, number in counts.items()}
    edges = {other: counts["axes"] * counts[other] for other in OTHERS}
    rows = {**counts, **{OTHERS[other]: number for other, number in edges.items()}}
    ends = {name: np.concatenate([[0], np.cumsum(number)]) for name, number in rows.items()}
    of_each, first, found = np.maximum(sum(edges.values()), 1), 0, list[_Blocks]()
    while first < len(made):
        last = min(first + max(most_edges // int(of_each[first]), 1), len(made))
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
    x = {name: _padded(getattr(made, name), there[name]) for name in NODES}
    edge_masks = {}
    for other, edges in OTHERS.items():
        a, b = there["axes"], there[other]
        mask = None
        if a is not None or b is not None:
            a = np.ones((n, sizes["axes"]), bool) if a is None else a
            b = np.ones((n, sizes[other]), bool) if b is None else b
            mask = a[:, :, None] & b[:, None]
        x[edges] = _padded(getattr(made, edges), mask)
        edge_masks[other] = _tensor(mask)
    return _Blocks(n, sizes, x, {name: _tensor(mask) for name, mask in there.items()}, edge_masks)


def _tensor(mask: Array | None) -> Tensor | None:
    return None if mask is None else torch.from_numpy(mask)[..., None]


def _padded(values: Array, there: Array | None) -> Tensor:
    if there is None:
        return torch.from_numpy(values)
    made = np.zeros((there.size, values.shape[1]), values.dtype)
    made[there.ravel()] = values
    return torch.from_numpy(made)


ROWS = 512  # schedules that are predicted at once
KERNELS_KEPT = 64
IMPOSSIBLE = Prediction(0.0, uncertainty=10.0, failure_probability=1.0)
MOST_LOG_S = 100.0
"""What is expected to take longer, in log-seconds, or as much less than a second, is no time: exp overflows at 710."""
NEVER_SEEN = 1.0
"""Least standard deviation, in log-seconds, where the kernel has an operation, or the machine is one, that training
never showed."""


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread. Graphs are small, so more of them gain little, and where compilers hold the cores every
    operation waits for all of its threads: predicting was seen to take 50 times longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class LearnedPredictor:
    """What a checkpoint predicts. Deterministic; the order in which schedules are asked does not matter."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.name = checkpoint.about.name
        self._stacked = Stacked.of(checkpoint.nets)
        self._known_operations = frozenset(checkpoint.about.operations)
        self._known_targets = {t["fingerprint"] for t in checkpoint.about.targets}
        self._kernels: OrderedDict[str, tuple[Array, bool]] = OrderedDict()
        # what is loaded by now stays: walking through the objects of torch and tinygrad took a tenth of a search
        gc.freeze()

    def predict(self, space: Space, schedules: Sequence[Schedule]) -> list[Prediction]:
        """One prediction for each schedule, in order; never NaN. What does not apply is expected to fail."""
        return self.embed(space, schedules)[0]

    def of(self, space: Space) -> Judge:
        """What it says of one kernel, corrected by what is measured of it."""
        kernel = CorrectingKernel(self, space)
        return Judge(kernel.predict, kernel.correct)

    def embed(self, space: Space, schedules: Sequence[Schedule]) -> tuple[list[Prediction], list[Array | None]]:
        """Predictions, and beside each the last hidden states of all networks, (sum of hidden,); None where it does
        not apply."""
        found, states = [IMPOSSIBLE] * len(schedules), list[Array | None]([None] * len(schedules))
        for first in range(0, len(schedules), ROWS):
            self._predict(space, schedules[first : first + ROWS], first, found, states)
        return found, states

    def _predict(
        self,
        space: Space,
        schedules: Sequence[Schedule],
        first: int,
        found: list[Prediction],
        states: list[Array | None],
    ) -> None:
        nests, places, refused = [], [], []
        for place, schedule in enumerate(schedules, first):
            try:
                (nest,), (chance,) = space.loop_nests([schedule]), space.refusals([schedule])
            except ScheduleError:
                continue
            places.append(place)
            nests.append(nest)
            refused.append(chance)
        if not places:
            return
        kernel_x, _ = self._kernel(space)
        mean, sigma, failure, hidden = self.estimate(graphs(encode(nests), space.target), kernel_x, space.target)
        if self._is_strange(space):
            sigma = np.maximum(sigma, NEVER_SEEN)
        failure = np.maximum(failure, refused)
        for place, state, *outputs in zip(places, hidden, mean.tolist(), sigma.tolist(), failure.tolist(), strict=True):
            found[place], states[place] = Prediction(*outputs), state

    def predict_features(self, features: Sequence[ScheduleFeatures]) -> list[Prediction]:
        """`predict` of schedules of any kernels whose features are there already."""
        if not features:
            return []
        kernels = {(one.space.region.id, one.space.target): i for i, one in enumerate(features)}
        made, kernel_x, target_x = side_by_side(features)
        kernel = np.array([kernels[one.space.region.id, one.space.target] for one in features])
        mean, sigma, failure, _ = self._estimate(made, kernel_x, target_x, kernel)
        found = []
        for one, *outputs in zip(features, mean.tolist(), sigma.tolist(), failure.tolist(), strict=True):
            least = NEVER_SEEN if self._is_strange(one.space) else 0.0
            found.append(Prediction(outputs[0], max(outputs[1], least), max(outputs[2], one.refused)))
        return found

    def estimate(self, made: Graphs, kernel_x: Array, target: Target) -> tuple[Array, Array, Array, Array]:
        """(n,) each: log-seconds, their standard deviation, and the probability of failure of graphs of one kernel;
        and (n, sum of hidden) float32, the networks' last hidden states."""
        return self._estimate(made, kernel_x[None], target_features(target)[None], np.zeros(len(made), np.int64))

    def _estimate(
        self, made: Graphs, kernel_x: Array, target_x: Array, kernel: Array
    ) -> tuple[Array, Array, Array, Array]:
        """`estimate` of several kernels: `kernel` (n,) is a place in `kernel_x` and `target_x`."""
        outputs, hidden = self._asked(made, kernel_x, target_x, kernel)
        found = averaged(outputs, self.checkpoint.about.spread_scale)
        mean, sigma = found["rank"], np.exp(found["log_sigma"])
        failure = 1 / (1 + np.exp(-np.clip(found["failure"], -30, 30)))
        broken = ~((np.abs(mean) < MOST_LOG_S) & np.isfinite(sigma) & np.isfinite(failure))
        return (
            np.where(broken, 0.0, mean),
            np.where(broken, IMPOSSIBLE.uncertainty, sigma),
            np.where(broken, 1.0, failure),
            hidden,
        )

    def _asked(self, made: Graphs, kernel_x: Array, target_x: Array, kernel: Array) -> tuple[Outputs, Array]:
        """What every network says, and (n, sum of hidden) their last hidden states."""
        n, nets = len(made), self.checkpoint.nets
        with one_thread(), torch.inference_mode():
            if self._stacked is not None:
                outputs = self._stacked(made, kernel_x[kernel], target_x[kernel])
                states = outputs.hidden.transpose(0, 1).reshape(n, -1)
                rank, log_sigma, failure = outputs.rank, outputs.log_sigma, outputs.failure
            else:
                batch = GraphSet(made, kernel, kernel_x, target_x, np.arange(len(kernel_x))).batch(torch.arange(n))
                each = [net.embed_graphs(batch) for net in nets]
                answers = [net.answer(batch, state) for net, state in zip(nets, each, strict=True)]
                states = torch.cat(each, 1)
                rank, log_sigma, failure = (
                    torch.stack([getattr(one, name) for one in answers]) for name in ("rank", "log_sigma", "failure")
                )
            return Outputs(*(values.double().numpy() for values in (rank, log_sigma, failure))), states.numpy()

    def _is_strange(self, space: Space) -> bool:
        """Whether training never showed an operation of the kernel, or the machine."""
        return self._kernel(space)[1] or space.target.fingerprint not in self._known_targets

    def _kernel(self, space: Space) -> tuple[Array, bool]:
        """The kernel's own numbers, and whether it has an operation that training never showed."""
        region = space.region
        if region.id not in self._kernels:
            while len(self._kernels) >= KERNELS_KEPT:
                self._kernels.popitem(last=False)
            strange = not operations_of(region) <= self._known_operations
            self._kernels[region.id] = (kernel_features(region), strange)
        return self._kernels[region.id]
