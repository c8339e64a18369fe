"""What a fleet is doing: its hosts, their targets, how fast they measure, and what runs; as a table or as JSON."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from kcg.cli import counted, table_console
from kcg.errors import UsageError
from kcg.fleet.connection import CONNECT_S, checked, hosts_of
from kcg.fleet.settings import configure
from kcg.nouns import plain

ID_DIGITS = 8  # of a target's fingerprint: enough to tell two apart
LONGEST = 400  # of a text that a host says


def read_status(address: str, certificates: Path | None) -> dict[str, Any]:
    """The hosts of a scheduler, as `--json` prints them. Raises UsageError where there is no scheduler."""
    security = checked(address, certificates)
    configure()
    try:
        workers = asyncio.run(asyncio.wait_for(_asked(address, security), CONNECT_S))
    except (OSError, TimeoutError) as error:
        what = str(error) or "no answer"
        raise UsageError(f"the scheduler at {address} does not answer ({what}): look at its own output") from None
    return {"scheduler": address, "hosts": [{"address": name, **worker} for name, worker in sorted(workers.items())]}


async def _asked(address: str, security: Any) -> dict[str, dict[str, Any]]:
    from distributed.core import rpc

    arguments = {} if security is None else security.get_connection_args("client")
    async with rpc(address, connection_args=arguments) as scheduler:
        return await hosts_of(scheduler)


def table_of(status: dict[str, Any]) -> Table:
    """One row for each host."""
    table = Table(title=f"{status['scheduler']}: {counted(len(status['hosts']), 'host')}", title_justify="left")
    for name in ("host", "device", "target", "compilers", "rows", "rows/s", "check", "runs"):
        table.add_column(name, justify="right" if name in ("compilers", "rows", "rows/s") else "left")
    for host in status["hosts"]:
        table.add_row(*(plain(text, LONGEST) for text in _row(host)))
    return table


def _row(host: dict[str, Any]) -> list[str]:
    """The texts of a host's row."""
    begin, cores = [host["address"], host["device"]], f"{host['resources'].get('compile', 0):g}"
    if host.get("problem"):
        return [*begin, f"not ready: {host['problem']}"]
    if not host["ready"]:
        return [*begin, "opening its device"]
    if host.get("compiles_only"):
        return [*begin, f"compiles only: {host['compiled']} done", cores]
    running, check = host["running"], f"{'failed' if host['fault'] else 'passed'} {_ago(host['checked_unix_s'])}"
    return [
        *begin,
        f"{host['model']} ({host['target'][:ID_DIGITS]}), {host['compiler']}",
        cores,
        str(host["rows"]),
        f"{host['rows_per_s']:.1f}",
        f"{check}: {host['fault']}" if host["fault"] else check,
        "; ".join(running[:3]) + (f" and {len(running) - 3} more" if len(running) > 3 else "") or "idle",
    ]


def _ago(unix_s: float) -> str:
    seconds = max(time.time() - unix_s, 0.0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def show(status: dict[str, Any]) -> None:
    """Print the table."""
    table_console(width=160, markup=False).print(table_of(status))


def watch(address: str, certificates: Path | None, every_s: float) -> None:
    """Show the table until Ctrl-C, or the scheduler ends."""
    from rich.live import Live

    console = table_console(width=160, markup=False)
    with Live(table_of(read_status(address, certificates)), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(table_of(read_status(address, certificates)), refresh=True)
