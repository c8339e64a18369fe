"""The methods table: what hand-coded schedules, BEAM, MCTS, random search and kcg make of a step of Flux.

    python -m evaluation.flux.table --preset 1024 --device CUDA --budget 9m      # again and again, until it is done
    python -m evaluation.flux.table --preset 1024 --device CUDA --part retime
    python -m evaluation.flux.table --preset mini --device CPU:X86 --methods tinygrad-beam:1,random:4 --share 0.3

All methods search the kernels that make 95 % of the time with tinygrad's own schedules, the rest stay as they are. What
each chose is then timed again beside tinygrad's own, in turns, and verified. Several GPUs of a host share both: once
the campaign is begun, one process each, the same command with `--shard 0/4`, `--shard 1/4`, … and a device of its own
(CUDA_VISIBLE_DEVICES). Each takes what nobody has done or is doing. `--part table` needs no device. Beside it: PyTorch,
from flux_torch.json, and the published figures.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import run_script
from kcg.errors import UnknownName

RESULTS = Path(__file__).parent.parent / "results"
PARTS = ("all", "search", "retime", "table")
METHODS = (
    "kcg:thorough:8m",
    "kcg:normal",
    "kcg:quick",
    "tinygrad-beam:4",
    "tinygrad-beam:8",
    "tinygrad-mcts:64",
    "random:64",
    "tinygrad-beam:2",
    "tinygrad-beam:1",
    "full-beam:4",
    "full-beam:8",
    "full-beam:2",
    "full-beam:1",
    "no-tensor-cores",
    "raw",
)


def main(
    preset: Annotated[str, typer.Option(help="mini, 768 or 1024; auto: as kcg takes it")] = "auto",
    device: Annotated[str, typer.Option(help="as kcg.optimize --device")] = "auto",
    part: Annotated[str, typer.Option(help="all, search, retime or table")] = "all",
    methods: Annotated[str, typer.Option(help="with commas between, in the order of searching")] = ",".join(METHODS),
    share: Annotated[float, typer.Option(help="of the time, whose kernels are searched")] = 0.95,
    budget: Annotated[str, typer.Option(help="of this piece; empty: until all is done")] = "",
    shard: Annotated[str, typer.Option(help="I/N: this is process I of N, which share the work")] = "",
    at_once: Annotated[int, typer.Option(help="kernels that a method with one measurement at a time searches")] = 6,
    work: Annotated[Path, typer.Option(help="the campaign's folder")] = RESULTS / "flux-table",
    torch: Annotated[Path, typer.Option(help="PyTorch's figures")] = RESULTS / "flux_torch.json",
    out: Annotated[Path, typer.Option(help="the results file")] = RESULTS / "flux_table.json",
    document: Annotated[Path | None, typer.Option(help="whose table is written")] = None,
) -> None:
    """Do what is left of a campaign, as far as the time goes, and write down its table."""
    from evaluation.flux.campaign import Campaign, assigned, claim, claim_journal
    from evaluation.flux.methods_table import write_down
    from evaluation.flux.retiming import choices, retime_all
    from evaluation.flux.searching import fly_canary, search
    from evaluation.search.device_journal import DeviceJournal, Shard
    from evaluation.search.on_device import flux_on_device
    from kcg.cli import parse_budget
    from kcg.compat.device import choose_device
    from kcg.measure.lock import lock_device
    from kcg.predictor.choice import choose_predictor
    from kcg.workloads.registry import find

    if part not in PARTS:
        raise UnknownName("part", part, list(PARTS))
    until = time.monotonic() + parse_budget(budget) if budget else float("inf")
    dev = choose_device(device).dev if part != "table" else device
    spec, preset = find("flux", preset, dev)
    files = {name: work / f"{dev.replace(':', '-')}-{name}.jsonl" for name in spec.presets}
    beside = [file for name, file in files.items() if name != preset]  # they have some kernels in common
    journal = DeviceJournal(files[preset], shard=Shard.parse(shard), beside=beside)
    campaign = Campaign(journal, preset, dev, tuple(filter(None, methods.split(","))), share, typer.echo, until)
    if part == "table":
        write_down(campaign, [*choices(campaign, campaign.setting, None)], torch, out, document)
        return
    with claim_journal(campaign), flux_on_device(device, preset, journal) as service:
        predictor = choose_predictor("auto", service.target)
        kernels, canary_s = len(campaign.setting.kernels), fly_canary(campaign, service)
        typer.echo(f"{len(campaign.searched())} of {kernels} kernels, canary {canary_s * 1e6:.1f} µs")
        for wave in assigned(campaign, campaign.units(), at_once) if part != "retime" else ():
            with ThreadPoolExecutor(len(wave)) as pool:
                for done in [pool.submit(search, campaign, service, predictor, unit) for unit in wave]:
                    done.result()
        if part != "search":
            service.fresh_child()
            with lock_device(dev):
                retime_all(campaign, service, predictor)
            with claim(campaign, "table", wait=True):  # whoever is last writes down what all found
                journal.read_on()
                write_down(campaign, [*choices(campaign, service, predictor)], torch, out, document)
    for what, count in Counter(campaign.left).items():
        typer.echo(f"no time for {what} on {count} kernels: run the same command again")


if __name__ == "__main__":
    run_script(main)
