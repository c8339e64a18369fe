"""kcg fleet scheduler | worker | status | certificates"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_group, examples, guarded, pip_install, run_app
from kcg.commands import SETTINGS, command_name
from kcg.errors import ExitCode, UsageError

app = command_group("kcg fleet status tls://host:8786", "kcg fleet COMMAND --help")

Certificates = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="this machine's certificates; $KCG_FLEET_CERTIFICATES or ~/.config/kcg/certificates"
    ),
]


@app.callback()
def commands() -> None:
    """Many machines for one run: their scheduler, their workers, their state."""


@app.command(
    context_settings=SETTINGS,
    epilog=examples("kcg fleet certificates fleet-keys", "kcg fleet certificates fleet-keys --hosts gpu1,gpu2"),
)
def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new folder, or one made so to add --hosts to")],
    days: Annotated[int, typer.Option(metavar="N", min=1, max=3650, help="how long they are valid")] = 365,
    hosts: Annotated[str, typer.Option(metavar="NAME,…", help="workers' machines, for a key each")] = "",
) -> None:
    """Make the certificates by which the machines of a fleet know each other."""
    _require_extra()
    from kcg.fleet.certificates import AUTHORITY, make
    from kcg.fleet.security import usual_folder

    made = make(folder, days=days, hosts=[name.strip() for name in hosts.split(",") if name.strip()])
    home = str(usual_folder()).replace(str(Path.home()), "~", 1)
    typer.echo(f"made {', '.join(map(str, made))}: valid for {days} days")
    typer.echo(f"copy what is in one to {home} of each machine of that name or role: scp -rp {made[-1]}/. HOST:{home}/")
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
