"""What is pushed comes back byte for byte or not at all, and nothing else travels."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from kcg.dataset.__main__ import main as dataset
from kcg.dataset.export import CHECKSUMS, export, read_export
from kcg.dataset.journal import Journal
from kcg.dataset.publish import EXPORTS
from kcg.errors import DataError, UsageError
from kcg.hub import publisher
from tests.commands import ended
from tests.dataset.test_journal import fill, measurement
from tests.hub.checks import contents, is_untouched, refused
from tests.hub.server import TOKEN, Hub
from tests.waiting import PATIENCE_S, wait_until

REPO = "owner/name"
push, pull = EXPORTS.push, EXPORTS.pull
ROOT = Path(__file__).parents[2]


# -- there and back


def test_what_is_pushed_comes_back_byte_for_byte(
    hub: Hub, folder: Path, target: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    commit = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint, message="the first")
    assert len(commit) == 40 and hub.repos[REPO].head == commit
    assert hub.repos[REPO].messages == ["initial commit", "the first"]
    assert not hub.repos[REPO].private
    digests = pull(REPO, target, revision=commit, endpoint=hub.endpoint)
    assert contents(target) == contents(folder)
    assert digests == {name: hashlib.sha256(data).hexdigest() for name, data in contents(folder).items()}
    assert set(read_export(target).measurements(1)) == set(read_export(folder).measurements(1))
    assert [p.name for p in target.parent.iterdir()] == ["here"]
    assert len(hub.asked("PUT /upload/")) == 3  # the Parquet files, over HTTP
    assert not hub.asked("xet")
    assert capfd.readouterr() == ("", "")


def test_only_the_allowed_files_travel_both_ways(hub: Hub, folder: Path, target: Path) -> None:
    shutil.copytree(folder, folder / "test")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Kernels\n")
    (folder / "splits.json").write_text("{}")
    allowed = {*contents(folder)}
    for name in ("load.py", "model.pkl", ".hidden.json", "a.parquet.part", "test/run.sh", ".git/config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("import os")
    (folder / "test" / "deep").mkdir()
    (folder / "test" / "deep" / "x.json").write_text("{}")
    commit = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    assert {*hub.repos[REPO].commits[commit]} == allowed | {".gitattributes"}
    assert len(hub.repos[REPO].messages) == 2  # one commit for all of it
    foreign = (
        "name.py",
        "data.pkl",
        "../out.json",
        "/etc/x.json",
        "a/../../x.json",
        "a/b/c.json",
        "a\\..\\x.json",
        ".cache/x.json",
        "C:x.json",
        "x.json/",
        "con\n.json",
    )
    commit = hub.repos[REPO].commit(dict.fromkeys(foreign, b"{}"), "by somebody else")
    digests = pull(REPO, target, revision=commit, endpoint=hub.endpoint)
    assert {*contents(target)} == {*digests} == allowed
    assert not [r for r in hub.asked("/resolve/") if any(r.endswith(name) for name in foreign)]


def test_pushing_again_makes_no_commit_and_a_changed_export_makes_one(
    hub: Hub, folder: Path, target: Path, tmp_path: Path
) -> None:
    first = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    assert push(folder, REPO, token=TOKEN, endpoint=hub.endpoint) == first
    with Journal.open(tmp_path / "b.sqlite") as journal:
        fill(journal)
        journal.record(measurement(7))
        export(journal, folder, overwrite=True)
    second = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    assert second != first
    assert len(hub.asked("repos/create")) == 1
    for commit, rows in ((first, 3), (second, 4)):
        pull(REPO, target / commit, revision=commit, endpoint=hub.endpoint)
        assert len(list(read_export(target / commit).measurements(1))) == rows


def test_the_commands_push_to_a_branch_and_pull_its_commit(
    usual_hub: Hub, folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    pushed = ended(dataset, "push", folder, REPO, "--revision", "v2", "--message", "mine")
    printed, command = pushed.stdout.splitlines()
    repository = usual_hub.repos[REPO]
    assert printed == f"{REPO} has it as {repository.branches['v2']}" and repository.messages[-1] == "mine"
    pulled = ended(dataset, *command.replace("FOLDER", str(target)).split()[3:])
    assert pulled.returncode == 0 and contents(target) == contents(folder), pulled.stderr


def test_a_private_dataset_needs_the_token_and_stays_private(
    hub: Hub, folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    commit = push(folder, REPO, private=True, endpoint=hub.endpoint)
    assert hub.repos[REPO].private
    pull(REPO, target / "a", revision=commit, endpoint=hub.endpoint)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UsageError, match=r"no dataset owner/name on 127.* needs HF_TOKEN") as error:
        pull(REPO, target / "b", revision=commit, endpoint=hub.endpoint)
    refused(error)
    hub.repo("owner/open")
    with pytest.raises(UsageError, match="owner/open is public"):
        push(folder, "owner/open", private=True, token=TOKEN, endpoint=hub.endpoint)
    assert len(hub.repos["owner/open"].commits) == 1


def test_a_card_without_a_header_is_pushed_and_a_broken_one_is_not(hub: Hub, folder: Path) -> None:
    (folder / "README.md").write_text("# Kernels\n")
    push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    (folder / "README.md").write_text("---\nbad: [\n---\n")
    with pytest.raises(UsageError, match=r"README\.md.*unclosed list") as error:
        push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    refused(error)
    assert len(hub.repos[REPO].commits) == 2


def test_the_client_is_as_it_was_afterwards(hub: Hub, folder: Path) -> None:
    from huggingface_hub.utils import _http, logging

    before = (_http._GLOBAL_CLIENT_FACTORY, logging.get_verbosity(), constants.HF_HUB_DISABLE_XET)
    push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    with pytest.raises(UsageError):
        push(folder, REPO, token="hf_wrong", endpoint=hub.endpoint)
    assert (_http._GLOBAL_CLIENT_FACTORY, logging.get_verbosity(), constants.HF_HUB_DISABLE_XET) == before
    assert _http._GLOBAL_CLIENT is None


# -- what is not pushed


@pytest.mark.parametrize("repo", ["name", "a/b/c", "", "owner/", "/name", "../x", "owner/na me", "owner/n.git", "é/x"])
def test_a_name_that_is_no_dataset_is_refused(folder: Path, target: Path, repo: str) -> None:
    for call in (lambda: push(folder, repo, token=TOKEN), lambda: pull(repo, target, revision="0" * 40)):
        with pytest.raises(UsageError, match="give owner/name") as error:
            call()
        refused(error)


def test_an_export_that_does_not_agree_is_not_pushed(hub: Hub, folder: Path) -> None:
    content = (folder / "kernels.parquet").read_bytes()
    (folder / "kernels.parquet").write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
    with pytest.raises(DataError, match=r"kernels\.parquet does not agree"):
        push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    (folder / CHECKSUMS).unlink()
    with pytest.raises(UsageError, match="holds no export"):
        push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    with pytest.raises(UsageError, match="is no folder"):
        push(folder / "none", REPO, token=TOKEN, endpoint=hub.endpoint)
    assert hub.requests == []


def test_a_link_and_a_name_that_could_not_come_back_are_not_pushed(hub: Hub, folder: Path) -> None:
    (folder / "secret.json").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match=r"secret\.json is a link"):
        push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    (folder / "secret.json").unlink()
    (folder / "up").symlink_to("..")
    with pytest.raises(UsageError, match="up is a link"):
        push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    (folder / "up").unlink()
    (folder / "my notes.md").write_text("")
    with pytest.raises(UsageError, match="my notes"):
        push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    assert hub.requests == []


def test_a_folder_that_changes_while_it_is_pushed_is_not_committed(hub: Hub, folder: Path) -> None:
    check = EXPORTS.check
    (folder / "splits.json").write_text("{}")

    def changing(root: Path, names: Sequence[str]) -> Mapping[str, str]:
        if hub.requests:  # before it is looked at once more
            (folder / "splits.json").write_text("[1]")
        return check(root, names)

    with pytest.raises(DataError, match="changed while it was pushed"):
        replace(EXPORTS, check=changing).push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    assert not hub.asked("/commit/")


def test_a_commit_in_between_and_an_ignored_file_are_reported(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, head = hub.repo(), publisher._head

    def raced(*args: object, **kwargs: object) -> str | None:
        found = head(*args, **kwargs)  # type: ignore[arg-type]
        repo.commit({"x.json": b"{}"}, "by somebody else")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(publisher, "_head", raced)
        with pytest.raises(DataError, match="another commit meanwhile: push again") as error:
            push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
        refused(error)
    hub.ignored = "runs.json"
    with pytest.raises(DataError, match=r"has no runs\.json: is it in a \.gitignore"):
        push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)


# -- what is not pulled


@pytest.mark.parametrize("revision", ["main", "", "v1.0", "abc1234", "A" * 40, "0" * 39, "0" * 41, "0" * 40 + "\n"])
def test_a_revision_that_is_not_pinned_is_refused(hub: Hub, target: Path, revision: str) -> None:
    with pytest.raises(UsageError, match=r"no pinned commit: give the 40 hex.*/datasets/owner/name/commits/main"):
        pull(REPO, target, revision=revision, endpoint=hub.endpoint)
    assert hub.requests == [] and is_untouched(target)


@pytest.mark.parametrize("name", ["kernels.parquet", CHECKSUMS, "test/targets.json"])
def test_a_flipped_bit_is_refused_and_leaves_nothing(hub: Hub, folder: Path, target: Path, name: str) -> None:
    shutil.copytree(folder, folder / "test")
    commit = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    hub.flip = name
    with pytest.raises(DataError, match=f"owner/name at {commit[:12]}: .*checksums") as error:
        pull(REPO, target, revision=commit, endpoint=hub.endpoint)
    refused(error)
    assert is_untouched(target)


def test_a_file_that_is_missing_and_foreign_files_are_refused(hub: Hub, folder: Path, target: Path) -> None:
    files = contents(folder)
    del files["targets.json"]
    for present, message in ((files, r"targets\.json is missing"), ({"a.py": b"", "b.json": b"{}"}, "holds no export")):
        commit = hub.repo(files=present).head
        with pytest.raises(DataError, match=message) as error:
            pull(REPO, target, revision=commit, endpoint=hub.endpoint)
        refused(error)
        assert is_untouched(target)


def test_a_folder_that_is_not_empty_stays_as_it_is(hub: Hub, folder: Path, target: Path) -> None:
    commit = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    target.mkdir()
    (target / "mine").write_text("x")
    (target.parent / "link").symlink_to(target.parent / "elsewhere")
    (target.parent / "file").write_text("x")
    for name, message in (("here", "is not empty"), ("link", "is no folder"), ("file", "is no folder")):
        with pytest.raises(UsageError, match=message):
            pull(REPO, target.parent / name, revision=commit, endpoint=hub.endpoint)
    assert contents(target) == {"mine": b"x"} and len(list(target.parent.iterdir())) == 3
    (target / "mine").unlink()
    pull(REPO, target, revision=commit, endpoint=hub.endpoint)  # an empty one is filled
    pull(REPO, target.parent / "deep" / "er", revision=commit, endpoint=hub.endpoint)
    assert contents(target) == contents(target.parent / "deep" / "er") == contents(folder)


@pytest.mark.slow
def test_a_full_disk_leaves_nothing(hub: Hub, folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 7, 3))  # type: ignore[attr-defined]
        with pytest.raises(DataError, match=r"disk full: owner/name needs \d+ bytes") as error:
            pull(REPO, target, revision=commit, endpoint=hub.endpoint)
        refused(error)
    code = """
import resource, sys
from pathlib import Path
from kcg.dataset.publish import EXPORTS
from kcg.errors import DataError
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
try: EXPORTS.pull("owner/name", Path(sys.argv[1]), revision=sys.argv[2], endpoint=sys.argv[3])
except DataError as e: print(e)
"""
    done = script(code, target, commit, hub.endpoint)
    out, errors = done.communicate(timeout=PATIENCE_S)
    assert "disk full: owner/name could not be pulled" in out, errors
    assert is_untouched(target)


def script(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process, online, with another home than the user's."""
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "PYTHONPATH": str(ROOT), "HF_TOKEN_PATH": os.devnull},
    )


def test_an_interrupt_leaves_nothing(hub: Hub, folder: Path, target: Path) -> None:
    commit = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    hub.cut = "GET /storage/"
    code = """
import sys
from pathlib import Path
from kcg.dataset.publish import EXPORTS
EXPORTS.pull("owner/name", Path(sys.argv[1]), revision=sys.argv[2], endpoint=sys.argv[3])
"""
    process = script(code, target, commit, hub.endpoint)
    assert wait_until(lambda: bool(hub.asked("GET /storage/")) and not is_untouched(target)), "it is arriving"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert "KeyboardInterrupt" in errors
    assert is_untouched(target)
