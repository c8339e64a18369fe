"""TLS between the roles of a fleet, for Dask. Dask alone checks that a certificate is of the same authority and in
its days, on both sides; it compares no names. Here each side checks the other's role as well, at the end of a handshake
and before a byte of a message is read."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

from distributed.security import Security

from kcg.errors import UsageError
from kcg.fleet.certificates import DRIVER, SCHEDULER, WORKER, problem_with, role_in

LISTENS_TO: Final = {SCHEDULER: {WORKER, DRIVER}, WORKER: {SCHEDULER}}
"""Whom a role admits that connects to it."""
CONNECTS_TO: Final = {DRIVER: {SCHEDULER}, WORKER: {SCHEDULER}, SCHEDULER: {WORKER}}
"""What a role has to find where it connects to. A worker asks other workers for nothing."""
ROLE_OF_DASK: Final = {"client": DRIVER, "scheduler": SCHEDULER, "worker": WORKER}


class RoleSocket(ssl.SSLSocket):
    """A connection that ends with its handshake where the other side has none of the roles of its context."""

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        context: Any = self.context
        role = peer_role(self.getpeercert())
        if role in context.peers or (role == WORKER and self._is_own_nanny(context.own)):
            return
        wanted = " or ".join(sorted(context.peers))
        raise _refused(f"the other side has a certificate of {role or 'no role'}, not of a {wanted}")

    def _is_own_nanny(self, own: bytes) -> bool:
        """Whether both ends have one certificate and one machine: so have a worker and the nanny that restarts it."""
        return bool(self.getpeercert(True) == own and self.getpeername()[0] == self.getsockname()[0])


def _refused(why: str) -> ssl.SSLCertVerificationError:
    """The error of a certificate that is refused, with what OpenSSL's own have: Dask reads it."""
    error = ssl.SSLCertVerificationError(ssl.SSL_ERROR_SSL, why)
    error.reason, error.verify_message = "CERTIFICATE_VERIFY_FAILED", why
    return error


def peer_role(certificate: Any) -> str | None:
    """The role in what `getpeercert` gives."""
    names = (certificate or {}).get("subjectAltName", ())
    return role_in([value for kind, value in names if kind == "URI"])


class FleetSecurity(Security):  # type: ignore[misc]  # Dask has no types
    """What Dask takes for `security`, from a folder with the files of one role or more.

    Asking for a role that the folder has no files of, or unusable ones, raises UsageError.
    """

    def __init__(self, folder: Path) -> None:
        files = {}
        for dasks, role in ROLE_OF_DASK.items():
            there = (folder / f"{role}.pem").exists()
            files[f"tls_{dasks}_cert"] = str(folder / f"{role}.pem") if there else None
            files[f"tls_{dasks}_key"] = str(folder / f"{role}.key") if there else None
        super().__init__(
            require_encryption=True,
            tls_ca_file=str(folder / "ca.pem"),
            tls_min_version=ssl.TLSVersion.TLSv1_3,
            **files,
        )
        self.folder = folder

    def get_connection_args(self, role: str) -> dict[str, Any]:
        self._require(role)
        return self._with_roles(super().get_connection_args(role), role, CONNECTS_TO)

    def get_listen_args(self, role: str) -> dict[str, Any]:
        self._require(role)
        return self._with_roles(super().get_listen_args(role), role, LISTENS_TO)

    def _require(self, dasks: str) -> None:
        if problem := problem_with(self.folder, ROLE_OF_DASK[dasks]):
            raise UsageError(problem)

    def _with_roles(self, arguments: dict[str, Any], dasks: str, peers: dict[str, set[str]]) -> dict[str, Any]:
        role = ROLE_OF_DASK[dasks]
        context = arguments["ssl_context"]
        context.sslsocket_class = RoleSocket
        context.peers = frozenset(peers[role])
        context.own = ssl.PEM_cert_to_DER_cert((self.folder / f"{role}.pem").read_text())
        return arguments
