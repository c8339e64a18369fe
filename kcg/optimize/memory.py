"""Is there memory for the workload as a whole? Asked before anything of it is allocated.

At the end of a run the whole model runs on random weights (`whole_model`). What that needs is known as soon as the
workload is captured: its weights, inputs and outputs, and the arena in which tinygrad's planner lays out all values in
between. It is a lower bound: making the weights, and the programs themselves, take a little more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcg.errors import UsageError
from kcg.optimize.settings import Settings
from kcg.optimize.whole_model import is_runnable
from kcg.types import Workload

GB = 1e9


@dataclass(frozen=True)
class Room:
    """Bytes of a device's memory: what is free now, and all of it."""

    free: int
    total: int


def room_on(device: str) -> Room | None:
    """The memory of `device`, such as `CPU` or `CUDA`; None where it does not tell."""
    from kcg.compat.hardware import memory_of

    known = memory_of(device)
    return Room(*known) if known is not None else None


def check_memory(
    settings: Settings, workload: Workload, room: Room | None, *, device: str, say: Callable[[str], None]
) -> None:
    """Raises UsageError where `workload` will run as a whole and has no room; it names the next smaller that has.

    For that the other presets are captured, which takes a while; `say` is told.
    """
    if room is None or not is_runnable(settings, workload.name) or workload.memory_bytes <= room.free:
        return
    say(f"{shortage(workload, room, device=device)}: looking for a preset that fits")
    smaller = next_smaller(workload, room)
    if smaller is not None:
        advice = f"use --preset {smaller.preset}, which needs {smaller.memory_bytes / GB:.3g} GB"
    elif workload.memory_bytes <= room.total:
        advice = "no smaller preset fits: free memory that others use, or use another device"
    else:
        advice = "no smaller preset fits: use a device with more memory"
    raise UsageError(f"{shortage(workload, room, device=device)}: {advice}")


def shortage(workload: Workload, room: Room, *, device: str) -> str:
    """What is needed, and what there is, in one line."""
    return (
        f"{workload.name} {workload.preset} needs {workload.memory_bytes / GB:.3g} GB of memory "
        f"({workload.held_bytes / GB:.3g} GB of weights and inputs, {workload.between_bytes / GB:.3g} GB in between), "
        f"{device} has {room.free / GB:.3g} GB free of {room.total / GB:.3g} GB"
    )


def next_smaller(workload: Workload, room: Room) -> Workload | None:
    """The preset of the same workload that needs most of those that need less and have room; None if there is none."""
    from kcg.workloads.registry import spec_of

    spec = spec_of(workload.name)
    others = [spec.capture(preset) for preset in spec.presets if preset != workload.preset]
    fitting = [w for w in others if w.memory_bytes < workload.memory_bytes and w.memory_bytes <= room.free]
    return max(fitting, key=lambda w: w.memory_bytes, default=None)
