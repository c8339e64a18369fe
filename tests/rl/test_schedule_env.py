"""`kcg/Schedule-v0` is made from names alone, keeps Gymnasium's contract, and can be stored and made again."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import kcg.rl
from kcg.dataset.journal import Journal
from kcg.errors import DeviceError, KcgError, UsageError
from kcg.kernel.targets import TARGETS
from kcg.predictor.choice import shipped_path
from kcg.rl.schedule_env import ScheduleEnv
from kcg.types import Workload, WorkloadCall
from tests.env_tasks import check_episodes, region_of
from tests.rules import HEAVY, loaded_by
from tests.small_dataset import H200

ROOT = Path(__file__).parents[2]
ID = "kcg.rl:kcg/Schedule-v0"
QUICK = {"workload": "softmax/mini", "predictor": "roofline"}


@pytest.fixture(scope="module")
def default() -> Iterator[gymnasium.Env]:
    env = gymnasium.make(ID)
    yield env
    env.close()


def inner(env: gymnasium.Env) -> ScheduleEnv:
    assert isinstance(env.unwrapped, ScheduleEnv)
    return env.unwrapped


def test_without_arguments_it_needs_no_device_and_passes_gymnasiums_checker(default: gymnasium.Env) -> None:
    check_env(default.unwrapped)  # makes it again for each way to render, too
    check_episodes(inner(default))
    assert len(inner(default).tasks) == 21 and len({task.name for task in inner(default).tasks}) == 21


def test_registering_loads_no_torch_and_no_tinygrad() -> None:
    loaded = loaded_by("-c", "import kcg.rl") & HEAVY
    assert loaded <= loaded_by("-c", "import gymnasium") & HEAVY
    assert kcg.rl.ENVIRONMENTS.keys() <= gymnasium.registry.keys()


def test_its_specification_is_json_and_makes_it_again(default: gymnasium.Env) -> None:
    assert default.spec is not None
    env = gymnasium.make(ID, **QUICK, kernel="r_", start="hand-coded", max_steps=3, render_mode="ansi")
    assert env.spec is not None
    text = json.dumps(json.loads(env.spec.to_json()))
    again = gymnasium.make(EnvSpec.from_json(text))
    assert again.spec is not None and again.spec.kwargs == env.spec.kwargs
    assert inner(again).tasks == inner(env).tasks and inner(again).max_steps == 3
    first, second = (one.reset(seed=4) for one in (env, again))
    assert first[1] == second[1] and first[1]["start"] == "hand-coded"
    assert all(np.array_equal(first[0][name], second[0][name]) for name in first[0])
    assert env.render() == again.render() and "µs" in str(env.render())


def test_it_vectorises(default: gymnasium.Env) -> None:
    many = gymnasium.make_vec(ID, num_envs=3, **QUICK)
    observation, _ = many.reset(seed=0)
    ended = 0
    for _ in range(12):
        actions = np.array([np.flatnonzero(mask)[-1] for mask in observation["mask"]])  # to stop
        observation, rewards, terminated, truncated, _ = many.step(actions)
        assert observation in many.observation_space and np.isfinite(rewards).all() and not truncated.any()
        ended += int(terminated.sum())
    assert ended == 18  # after each end comes a reset
    many.close()


def test_a_reward_is_what_the_shipped_predictor_expects_on_its_own_target(default: gymnasium.Env) -> None:
    from kcg.predictor.choice import choose_predictor

    task = inner(default).tasks[0]
    (expected,) = choose_predictor("auto", TARGETS["sm_90"]).predict(task.observer.space, [task.ends.start()])
    _, info = default.reset(options={"task": 0})
    assert info["log_s"] == pytest.approx(expected.log_runtime, rel=1e-4)


def test_named_targets_are_those_that_the_shipped_predictors_were_trained_on() -> None:
    recorded = {f for name in ("h200", "cpu") for f in json.loads((H200.parent / name / "targets.json").read_text())}
    for name in ("sm_90", "x86_64"):
        assert TARGETS[name].fingerprint in recorded and TARGETS[name].arch.startswith(name)
        assert shipped_path(TARGETS[name]) is not None


def test_the_kernels_of_a_script_or_a_dataset_are_tasks_too(tmp_path: Path) -> None:
    region = region_of("matmul")
    with Journal.open(tmp_path / "mine.sqlite") as journal:
        journal.add_workload(Workload("script:mine", "run", (WorkloadCall(region, 7),)))
    (task,) = inner(gymnasium.make(ID, workload=str(tmp_path / "mine.sqlite"), predictor="roofline")).tasks
    assert task.name.endswith(region.id[:12]) and task.weight == 7
    (one,) = inner(gymnasium.make(ID, workload=str(H200), kernel="b680772", predictor="roofline")).tasks
    assert one.name.endswith(" b6807720a358") and one.weight > 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"workload": "lama/mini"}, "did you mean llama"),
        ({"workload": "softmax/big"}, "unknown preset of softmax"),
        ({"kernel": "zz"}, "no kernel has 'zz' in its name or id: there are [rE]_"),
        ({"target": "sm_91"}, "did you mean sm_90"),
        ({"reward": "measure"}, "did you mean measured"),
        ({"predictor": "absent.safetensors"}, "the path of a checkpoint"),
        ({"reward": "measured", "device": "AMD"}, "there is no AMD GPU here"),
        ({"start": "best"}, "an episode starts raw"),
        ({"workload": __file__}, "journal"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: dict[str, str], says: str) -> None:
    with pytest.raises(KcgError, match=says) as error:
        gymnasium.make(ID, **(QUICK | arguments))
    assert "\n" not in str(error.value) and isinstance(error.value, UsageError | DeviceError | KcgError)


def test_a_measured_reward_is_the_devices_own_and_measured_once() -> None:
    env = gymnasium.make(ID, workload="softmax/mini", kernel="r_", reward="measured", device="CPU:X86")
    try:
        _, info = env.reset(seed=0, options={"task": 0})
        assert 1e-7 < math.exp(info["log_s"]) < 1
        _, reward, _, truncated, after = env.step(0)
        assert not truncated and reward == pytest.approx(info["log_s"] - after["log_s"])
        assert env.reset(seed=1, options={"task": 0})[1]["log_s"] == info["log_s"]
        assert inner(env).tasks[0].observer.space.target.device == "CPU"
    finally:
        env.close()


@pytest.mark.slow
def test_a_module_before_the_id_is_all_that_is_imported_and_no_device_is_needed(tmp_path: Path) -> None:
    """Gymnasium 1.0 has no plugins: this is its own way to make what it does not know yet. Here as a user has it who
    has no compiler: plain tinygrad would find no device."""
    code = f"""
import os, gymnasium
from tinygrad.helpers import DEV
before = repr(DEV.value)
env = gymnasium.make({ID!r}, **{QUICK!r})
print(len(env.unwrapped.tasks), "DEV" in os.environ, repr(DEV.value) == before)
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("DEV", "CC")}
    folders = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "CACHEDB": str(tmp_path / "cache.db")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment | folders, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "16 False True\n"), done.stderr
