"""Schedules as a reinforcement-learning problem. Importing this package registers its environments with Gymnasium.

Gymnasium 1.0 removed its plugins: entry points of the group `gymnasium.envs` are not looked at any more. What it
documents instead is a module before the id, which it imports: `gymnasium.make("kcg.rl:kcg/Schedule-v0")`. No other
import is needed, and nothing of an environment is loaded before one is made.
"""

from typing import Final

import gymnasium

ENVIRONMENTS: Final = {
    "kcg/Schedule-v0": "kcg.rl.schedule_env:ScheduleEnv",  # its tasks are made from names
    "kcg/KernelSchedule-v0": "kcg.rl.env:KernelScheduleEnv",  # its tasks are given
    "kcg/Plan-v0": "kcg.rl.plan_env:PlanEnv",  # replays recorded programs
}
"""What can be made, by id."""

for name, entry_point in ENVIRONMENTS.items():
    gymnasium.register(name, entry_point=entry_point)
