"""PPO improves a policy on real kernels, repeats itself under a seed, and goes on where it was cut."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from kcg.kernel.opts.schedule import RAW
from kcg.rl.env import FAULT_VALUE, MOST_ACTIONS, KernelScheduleEnv, Reading, observation_space, padded
from kcg.rl.observation import ScheduleObservation
from kcg.rl.policy import Policy, likeliest_ends
from kcg.training.policy_network import PolicyNet, batch_of
from kcg.training.ppo import (
    BELOW,
    PpoSettings,
    ScheduleExtractor,
    SchedulePolicy,
    divided,
    environments,
    train,
    unpadded,
)
from kcg.types import Schedule
from tests.env_tasks import observer_of, task
from tests.policies import ABOUT, SMALL, opinionated

STILL = replace(SMALL, dropout=0.0)


@cache
def every_observation() -> list[ScheduleObservation]:
    """Of kernels of every kind, raw, hand-coded and one step on."""
    found = []
    for name in ("matmul", "softmax.1", "conv2d", "matmul_f16", "cache_update.1", "copy", "no axis"):
        observer = observer_of(name)
        steps = [step.schedule for step in observer.space.actions(RAW)[:2]]
        found += observer.observe_all([RAW, observer.space.baseline(), *steps])
    return found


def scaled() -> PolicyNet:
    """A new policy whose network knows the scale of its features, as one from the predictor does."""
    torch.manual_seed(0)
    net = PolicyNet(STILL)
    net.trunk.fit_scale(batch_of(every_observation()).graphs, torch.zeros(1))
    return net


def as_tensors(observations: list[ScheduleObservation]) -> Any:
    """Padded observations as stable-baselines3 hands them to a policy: all of them floats."""
    arrays = [padded(observation) for observation in observations]
    stacked = {name: np.stack([one[name] for one in arrays]) for name in arrays[0]}
    return preprocess_obs(obs_as_tensor(stacked, torch.device("cpu")), observation_space())


# PPO


def test_padded_observations_are_judged_as_they_are() -> None:
    net, observations = opinionated(settings=STILL), every_observation()
    with torch.no_grad():
        batch, places = unpadded(as_tensors(observations))
        logits, values = net(batch)
        ours, our_values = net(batch_of(observations))
    assert torch.allclose(logits, ours, atol=1e-4) and torch.allclose(values, our_values, atol=1e-4)
    expected = [
        i * MOST_ACTIONS + row for i, observation in enumerate(observations) for row in range(len(observation.rows))
    ]
    assert places.tolist() == expected
    assert ours.std() > 0.1


def test_of_an_observation_that_can_only_stop_the_other_rows_are_left_out() -> None:
    (observation, *_), net = every_observation(), opinionated(settings=STILL)
    arrays = {name: torch.from_numpy(value)[None] for name, value in padded(observation, only_stop=True).items()}
    batch, places = unpadded(arrays)
    assert places.tolist() == [len(observation.steps)]
    with torch.no_grad():
        assert net(batch)[0].item() == pytest.approx(net(batch_of([observation]))[0][-1].item(), abs=1e-4)


def envs_of(settings: PpoSettings, *names: str, count: int = 1) -> VecEnv:
    return environments([lambda: [task(name) for name in names]] * count, settings, here=True)


def test_ppo_learns_the_network_and_nothing_behind_it() -> None:
    """Its probabilities are those of the policy as a search asks it."""
    net = opinionated(settings=STILL)
    policy = SchedulePolicy(
        observation_space(),
        KernelScheduleEnv([task("matmul")]).action_space,
        lambda _: 1e-3,
        features_extractor_class=ScheduleExtractor,
        features_extractor_kwargs={"net": net},
    )
    assert {id(p) for p in policy.parameters()} == {id(p) for p in net.parameters()}
    observations = every_observation()
    arrays = [padded(observation) for observation in observations]
    stacked = {name: torch.from_numpy(np.stack([one[name] for one in arrays])) for name in arrays[0]}
    masks = stacked["mask"].numpy().astype(bool)
    with torch.no_grad():
        report = policy.get_distribution(stacked, masks).distribution.probs
        raw = policy.extract_features(stacked)
    assert (raw[:, :-1][~torch.from_numpy(masks)] == BELOW).all()
    for row, mask, proposal in zip(report, masks, Policy(net.network(), ABOUT).propose(observations), strict=True):
        assert row[mask].tolist() == pytest.approx([*proposal.steps, proposal.stop], abs=1e-5)
        assert row[~mask].sum() == pytest.approx(0.0, abs=1e-6)


def mean_return(net: PolicyNet, *names: str, episodes: int = 30) -> float:
    """Of episodes sampled from the policy, from raw."""
    policy, rng = Policy(net.network(), ABOUT), np.random.default_rng(0)
    env, paid = KernelScheduleEnv([task(name) for name in names], max_steps=4), []
    env.reset(seed=0)
    for _ in range(episodes):
        env.reset()
        total, over = 0.0, False
        while not over:
            proposal = policy.propose([env.observed])[0]
            chances = np.array([*proposal.steps, proposal.stop]) * env.action_masks()[: len(proposal.steps) + 1]
            _, reward, terminated, truncated, _ = env.step(int(rng.choice(len(chances), p=chances / chances.sum())))
            total, over = total + reward, terminated or truncated
        paid.append(total)
    return float(np.mean(paid))


@pytest.mark.slow
def test_ppo_improves_its_return_on_a_real_kernel() -> None:
    settings = PpoSettings(
        steps=480, rollout=8, batch=32, epochs=4, learning_rate=4e-3, most_steps=4, start="raw", curriculum=0.0
    )
    net = scaled()
    before = mean_return(net, "matmul")
    report: list[dict[str, Any]] = []
    assert train(net, envs_of(settings, "matmul", count=12), settings, report=report.append) is net
    assert mean_return(net, "matmul") > before + 0.15
    assert len(report) == 5 and report[-1]["step"] == 480 and report[-1]["rollout/faults"] == 0.0
    assert np.mean([line["rollout/log_speedup"] for line in report[-2:]]) > report[0]["rollout/log_speedup"] + 0.15
    assert all(math.isfinite(value) for line in report for value in line.values())
    ends = likeliest_ends(Policy(net.network(), ABOUT), observer_of("matmul"))
    costs = [task("matmul").cost(schedule).log_s for schedule in (RAW, ends[0])]
    assert costs[1] < costs[0] - 0.5, "taken greedily, too"


QUICK = PpoSettings(steps=32, rollout=8, batch=16, epochs=1, learning_rate=1e-3, most_steps=3)


def test_ppo_repeats_itself_under_a_seed() -> None:
    def trained(seed: int) -> torch.Tensor:
        settings = replace(QUICK, seed=seed)
        net = train(scaled(), envs_of(settings, "matmul", "sum"), settings)
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    assert torch.equal(trained(0), trained(0)) and not torch.equal(trained(0), trained(1))


def test_ppo_is_asked_after_each_rollout_whether_to_go_on_and_goes_on_where_it_was() -> None:
    kept: list[int] = []

    def keep(steps: int) -> bool:
        kept.append(steps)
        return len(kept) < 2

    report: list[dict[str, Any]] = []
    net = train(scaled(), envs_of(QUICK, "sum"), QUICK, keep=keep, report=report.append)
    assert kept == [8, 16] and [line["step"] for line in report] == [8, 16] and not net.training
    kept.clear()
    train(net, envs_of(QUICK, "sum"), QUICK, done=16, keep=lambda steps: not kept.append(steps))  # type: ignore[func-returns-value]
    assert kept == [24, 32]
    before = [p.clone() for p in net.parameters()]
    train(net, envs_of(QUICK, "sum"), QUICK, done=32, keep=lambda steps: pytest.fail("nothing is left to do"))
    assert all(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))


def test_what_goes_on_draws_other_episodes_than_it_began_with() -> None:
    seeds = []
    for done in (0, 16):
        envs = envs_of(QUICK, "sum")
        train(scaled(), envs, QUICK, done=done, keep=lambda steps: False)
        seeds += envs.get_attr("np_random_seed")
    assert seeds[0] == QUICK.seed and seeds[0] != seeds[1]


def test_no_batch_has_one_row() -> None:
    """Of 4 steps in batches of 3 one would be left, whose advantage has no spread: the network would be no number."""
    settings = replace(QUICK, steps=4, rollout=4, batch=3)
    net = train(scaled(), envs_of(settings, "sum"), settings)
    assert all(bool(parameter.isfinite().all()) for parameter in net.parameters())


def test_nothing_is_hoped_for_after_a_fault() -> None:
    """stable-baselines3 adds the value of where a truncated episode ended to its last reward."""
    envs = environments([lambda: [replace(task("matmul"), cost=fails_but_raw)]], replace(QUICK, start="raw"), here=True)
    envs.reset()
    _, rewards, dones, (info,) = envs.step(np.array([0]))
    assert dones.all() and rewards.tolist() == [FAULT_VALUE] and info["fault"] == "it does not compile"
    assert not info["TimeLimit.truncated"]


def fails_but_raw(schedule: Schedule) -> Reading:
    return Reading(-10.0) if schedule == RAW else Reading(math.nan, "it does not compile")


@pytest.mark.slow
def test_episodes_grow_with_the_curriculum() -> None:
    settings = replace(QUICK, steps=64, most_steps=6, curriculum=0.5)
    envs, most = envs_of(settings, "matmul"), list[int]()

    def keep(steps: int) -> bool:
        most.extend(envs.get_attr("max_steps"))
        return True

    train(scaled(), envs, settings, keep=keep)
    assert most == [2, 3, 4, 5, 6, 6, 6, 6]


def test_kernels_are_assigned_out_to_all_processes() -> None:
    assert divided(5, 2) == [[0, 2, 4], [1, 3]] and divided(2, 8) == [[0], [1]] and divided(0, 3) == []
