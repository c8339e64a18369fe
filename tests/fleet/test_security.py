"""Who may talk to whom: addresses, folders of certificates, and a first look at a scheduler before Dask is asked."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcg.errors import UsageError
from kcg.fleet import security
from kcg.fleet.certificates import make
from kcg.fleet.security import CERTIFICATES, parts_of, require_scheduler, security_for


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    for name in ("ours", "theirs"):
        make(folder / name, days=2)
    return folder


@pytest.fixture(autouse=True)
def no_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without certificates."""
    monkeypatch.delenv(CERTIFICATES, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_plain_text_is_for_one_machine(host: str) -> None:
    assert security_for(f"tcp://{host}:8786", None) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "gpu1", "[::]", "[2001:db8::1]", "127.0.0.1.example.org"])
def test_and_for_no_other(host: str, keys: Path) -> None:
    with pytest.raises(UsageError, match="plain text is for one machine only: give tls://"):
        security_for(f"tcp://{host}:8786", keys / "ours" / "worker")


@pytest.mark.parametrize(
    "address",
    ["gpu1:8786", "tls://gpu1", "ucx://gpu1:8786", "tls://a@b:1", "tls://:8786", "tls://gpu1:99999", "", "inproc://x"],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="is no address of a scheduler"):
        parts_of(address)


def test_the_parts_of_addresses() -> None:
    assert parts_of("tls://[2001:db8::1]:8786") == ("tls", "2001:db8::1", 8786)
    assert parts_of("tcp://localhost:0") == ("tcp", "localhost", 0)


def test_certificates_are_looked_for_where_users_keep_settings(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="needs certificates: give --certificates DIR"):
        security_for("tls://gpu1:8786", None)
    usual = tmp_path / "config" / "kcg" / "certificates"
    usual.parent.mkdir(parents=True)
    usual.symlink_to(keys / "ours" / "driver")
    found = security_for("tls://gpu1:8786", None)
    assert found is not None and found.tls_client_cert == str(usual / "driver.pem")
    monkeypatch.setenv(CERTIFICATES, str(keys / "ours" / "worker"))
    found = security_for("tls://gpu1:8786", None)
    assert found is not None and found.tls_worker_key == str(keys / "ours" / "worker" / "worker.key")


def test_dask_encrypts_asks_for_certificates_and_takes_no_old_tls(keys: Path) -> None:
    found = security_for("tls://gpu1:8786", keys / "ours" / "worker")
    assert found is not None and found.require_encryption
    for arguments in (found.get_connection_args("worker"), found.get_listen_args("worker")):
        context = arguments["ssl_context"]
        assert arguments["require_encryption"]
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    with pytest.raises(UsageError, match=r"scheduler\.pem is not there"):
        found.get_listen_args("scheduler")


def test_a_folder_without_certificates_says_which_has_some(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name one of its folders"):
        security_for("tls://gpu1:8786", keys / "ours")
    with pytest.raises(UsageError, match="holds no certificate"):
        security_for("tls://gpu1:8786", tmp_path)


@contextlib.contextmanager
def listening(answer: bytes = b"", folder: Path | None = None) -> Iterator[str]:
    """The address of what takes one connection, says `answer` and hangs up; with TLS if it has a scheduler's files."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            plain, _ = server.accept()
            with plain:
                if folder is None:
                    plain.sendall(answer)
                    return
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
                context.load_cert_chain(folder / "scheduler.pem", folder / "scheduler.key")
                context.verify_mode = ssl.CERT_REQUIRED
                with context.wrap_socket(plain, server_side=True) as connection:
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
    thread.join()


GREETING = (16).to_bytes(8, "little") + b".pickle-protocol"


def refusal(address: str, folder: Path | None) -> str:
    found = security_for(address, folder)
    with pytest.raises(UsageError) as error:
        require_scheduler(address, found, "client")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_scheduler_of_this_fleet_is_found(keys: Path) -> None:
    ours = keys / "ours"
    with listening(GREETING, ours / "scheduler") as where:
        require_scheduler(f"tls://{where}", security_for(f"tls://{where}", ours / "driver"), "client")
    with listening(GREETING) as where:
        require_scheduler(f"tcp://{where}", None, "client")


def test_what_is_none_is_one_line(keys: Path) -> None:
    driver = keys / "ours" / "driver"
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    assert "no scheduler there" in refusal(f"tls://{closed}", driver)
    assert "no scheduler there" in refusal(f"tcp://{closed}", None)
    with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as where:
        assert "does not speak TLS" in refusal(f"tls://{where}", driver)
    for answer in (b"SSH-2.0-OpenSSH_9.2\r\n", bytes(8), (1 << 40).to_bytes(8, "little"), GREETING[:8] + bytes(99)):
        with listening(answer) as where:
            assert "another service answers there" in refusal(f"tcp://{where}", None)
    with listening(b"220") as where:
        assert "it hung up" in refusal(f"tcp://{where}", None)
    with listening(GREETING, keys / "theirs" / "scheduler") as where:
        assert "its certificate is refused here: self-signed" in refusal(f"tls://{where}", driver)


def test_what_answers_nothing_is_waited_for_a_while(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "no answer" in refusal(f"tls://{address}", keys / "ours" / "driver")
        assert "no answer" in refusal(f"tcp://{address}", None)
