"""Predictors to and from models of the Hugging Face Hub: one commit up, one pinned commit down, whole or not at all.

A repository holds one predictor, so that a later one is a later commit: the checkpoint, a card, and their checksums.
Only safetensors, JSON and Markdown travel; see `kcg.hub`. A checkpoint is read, and with it refused
where this kcg cannot use it, before it is pushed and before a pulled one takes its place.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kcg.dataset.reading import sha256_of
from kcg.errors import DataError, UsageError
from kcg.hub import LIMITS, MAIN, Cargo, Limits, pull_folder, push_folder
from kcg.predictor.card import CARD, PREDICTOR, model_card
from kcg.predictor.checkpoint import read
from kcg.predictor.tensors import MOST_BYTES

CHECKSUMS = "checksums.json"


def push(
    checkpoint: Path,
    repo: str,
    *,
    branch: str = MAIN,
    message: str = "",
    private: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
) -> str:
    """Uploads a checkpoint, with a card of what it says of itself, to the model `repo`; returns the commit's 40-hex id.

    Everything else, errors included, as `kcg.hub.push_folder` says.
    """
    if checkpoint.is_dir():
        raise UsageError(f"{checkpoint} is a folder: give the checkpoint itself, a .safetensors file")
    made = read(checkpoint)  # what is wrong with it is told of the file that was named
    with tempfile.TemporaryDirectory(prefix="kcg-push-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        shutil.copyfile(checkpoint, folder / PREDICTOR)
        (folder / CARD).write_text(model_card(made, repo, (folder / PREDICTOR).stat().st_size), encoding="utf-8")
        checksums = {name: sha256_of(folder / name) for name in (PREDICTOR, CARD)}
        (folder / CHECKSUMS).write_text(json.dumps(checksums, sort_keys=True, indent=1) + "\n")
        return push_folder(
            folder, repo, cargo=PREDICTORS, message=message or f"kcg: push {made.about.name}", branch=branch,
            private=private, token=token, endpoint=endpoint, limits=limits,
        )  # fmt: skip


def pull(
    repo: str,
    folder: Path,
    *,
    revision: str,
    token: str | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
) -> dict[str, str]:
    """Downloads one commit of the model `repo` to a new or empty `folder`; returns the SHA-256 of each file by name.

    Everything else, errors included, as `kcg.hub.pull_folder` says.
    """
    return pull_folder(repo, folder, cargo=PREDICTORS, revision=revision, token=token, endpoint=endpoint, limits=limits)


def _digests(root: Path, names: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of each file, once all agree with the checksums and the checkpoint can be read; DataError otherwise.

    What is in the checksums must be there, and every checkpoint must be in the checksums.
    """
    try:
        listed = json.loads((root / CHECKSUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{CHECKSUMS} cannot be read ({str(error).splitlines()[0]}): pull it again") from error
    if not isinstance(listed, dict) or PREDICTOR not in listed:
        raise DataError(f"{CHECKSUMS} names no {PREDICTOR}: is it a predictor of kcg?")
    found = {name: sha256_of(root / name) for name in names}
    for name in sorted({*listed, *(name for name in names if name.endswith(".safetensors"))}):
        if name not in found:
            raise DataError(f"{name} is in {CHECKSUMS} and is missing: push or pull it again")
        if found[name] != listed.get(name):
            raise DataError(f"{name} does not agree with {CHECKSUMS}: push or pull it again")
    read(root / PREDICTOR)
    return found


PREDICTORS = Cargo(
    kind="model", suffixes=(".safetensors", ".json", ".md"), marker=CHECKSUMS, holds="predictor",
    made_by="push a checkpoint with python -m kcg.predictor push", digests=_digests, most_bytes=MOST_BYTES,
)  # fmt: skip
