"""A predictor that is pushed comes back whole and readable or not at all, with a card of what it says of itself."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from kcg.cli import guarded
from kcg.errors import DataError, ExitCode, KcgError, UsageError
from kcg.hub.client import Limits
from kcg.predictor import header
from kcg.predictor.__main__ import main
from kcg.predictor.checkpoint import About, Checkpoint, read, save
from kcg.predictor.network import NetSettings
from kcg.predictor.publish import PREDICTOR as KIND
from kcg.rl.publish import CARD, CHECKPOINTS, CHECKSUMS
from kcg.training.network import Net
from tests.hub.checks import is_untouched
from tests.hub.server import READ_TOKEN, TOKEN, Hub
from tests.rules import HEAVY, loaded_by

REPO = "owner/name"
PREDICTOR = KIND.file
push, pull, model_card = CHECKPOINTS.push, CHECKPOINTS.pull, KIND.card
ABOUT = About(
    "tiny",
    ({"fingerprint": "f" * 64, "model": "NVIDIA H200", "device": "CUDA", "renderer": "CUDA"},),
    (("kernels.parquet", "0123456789abcdef" * 4),),
    "workload",
    ("ADD", "MUL"),
    metrics={"pairwise": 0.91234},
    revision="abc1234",
    settings={"epochs": 3},
)


@pytest.fixture(scope="module")
def trained() -> Checkpoint:
    torch.manual_seed(0)
    return Checkpoint(ABOUT, (Net(NetSettings(hidden=8, layers=1)).network(),))


@pytest.fixture
def file(trained: Checkpoint, tmp_path: Path) -> Path:
    save(trained, tmp_path / "local" / "cuda.safetensors")
    return tmp_path / "local" / "cuda.safetensors"


def refused(error: pytest.ExceptionInfo[KcgError]) -> str:
    line = str(error.value)
    assert "\n" not in line and len(line) < 300
    assert TOKEN not in line and ".part" not in line and "kcg-push-" not in line
    return line


def sealed(content: bytes) -> dict[str, bytes]:
    """A repository whose checksums agree with whatever the checkpoint is."""
    listed = {PREDICTOR: hashlib.sha256(content).hexdigest()}
    return {PREDICTOR: content, CHECKSUMS: json.dumps(listed).encode()}


# -- there and back


def test_what_is_pushed_comes_back_byte_for_byte(
    hub: Hub, file: Path, target: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    commit = push(file, REPO, token=TOKEN, endpoint=hub.endpoint)
    assert hub.repos[REPO].kind == "model" and hub.repos[REPO].head == commit
    assert hub.repos[REPO].messages == ["initial commit", "kcg: push tiny"]
    digests = pull(REPO, target, revision=commit, endpoint=hub.endpoint)
    assert {*digests} == {p.name for p in target.iterdir()} == {PREDICTOR, CARD, CHECKSUMS}
    assert (target / PREDICTOR).read_bytes() == file.read_bytes()
    assert digests[PREDICTOR] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert read(target / PREDICTOR).about == ABOUT
    assert push(file, REPO, token=TOKEN, endpoint=hub.endpoint) == commit, "nothing differs, so nothing is committed"
    assert len(hub.asked("PUT /upload/")) == 1 and not hub.asked("xet")
    assert capfd.readouterr() == ("", "")


def test_the_card_reports_what_the_checkpoint_says(hub: Hub, file: Path, target: Path) -> None:
    pull(REPO, target, revision=push(file, REPO, token=TOKEN, endpoint=hub.endpoint), endpoint=hub.endpoint)
    card = (target / CARD).read_text()
    assert card.startswith("---\n") and "\nlicense: mit\n" in card
    for report in (
        "# tiny",
        "NVIDIA H200",
        "0.9123",
        "0123456789abcdef" * 4,
        "workload",
        "abc1234",
        '"epochs": 3',
        REPO,
    ):
        assert report in card


def test_a_card_of_hostile_texts_stays_one_page(trained: Checkpoint) -> None:
    about = replace(ABOUT, name="a\n---\n# b|<script>\x1b[2J", split="`x`", settings={"a": "```\n# b"})
    card = model_card(replace(trained, about=about), REPO, 10)
    assert card.count("\n---\n") == 1 and "<script>" not in card and "\x1b" not in card
    assert card.count("```") == 4


def test_a_branch_is_made_and_gets_the_commit(hub: Hub, file: Path, target: Path) -> None:
    first = push(file, REPO, branch="v2", token=TOKEN, endpoint=hub.endpoint)
    assert hub.repos[REPO].branches["v2"] == first != hub.repos[REPO].head
    save(replace(read(file), about=replace(ABOUT, name="tiny-2")), file)
    second = push(file, REPO, branch="v2", token=TOKEN, endpoint=hub.endpoint, message="better")
    assert hub.repos[REPO].branches["v2"] == second != first
    pull(REPO, target, revision=first, endpoint=hub.endpoint)
    assert read(target / PREDICTOR).about.name == "tiny"
    for branch in ("", "a b", "../x", "refs/pr/1", "a" * 101, first):
        with pytest.raises(UsageError, match="is no branch to push to"):
            push(file, REPO, branch=branch, token=TOKEN, endpoint=hub.endpoint)


def test_only_the_allowed_files_come_back(hub: Hub, file: Path, target: Path) -> None:
    files = sealed(file.read_bytes())
    foreign = ("load.py", "model.pkl", "pytorch_model.bin", "../out.json", "a/../../x.md", ".cache/x.json", "x.parquet")
    commit = hub.repo(files={**files, **dict.fromkeys(foreign, b"{}"), "notes.md": b"x"}, kind="model").head
    assert {*pull(REPO, target, revision=commit, endpoint=hub.endpoint)} == {*files, "notes.md"}
    assert not [r for r in hub.asked("/resolve/") if any(r.endswith(name) for name in foreign)]


# -- what is not pushed, and what is not pulled


def test_what_is_no_checkpoint_is_not_pushed(hub: Hub, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "text.safetensors").write_text("no tensors")
    for path, message in (
        (file.parent / "text.safetensors", r"text\.safetensors cannot be read"),
        (file.parent / "none.safetensors", r"there is no checkpoint .*none\.safetensors"),
        (file.parent, "is a folder: give the checkpoint itself"),
    ):
        with pytest.raises(KcgError, match=message) as error:
            push(path, REPO, token=TOKEN, endpoint=hub.endpoint)
        refused(error)
    monkeypatch.setattr(header, "FEATURES_VERSION", 10**6)
    with pytest.raises(DataError, match=r"cuda\.safetensors was trained on features of version"):
        push(file, REPO, token=TOKEN, endpoint=hub.endpoint)
    assert hub.requests == []


def test_a_flipped_bit_is_refused_and_leaves_nothing(hub: Hub, file: Path, target: Path) -> None:
    commit = push(file, REPO, token=TOKEN, endpoint=hub.endpoint)
    for name in (PREDICTOR, CARD, CHECKSUMS):
        hub.flip = name
        with pytest.raises(DataError, match=f"owner/name at {commit[:12]}: .*checksums"):
            pull(REPO, target, revision=commit, endpoint=hub.endpoint)
        assert is_untouched(target)


def test_a_checkpoint_that_cannot_be_read_never_takes_its_place(
    hub: Hub, file: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sealed(file.read_bytes())
    for files, message in (
        (sealed(b"no tensors at all"), r"predictor\.safetensors cannot be read"),
        (sealed(file.read_bytes()[:-100]), r"predictor\.safetensors cannot be read"),
        ({CHECKSUMS: whole[CHECKSUMS]}, r"predictor\.safetensors is in checksums\.json and is missing"),
        ({PREDICTOR: whole[PREDICTOR]}, "holds no predictor or policy of kcg"),
        ({**whole, "more.safetensors": b"x"}, r"more\.safetensors does not agree"),
        ({**whole, CHECKSUMS: b"[" * 100_000}, r"checksums\.json cannot be read|names no"),
        ({**whole, CHECKSUMS: b"{}"}, r"names no predictor\.safetensors"),
        ({**whole, "huge.md": b"x" * 5_000_001}, r"holds huge\.md of 5000001 bytes"),
    ):
        commit = hub.repo(files=files, kind="model").head
        with pytest.raises(DataError, match=message) as error:
            pull(REPO, target, revision=commit, endpoint=hub.endpoint)
        refused(error)
        assert is_untouched(target)
    commit = hub.repo(files=whole, kind="model").head
    monkeypatch.setattr(header, "FEATURES_VERSION", 10**6)
    with pytest.raises(DataError, match=r"predictor\.safetensors was trained on features of version"):
        pull(REPO, target, revision=commit, endpoint=hub.endpoint)
    assert is_untouched(target)


def test_only_a_pinned_revision_of_a_model_is_pulled_into_an_empty_folder(hub: Hub, file: Path, target: Path) -> None:
    for revision in ("main", "", "abc1234", "A" * 40):
        with pytest.raises(UsageError, match=r"no pinned commit: give the 40 hex.*\d/owner/name/commits/main"):
            pull(REPO, target, revision=revision, endpoint=hub.endpoint)
    assert hub.requests == []
    commit = push(file, REPO, token=TOKEN, endpoint=hub.endpoint)
    dataset = hub.repo("owner/data").head
    with pytest.raises(UsageError, match="no model owner/data on 127"):
        pull("owner/data", target, revision=dataset, token=TOKEN, endpoint=hub.endpoint)
    target.mkdir()
    (target / "mine").write_text("x")
    with pytest.raises(UsageError, match="is not empty"):
        pull(REPO, target, revision=commit, endpoint=hub.endpoint)
    assert [p.name for p in target.iterdir()] == ["mine"]


def test_offline_and_a_missing_token_are_one_line(
    hub: Hub, file: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token, message in (
        (None, "no token to push to owner/name: set HF_TOKEN"),
        ("hf_wrong", r"does not accept the token \(401\)"),
        (READ_TOKEN, "no rights to create a model"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            push(file, REPO, token=token, endpoint=hub.endpoint)
        refused(error)
    hub.hang = "/revision/"
    with pytest.raises(DataError, match=r"did not answer in time|took longer than"):
        pull(REPO, target, revision="0" * 40, endpoint=hub.endpoint, limits=Limits(stall_s=0.2, total_s=0.6))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for call in (
        lambda: push(file, REPO, token=TOKEN, endpoint=hub.endpoint),
        lambda: pull(REPO, target, revision="0" * 40, endpoint=hub.endpoint),
    ):
        with pytest.raises(UsageError, match="offline mode: unset HF_HUB_OFFLINE"):
            call()
    assert is_untouched(target)


# -- the commands


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str | Path
) -> tuple[int, str, str]:
    """The command as `python -m` runs it, without the seconds that another process needs to begin."""
    monkeypatch.setattr(sys, "argv", ["kcg.predictor", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        guarded(main)
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capsys.readouterr()


def test_help_loads_nothing_heavy() -> None:
    assert loaded_by("-m", "kcg.predictor", "--help") & HEAVY == set()


def test_the_commands_push_pull_and_show(
    usual_hub: Hub, file: Path, target: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    code, out, err = run(capsys, monkeypatch, "push", file, REPO, "--revision", "v2", "--message", "mine")
    assert code == ExitCode.OK, err
    printed, command = out.splitlines()
    repository = usual_hub.repos[REPO]
    assert printed == f"{REPO} has it as {repository.branches['v2']}" and repository.messages[-1] == "mine"
    code, out, err = run(capsys, monkeypatch, *command.replace("FOLDER", str(target)).split()[3:])
    assert code == ExitCode.OK and out.startswith(f"{target}: 3 files"), err
    code, out, err = run(capsys, monkeypatch, "show", target / PREDICTOR)
    assert code == ExitCode.OK, err
    for report in ("tiny", "NVIDIA H200", "kernels.parquet 0123456789ab ", "0.9123", f"{file.stat().st_size:,} bytes"):
        assert report in out
    reported_as_json = json.loads(run(capsys, monkeypatch, "show", target, "--json")[1])
    assert reported_as_json["name"] == "tiny" and reported_as_json["bytes"] == file.stat().st_size


def test_bad_input_is_one_line(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, says in (
        (("show", tmp_path / "absent"), "there is no checkpoint"),
        (("show", tmp_path), "holds no checkpoint"),
        (("push", file, REPO), "no token to push"),
        (("pull", REPO, "--revision", "main", "--out", tmp_path / "x"), "no pinned commit"),
        (("pull", REPO, "--out", tmp_path / "x"), "revision"),
    ):
        code, _, err = run(capsys, monkeypatch, *arguments)
        assert code == ExitCode.USAGE
        assert err.startswith("kcg: ") and err.count("\n") == 1 and says in err
