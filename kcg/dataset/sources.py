"""Where datasets are found: by name in the `datasets/` of a checkout, by path, or on the Hub at a pinned commit."""

from __future__ import annotations

from pathlib import Path

from kcg.dataset.reading import CHECKSUMS
from kcg.errors import UnknownName, UsageError

CHECKOUT = Path(__file__).parents[2]


def names() -> list[str]:
    """The datasets that a checkout holds: the one in which Python runs, and the one that kcg is imported from."""
    return sorted(_named())


def _named() -> dict[str, Path]:
    roots = (CHECKOUT / "datasets", Path.cwd() / "datasets")
    return {path.parent.name: path.parent for root in roots for path in root.glob(f"*/{CHECKSUMS}")}


def place_of(source: str | Path) -> Path:
    """The folder of an export, or the file of a journal, that `source` names: a path, a name of `names`, or
    `OWNER/NAME@REVISION` of the Hub, with all 40 hex digits of the revision, which is downloaded once.

    Raises UsageError for what is nowhere or not pinned, DataError where the Hub cannot be reached or its data not be
    trusted.
    """
    text = str(source)
    if Path(source).exists():
        return Path(source)
    if isinstance(source, Path):
        raise UsageError(f"there is no dataset {source}: give the folder of an export, or a journal")
    repo, at, revision = text.partition("@")
    if at:
        from kcg.dataset.publish import EXPORTS

        return EXPORTS.cached(repo, revision=revision)
    if text in (named := _named()):
        return named[text]
    if text.count("/") == 1 and not text.startswith((".", "/")):
        raise UsageError(f"there is no {text} here: of the Hub give the commit too, {text}@REVISION (40 hex digits)")
    if not named:
        raise UsageError(f"there is no dataset {text}: give a path, or OWNER/NAME@REVISION; only a checkout has names")
    raise UnknownName("dataset", text, list(named))
