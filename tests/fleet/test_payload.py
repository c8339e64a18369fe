"""What travels to a host: it arrives as it was sent, and what is malformed is an error before anything runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from kcg.campaign.sampling import Choice, DrawJob, Drawn, Known
from kcg.campaign.tables import LatticeDrawn, LatticeJob
from kcg.errors import DataError, DeviceError, KcgError
from kcg.fleet import tasks
from kcg.fleet.payload import Checked, Failure, HostFacts, Measured, MeasureJob, pack, unpack
from kcg.fleet.trust import HostReport, ReferenceTime, Versions
from kcg.kernel.composed import Part, schedule_of_parts
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.source.body import SourceBody, source_schedule
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import Request
from kcg.types import CacheState, Measurement, Schedule, Status, Toolchain
from tests.kernels import example_region
from tests.known_targets import X86

REGION = example_region("pad")
VARIABLES = (("n", 3),)
JOB = MeasureJob(
    (
        Request(REGION, RAW, VARIABLES, "walk:raw", in_search=True, stop_above_s=1.5, timeout_s=8.0),
        Request(REGION, RAW, VARIABLES, trial=1, cache_state=CacheState.WARM, samples=7),
    ),
    (Measurement(REGION.id, RAW, "t", "c", PROTOCOL, Status.OK, samples_s=(1e-6, 2e-6), binary_hash="b" * 64),),
)
ROW = Measurement(
    REGION.id, RAW, "t", "c", PROTOCOL, Status.WRONG, reason="element 7", launch=((1, 2), (3,)), clocks=(("sm", 1.5),)
)
DRAW = DrawJob(
    REGION, X86, (Known(RAW, "raw", math.inf, "k"),), 9, (("walk:raw", 1.0),), "0:x", frozenset({"near:best", "beam:2"})
)
FACTS = HostFacts("r", "CPU:X86", X86, Toolchain("t", "x86", "", "", 1), 2)
VERSIONS = Versions("0.1", "a" * 40, None, "0.14", "3.11.7", "", "", "clang 20")
REPORT = HostReport(
    "r", "a-host", VERSIONS, X86, FACTS.toolchain, 1e-3, (ReferenceTime("copy", "c0", 1e-3, 1e-3, 1e-3),)
)
CHECKED = Checked(FACTS, REPORT)


@pytest.mark.parametrize(
    "noun",
    [
        JOB,
        Measured((ROW,), (("compile", 1.5),)),
        DRAW,
        Drawn((Choice(RAW, "uniform", "key", "legal:3", 1 / 3, 1e-3, 0.02),), ("k",), frozenset({"beam:2"}), "", 0.5),
        LatticeJob(REGION, X86, (), "0", 12),
        LatticeDrawn((), (), frozenset(), declaration="{}"),
        CHECKED,
        replace(JOB, doubtful=("run",), driver="one"),
    ],
    ids=lambda noun: type(noun).__name__,
)
def test_it_arrives_as_it_was_sent(noun: Any) -> None:
    assert unpack(pack(noun), type(noun)) == noun


def changed(noun: Any, change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(pack(noun))
    change(document)
    return json.dumps(document).encode()


def test_a_host_of_before_generators_had_a_version_has_none_that_is_known() -> None:
    facts = replace(FACTS, toolchain=replace(FACTS.toolchain, generator=1))
    assert unpack(pack(facts), HostFacts) == facts
    old = changed(facts, lambda document: document["value"]["toolchain"].pop("generator"))
    assert unpack(old, HostFacts) == FACTS


def source(document: dict[str, Any]) -> None:
    document["value"]["requests"][0]["schedule"] = {"kind": "source", "body": "{}"}


def part_of_source(document: dict[str, Any]) -> None:
    body = SourceBody("own", "c", "CLANG", "own", "void own() {}", (1, 1, 1), (1, 1, 1))
    parts = schedule_of_parts([Part((0,), source_schedule(body))])
    document["value"]["requests"][0]["schedule"] = {"kind": str(parts.kind), "body": parts.body}


MALFORMED: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{", "a payload that kcg cannot trust"),
    "a pickle": (b"\x80\x05K\x01.", "a payload that kcg cannot trust"),
    "not an object": (b"[]", "an object is expected"),
    "another noun": (pack(DRAW), "is not what this task takes"),
    "a function": (changed(JOB, lambda d: d.update(function="os.system")), "'function' is unknown"),
    "a noun that is code": (changed(JOB, lambda d: d.update(noun="os.system")), "'os.system' is not what"),
    "an extra field": (changed(JOB, lambda d: d["value"].update(more=1)), "'more' is unknown"),
    "a missing field": (changed(JOB, lambda d: d["value"].pop("known")), "'known' is missing"),
    "another kernel": (
        changed(JOB, lambda d: d["asts"].update({REGION.id: "[]"})),
        "the text of the kernel was changed",
    ),
    "no kernel": (changed(JOB, lambda d: d["asts"].clear()), "no kernel"),
    "no requests": (changed(JOB, lambda d: d["value"]["requests"].clear()), "of one kernel are expected"),
    "a long limit": (changed(JOB, lambda d: d["value"]["requests"][0].update(timeout_s=1e9)), "timeout_s"),
    "no limit": (changed(JOB, lambda d: d["value"]["requests"][0].update(timeout_s="inf")), "timeout_s"),
    "a status": (changed(JOB, lambda d: d["value"]["known"][0].update(status="fine")), "is no Status"),
    "a row of elsewhere": (changed(JOB, lambda d: d["value"]["known"][0].update(region_id="r")), "rows of the kernel"),
    "written by hand": (changed(JOB, source), "the kind 'source' does not travel"),
    "a part by hand": (changed(JOB, part_of_source), "one of its parts is of a kind that does not travel"),
    "no Opts": (changed(JOB, lambda d: d["value"]["requests"][0]["schedule"].update(body="[1]")), "cannot trust"),
    "NaN": (pack(JOB).replace(b"1.5", b"NaN"), "not JSON"),
    "a field twice": (pack(JOB).replace(b'{"noun"', b'{"noun":"x","noun"'), "a field appears twice"),
}


class Untouched:
    """A service that fails a test which it is asked for anything in."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the service was asked for {name}")


@pytest.fixture
def untouched() -> Any:
    tasks.install(tasks.Host(cast(Any, Untouched()), FACTS, 0.0))
    yield
    tasks.install(None)


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_malformed_is_an_error_and_nothing_runs(what: str, untouched: None) -> None:
    payload, expected = MALFORMED[what]
    with pytest.raises(KcgError, match=expected) as refused:
        unpack(tasks.measure(payload), Measured)
    assert "\n" not in str(refused.value) and not isinstance(refused.value, DeviceError)
    with pytest.raises(DataError):
        unpack(payload, MeasureJob)


@pytest.mark.parametrize("predictor", ["/etc/passwd", "a.safetensors"])
def test_a_draw_names_no_file(predictor: str, untouched: None) -> None:
    with pytest.raises(KcgError, match="a host follows auto or roofline"):
        unpack(tasks.draw(pack(replace(DRAW, predictor=predictor))), Drawn)
    with pytest.raises(KcgError, match="nothing is expected"):
        unpack(tasks.check(b"x"), Checked)


def test_a_kernel_outside_of_the_allow_list_is_refused() -> None:
    foreign = replace(
        REGION.kernel, ast_json=REGION.kernel.ast_json.replace("PARAM", "CUSTOM").replace("ADD", "PYLITERAL")
    )
    assert foreign.id != REGION.id
    with pytest.raises(DataError):
        unpack(pack(MeasureJob((Request(replace(REGION, kernels=(foreign,)), RAW),))), MeasureJob)


def test_a_check_is_of_the_host_that_was_asked() -> None:
    for change, words in (
        (lambda d: d["value"]["facts"].update(run_id="s"), "a report of another host"),
        (lambda d: d["value"]["report"].update(kernels=[]), "a host without a fault has"),
        (lambda d: d["value"]["report"]["kernels"][0].update(a_s=0.0), "has times of 0.0"),
    ):
        with pytest.raises(DataError, match=words):
            unpack(changed(CHECKED, change), Checked)


def test_a_host_keeps_what_each_driver_told_it_of_and_no_more_than_some(monkeypatch: pytest.MonkeyPatch) -> None:
    host = tasks.Host(cast(Any, Untouched()), FACTS, 0.0)
    (row,) = JOB.known
    one, other = replace(JOB, driver="one"), replace(JOB, driver="other", known=())
    assert [*host.known(one).values()] == [row] and host.known(other) == {}
    assert [*host.known(replace(one, known=())).values()] == [row]
    assert host.known(replace(one, known=(), doubtful=(row.run_id,))) == {} == host.known(replace(one, known=()))
    monkeypatch.setattr(tasks, "ROWS_KEPT", 2)
    for driver in "abc":
        host.known(replace(JOB, driver=driver))
    kept = [driver for driver in "abc" if host.known(replace(other, driver=driver))]
    assert kept == ["b", "c"] and len(host._given) == 2


def test_a_failure_is_what_it_was() -> None:
    with pytest.raises(DeviceError, match="gone"):
        unpack(pack(Failure("gone", device=True)), Measured)
    with pytest.raises(KcgError, match="odd"):
        unpack(pack(Failure("odd")), Measured)
    tasks.install(None)
    with pytest.raises(DeviceError, match="not open"):
        unpack(tasks.measure(pack(JOB)), Measured)


def test_a_row_that_is_no_timing_is_refused() -> None:
    for row in (replace(ROW, samples_s=(math.nan,)), replace(ROW, samples_s=(-1.0,)), replace(ROW, compile_s=math.inf)):
        with pytest.raises(DataError, match="a time is none"):
            unpack(pack(Measured((row,))), Measured)
    with pytest.raises(DataError, match="does not travel"):
        unpack(pack(Measured((replace(ROW, schedule=Schedule("source", "{}")),))), Measured)
