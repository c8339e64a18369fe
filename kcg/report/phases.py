"""The phases of a run, in their order, and what each is called."""

from __future__ import annotations

from typing import Final

STARTING, CAPTURING, OPENING, BASELINES, SEARCH, JUDGING, MODEL = PHASES = (
    "starting",
    "capturing",
    "opening",
    "baselines",
    "search",
    "judging",
    "model",
)
"""Until the workload is captured; capturing it; what is left of opening the device by then, and planning; timing
tinygrad's own schedules, hand-written kernels and (on a CPU, before) reading the predictor; searching; re-timing and
verifying; the check of the whole model or script, and writing the result."""

GOES_ON: Final = {
    STARTING: "starting",
    CAPTURING: "capturing",
    OPENING: "opening the device",
    BASELINES: "timing",
    SEARCH: "searching",
    JUDGING: "judging",
    MODEL: "checking the whole",
}
"""What is said to go on where a budget is over."""

WORDS: Final = {
    STARTING: "starting",
    CAPTURING: "capturing the workload",
    OPENING: "opening the device",
    BASELINES: "timing tinygrad's own schedules",
    SEARCH: "searching",
    JUDGING: "re-timing and verifying",
    MODEL: "checking the whole",
}
"""What each is called in the report."""
