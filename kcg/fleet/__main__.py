"""kcg fleet scheduler | worker | status | certificates"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_group, examples, guarded, run_app
from kcg.commands import command_name
from kcg.errors import ExitCode

WATCH_S = 2.0

app = command_group("kcg fleet status tls://host:8786", "kcg fleet COMMAND --help")


@app.callback()
def commands() -> None:
    """Many machines for one run: their scheduler, their workers, their state."""


Scheduler = Annotated[str, typer.Argument(metavar="SCHEDULER", help="its address: tls://HOST:PORT")]
Certificates = Annotated[Path | None, typer.Option(metavar="DIR", help="the fleet's certificates, which TLS needs")]


@app.command(epilog=examples("kcg fleet worker tls://host:8786 --certificates DIR"))
def worker(
    scheduler: Scheduler,
    certificates: Certificates = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, CPU, CUDA …")] = "auto",
    cores: Annotated[int | None, typer.Option(min=1, metavar="N", help="that compile; all by default")] = None,
) -> ExitCode:
    """Measure on this machine for the drivers of a scheduler, on each of its GPUs, or on its CPU."""
    from kcg.fleet.connection import checked
    from kcg.fleet.settings import configure

    security = checked(scheduler, certificates)
    configure()
    from kcg.fleet.host import devices_here, serve

    devices = devices_here(device, cores)
    names = ", ".join(f"{one.dev} {one.gpu}".strip() for one in devices)
    typer.echo(f"kcg: measuring on {names} for {scheduler}; Ctrl-C ends it", err=True)
    return serve(scheduler, security, devices)


@app.command(epilog=examples("kcg fleet status tls://host:8786 --certificates DIR --watch"))
def status(
    scheduler: Scheduler,
    certificates: Certificates = None,
    json_mode: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="again every two seconds, until Ctrl-C")] = False,
) -> None:
    """Show the hosts of a scheduler: their targets, how fast they measure, and what runs."""
    import json

    from kcg.fleet import status as fleet

    if watch and not json_mode:
        fleet.watch(scheduler, certificates, every_s=WATCH_S)
        return
    found = fleet.read_status(scheduler, certificates)
    if json_mode:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        fleet.show(found)


def main() -> ExitCode:
    return run_app(app, command_name("fleet"))


if __name__ == "__main__":
    guarded(main)
