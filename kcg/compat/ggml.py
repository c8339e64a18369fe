"""The tables of llama.cpp's packed formats, as tinygrad has them: `tinygrad.runtime.autogen.ggml_common`."""

from __future__ import annotations


def table(name: str) -> list[int]:
    """The rows of a table, one integer each, such as `iq3s_grid` or `kvalues_iq4nl`."""
    from tinygrad.runtime.autogen import ggml_common

    return list(getattr(ggml_common, name))
