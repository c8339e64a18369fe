"""The kernels of a campaign one by one, as Markdown: what a call takes with each method's choice, and its launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .flux_gap_text import part_words
from .method_names import FULL_BEAM, KCG, TINY_BEAM, TINY_MCTS
from .methods_markdown import cells, described

OWN = "hand-coded"
Row = dict[str, Any]


def kernels_markdown(rows: dict[str, Row], kernels: Sequence[Row]) -> list[str]:
    """Two tables: microseconds of one call, and global and local sizes. `rows` are those of all methods, `kernels` what
    is known of each, the largest first. Empty where there are no kernels."""
    shown = [OWN, *_shown(rows)]
    heads = ["tinygrad's own" if method == OWN else described(method) for method in shown]
    times = [["", "kernel", "of", "calls", *heads], ["--:", "---", "---", *["--:"] * (1 + len(heads))]]
    sizes = [["", *heads], ["--:", *["---"] * len(heads)]]
    for number, kernel in enumerate(kernels, 1):
        name = [str(number), f"`{kernel['name']}`", part_words(kernel["part"]), str(kernel["calls"])]
        times.append([*name, *_times(kernel, shown)])
        sizes.append([str(number), *(_launch(kernel, method) for method in shown)])
    if not kernels:
        return []
    return [
        "", "One call of each kernel that was searched, in microseconds:", "", *map(cells, times),
        "", "Global × local sizes of the same (workgroups, threads of one):", "", *map(cells, sizes),
    ]  # fmt: skip


def _shown(rows: dict[str, Row]) -> Iterator[str]:
    """kcg's best run, BEAM of two widths, MCTS, and the best BEAM over kcg's actions, as far as they were tried."""
    for wanted in (KCG, f"{TINY_BEAM}:4", f"{TINY_BEAM}:8", TINY_MCTS, FULL_BEAM):
        tried = [method for method in rows if method == wanted or method.startswith(f"{wanted}:")]
        if tried:
            yield min(tried, key=lambda method: rows[method]["total_s"][0])


def _times(kernel: Row, shown: Sequence[str]) -> list[str]:
    """Of each method, the fastest in bold; in words where its choice is no good, nothing where it was not timed."""
    call_us = {
        method: 1e6 * kernel["seconds"][method] / kernel["calls"]
        for method in shown
        if method not in kernel["hand_coded_stands"]
    }
    no_good = dict.fromkeys(kernel["failed"], "failed") | dict.fromkeys(kernel["wrong"], "wrong")
    texts = {method: f"{us:,.0f}" if us >= 99.95 else f"{us:.1f}" for method, us in call_us.items()}
    fastest = texts[min(call_us, key=lambda method: call_us[method])] if call_us else ""
    texts = {method: f"**{text}**" if text == fastest else text for method, text in texts.items()}
    return [texts.get(method, no_good.get(method, "")) for method in shown]


def _launch(kernel: Row, method: str) -> str:
    """`48×16 · 32×4`: axes of size 1 behind the others are left out. With a mark where the choice is no good, which is
    all that is said where its launch is not known."""

    def product(sizes: Sequence[int]) -> str:
        last = max((axis for axis, size in enumerate(sizes) if size > 1), default=0)
        return "×".join(map(str, sizes[: last + 1]))

    launch = " · ".join(map(product, kernel["launch"].get(method, ())))
    mark = "wrong" if method in kernel["wrong"] else "failed" if method in kernel["failed"] else ""
    return f"{launch} ({mark})" if launch and mark else launch or mark
