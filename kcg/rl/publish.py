"""Predictors and policies on the Hugging Face Hub, as models; and what a policy says of itself.

A repository holds one checkpoint, so that a later one is a later commit: the file, a card, and their checksums. It is
read, and with it refused where this kcg cannot use it, before it is pushed and before a pulled one takes its place.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from kcg.cli import counted
from kcg.errors import DataError, UsageError
from kcg.files import sha256_of
from kcg.hub.publisher import Publisher, listing
from kcg.kernel.loop_nest import ACTION_FEATURES
from kcg.predictor.header import MOST_BYTES, read_tensors
from kcg.predictor.publish import PREDICTOR, SHORT, CheckpointKind, Facts, facts
from kcg.rl.policy import FORMAT, Policy, read_policy

CARD, CHECKSUMS = "README.md", "checksums.json"


def _facts(policy: Policy, size: int) -> Facts:
    trunk = policy.network.trunk
    return facts(
        policy.about,
        size,
        consists_of=f"a network of {counted(trunk.layers, 'layer')} of {trunk.hidden}, with heads",
        targets=(f"fingerprint {target[:SHORT]}" for target in policy.about.targets),
        own=[("actions", f"{len(ACTION_FEATURES)} features of each")],
    )


POLICY = CheckpointKind(
    format=FORMAT,
    file="policy.safetensors",
    task="reinforcement-learning",
    tag="reinforcement-learning",
    read=read_policy,
    facts=_facts,
    title=lambda about: "steps to fast schedules of tinygrad kernels",
    what="A policy of kcg, the kernel optimizer for tinygrad: for a kernel and a schedule it says how probable each "
    "next step is, or that none follows, and the log-speedup still to come. `kcg.rl.policy.read_policy` reads it.",
    limits="It proposes schedules of one kernel, and is wrong in places: what it leads to is to be measured and "
    "verified. It was trained on the targets above, and can only guess elsewhere.",
)
KINDS = {kind.file: kind for kind in (PREDICTOR, POLICY)}


def kind_of(path: Path) -> CheckpointKind:
    """What a file is by its header: a predictor, whose reader says what is wrong, unless it says that it is a policy.
    Raises DataError where it cannot be read."""
    header, _ = read_tensors(path, "checkpoint", header_only=True)
    return POLICY if isinstance(header, dict) and header.get("format") == POLICY.format else PREDICTOR


def _stage(checkpoint: Path, repo: str, folder: Path) -> str:
    if checkpoint.is_dir():
        raise UsageError(f"{checkpoint} is a folder: give the checkpoint itself, a .safetensors file")
    kind = kind_of(checkpoint)
    made = kind.read(checkpoint)  # what is wrong with it is told of the file that was named
    shutil.copyfile(checkpoint, folder / kind.file)
    (folder / CARD).write_text(kind.card(made, repo, (folder / kind.file).stat().st_size), encoding="utf-8")
    (folder / CHECKSUMS).write_text(listing({name: sha256_of(folder / name) for name in (kind.file, CARD)}))
    return f"kcg: push {made.about.name}"


def _check(root: Path, names: Sequence[str]) -> Mapping[str, str]:
    """What is in the checksums must be there, and every checkpoint must be in the checksums."""
    try:
        listed = json.loads((root / CHECKSUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{CHECKSUMS} cannot be read ({str(error).splitlines()[0]}): pull it again") from error
    if not isinstance(listed, dict) or not (held := [name for name in KINDS if name in listed]):
        raise DataError(f"{CHECKSUMS} names no {' or '.join(KINDS)}: is it a checkpoint of kcg?")
    found = {name: sha256_of(root / name) for name in names}
    for name in sorted({*listed, *(name for name in names if name.endswith(".safetensors"))}):
        if name not in found:
            raise DataError(f"{name} is in {CHECKSUMS} and is missing: push or pull it again")
        if found[name] != listed.get(name):
            raise DataError(f"{name} does not agree with {CHECKSUMS}: push or pull it again")
    for name in held:
        KINDS[name].read(root / name)
    return found


CHECKPOINTS = Publisher(
    repository="model",
    suffixes=(".safetensors", ".json", ".md"),
    marker=CHECKSUMS,
    holds="predictor or policy",
    made_by="push a checkpoint with python -m kcg.predictor push",
    check=_check,
    most_bytes=MOST_BYTES,
    stage=_stage,
)
