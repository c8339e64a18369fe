"""The spread of checks of one host, from which the limits for others are taken."""

from __future__ import annotations

from evaluation.fleet.host_noise import figures
from tests.fleet.test_trust import report


def test_every_check_is_compared_with_every_other_one() -> None:
    found = figures([report("a"), report("b", 1.25), report("c")])
    assert found["agree"] == {"median": 0.25, "p99": 0.25, "most": 0.25}
    assert found["canary"]["most"] == found["each"]["most"] == 0.25
    assert found["noise"]["most"] == 0.001
    assert figures([report("a"), report("b")])["agree"]["most"] == 0.0
