"""A policy is shared by the commands of predictors: its file, and its repository, say what it is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from safetensors.torch import save_file

from kcg.errors import DataError
from kcg.predictor.__main__ import main
from kcg.rl import policy as policy_module
from kcg.rl.policy import Policy, save_policy
from kcg.rl.publish import CARD, CHECKPOINTS, CHECKSUMS, POLICY
from tests.commands import ended
from tests.hub.checks import is_untouched, refused
from tests.hub.server import TOKEN, Hub
from tests.policies import ABOUT, opinionated

REPO = "owner/policy"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "local").mkdir()
    save_policy(
        Policy(opinionated().network(), replace(ABOUT, name="tiny-policy")), tmp_path / "local" / "mine.safetensors"
    )
    return tmp_path / "local" / "mine.safetensors"


def test_the_commands_push_pull_and_show_a_policy(
    usual_hub: Hub, file: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    pushed = ended(main, "push", file, REPO)
    assert pushed.returncode == 0, pushed.stderr
    repository = usual_hub.repos[REPO]
    assert repository.kind == "model" and repository.messages[-1] == "kcg: push tiny-policy"
    pulled = ended(main, *pushed.stdout.splitlines()[1].replace("FOLDER", str(target)).split()[3:])
    assert pulled.stdout == f"{target}: 3 files, {CARD}, {CHECKSUMS}, {POLICY.file}\n", pulled.stderr
    assert (target / POLICY.file).read_bytes() == file.read_bytes()
    card = ModelCard((target / CARD).read_text())
    assert card.data.pipeline_tag == "reinforcement-learning" and card.data.library_name == "kcg"
    for text in ("# tiny-policy: ", "never saw the validation and test parts", "kernels.parquet", "0.5000", REPO):
        assert text in card.text
    shown = ended(main, "show", target / POLICY.file)
    for text in ("tiny-policy", "1 layer of 16", f"{file.stat().st_size:,} bytes"):
        assert text in shown.stdout, shown.stderr
    assert json.loads(ended(main, "show", target, "--json").stdout)["name"] == "tiny-policy"


def test_what_is_no_policy_never_takes_its_place(
    hub: Hub, file: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, other = file.read_bytes()[:-100], file.with_name("other.safetensors")
    save_file({}, other, {"kcg": json.dumps({"format": "kcg-policy-1", "features_version": 10**6})})
    nameless = file.with_name("nameless.safetensors")
    save_policy(Policy(opinionated().network(), replace(ABOUT, name=5)), nameless)  # type: ignore[arg-type]
    for content, message in (
        (cut, r"policy\.safetensors cannot be read"),
        (other.read_bytes(), "sees other features"),
        (nameless.read_bytes(), "a name that is no word"),
    ):
        sealed = json.dumps({POLICY.file: hashlib.sha256(content).hexdigest()}).encode()
        bad = hub.repo(files={POLICY.file: content, CHECKSUMS: sealed}, kind="model").head
        with pytest.raises(DataError, match=message) as error:
            CHECKPOINTS.pull("owner/name", target, revision=bad, endpoint=hub.endpoint)
        refused(error)
    both = {POLICY.file: b"x", "predictor.safetensors": b"y"}
    listed = json.dumps({name: hashlib.sha256(content).hexdigest() for name, content in both.items()}).encode()
    bad = hub.repo(files={**both, CHECKSUMS: listed}, kind="model").head
    with pytest.raises(DataError, match=r"predictor\.safetensors cannot be read"):
        CHECKPOINTS.pull("owner/name", target, revision=bad, endpoint=hub.endpoint)
    assert is_untouched(target)
    monkeypatch.setattr(policy_module, "FEATURES_VERSION", 10**6)
    with pytest.raises(DataError, match=r"mine\.safetensors sees other features"):
        CHECKPOINTS.push(file, REPO, token=TOKEN, endpoint=hub.endpoint)
