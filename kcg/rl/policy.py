"""The policy: a graph network that scores the actions of a schedule by what they are, and what it hopes for.

The trunk is the predictor's network, warm-started from it: a state for the whole schedule and one for every axis of its
loop nest. An action's score is read off the state of the schedule, those of the axes it acts on, and its own row of
features; so is that of stopping. Beside it stands a value: the log-speedup over this schedule that is still to come.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kcg.errors import DataError
from kcg.kernel.loop_nest import ACTION_FEATURES, AXES_OF_ACTION
from kcg.predictor.checkpoint import check_about
from kcg.predictor.features import FEATURES_VERSION, Array, side_by_side
from kcg.predictor.header import as_stored, read_tensors, save_tensors
from kcg.predictor.network import NetSettings, Network, Shapes, checked, linear, settings_of
from kcg.predictor.network import shapes as network_shapes
from kcg.predictor.stacked import Linear, Stacked, one_thread, relu
from kcg.rl.env import MOST_ACTIONS, KernelScheduleEnv, Reading, Task
from kcg.rl.observation import Observer, ScheduleObservation
from kcg.search.beam import Drafts
from kcg.search.moves import fresh
from kcg.search.problem import Observation, Problem, Strategy, Trials
from kcg.types import Action, Schedule

FORMAT = "kcg-policy-1"
FEATURE_SCALE = 0.25  # most features are logarithms up to 10
TRUNK = "trunk."  # what the names of its arrays begin with
SHIPPED = Path(__file__).parent / "policies"


@dataclass(frozen=True)
class Proposal:
    """What a policy would do at one schedule: probabilities that sum to 1, and what it hopes for."""

    stop: float
    steps: tuple[float, ...]  # of each of the space's `actions`, in their order
    value: float = 0.0  # expected log-speedup, over this schedule, of where the policy ends


Propose = Callable[[Sequence[Schedule]], list[Proposal]]
"""What a policy would do at some schedules of one kernel."""


def shapes(trunk: NetSettings) -> Shapes:
    """The arrays of a policy's network. Raises ValueError where no network is of these settings."""
    hidden = trunk.hidden
    inputs = (1 + AXES_OF_ACTION) * hidden + len(ACTION_FEATURES)
    score = linear("score.0", inputs, 2 * hidden) | linear("score.2", 2 * hidden, hidden) | linear("score.4", hidden, 1)
    value = linear("value.0", hidden, hidden) | linear("value.2", hidden, 1)
    return {**{TRUNK + name: shape for name, shape in network_shapes(trunk).items()}, **score, **value}


@dataclass(frozen=True, eq=False)
class PolicyNumbers:
    """The network of a policy: `numbers` are float32, named and shaped as `shapes(trunk)` says."""

    trunk: NetSettings
    numbers: Mapping[str, Array]

    def trunk_network(self) -> Network:
        """The part that is the predictor's."""
        held = {name.removeprefix(TRUNK): v for name, v in self.numbers.items() if name.startswith(TRUNK)}
        return Network(self.trunk, held)


class Policy:
    """A trained policy, asked about schedules of one kernel: `of(observer)` is what a search takes."""

    def __init__(self, network: PolicyNumbers, about: PolicyAbout) -> None:
        """Raises DataError where its trunk compares candidates, which only training can ask."""
        self.network, self.about = network, about
        self._trunk = Stacked([network.trunk_network()])
        self._score, self._value = (
            [_linear(network.numbers, f"{name}.{place}") for place in places]
            for name, places in (("score", (0, 2, 4)), ("value", (0, 2)))
        )

    def of(self, observer: Observer) -> Propose:
        """Proposals for the schedules of one kernel, whose actions are those of the observer."""

        def propose(schedules: Sequence[Schedule]) -> list[Proposal]:
            return self.propose(observer.observe_all(schedules))

        return propose

    def propose(self, observations: Sequence[ScheduleObservation]) -> list[Proposal]:
        """One proposal for each observation, in order."""
        if not observations:
            return []
        counts = np.array([len(one.rows) for one in observations])
        with one_thread, np.errstate(all="ignore"):  # weights may be anything
            logits, values = self.judged(observations)
            chances = softmax(np.nan_to_num(logits), counts).tolist()
        found, first = [], 0
        for observation, value in zip(observations, np.nan_to_num(values).tolist(), strict=True):
            *steps, stop = chances[first : first + len(observation.rows)]
            found.append(Proposal(stop, tuple(steps), value))
            first += len(observation.rows)
        return found

    def judged(self, observations: Sequence[ScheduleObservation]) -> tuple[Array, Array]:
        """Logits (r,) of the rows of n schedules, one at least, one schedule after another; and (n,) their values."""
        made, kernel_x, target_x = side_by_side(observations)
        n, hidden = len(observations), self.network.trunk.hidden
        axes = np.zeros((1, n, int(made.n_axes.max()) + 1, hidden), np.float32)  # the last is that of no axis: place -1
        (state,) = self._trunk.with_axes(made, kernel_x, target_x, axes[:, :, :-1]).hidden
        owner = np.repeat(np.arange(n), [len(one.rows) for one in observations])
        places = np.concatenate([one.rows.axes for one in observations])
        rows = np.concatenate([one.rows.features for one in observations])
        looked_up = axes[0][owner[:, None], places].reshape(len(owner), -1)
        seen = np.concatenate([state[owner], looked_up, rows * np.float32(FEATURE_SCALE)], 1)
        return _through(self._score, seen), _through(self._value, state)


def _linear(numbers: Mapping[str, Array], name: str) -> Linear:
    return Linear(np.ascontiguousarray(numbers[f"{name}.weight"].T), numbers[f"{name}.bias"])


def _through(layers: Sequence[Linear], x: Array) -> Array:
    """(m,) of (m, in): the last layer has one output."""
    for layer in layers[:-1]:
        x = relu(layer(x))
    return layers[-1](x)[:, 0]


def softmax(logits: Array, counts: Array) -> Array:
    """Probabilities of rows within each schedule: `counts` are of the rows of each, one at least."""
    first = np.cumsum(counts) - counts
    raised = np.exp(logits - np.repeat(np.maximum.reduceat(logits, first), counts))
    found: Array = raised / np.repeat(np.add.reduceat(raised, first), counts)
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
        "trunk": asdict(policy.network.trunk),
    }
    save_tensors(path, as_stored(policy.network.numbers), header)


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
        settings = settings_of(header["trunk"])
        network = PolicyNumbers(settings, checked(tensors, shapes(settings)))
        about = header["about"]
        about["targets"] = tuple(about["targets"])
        about["datasets"] = tuple((name, value) for name, value in about["datasets"])
        policy = Policy(network, PolicyAbout(**about))
        check_about(policy.about, *policy.about.targets)
        return policy
    except (KeyError, TypeError, ValueError) as error:
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
