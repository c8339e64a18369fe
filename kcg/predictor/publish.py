"""What a checkpoint says of itself, for people: a table on the terminal and the model card of a repository.

A checkpoint is a predictor or a policy; `kcg.rl.publish` shares both. Its texts may come from anywhere, so nothing in
them steers a terminal or a page.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.nouns import plain
from kcg.predictor.checkpoint import About, Checkpoint, read
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.header import FORMAT

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

LICENSE = "mit"  # that of kcg
SHORT = 12  # hexadecimal digits that are shown of a checksum
LONGEST = 300  # characters of one text

Facts = list[tuple[str, str]]
"""Names and values, each on one line."""

_TREES = {None: "", True: ", with changes that were not committed", False: ", nothing uncommitted"}


@dataclass(frozen=True)
class CheckpointKind:
    """What of reading, showing and sharing a checkpoint differs by what it is."""

    format: str  # what the header of its file says
    file: str  # its name in a repository
    task: str  # as the Hub names it
    tag: str  # of the Hub
    read: Callable[[Path], Any]  # what has an `about`; DataError where this kcg cannot use it
    facts: Callable[[Any, int], Facts]  # of that, and of its size in bytes
    title: Callable[[Any], str]  # what it gives, and of what, as its `about` says
    what: str
    limits: str

    def table(self, title: str, checkpoint: Any, size: int) -> Table:
        """The facts for a terminal."""
        from rich.table import Table
        from rich.text import Text

        made = Table(title=Text(plain(title)), title_justify="left", show_header=False)
        made.add_column()
        made.add_column(overflow="fold")
        for name, value in self.facts(checkpoint, size):
            made.add_row(Text(name), Text(value))
        return made

    def card(self, checkpoint: Any, repo: str, size: int) -> str:
        """The README.md of a repository that holds this checkpoint. The same checkpoint always gives the same card."""
        about = checkpoint.about
        rows = self.facts(checkpoint, size)
        metrics = [row for row in rows if row[0].startswith("validation ")]
        sections = [
            f"---\n{self._header(about)}\n---",
            f"# {_safe(about.name)}: {_safe(self.title(about))}",
            self.what,
            f"```\npython -m kcg.predictor pull {repo} --revision COMMIT --out FOLDER\n"
            f"python -m kcg.predictor show FOLDER/{self.file}\n```",
            "`COMMIT` is the 40 hex digits of a commit of this repository. Everything is read from "
            f"`{self.file}`: the numbers of the networks, and in its header what is said here. Nothing is "
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
        sections += ["## Where it ends", self.limits]
        return "\n\n".join(sections) + "\n"

    def _header(self, about: Any) -> str:
        """What the Hub reads, as YAML: with the metrics as its `model-index`, which its pages show and search."""
        from huggingface_hub import EvalResult, ModelCardData

        measured = [
            EvalResult(
                task_type=self.task,
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
            pipeline_tag=self.task,
            tags=["tinygrad", self.tag, "autotuning"],
            model_name=_safe(about.name) if measured else None,
            eval_results=measured or None,
        )
        return data.to_yaml().strip()


def facts(about: Any, size: int, *, consists_of: str, targets: Iterable[str], own: Facts) -> Facts:
    """What any checkpoint is, what it was trained on, and what it reached, with some of its `own`."""
    rows = [("name", about.name), ("features", f"version {FEATURES_VERSION}"), ("size", f"{size:,} bytes")]
    rows += [("consists of", consists_of), *(("target", target) for target in targets)]
    rows.append(("split", f"by {about.split}: it never saw the validation and test parts"))
    rows += [("dataset", f"{name} {digest[:SHORT]}") for name, digest in about.datasets]
    rows += own
    rows += [("code", about.revision + _TREES[about.dirty])] if about.revision else []
    rows += [("since its training", about.since)] if isinstance(about, About) and about.since else []
    rows += [(f"validation {name}", _number(value)) for name, value in sorted(about.metrics.items())]
    return [(plain(name, LONGEST), plain(value, LONGEST)) for name, value in rows]


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _safe(text: str) -> str:
    return html.escape(plain(text, LONGEST), quote=False).replace("|", "\\|").replace("`", "'")


def _markdown(rows: Facts) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {_safe(name)} | {_safe(value)} |" for name, value in rows)])


def _facts(checkpoint: Checkpoint, size: int) -> Facts:
    about = checkpoint.about
    targets = []
    for target in about.targets:
        named = [str(target[key]) for key in ("model", "device", "renderer") if target.get(key)]
        targets.append(f"{', '.join(named)} ({str(target.get('fingerprint', ''))[:SHORT]})")
    own = [
        ("operations", f"{len(about.operations)} kinds seen in training"),
        ("errors", f"expected ones are multiplied by {about.spread_scale:.4g}"),
    ]
    networks = f"{len(checkpoint.nets)} network{'s'[: len(checkpoint.nets) > 1]}"
    return facts(about, size, consists_of=networks, targets=targets, own=own)


def _title(about: About) -> str:
    targets = sorted({plain(str(t.get("model", "an unnamed target"))) for t in about.targets}) or ["no target"]
    return f"runtimes of tinygrad kernels on {' and '.join(targets)}"


PREDICTOR = CheckpointKind(
    format=FORMAT,
    file="predictor.safetensors",
    task="tabular-regression",
    tag="cost-model",
    read=read,
    facts=_facts,
    title=_title,
    what="A predictor of kcg, the kernel optimizer for tinygrad: for a kernel, a schedule "
    "and a target it says the expected log-runtime, how sure that is, and whether the schedule will fail.",
    limits="It ranks schedules of one kernel, and is wrong in places: what it picks is to be measured and verified. Of "
    "a kernel with an operation, or a machine, that training never showed, it says that it is unsure.",
)
