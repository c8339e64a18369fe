"""PPO with masked actions (sb3-contrib's MaskablePPO) for the policy's network, on episodes of many kernels at once.

The network is the features extractor: what it makes of a padded observation are the logits of the actions and the
value, and nothing is learned behind it. Only its numbers are kept, as safetensors; nothing of stable-baselines3 is
unpickled.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor
from torch import Tensor, nn

from kcg.predictor.features import Array
from kcg.rl.env import MOST_ACTIONS, KernelScheduleEnv, Task
from kcg.training.network import Batch, all_edges, owners
from kcg.training.policy_network import PolicyBatch, PolicyNet, placed

log = logging.getLogger(__name__)

BELOW = -1e8  # logit of a row that is not there


@dataclass(frozen=True)
class PpoSettings:
    """A PPO training. Defaults but for those named here are those of stable-baselines3."""

    steps: int = 200_000  # of all environments together
    rollout: int = 64  # steps of each environment between two updates
    batch: int = 512
    epochs: int = 3
    learning_rate: float = 2e-4
    entropy: float = 0.01
    discount: float = 1.0  # an episode ends after a few steps, and its return is what counts
    clip: float = 0.2
    target_divergence: float = 0.03  # an update stops early where the policy moved further (KL)
    start: str = "either"  # raw, hand-coded or either
    most_steps: int = 10
    curriculum: float = 0.25  # share of the training in which episodes grow from two steps to the most
    seed: int = 0


def unpadded(observation: dict[str, Tensor]) -> tuple[PolicyBatch, Tensor]:
    """The batch of padded observations (n, …), and the places (r,) of its rows among n * MOST_ACTIONS."""
    counts = observation["counts"].long()
    there = [
        torch.arange(observation[name].shape[1], device=counts.device)[None] < counts[:, i : i + 1]
        for i, name in enumerate(("axes", "accesses", "groups"))
    ]
    n_axes, n_accesses, n_groups = counts.unbind(1)
    kernel = torch.arange(len(counts), device=counts.device)
    graphs = Batch(
        schedule=observation["schedule"],
        kernel_x=observation["kernel"],
        target_x=observation["target"],
        kernel=kernel,
        base=torch.zeros(len(counts), device=counts.device),
        axes=observation["axes"][there[0]],
        accesses=observation["accesses"][there[1]],
        groups=observation["groups"][there[2]],
        access_edges=observation["access_edges"][there[0][:, :, None] & there[1][:, None]],
        group_edges=observation["group_edges"][there[0][:, :, None] & there[2][:, None]],
        access_index=all_edges(n_axes, n_accesses),
        group_index=all_edges(n_axes, n_groups),
        graph_of_axis=owners(n_axes),
        graph_of_access=owners(n_accesses),
        graph_of_group=owners(n_groups),
    )
    mask = observation["mask"] > 0
    owner = kernel[:, None].expand(mask.shape)[mask]
    axes = placed(observation["action_axes"].long()[mask], owner, n_axes)
    return PolicyBatch(graphs, observation["actions"][mask], axes, owner), mask.flatten().nonzero().squeeze(1)


class ScheduleExtractor(BaseFeaturesExtractor):
    """(n, MOST_ACTIONS + 1): the logits of the rows, and the value."""

    def __init__(self, observation_space: spaces.Dict, net: PolicyNet | None = None) -> None:
        super().__init__(observation_space, MOST_ACTIONS + 1)
        self.net = net if net is not None else PolicyNet()

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        batch, places = unpadded(observations)
        logits, values = self.net(batch)
        rows = logits.new_full((len(batch) * MOST_ACTIONS,), BELOW).index_put((places,), logits)
        return torch.cat([rows.view(len(batch), MOST_ACTIONS), values[:, None]], 1)


class _Halves(nn.Module):
    """Takes the extractor's output apart, in the place of stable-baselines3's perceptrons."""

    latent_dim_pi, latent_dim_vf = MOST_ACTIONS, 1

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: Tensor) -> Tensor:
        return features[:, :-1]

    def forward_critic(self, features: Tensor) -> Tensor:
        return features[:, -1:]


class SchedulePolicy(MaskableMultiInputActorCriticPolicy):
    """stable-baselines3's policy around a `PolicyNet`."""

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        self.mlp_extractor = _Halves()  # type: ignore[assignment]
        self.action_net, self.value_net = nn.Identity(), nn.Identity()  # type: ignore[assignment]
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]


class _Reported(KVWriter):
    """Hands on every line of stable-baselines3's figures: wandb's own callback only forwards TensorBoard's."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self.report = report

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        numbers = {k: float(v) for k, v in key_values.items() if isinstance(v, int | float | np.number)}
        self.report({"step": step, **numbers})

    def close(self) -> None:
        """Nothing is held."""


class _Progress(BaseCallback):
    """The curriculum, the speed-ups of finished episodes, and what is to be kept after each rollout."""

    def __init__(self, settings: PpoSettings, keep: Callable[[int], bool]) -> None:
        super().__init__()
        self.settings, self.keep = settings, keep
        self._speedups: list[float] = []
        self._faults = 0
        self._over = False

    def _on_rollout_start(self) -> None:
        done = self.num_timesteps / max(self.settings.steps, 1)
        share = min(done / self.settings.curriculum, 1.0) if self.settings.curriculum > 0 else 1.0
        most = self.settings.most_steps
        self.training_env.set_attr("max_steps", min(most, 2 + int(share * (most - 2))))
        self._speedups, self._faults = [], 0

    def _on_step(self) -> bool:
        for info, done in zip(self.locals["infos"], self.locals["dones"], strict=True):
            if done:
                self._speedups.append(info["log_speedup"])
                self._faults += "fault" in info
        return not self._over

    def _on_rollout_end(self) -> None:
        if self._speedups:
            self.logger.record("rollout/log_speedup", float(np.mean(self._speedups)))
            self.logger.record("rollout/faults", self._faults / len(self._speedups))
        self._over = not self.keep(self.num_timesteps)


def environments(makers: Sequence[Callable[[], Sequence[Task]]], settings: PpoSettings, *, here: bool) -> VecEnv:
    """One environment for each maker of tasks, each in a process of its own unless `here`."""
    built = [functools.partial(_environment, maker, settings.start, settings.most_steps) for maker in makers]
    made: VecEnv = DummyVecEnv(built) if here else SubprocVecEnv(built, start_method="spawn")  # type: ignore[arg-type]
    return VecMonitor(made, info_keywords=("log_speedup",))


class _EndedByFaults(KernelScheduleEnv):
    """A fault ends an episode as stopping does: to the reward of a truncated one stable-baselines3 adds what the value
    hopes for from there, and nothing comes after a fault."""

    def step(self, action: int) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, False, info


def _environment(maker: Callable[[], Sequence[Task]], start: str, most_steps: int) -> KernelScheduleEnv:
    torch.set_num_threads(1)
    return _EndedByFaults(maker(), start=start, max_steps=most_steps)


def train(
    net: PolicyNet,
    envs: VecEnv,
    settings: PpoSettings,
    *,
    device: str = "cpu",
    done: int = 0,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
    keep: Callable[[int], bool] = lambda steps: True,
) -> PolicyNet:
    """Train `net` in place and return it. `report` gets the figures of each update; `keep` is asked after each rollout,
    with the steps done so far, to write down what there is, and whether to go on."""
    for module in net.modules():  # the same network has to say the same before and after: no dropout
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    rows = settings.rollout * envs.num_envs
    # sb3-contrib divides advantages by their spread, and the spread of one is no number: no batch has one row
    batch = next((size for size in range(settings.batch, 1, -1) if rows % size != 1), rows)
    model = MaskablePPO(
        SchedulePolicy,
        envs,
        learning_rate=settings.learning_rate,
        n_steps=settings.rollout,
        batch_size=batch,
        n_epochs=settings.epochs,
        gamma=settings.discount,
        clip_range=settings.clip,
        ent_coef=settings.entropy,
        target_kl=settings.target_divergence,
        seed=settings.seed + done,  # else what goes on would draw the episodes that it began with
        device=device,
        policy_kwargs={"features_extractor_class": ScheduleExtractor, "features_extractor_kwargs": {"net": net}},
    )
    model.set_logger(Logger(None, [_Reported(report)]))
    model.num_timesteps = done
    left = settings.steps - done
    if left > 0:
        model.learn(left, callback=_Progress(settings, keep), reset_num_timesteps=False, log_interval=1)
    return net.eval()


def divided(count: int, parts: int) -> list[list[int]]:
    """Places 0 to count - 1 shared out to so many parts, at least one place each."""
    return [list(range(i, count, parts)) for i in range(min(parts, count))]
