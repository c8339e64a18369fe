"""Small policies, and the kernels whose schedules they judge: what the tests of policies share."""

from __future__ import annotations

import torch
from torch import nn

from kcg.predictor import choice
from kcg.predictor.network import NetSettings
from kcg.predictor.roofline import Roofline
from kcg.rl.observation import Observer
from kcg.rl.policy import PolicyAbout
from kcg.search.mcts import Graph, MctsSettings
from kcg.search.problem import Predict, Trials
from kcg.search.replay import oracle_predict
from kcg.training.policy_network import PolicyNet
from tests.replay_table import synthetic_table

SHIPPED = choice.SHIPPED / "cuda.safetensors"
SMALL = NetSettings(hidden=16, layers=1)
ABOUT = PolicyAbout("tiny", ("f",), (("kernels.parquet", "c"),), "workload", {"x": 0.5}, "r", {"seed": 1})


def roofline(observer: Observer) -> Predict:
    return Roofline().of(observer.space).predict


def opinionated(seed: int = 0, settings: NetSettings = SMALL) -> PolicyNet:
    """Random, and not uniform as a new policy is."""
    torch.manual_seed(seed)
    net = PolicyNet(settings)
    last = net.score[-1]
    assert isinstance(last, nn.Linear)
    nn.init.normal_(last.weight, std=2.0)
    return net


def grown(*, seed: int = 0) -> Graph:
    table = synthetic_table()
    return Graph(Trials(table.problem(oracle_predict(table), seed=seed)), MctsSettings())
