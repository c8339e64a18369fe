"""kcg fleet scheduler | worker | status | certificates"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kcg import shell
from kcg.cli import command_group, examples, guarded, pip_install, run_app
from kcg.commands import SETTINGS, command_name
from kcg.errors import ExitCode, UsageError

WATCH_S = 2.0
CORES_FACTOR = 4  # compilers that a worker may offer for each core that it may use

app = command_group("kcg fleet status tls://host:8786", "kcg fleet COMMAND --help")

Scheduler = Annotated[str, typer.Argument(metavar="SCHEDULER", help="its address: tls://HOST:PORT")]
Certificates = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="this machine's certificates; $KCG_FLEET_CERTIFICATES or ~/.config/kcg/certificates"
    ),
]


@app.callback()
def commands() -> None:
    """Many machines for one run: their scheduler, their workers, their state."""


@app.command(epilog=examples("kcg fleet worker tls://host:8786 --certificates DIR"))
def worker(
    scheduler: Scheduler,
    certificates: Certificates = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, CPU, CUDA …; none: only compile")] = "auto",
    cores: Annotated[int | None, typer.Option(min=1, metavar="N", help="that compile; all by default")] = None,
    take_binaries: Annotated[
        bool,
        typer.Option("--take-binaries", help="run what hosts that only compile made, see docs/fleet.md"),
    ] = False,
) -> ExitCode:
    """Measure on this machine, or only compile, for a scheduler.

    Measuring is on each of its GPUs, or on its CPU, for whatever drivers that scheduler has."""
    from kcg.fleet.connection import checked
    from kcg.fleet.settings import configure
    from kcg.measure.device_info import usable_cores

    if cores is not None and cores > (most := CORES_FACTOR * usable_cores()):
        raise UsageError(f"--cores: at most {most} here, {CORES_FACTOR} for each core of this machine")
    security = checked(scheduler, certificates, "worker")
    configure()
    from kcg.fleet.host import NO_DEVICE, HostDevice, devices_here, serve

    devices = [HostDevice(NO_DEVICE, cores=cores)] if device == NO_DEVICE else devices_here(device, cores)
    devices = [replace(one, takes_binaries=take_binaries) for one in devices]
    names = ", ".join(f"{one.dev} {one.gpu}".strip() for one in devices)
    what = "compiling" if device == NO_DEVICE else f"measuring on {names}"
    typer.echo(f"kcg: {what} for {scheduler}; Ctrl-C ends it", err=True)
    return serve(scheduler, security, devices)


@app.command(epilog=examples("kcg fleet status tls://host:8786 --certificates DIR --watch"))
def status(
    scheduler: Scheduler,
    certificates: Certificates = None,
    json_mode: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="again every two seconds, until Ctrl-C")] = False,
) -> None:
    """Show the hosts of a scheduler: targets, speed, what runs."""
    import json

    from kcg.fleet import status as fleet
    from kcg.fleet import unpickling
    from kcg.fleet.settings import configure

    configure()
    unpickling.install()
    if watch and not json_mode:
        fleet.watch(scheduler, certificates, every_s=WATCH_S)
        return
    found = fleet.read_status(scheduler, certificates)
    if json_mode:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        fleet.show(found)


@app.command(
    context_settings=SETTINGS,
    epilog=examples("kcg fleet certificates fleet-keys", "kcg fleet certificates fleet-keys --hosts gpu1,gpu2"),
)
def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new folder, or one made so to add --hosts to")],
    days: Annotated[int, typer.Option(metavar="N", min=1, max=3650, help="how long they are valid")] = 365,
    hosts: Annotated[str, typer.Option(metavar="NAME,…", help="workers' machines, for a key each")] = "",
) -> None:
    """Make the certificates by which machines know each other."""
    _require_extra()
    from kcg.fleet.certificates import AUTHORITY, make
    from kcg.fleet.security import usual_folder

    made = make(folder, days=days, hosts=[name.strip() for name in hosts.split(",") if name.strip()])
    home = str(usual_folder()).replace(str(Path.home()), "~", 1)
    copy = shell.command("scp -rp", f"{made[-1].absolute()}/.", f"HOST:{home}/")
    typer.echo(f"made {', '.join(map(str, made))}: valid for {days} days")
    typer.echo(f"copy what is in one to {home} of each machine of that name or role: {copy}")
    typer.echo(
        f"keep {folder / AUTHORITY} to yourself: it makes more certificates, and no machine of the fleet needs it"
    )


@app.command(
    context_settings=SETTINGS,
    epilog=examples("kcg fleet scheduler", "kcg fleet scheduler --listen tls://0.0.0.0:8786 --certificates DIR"),
)
def scheduler(
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="tls:// for other machines to join")
    ] = "tcp://127.0.0.1:8786",
    certificates: Certificates = None,
) -> None:
    """Run the scheduler of a fleet until Ctrl-C."""
    _require_extra()
    from kcg.fleet.scheduler import run

    run(listen, certificates)


def _require_extra() -> None:
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in ("distributed", "cryptography")):
        raise UsageError(f"a fleet needs Dask distributed and cryptography: {pip_install('fleet')}")


def main() -> ExitCode:
    return run_app(app, command_name("fleet"))


if __name__ == "__main__":
    guarded(main)
