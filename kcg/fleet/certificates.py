"""Certificates of a fleet: a certificate authority of its own, and one certificate a role, or a worker's host.

A folder that a machine needs holds `ca.pem` and, for each role that it has, `ROLE.pem` and `ROLE.key`. The role is
also in the certificate, as a URI among its names: whoever takes a worker's key is a worker to others, and no scheduler.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcg.errors import UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

SCHEDULER: Final = "scheduler"
WORKER: Final = "worker"
DRIVER: Final = "driver"
ROLES: Final = (SCHEDULER, WORKER, DRIVER)
ROLE_URI: Final = "urn:kcg:fleet:"
AUTHORITY: Final = "authority"  # the folder of the authority's own key, which no host needs
CLOCKS_APART: Final = timedelta(hours=1)
"""How far the clocks of two machines may be apart."""


def make(folder: Path, *, days: int, hosts: Sequence[str] = (), now: datetime | None = None) -> list[Path]:
    """Make an authority and the folders of all roles, or, in a folder that has an authority, those of more workers.

    Each of `hosts` is a worker's machine with a key of its own; without, all workers share one.

    Returns:
        The folders to copy, one a machine or role.

    Raises:
        UsageError: a folder is there already, cannot be written, or a name cannot be one.
    """
    now = now or datetime.now(UTC)
    if wrong := [name for name in hosts if not _is_name(name) or name in (*ROLES, AUTHORITY)]:
        raise UsageError(f"{wrong[0]!r} cannot be a worker's folder: give names of hosts, as in --hosts gpu1,gpu2")
    exists = (folder / AUTHORITY / "ca.key").exists()
    workers = dict.fromkeys(hosts, WORKER)
    roles = workers if exists else {SCHEDULER: SCHEDULER, DRIVER: DRIVER, **(workers or {WORKER: WORKER})}
    there = [folder / name for name in (*roles, *([] if exists else [AUTHORITY])) if (folder / name).exists()]
    if there or not roles:
        what = there[0] if there else folder / AUTHORITY
        raise UsageError(f"{what} is there already: name another folder, or more workers by --hosts NAME")
    try:
        with contextlib.ExitStack() as undo:  # what was made, so that the same command can be given again
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            authority = _read_authority(folder) if exists else _new_authority(folder, now, days)
            if not exists:
                undo.callback(shutil.rmtree, folder / AUTHORITY)
            for name, role in roles.items():
                _new_member(folder / name, role, name, authority, until=now + timedelta(days=days), now=now)
                undo.callback(shutil.rmtree, folder / name)
            undo.pop_all()
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}: choose a folder that can be written") from error
    return [folder / name for name in roles]


def problem_with(folder: Path, role: str, now: datetime | None = None) -> str | None:
    """Why the files of a role in `folder` cannot be used, in one line; None where they can."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization

    now = now or datetime.now(UTC)
    certificate_file, key_file = folder / f"{role}.pem", folder / f"{role}.key"
    for path in (folder / "ca.pem", certificate_file, key_file):
        if not path.is_file():
            return f"{path} is not there: copy the folder of this role that `kcg fleet certificates` made"
    if key_file.stat().st_mode & 0o007:
        return f"{key_file} can be read by every user of this machine: chmod 600 {key_file}"
    try:
        authority, certificate = _read(folder / "ca.pem"), _read(certificate_file)
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        certificate.verify_directly_issued_by(authority)
    except OSError as error:
        return f"cannot read {error.filename}: {error.strerror}"
    except InvalidSignature:
        return f"{certificate_file} is not of the authority in {folder / 'ca.pem'}: copy both from one folder"
    except (TypeError, ValueError) as error:
        return f"{folder} holds files that are no certificates or keys: {str(error).splitlines()[0]}"
    if key.public_key() != certificate.public_key():
        return f"{key_file} is not the key of {certificate_file}: copy both from one folder"
    if (found := role_of(certificate)) != role:
        return f"{certificate_file} is a certificate of {found or 'no role'}, not of a {role}"
    for one, path in ((authority, folder / "ca.pem"), (certificate, certificate_file)):
        if now > one.not_valid_after_utc:
            return f"{path} expired on {one.not_valid_after_utc.date()}: make new ones with `kcg fleet certificates`"
        if now < one.not_valid_before_utc:
            begin = f"{one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            return f"{path} is not valid before {begin}: set this machine's clock, or make new ones"
    return None


def role_of(certificate: x509.Certificate) -> str | None:
    """The role that a certificate is for; None for one that no fleet made."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    return role_in(names.get_values_for_type(x509.UniformResourceIdentifier))


def role_in(uris: Sequence[str]) -> str | None:
    """The role that is named by exactly one of a certificate's URIs."""
    found = [uri.removeprefix(ROLE_URI) for uri in uris if uri.startswith(ROLE_URI)]
    return found[0] if len(found) == 1 and found[0] in ROLES else None


def _is_name(name: str) -> bool:
    """Whether a name can be a folder's and a host's."""
    return (
        0 < len(name) <= 63 and name.isascii() and name.replace("-", "").replace(".", "").isalnum() and name[0] != "."
    )


def _read(path: Path) -> x509.Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificate(path.read_bytes())


def _new_authority(folder: Path, now: datetime, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("authority")
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(key_cert_sign=True, crl_sign=True), True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
    ]
    certificate = _signed(key, name, name, key, extensions, now=now, until=now + timedelta(days=days))
    _write(folder / AUTHORITY, {"ca.key": _pem_of(key), "ca.pem": _pem_of(certificate)})
    return certificate, key


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_private_key((folder / AUTHORITY / "ca.key").read_bytes(), password=None)
        certificate = _read(folder / AUTHORITY / "ca.pem")
    except (TypeError, ValueError) as error:
        raise UsageError(f"{folder / AUTHORITY} holds no authority that can be read: name another folder") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{folder / AUTHORITY} holds a key of another kind: name another folder")
    return certificate, key


def _new_member(
    folder: Path,
    role: str,
    name: str,
    authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    *,
    until: datetime,
    now: datetime,
) -> None:
    """Write a folder for one role: its certificate ends with the authority's at the latest."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

    issuer, issuer_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    listens = [] if role == DRIVER else [Usage.SERVER_AUTH]  # nobody connects to a driver
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([Usage.CLIENT_AUTH, *listens]), False),
        (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(ROLE_URI + role), x509.DNSName(name)]), False),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
    ]
    until = min(until, issuer.not_valid_after_utc)
    certificate = _signed(key, _name(name), issuer.subject, issuer_key, extensions, now=now, until=until)
    files = {"ca.pem": _pem_of(issuer), f"{role}.pem": _pem_of(certificate), f"{role}.key": _pem_of(key)}
    _write(folder, files)


def _signed(
    key: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    *,
    now: datetime,
    until: datetime,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - CLOCKS_APART).not_valid_after(until)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA256())


def _name(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kcg fleet"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _usage(**allowed: bool) -> x509.KeyUsage:
    from cryptography import x509

    every = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in every})


def _pem_of(what: x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if isinstance(what, x509.Certificate):
        return what.public_bytes(Encoding.PEM)
    return what.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Write new files that only this user can read, from their first byte on."""
    folder.mkdir(mode=0o700)
    try:
        for name, data in files.items():
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
    except BaseException:
        shutil.rmtree(folder)
        raise
