"""Time of one step of the action space, tinygrad's own way (graph rewriting) and by arithmetic
(`kcg.kernel.opts.planner`).

    python -m evaluation.search.bench_space flux/mini gpt2/mini resnet/mini
    python -m evaluation.search.bench_space kernels.sqlite --kernels 100

Both walk the same states of the same kernels, drawn at random; `start` is tinygrad's in both, and then what reading it
into arithmetic costs beside. Updates evaluation/results/bench_space.json.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.cli import command_text, record_results, run_script
from kcg.compat import scheduling
from kcg.compat.device import choose_cpu, prepare
from kcg.compat.renderers import planning_renderer
from kcg.dataset.journal import Journal
from kcg.kernel.codec import ast_of
from kcg.kernel.loop_nest import axis_table, count_uops
from kcg.kernel.opts.planner import legal_steps, planner_from
from kcg.types import Region, Target
from kcg.workloads import registry
from tests.known_targets import KNOWN_TARGETS

RESULTS = Path(__file__).parents[2] / "evaluation" / "results" / "bench_space.json"
DEFAULT = ["flux/mini", "gpt2/mini", "resnet/mini"]
REPEATS = 5  # of an arithmetic answer, which is too short for the clock
Times = defaultdict[str, list[float]]


def regions_of(source: str) -> list[Region]:
    """The kernels of a journal, or of a workload `name/preset`."""
    if Path(source).is_file():
        with Journal.open(Path(source), read_only=True) as journal:
            return list(journal.regions().values())
    name, _, preset = source.partition("/")
    spec, chosen = registry.find(name, preset or "auto", "CPU")
    return list({c.region.id: c.region for c in spec.capture(chosen).calls if len(c.region.kernels) == 1}.values())


def timed(times: list[float], call: Callable[[], Any], *, repeats: int = 1) -> Any:
    began = time.perf_counter()
    for _ in range(repeats):
        found = call()
    times.append((time.perf_counter() - began) / repeats)
    return found


def bench(region: Region, target: Target, steps: int, rng: random.Random, old: Times, new: Times) -> Counter[str]:
    """Walks one kernel; counts states, answers that differ, and kernels outside of what arithmetic can do."""
    root = timed(old["start"], lambda: scheduling.initial_state(ast_of(region.kernel), planning_renderer(target)))
    if (planner := timed(new["start"], lambda: planner_from(root, target))) is None:
        return Counter(outside=1)
    real, state, found = root, planner.start(), Counter[str]()
    for number in range(steps):
        # tensor cores are tinygrad's in both, and tried in the first list alone
        what, repeats = ("legal", REPEATS) if number else ("legal_first", 1)
        legal = timed(old[what], lambda real=real: legal_steps(real, target))
        plan = timed(new[what], lambda state=state: planner.legal(state), repeats=repeats)
        found += Counter(states=1, differing=[opt for opt, _ in legal] != plan)
        if not plan:
            break
        opt = rng.choice(plan)
        real = timed(old["step"], lambda real=real, opt=opt: scheduling.apply(real, (opt,)))
        state = timed(new["step"], lambda state=state, opt=opt: planner.apply(state, opt), repeats=REPEATS)
        table = timed(old["table"], lambda real=real: axis_table(real))
        count = timed(old["uops"], lambda real=real, table=table: count_uops(real, table))
        timed(old["key"], lambda real=real: scheduling.canonical_key(real))
        planned = timed(new["table"], lambda state=state: planner.table(state), repeats=REPEATS)
        counted = timed(new["uops"], lambda state=state: planner.uops(state), repeats=REPEATS)
        timed(new["key"], lambda state=state: planner.key(state), repeats=REPEATS)
        found += Counter(differing=(planned, counted) != (table, count))
    return found


def main(
    sources: Annotated[list[str] | None, typer.Argument(help="journals, or workloads as name/preset")] = None,
    kernels: Annotated[int, typer.Option(help="of each source, drawn at random")] = 25,
    steps: Annotated[int, typer.Option(help="of one random walk on each")] = 5,
    arch: Annotated[str, typer.Option(help="of KNOWN_TARGETS")] = "sm_90",
    seed: Annotated[int, typer.Option(help="of kernels and walks")] = 0,
) -> None:
    """Bench, then write the results."""
    prepare(choose_cpu().dev)
    rng, names = random.Random(seed), sources or DEFAULT
    old: Times = defaultdict(list)
    new: Times = defaultdict(list)
    found = Counter(states=0, differing=0, outside=0)
    for name in names:
        regions = regions_of(name)
        for region in rng.sample(regions, min(kernels, len(regions))):
            found.update(bench(region, KNOWN_TARGETS[arch], steps, rng, old, new))
    entry: dict[str, Any] = {**found, "arch": arch}
    for what in old:
        before, after = (1e6 * statistics.mean(t[what]) for t in (old, new))
        entry[what] = {"tinygrad_us": round(before, 1), "arithmetic_us": round(after, 1)}
        entry[what] |= {"arithmetic_worst_us": round(1e6 * max(new[what]), 1), "ratio": round(before / after, 1)}
        sys.stderr.write(f"{what}: {before:.0f} us, {after:.1f} us by arithmetic\n")
    run = " ".join(Path(name).stem if Path(name).is_file() else name for name in names)
    entry["command"] = command_text("evaluation.search.bench_space")
    headline = {f"{what}_ratio": entry[what]["ratio"] for what in ("legal", "step", "table", "uops", "key")}
    record_results(RESULTS, run, entry, headline)


if __name__ == "__main__":
    run_script(main)
