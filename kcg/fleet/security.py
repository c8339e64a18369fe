"""Who may talk to whom in a fleet: TLS with certificates on both sides, except between processes of one machine."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcg.errors import UsageError
from kcg.fleet.certificates import ROLES, problem_with

if TYPE_CHECKING:
    from distributed.security import Security

CERTIFICATES: Final = "KCG_FLEET_CERTIFICATES"
"""The environment variable that names the folder of this machine's certificates."""
LONGEST_GREETING: Final = 4096  # bytes; Dask's has 115
ANSWER_S: Final = 10.0
"""How long a scheduler may take to answer before it counts as not there."""


def security_for(address: str, certificates: Path | None) -> Security | None:
    """What Dask is to use for an address (`tls://host:8786`, `tcp://127.0.0.1:8786`); None for plain loopback.

    Without `certificates` their folder is the default one, if that is there.

    Raises:
        UsageError: plain text off loopback, TLS without certificates, or with such that cannot be used.
    """
    scheme, host, _ = parts_of(address)
    if scheme == "tcp" and _is_loopback(host):
        return None
    if scheme == "tcp":
        raise UsageError(f"{address}: plain text is for one machine only: give tls://HOST:PORT and --certificates DIR")
    folder = certificates or default_certificates()
    if folder is None:
        raise UsageError(
            f"{address}: TLS needs certificates: give --certificates DIR (made by `kcg fleet certificates`)"
        )
    roles = [role for role in ROLES if (folder / f"{role}.pem").exists()]
    if not roles:
        of_roles = [name for name in ROLES if (folder / name / "ca.pem").exists()]
        hint = (
            f"name one of its folders, such as {folder / of_roles[0]}" if of_roles else "see `kcg fleet certificates`"
        )
        raise UsageError(f"{folder} holds no certificate of a scheduler, a worker or a driver: {hint}")
    for role in roles:
        if problem := problem_with(folder, role):
            raise UsageError(problem)
    from kcg.fleet.tls import FleetSecurity

    return FleetSecurity(folder)


def default_certificates() -> Path | None:
    """The folder of this machine's certificates: $KCG_FLEET_CERTIFICATES, or ~/.config/kcg/certificates if there."""
    if named := os.environ.get(CERTIFICATES):
        return Path(named)
    folder = usual_folder()
    return folder if folder.is_dir() else None


def usual_folder() -> Path:
    """Where certificates are looked for that nobody named, by the XDG base directories."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "kcg" / "certificates"


def parts_of(address: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address.

    Raises:
        UsageError: it is none.
    """
    found = re.fullmatch(r"(tcp|tls)://(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+)):(\d{1,5})", address)
    if found is None or int(found[4]) > 65535:
        raise UsageError(f"{address!r} is no address of a scheduler: give tls://HOST:PORT, or tcp://127.0.0.1:PORT")
    return found[1], found[2] or found[3], int(found[4])


def require_scheduler(address: str, security: Security | None, role: str) -> None:
    """Return where a scheduler of this fleet answers and admits this side; `role` is Dask's: "client" or "worker".

    Dask itself tries again for long, and says little: this is to be called before it.

    Raises:
        UsageError: nobody answers, or one side refuses the other.
    """
    _, host, port = parts_of(address)
    context = security.get_connection_args(role)["ssl_context"] if security is not None else None
    try:
        with (
            socket.create_connection((host, port), timeout=ANSWER_S) as plain,
            plain if context is None else context.wrap_socket(plain) as connection,
        ):
            if not _greets(connection):  # a scheduler speaks first; with TLS 1.3 it judges after our handshake
                raise UsageError(
                    f"{address}: another service answers there, no scheduler: look at the port, or start one with "
                    "`kcg fleet scheduler`"
                )
    except ssl.SSLError as error:
        raise UsageError(f"{address}: {_reason_of(error)}") from error
    except (ConnectionResetError, BrokenPipeError) as error:
        raise UsageError(
            f"{address}: it hung up: is it a fleet's scheduler, and the certificate of the right role?"
        ) from error
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise UsageError(f"{address}: no scheduler there ({why}): start one with `kcg fleet scheduler`") from error


def _greets(connection: socket.socket) -> bool:
    """Whether the other side begins as Dask does, with the length of a short message of what it can do. Dask itself
    would take any eight bytes for a length, and ask for so much memory."""
    size = int.from_bytes(_read(connection, 8), "little")
    return 0 < size <= LONGEST_GREETING and b"pickle-protocol" in _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    """So many bytes. Raises ConnectionResetError where the other side hangs up before."""
    data = b""
    while len(data) < size:
        if not (more := connection.recv(size - len(data))):
            raise ConnectionResetError
        data += more
    return data


def _reason_of(error: ssl.SSLError) -> str:
    """What is wrong between two sides of TLS, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = getattr(error, "verify_message", "") or error.args[-1]
        return (
            f"its certificate is refused here: {reason}: both sides need certificates of one `kcg fleet certificates`"
        )
    words = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in words:
        return f"it refuses this side's certificate ({words}): both sides need valid ones of one authority"
    return f"it does not speak TLS as a fleet's scheduler does ({words}): start it with `kcg fleet scheduler`"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
