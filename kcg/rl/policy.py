"""The policy: a graph network that scores the actions of a schedule by what they are, and what it hopes for.

The trunk is the predictor's network, warm-started from it: a state for the whole schedule and one for every axis of its
loop nest. An action's score is read off the state of the schedule, those of the axes it acts on, and its own row of
features; so is that of stopping. Beside it stands a value: the log-speedup over this schedule that is still to come.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kcg.errors import DataError
from kcg.kernel.loop_nest import ACTION_FEATURES, AXES_OF_ACTION
from kcg.predictor.checkpoint import MOST_HIDDEN, MOST_LAYERS, check_about
from kcg.predictor.features import FEATURES_VERSION, side_by_side
from kcg.predictor.header import as_stored, read_tensors, save_tensors
from kcg.predictor.learned import one_thread
from kcg.predictor.network import Batch, GraphSet, Net, NetSettings, owners
from kcg.rl.env import MOST_ACTIONS, KernelScheduleEnv, Reading, Task
from kcg.rl.observation import Observer, ScheduleObservation
from kcg.search.beam import Drafts
from kcg.search.moves import fresh
from kcg.search.problem import Observation, Problem, Strategy, Trials
from kcg.types import Action, Schedule

FORMAT = "kcg-policy-1"
FEATURE_SCALE = 0.25  # most features are logarithms up to 10
SHIPPED = Path(__file__).parent / "policies"


@dataclass(frozen=True)
class Proposal:
    """What a policy would do at one schedule: probabilities that sum to 1, and what it hopes for."""

    stop: float
    steps: tuple[float, ...]  # of each of the space's `actions`, in their order
    value: float = 0.0  # expected log-speedup, over this schedule, of where the policy ends


Propose = Callable[[Sequence[Schedule]], list[Proposal]]
"""What a policy would do at some schedules of one kernel."""


@dataclass(frozen=True)
class PolicyBatch:
    """n schedules, and r rows of actions: those of the first schedule, then of the next."""

    graphs: Batch
    rows: Tensor  # (r, len(ACTION_FEATURES))
    axes: Tensor  # (r, AXES_OF_ACTION) places among `graphs.axes`, -1 for none
    owner: Tensor  # (r,) which schedule

    def __len__(self) -> int:
        return len(self.graphs)


def batch_of(observations: Sequence[ScheduleObservation]) -> PolicyBatch:
    """Observations as one batch."""
    made, kernel_x, target_x = side_by_side(observations)
    every = np.arange(len(observations))
    whole = GraphSet(made, every, kernel_x, target_x, every).batch(torch.arange(len(observations)))
    rows = torch.from_numpy(np.concatenate([one.rows.features for one in observations]))
    axes = torch.from_numpy(np.concatenate([one.rows.axes for one in observations]))
    owner = owners(torch.tensor([len(one.rows) for one in observations]))
    return PolicyBatch(whole, rows, placed(axes, owner, torch.from_numpy(made.n_axes)), owner)


def placed(axes: Tensor, owner: Tensor, n_axes: Tensor) -> Tensor:
    """Places of axes within each graph as places among the axes of all; -1 stays."""
    first = torch.cumsum(n_axes, 0) - n_axes
    return torch.where(axes >= 0, axes + first[owner][:, None], axes)


class PolicyNet(nn.Module):
    """See the module. `settings` are those of the trunk."""

    def __init__(self, settings: NetSettings | None = None, trunk: Net | None = None) -> None:
        super().__init__()
        self.trunk = trunk if trunk is not None else Net(settings)
        hidden = self.trunk.settings.hidden
        inputs = (1 + AXES_OF_ACTION) * hidden + len(ACTION_FEATURES)
        self.score = nn.Sequential(
            nn.Linear(inputs, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        self.value = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        last = self.score[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)  # a new policy takes every legal step as often
        nn.init.zeros_(last.bias)

    def forward(self, batch: PolicyBatch) -> tuple[Tensor, Tensor]:
        """Logits (r,) of the rows and values (n,) of the schedules."""
        state, nodes = self.trunk.embed_nodes(batch.graphs)
        axes = nodes[0][0]
        known = torch.cat([axes, axes.new_zeros(1, axes.shape[1])])  # place -1 is that of no axis
        looked_up = known[batch.axes].flatten(1)
        seen = torch.cat([state[batch.owner], looked_up, batch.rows * FEATURE_SCALE], -1)
        return self.score(seen).squeeze(-1), self.value(state).squeeze(-1)


def log_softmax(logits: Tensor, owner: Tensor, count: int) -> Tensor:
    """Log-probabilities of rows within each of `count` schedules."""
    top = logits.new_full((count,), -torch.inf).scatter_reduce(0, owner, logits.detach(), "amax")
    shifted = logits - top[owner]
    total = logits.new_zeros(count).scatter_add(0, owner, shifted.exp())
    return shifted - total.log()[owner]


class Policy:
    """A trained policy, asked about schedules of one kernel: `of(observer)` is what a search takes."""

    def __init__(self, net: PolicyNet, about: PolicyAbout) -> None:
        self.net, self.about = net.eval(), about

    def of(self, observer: Observer) -> Propose:
        """Proposals for the schedules of one kernel, whose actions are those of the observer."""

        def propose(schedules: Sequence[Schedule]) -> list[Proposal]:
            return self.propose(observer.observe_all(schedules))

        return propose

    def propose(self, observations: Sequence[ScheduleObservation]) -> list[Proposal]:
        """One proposal for each observation, in order."""
        if not observations:
            return []
        batch = batch_of(observations)
        with one_thread(), torch.inference_mode():
            logits, values = self.net(batch)
            chances = log_softmax(torch.nan_to_num(logits), batch.owner, len(observations)).exp().tolist()
        found, first = [], 0
        for observation, value in zip(observations, torch.nan_to_num(values).tolist(), strict=True):
            *steps, stop = chances[first : first + len(observation.rows)]
            found.append(Proposal(stop, tuple(steps), value))
            first += len(observation.rows)
        return found


@dataclass(frozen=True)
class PolicyAbout:
    """What a policy's checkpoint says of itself."""

    name: str
    targets: tuple[str, ...]  # fingerprints that it was trained on
    datasets: tuple[tuple[str, str], ...]  # checksums of the files whose kernels it was trained on
    split: str  # whose validation and test parts it never saw
    metrics: dict[str, float] = field(default_factory=dict)
    revision: str = ""  # of the code
    settings: dict[str, Any] = field(default_factory=dict)  # of the training
    dirty: bool | None = None  # whether the code differed from its revision; None: written before that was kept


def save_policy(policy: Policy, path: Path) -> None:
    """Write a policy, whole or not at all, its weights rounded. Raises DataError where it is too large."""
    header = {
        "format": FORMAT,
        "features_version": FEATURES_VERSION,
        "action_features": list(ACTION_FEATURES),
        "about": asdict(policy.about),
        "trunk": asdict(policy.net.trunk.settings),
    }
    save_tensors(path, as_stored(policy.net.state_dict()), header)


def read_policy(path: Path) -> Policy:
    """A policy. Raises DataError where it cannot be read, or sees other features than this kcg has."""
    header, tensors = read_tensors(path, "policy")
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(f"{path} is no policy ({FORMAT})")
    if header.get("features_version") != FEATURES_VERSION or header.get("action_features") != list(ACTION_FEATURES):
        raise DataError(
            f"{path} sees other features than this kcg has: train again (python training/train_policy.py), or use the "
            "shipped one"
        )
    try:
        settings = NetSettings(**header["trunk"])
        if not (1 <= settings.hidden <= MOST_HIDDEN and 0 <= settings.layers <= MOST_LAYERS):
            raise ValueError(f"a network of {settings.layers} layers of {settings.hidden}")
        with torch.device("meta"):  # nothing is allocated for numbers that are not in the file
            net = PolicyNet(settings)
        net.load_state_dict({name: value.float() for name, value in tensors.items()}, assign=True)
        about = header["about"]
        about["targets"] = tuple(about["targets"])
        about["datasets"] = tuple((name, value) for name, value in about["datasets"])
        policy = Policy(net, PolicyAbout(**about))
        check_about(policy.about, *policy.about.targets)
        return policy
    except (KeyError, TypeError, ValueError, RuntimeError, AssertionError) as error:  # the last by torch's attention
        raise DataError(f"{path} does not hold what it says ({str(error).splitlines()[0]}): train it again") from error


@functools.lru_cache(maxsize=2)
def shipped_policy(device: str) -> Policy:
    """The policy that comes with kcg for a kind of device (`Target.device`); where there is none, that of CUDA, which
    was trained on an H200 and can only guess elsewhere. Read once in a process."""
    path = SHIPPED / f"{device.lower()}.safetensors"
    return read_policy(path if path.exists() else SHIPPED / "cuda.safetensors")


def likeliest_ends(policy: Policy, observer: Observer, *, most_steps: int = 10) -> list[Schedule]:
    """Where the policy ends if it takes its likeliest step each time, from raw and from the hand-coded schedule."""
    ends = []
    for schedule in (observer.space.start(), observer.space.baseline()):
        for _ in range(most_steps):
            observation = observer.observe(schedule)
            proposal = policy.propose([observation])[0]
            best = max(range(len(proposal.steps)), key=proposal.steps.__getitem__, default=-1)
            if best < 0 or proposal.stop >= proposal.steps[best]:
                break
            schedule = observation.steps[best].schedule
        ends.append(schedule)
    return ends


# ---- A search that a policy leads: it acts in the environment, and the predictor ranks what it passes.
#
# An episode is one rollout in `kcg.rl.env`: steps are drawn from the policy, and one that the predictor expects to fail
# ends it. All schedules that episodes pass are candidates. They are corrected by what was measured, and a batch of the
# best that are no near twins is measured; then the policy acts again.


@dataclass(frozen=True)
class RolloutSettings:
    """How a policy acts."""

    episodes: int = 8  # at once, half of them from the unoptimised schedule, half from tinygrad's own
    longest: int = 12  # steps of an episode; the fastest schedule of none of 60 recorded kernels has more than 9
    rounds: int = 4  # of such episodes before a batch, as long as they pass too little that is new
    hotter: float = 1.5  # the temperature rises by this factor where they do
    hottest: float = 4.0


def policy_search(policy: Policy, observer: Observer, *, settings: RolloutSettings = RolloutSettings()) -> Strategy:
    """The search of one kernel, whose schedules and steps `observer` shows to the policy.

    The first episodes take the likeliest step each time. The others draw a step in proportion to its probability to the
    power of 1 / temperature. Where all that episodes pass was measured, random walks go on.
    """

    def search(problem: Problem) -> Iterator[Observation]:
        trials = Trials(problem)
        yield from trials.baseline()
        acting, drafts, temperature = _Acting(trials, policy, observer, settings), Drafts(trials), 1.0
        drafts.add(acting.episodes(0.0))
        while not trials.out_of_budget:
            for _ in range(settings.rounds):
                if len(drafts.add(acting.episodes(temperature))) >= problem.batch_size or trials.out_of_budget:
                    break
                temperature = min(settings.hotter * temperature, settings.hottest)
            batch = drafts.batch(problem.batch_size)
            batch += fresh(trials, problem.batch_size - len(batch))
            if not batch:
                return
            yield from trials.measure(batch)

    return search


class _Acting:
    """The environments of one kernel, which walk in step, so that policy and predictor are asked in batches."""

    def __init__(self, trials: Trials, policy: Policy, observer: Observer, settings: RolloutSettings) -> None:
        space = trials.problem.space
        self.trials, self.policy, self.rng = trials, policy, trials.problem.rng
        self.ends = [space.start(), space.baseline()]
        task = Task("", space, observer, lambda schedule: Reading.of(trials.predict([schedule])[0]))
        starts = ("raw", "hand-coded") * max(settings.episodes // 2, 1)
        self.envs = [KernelScheduleEnv([task], start=start, max_steps=settings.longest) for start in starts]
        self.passed: set[str] = set()  # keys

    def episodes(self, temperature: float) -> list[Schedule]:
        """What one episode in each environment passes that none passed before; at temperature 0 one from each end."""
        walking = self.envs if temperature > 0.0 else self.envs[:2]
        if not self._predicted(self.ends):
            return []
        for env in walking:
            env.reset()
        found = {self.trials.key(schedule): schedule for schedule in self.ends}
        while walking:
            proposals = self.policy.propose([env.observed for env in walking])
            taken = [(env, _drawn(self.rng, env, p, temperature)) for env, p in zip(walking, proposals, strict=True)]
            if not self._predicted([_steps(env)[place].schedule for env, place in taken if place < len(_steps(env))]):
                break
            going = []
            for env, action in taken:
                _, _, terminated, truncated, _ = env.step(action)
                if not (terminated or truncated):
                    found[self.trials.key(env.observed.schedule)] = env.observed.schedule
                    going.append(env)
            walking = going
        new = [schedule for key, schedule in found.items() if key not in self.passed]
        self.passed |= found.keys()
        return new

    def _predicted(self, schedules: Sequence[Schedule]) -> bool:
        """Whether the predictor could be asked about all of them, in one batch, so that an environment asks nothing."""
        if self.trials.out_of_budget or len(self.trials.within_evaluations(schedules)) < len(schedules):
            return False
        self.trials.predict(schedules)
        return True


def _steps(env: KernelScheduleEnv) -> tuple[Action, ...]:
    """The legal steps that the environment has rows for; the row after them is stopping."""
    return env.observed.steps[: MOST_ACTIONS - 1]


def _drawn(rng: random.Random, env: KernelScheduleEnv, proposal: Proposal, temperature: float) -> int:
    """The action that an environment takes: the place of a legal step, or of stopping."""
    shares = np.array([*proposal.steps[: len(_steps(env))], proposal.stop])
    shares *= env.action_masks()[: len(shares)]
    if temperature == 0.0 or shares.sum() <= 0.0:
        return int(shares.argmax()) if shares.sum() > 0.0 else len(shares) - 1
    return rng.choices(range(len(shares)), (shares ** (1.0 / temperature)).tolist())[0]
