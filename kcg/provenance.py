"""Which code made a figure: the git revision of kcg, and whether its tree was dirty. Every stored figure has both."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import TypedDict

UNKNOWN = "unknown"  # installed without its repository, or there is no git
OUTPUTS = ("evaluation/results",)  # what evaluation writes: the figures themselves are no code
GIT_TIMEOUT_S = 20.0
CODE = ("kcg", "evaluation", "training")  # where an untracked file can be part of what ran


class Provenance(TypedDict):
    """As it is stored beside a figure."""

    revision: str  # 40 hex digits, or `UNKNOWN`
    dirty: bool | None  # None where the revision is unknown


@cache
def provenance() -> Provenance:
    """The revision of the checkout that kcg runs from, and whether its tree differs from it, asked once a process.

    Dirty is: a tracked file is changed, added or removed, whichever it is but for `OUTPUTS`, which a run itself writes;
    or a file that git neither tracks nor ignores lies in a folder of `CODE`. Commands ask when they start, so that a
    commit made while they run is not taken for what ran. A kcg that is installed inside another repository (its
    environment, say) has no revision of its own: `UNKNOWN`.
    """
    return read(Path(__file__))


def read(module: Path) -> Provenance:
    """The same for the checkout that tracks `module`, which lies in one of the folders at its root."""
    root = module.parent.parent
    if _git(root, "ls-files", "--error-unmatch", "--", str(module)) is None:
        return Provenance(revision=UNKNOWN, dirty=None)
    head = _git(root, "rev-parse", "HEAD")
    outside = [f":(exclude){name}" for name in OUTPUTS]
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *outside)
    strange = _git(root, "ls-files", "--others", "--exclude-standard", "--", *CODE, *outside)
    if not head or changed is None or strange is None:
        return Provenance(revision=UNKNOWN, dirty=None)
    return Provenance(revision=head, dirty=bool(changed or strange))


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None where it fails, or there is none."""
    command = ["git", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", check=False, timeout=GIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
