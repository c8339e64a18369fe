"""Certificates of a fleet: what is made, who can read it, and what is wrong with files that cannot be used."""

from __future__ import annotations

import errno
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kcg.errors import UsageError
from kcg.fleet import certificates
from kcg.fleet.__main__ import main
from kcg.fleet.certificates import ROLES, make, problem_with
from tests.commands import ended


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "keys"
    make(folder, days=30)
    return folder


def test_each_role_has_a_folder_that_only_its_user_can_read(made: Path) -> None:
    for role in ROLES:
        assert sorted(path.name for path in (made / role).iterdir()) == ["ca.pem", f"{role}.key", f"{role}.pem"]
        assert problem_with(made / role, role) is None
    assert {path.stat().st_mode & 0o777 for path in made.rglob("*") if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (made, *made.rglob("*")) if path.is_dir()} == {0o700}


def test_no_machine_gets_the_authoritys_key(made: Path) -> None:
    assert [path.parent.name for path in made.rglob("ca.key")] == ["authority"]


def test_a_command_makes_them_and_says_what_to_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = ended(main, "certificates", "keys", "--days", 7)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["made", "copy", "keep"]
    again = ended(main, "certificates", "keys")
    assert (again.returncode, again.stdout) == (2, "")
    assert "keys" in again.stderr and "already" in again.stderr and again.stderr.count("\n") == 1


def test_workers_by_name_have_keys_of_their_own_and_more_can_join(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert [path.name for path in make(folder, days=30, hosts=["gpu1"])] == ["scheduler", "driver", "gpu1"]
    before = (folder / "authority" / "ca.key").read_bytes()
    assert [path.name for path in make(folder, days=300, hosts=["gpu2"])] == ["gpu2"]
    assert (folder / "authority" / "ca.key").read_bytes() == before
    assert (folder / "gpu1" / "worker.key").read_bytes() != (folder / "gpu2" / "worker.key").read_bytes()
    assert problem_with(folder / "gpu2", "worker") is None
    for name in ("gpu1", "driver", "../x", ".ssh", ""):
        with pytest.raises(UsageError):
            make(folder, days=30, hosts=[name])
    with pytest.raises(UsageError):
        make(folder, days=30)


@pytest.mark.parametrize("files", [0, 1, 3, 9])
def test_a_full_disk_leaves_nothing_half_made(files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the same command can be given again."""
    opened, fdopen = [], os.fdopen

    def full(descriptor: int, mode: str) -> Any:
        opened.append(descriptor)
        if len(opened) > files:
            os.close(descriptor)
            raise OSError(errno.ENOSPC, "No space left on device")
        return fdopen(descriptor, mode)

    (tmp_path / "notes").write_text("mine")
    with monkeypatch.context() as changed, pytest.raises(UsageError, match="No space left on device: choose a folder"):
        changed.setattr(os, "fdopen", full)
        make(tmp_path, days=2)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    assert make(tmp_path, days=2)


def test_they_end_with_the_authority_at_the_latest(tmp_path: Path) -> None:
    make(tmp_path / "keys", days=10, hosts=["gpu1"], now=datetime.now(UTC))
    make(tmp_path / "keys", days=1000, hosts=["gpu2"])
    later = datetime.now(UTC) + timedelta(days=11)
    assert "expired" in str(problem_with(tmp_path / "keys" / "gpu2", "worker", now=later))


def test_what_cannot_be_used_has_one_line_each(made: Path, tmp_path: Path) -> None:
    def with_files(**others: Path) -> Path:
        folder = tmp_path / "_".join(others)
        shutil.copytree(made / "worker", folder)
        for name, source in others.items():
            shutil.copyfile(source, folder / name.replace("_", "."))
        return folder

    make(tmp_path / "other", days=30)
    make(tmp_path / "old", days=30, now=datetime.now(UTC) - timedelta(days=31))
    make(tmp_path / "early", days=30, now=datetime.now(UTC) + timedelta(days=3))
    readable = with_files(worker_key=made / "worker" / "worker.key")
    (readable / "worker.key").chmod(0o644)
    (tmp_path / "noise").write_text("no certificate")
    problems = {
        "not of the authority": with_files(ca_pem=tmp_path / "other" / "worker" / "ca.pem"),
        "not the key": with_files(
            worker_key2=made / "worker" / "worker.key", worker_key=made / "driver" / "driver.key"
        ),
        "certificate of driver, not of a worker": with_files(
            worker_pem=made / "driver" / "driver.pem", worker_key=made / "driver" / "driver.key"
        ),
        "expired on": tmp_path / "old" / "worker",
        "not valid before": tmp_path / "early" / "worker",
        "every user": readable,
        "no certificates or keys": with_files(worker_pem=tmp_path / "noise"),
        "is not there": made / "driver",
    }
    for words, folder in problems.items():
        problem = problem_with(folder, "worker")
        assert problem is not None and words in problem and "\n" not in problem, (words, problem)


def test_a_role_is_named_once(made: Path) -> None:
    uri = certificates.ROLE_URI
    assert certificates.role_in([uri + "worker", "https://example.org"]) == "worker"
    assert certificates.role_in([uri + "worker", uri + "scheduler"]) is None
    assert certificates.role_in([uri + "king"]) is None
