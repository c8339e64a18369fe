"""A store that is pushed comes back whole, pinned, and only read; one with a bad entry does not travel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from kcg.compat.device import prepare
from kcg.errors import DataError, UsageError
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.measure.device_info import detect
from kcg.store.entry import Entry, entries_of
from kcg.store.folder import MARKER, Store
from kcg.store.location import open_store
from kcg.store.publish import STORES
from kcg.types import RegionResult, Verification
from tests.hub.checks import contents, is_untouched, refused
from tests.hub.server import READ_TOKEN, TOKEN, Hub
from tests.small_result import small_result

REPO = "owner/tuned"
push, pull = STORES.push, STORES.pull


@pytest.fixture(scope="module")
def entry() -> Entry:
    prepare("CPU:X86")
    result = small_result(*detect("CPU:X86", ACTION_SPACE_VERSION))
    row: RegionResult = result.regions[0]
    chosen = replace(row.chosen, cold_s=1e-6, verification=Verification(True, ("a rule",), seeds=3))
    (made,) = entries_of(result, [replace(row, chosen=chosen)])
    return made


@pytest.fixture
def store(entry: Entry, tmp_path: Path) -> Store:
    made = open_store(str(tmp_path / "local" / "tuned"), new=True)
    made.add(entry)
    return made


def test_what_is_pushed_is_pulled_and_found(hub: Hub, store: Store, entry: Entry, target: Path) -> None:
    commit = push(store.folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    files = pull(REPO, target, revision=commit, token=READ_TOKEN, endpoint=hub.endpoint)
    assert {*files} == {path.relative_to(store.folder).as_posix() for path in (store.folder / MARKER, *store.paths())}
    assert contents(target) == contents(store.folder)
    (found,) = open_store(str(target)).look_up(entry.region.id, entry.ends, entry.target, entry.toolchain)
    assert found.entry == entry


def test_a_pinned_commit_is_downloaded_once_and_only_read(
    usual_hub: Hub, store: Store, entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = push(store.folder, REPO, token=TOKEN, endpoint=usual_hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    cached = open_store(f"hf://{REPO}@{commit}")
    assert not cached.writable
    assert [one.entry for one in cached.all()] == [entry]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert open_store(f"hf://{REPO}@{commit}") == cached, "without a network"


def test_a_tampered_entry_is_not_pushed_and_not_pulled(hub: Hub, store: Store, target: Path) -> None:
    commit = push(store.folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    (file,) = store.paths()
    name = file.relative_to(store.folder).as_posix()
    file.write_bytes(file.read_bytes().replace(b"a rule", b"a lie!"))
    with pytest.raises(DataError, match="was changed") as error:
        push(store.folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    refused(error)
    hub.repos[REPO].commits[commit][name] = file.read_bytes()
    with pytest.raises(DataError, match="was changed") as error:
        pull(REPO, target, revision=commit, token=READ_TOKEN, endpoint=hub.endpoint)
    refused(error)
    assert is_untouched(target)


def test_a_folder_that_is_no_store_is_not_pushed(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"kcg-store\.json") as error:
        push(tmp_path, REPO, token=TOKEN, endpoint=hub.endpoint)
    refused(error)
