"""How near is the loop of `evaluation.search.loop` to the best order of a run's jobs? Replays without a device.

    python -m evaluation.search.loop_replay
    python -m evaluation.search.loop_replay --record FOLDER --name mlp   # of a run of kcg optimize: keeps its jobs

What is counted is the mean share of the best plan's speed that the verified plan has (provisional parts included),
over the logarithm of the seconds since the command began, from the capture to when phases end. Arms: the loop, what a
run does (`ahead`), phases, saving a second, one-step knowledge gradient, each with estimates that are exact, off as a
predictor's are, and wrong by a factor of two in either direction; and the best order found by who knows every outcome
(`hindsight`: the best of 1,500 changes and of all arms), with an area that no order exceeds (`bound`). Runs are made up
of what was measured of Flux on H100s, and recorded on a CPU (`recorded/`). Writes results/loop_replay.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from evaluation.rows import key_of, rounded
from evaluation.search.job_orders import (
    Ahead,
    Hindsight,
    Phases,
    area,
    best_possible_s,
    bound,
    loop,
    one_step,
    saving_a_second,
)
from evaluation.search.job_replay import Errors, Estimates, Policy, Replayed, replayed
from evaluation.search.job_runs import Run, read_run, recorded, write_run
from evaluation.search.made_up_runs import RUNS, made_up
from kcg.cli import command_text, record_results, run_script
from kcg.provenance import provenance

RECORDED = Path(__file__).parent / "recorded"
OUT = Path(__file__).parents[1] / "results" / "loop_replay.json"
ERRORS: tuple[Errors, ...] = ("exact", "predicted", "wrong")
AFTER_S = (30, 60, 120)


def main(
    seeds: Annotated[int, typer.Option(help="made-up runs of each size", min=1)] = 1,
    record: Annotated[str, typer.Option(help="a folder of kcg optimize: keep what its jobs took")] = "",
    name: Annotated[str, typer.Option(help="of what is kept")] = "",
    only: Annotated[str, typer.Option(help="runs whose names begin so")] = "",
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Replay all arms, and write down how near they come."""
    if record:
        write_run(recorded(Path(record), name=name), RECORDED / f"{name}.json")
        return
    runs = [made_up(size, seed=seed) for size in RUNS for seed in range(seeds)]
    runs += [read_run(path) for path in sorted(RECORDED.glob("*.json"))]
    entries = json.loads(out.read_text())["runs"] if out.exists() else {}
    provenance()  # of what runs, whatever is committed meanwhile
    for run in runs:
        if run.name.startswith(only):
            entry = entries[run.name] = _entry(run)
            typer.echo(f"{run.name}: " + ", ".join(f"{arm} {value:.3f}" for arm, value in entry["area"].items()))
            command = command_text("evaluation.search.loop_replay")
            record_results(out, run.name, {"command": command, **entry}, headline(list(entries.values())))


def headline(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """What each arm has of hindsight's area, as means over all runs and over those that were recorded; and the loop of
    the bound."""
    found: dict[str, Any] = {}
    recorded_ones = [entry for entry in entries if not entry["made_up"]]
    for kind, of_kind in (("", entries), ("recorded", recorded_ones)):
        shares = [entry["of_hindsight"] for entry in of_kind]
        for key in shares[0] if shares else ():
            if any(key not in one for one in shares):  # some were replayed before there was that arm
                continue
            arm, _, errors = key.partition(" ")
            found[key_of(arm, "vs hindsight", *filter(None, (errors, kind)))] = rounded(fmean(s[key] for s in shares))
    for entry in entries:
        found[key_of("loop vs bound", entry["name"])] = rounded(entry["area"]["loop"] / entry["bound"])
    return found


def _entry(run: Run) -> dict[str, Any]:
    best_s = best_possible_s(run)
    until_s = replayed(run, Phases(run), Estimates()).ended_s
    found: dict[str, Replayed] = {}
    for errors in ERRORS:
        suffix = "" if errors == "exact" else f" {errors} estimates"
        arms: dict[str, Policy] = {"loop": loop, "saving_a_second": saving_a_second, "one_step": one_step}
        arms |= {"ahead": Ahead(run), "phases": Phases(run)}
        for arm, policy in arms.items():
            found[arm + suffix] = replayed(run, policy, Estimates(errors), until=until_s)
    areas = {arm: area(one, run, best_s, until_s) for arm, one in found.items()}
    hindsight, replay = Hindsight(run, until_s).found([])
    best = max(hindsight, *areas.values())
    found["hindsight"] = replay
    after_s = [s for s in AFTER_S if run.begin_s < s < until_s]
    shares = {arm: {str(s): rounded(best_s / one.seconds_at(s)) for s in after_s} for arm, one in found.items()}
    return {
        "name": run.name,
        "about": run.about,
        "made_up": run.made_up,
        "programs": run.programs,
        "until_s": rounded(until_s),
        "own_s": rounded(sum(part.calls * part.own_s for part in run.parts)),
        "best_s": rounded(best_s),
        "area": {**{arm: rounded(value) for arm, value in areas.items()}, "hindsight": rounded(best)},
        "bound": rounded(bound(run, until_s)),
        "of_hindsight": {arm: rounded(value / best) for arm, value in areas.items()},
        "share_after_s": shares,
    }


if __name__ == "__main__":
    run_script(main)
