"""What a checkpoint says of itself, for people: a table on the terminal and the model card of a repository.

Its texts may come from anywhere, so nothing in them steers a terminal or a page.
"""

from __future__ import annotations

import html
import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.dataset.reading import sha256_of
from kcg.errors import DataError, UsageError
from kcg.hub import LIMITS, MAIN, Cargo, Limits, pull_folder, push_folder
from kcg.nouns import plain
from kcg.predictor.checkpoint import About, Checkpoint, read
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.header import MOST_BYTES

METRICS = {
    "pairwise": "pairwise accuracy",
    "kendall_tau": "Kendall τ",
    "top1": "top-1",
    "top1_mean": "top-1, unweighted",
    "top5": "top-5",
    "top5_mean": "top-5, unweighted",
    "log_error": "error in log-seconds",
    "failure_auc": "AUC of failures",
}
"""Of those that a checkpoint has (`kcg.predictor.metrics`), what the Hub's page shows."""

if TYPE_CHECKING:
    from rich.table import Table


CARD = "README.md"
PREDICTOR = "predictor.safetensors"  # its name in a repository
LICENSE = "mit"  # that of kcg
TASK = "tabular-regression"  # as the Hub names it
SHORT = 12  # hexadecimal digits that are shown of a checksum
LONGEST = 300  # characters of one text


_TREES = {None: "", True: ", with changes that were not committed", False: ", nothing uncommitted"}


def facts(checkpoint: Checkpoint, size: int) -> list[tuple[str, str]]:
    """What it is, what it was trained on, and what it reached: names and values. `size` is in bytes."""
    about = checkpoint.about
    rows = [
        ("name", about.name),
        ("features", f"version {FEATURES_VERSION}"),
        ("size", f"{size:,} bytes"),
        ("consists of", f"{len(checkpoint.nets)} network{'s'[: len(checkpoint.nets) > 1]}"),
    ]
    for target in about.targets:
        named = [str(target[key]) for key in ("model", "device", "renderer") if target.get(key)]
        rows.append(("target", f"{', '.join(named)} ({str(target.get('fingerprint', ''))[:SHORT]})"))
    rows.append(("split", f"by {about.split}: it never saw the validation and test parts"))
    rows += [("dataset", f"{name} {digest[:SHORT]}") for name, digest in about.datasets]
    rows.append(("operations", f"{len(about.operations)} kinds seen in training"))
    rows.append(("errors", f"expected ones are multiplied by {about.spread_scale:.4g}"))
    rows += [("code", about.revision + _TREES[about.dirty])] if about.revision else []
    rows += [("since its training", about.since)] if about.since else []
    rows += [(f"validation {name}", _number(value)) for name, value in sorted(about.metrics.items())]
    return [(plain(name, LONGEST), plain(value, LONGEST)) for name, value in rows]


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def table(title: str, checkpoint: Checkpoint, size: int) -> Table:
    """The facts for a terminal."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=Text(plain(title)), title_justify="left", show_header=False)
    made.add_column()
    made.add_column(overflow="fold")
    for name, value in facts(checkpoint, size):
        made.add_row(Text(name), Text(value))
    return made


def model_card(checkpoint: Checkpoint, repo: str, size: int) -> str:
    """The README.md of a repository that holds this checkpoint. The same checkpoint always gives the same card."""
    about = checkpoint.about
    rows = facts(checkpoint, size)
    metrics = [row for row in rows if row[0].startswith("validation ")]
    targets = sorted({plain(str(t.get("model", "an unnamed target"))) for t in about.targets}) or ["no target"]
    sections = [
        f"---\n{_header(about)}\n---",
        f"# {_safe(about.name)}: runtimes of tinygrad kernels on {_safe(' and '.join(targets))}",
        "A predictor of kcg, the kernel optimizer for tinygrad: for a kernel, a schedule "
        "and a target it says the expected log-runtime, how sure that is, and whether the schedule will fail.",
        f"```\npython -m kcg.predictor pull {repo} --revision COMMIT --out FOLDER\n"
        f"python -m kcg.predictor show FOLDER/{PREDICTOR}\n```",
        "`COMMIT` is the 40 hex digits of a commit of this repository. Everything is read from "
        f"`{PREDICTOR}`: the numbers of the networks, and in its header what is said here. Nothing is "
        "executed or unpickled. A kcg with other features than the version below refuses it.",
        "## What it is",
        _markdown([row for row in rows if row not in metrics]),
    ]
    if metrics:
        sections += [
            f"## What it reached on the validation part of the split by {_safe(about.split)}",
            _markdown([(name.removeprefix("validation "), value) for name, value in metrics]),
        ]
    if about.datasets:
        sections += ["## What it was trained on", _markdown([(name, digest) for name, digest in about.datasets])]
    if about.settings:
        settings = json.dumps(about.settings, indent=1, sort_keys=True).replace("`", "'")
        sections += ["## Settings of the training", f"```json\n{settings}\n```"]
    sections += [
        "## Where it ends",
        "It ranks schedules of one kernel, and is wrong in places: what it picks is to be measured and verified. Of a "
        "kernel with an operation, or a machine, that training never showed, it says that it is unsure.",
    ]
    return "\n\n".join(sections) + "\n"


def _header(about: About) -> str:
    """What the Hub reads, as YAML: with the metrics as its `model-index`, which its pages show and search."""
    from huggingface_hub import EvalResult, ModelCardData

    measured = [
        EvalResult(
            task_type=TASK,
            dataset_type="kcg-export",  # the Hub wants the id of a dataset, and an export that lies here has none
            dataset_name=f"measured schedules, split by {_safe(about.split)}",
            dataset_split="validation",
            metric_type=name,
            metric_name=words,
            metric_value=about.metrics[name],
        )
        for name, words in METRICS.items()
        if math.isfinite(about.metrics.get(name, math.nan))
    ]
    data = ModelCardData(
        license=LICENSE,
        library_name="kcg",
        pipeline_tag=TASK,
        tags=["tinygrad", "cost-model", "autotuning"],
        model_name=_safe(about.name) if measured else None,
        eval_results=measured or None,
    )
    return data.to_yaml().strip()


def _safe(text: str) -> str:
    return html.escape(plain(text, LONGEST), quote=False).replace("|", "\\|").replace("`", "'")


def _markdown(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {_safe(name)} | {_safe(value)} |" for name, value in rows)])


# ---- Predictors to and from models of the Hugging Face Hub: one commit up, one pinned commit down, whole or not at
# all.
#
# A repository holds one predictor, so that a later one is a later commit: the checkpoint, a card, and their checksums.
# Only safetensors, JSON and Markdown travel; see `kcg.hub`. A checkpoint is read, and with it refused
# where this kcg cannot use it, before it is pushed and before a pulled one takes its place.

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
            folder,
            repo,
            cargo=PREDICTORS,
            message=message or f"kcg: push {made.about.name}",
            branch=branch,
            private=private,
            token=token,
            endpoint=endpoint,
            limits=limits,
        )


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
    kind="model",
    suffixes=(".safetensors", ".json", ".md"),
    marker=CHECKSUMS,
    holds="predictor",
    made_by="push a checkpoint with python -m kcg.predictor push",
    digests=_digests,
    most_bytes=MOST_BYTES,
)

pull = partial(pull_folder, cargo=PREDICTORS)
