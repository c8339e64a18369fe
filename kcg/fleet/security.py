"""Who may talk to whom in a fleet: TLS with certificates on both sides, except between processes of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kcg.errors import UsageError

if TYPE_CHECKING:
    from distributed.security import Security

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def security_for(address: str, certificates: Path | None) -> Security | None:
    """What Dask is to use for an address (`tls://host:8786`, `tcp://127.0.0.1:8786`); None for plain loopback.

    Raises:
        UsageError: plain text off loopback, or TLS without a folder of certificates.
    """
    scheme, _, host = address.partition("://")
    if scheme == "tcp" and host.rpartition(":")[0] in LOOPBACK:
        return None
    raise UsageError(f"{address}: a fleet of several machines needs TLS: give tls://HOST:PORT and --certificates DIR")
