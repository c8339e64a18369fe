"""Small policies, and the kernels whose schedules they judge: what the tests of policies share."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor import choice
from kcg.predictor.network import NetSettings
from kcg.predictor.roofline import Roofline
from kcg.rl.env import Task, predicted
from kcg.rl.observation import Viewer
from kcg.rl.policy import PolicyAbout, PolicyNet
from kcg.search.mcts import Graph, MctsSettings
from kcg.search.problem import Predict, Trials
from kcg.search.replay import oracle_predict
from kcg.types import Region
from tests.kernels import empty, example_ast, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.replay_table import synthetic_table

SHIPPED = choice.SHIPPED / "cuda.safetensors"
SMALL = NetSettings(hidden=16, layers=1)
ABOUT = PolicyAbout("tiny", ("f",), (("kernels.parquet", "c"),), "workload", {"x": 0.5}, "r", {"seed": 1})


@cache
def viewer_of(name: str) -> Viewer:
    made = {
        "matmul": lambda: empty(64, 96) @ empty(96, 80),
        "sum": lambda: empty(64, 48).sum(1),
        "rows": lambda: empty(256, 64).exp().contiguous(),
        "one step": lambda: empty(11) + 1,
        "other matmul": lambda: empty(48, 64) @ empty(64, 32),
        "no step": lambda: empty(17) + 1,
        "no axis": lambda: empty(1) + 1,
        "copy": lambda: empty(8, 4).permute(1, 0).contiguous(),
    }
    ast = kernels_of(made[name]())[-1] if name in made else example_ast(name)
    return Viewer(KernelSpace(Region((kernel_of(ast),)), KNOWN_TARGETS["sm_90"]))


def roofline(viewer: Viewer) -> Predict:
    return Roofline().of(viewer.space).predict


def opinionated(seed: int = 0, settings: NetSettings = SMALL) -> PolicyNet:
    """Random, and not uniform as a new policy is."""
    torch.manual_seed(seed)
    net = PolicyNet(settings)
    last = net.score[-1]
    assert isinstance(last, nn.Linear)
    nn.init.normal_(last.weight, std=2.0)
    return net


@cache
def task(name: str) -> Task:
    viewer = viewer_of(name)
    return Task(name, viewer.space, viewer, predicted(Roofline().of(viewer.space).predict))


def grown(*, seed: int = 0) -> Graph:
    table = synthetic_table()
    return Graph(Trials(table.problem(oracle_predict(table), seed=seed)), MctsSettings())
