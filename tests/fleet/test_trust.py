"""A host measures for a fleet only while it is what the others are: as right, as fast, and with the same versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.dataset.journal import Doubt, Journal, Run
from kcg.errors import ResultError
from kcg.fleet import trust
from kcg.fleet.trust import (
    Admission,
    HostReport,
    ReferenceTime,
    Versions,
    host_report,
    limits_of,
    reference_requests,
    references_of,
)
from kcg.measure.service import MeasureService
from kcg.nouns import noun_from_json, noun_to_json
from kcg.types import Target
from tests.conftest import CPU
from tests.dataset.test_journal import TARGET, TOOLCHAIN, measurement
from tests.fleet import slow_hosts
from tests.known_targets import KNOWN_TARGETS
from tests.waiting import PATIENCE_S

H100 = next(target for target in KNOWN_TARGETS.values() if target.device == "CUDA")
REVISION = "a" * 40
VERSIONS = Versions("0.1.0", REVISION, False, "0.14.0", "3.11.7", "3.6.0", "13.4.59", "clang version 20.1.2")
TIMES = {"copy": 1e-3, "matmul": 2e-3, "row sums": 3e-3, "gather": 4e-4}
A, B = "tls://10.0.0.1:4000", "tls://10.0.0.2:4000"


def report(run_id: str, times: float = 1.0, target: Target = H100, **changes: object) -> HostReport:
    """Of a host that takes so many times as long as the first one."""
    kernels = (ReferenceTime(name, name, times * s, times * s * 1.001, times * s * 0.5) for name, s in TIMES.items())
    made = HostReport(run_id, "a-host", VERSIONS, target, TOOLCHAIN, times * 1e-4, tuple(kernels))
    return replace(made, **changes)  # type: ignore[arg-type]


def one_kernel(times: float, noise: float = 0.0) -> tuple[ReferenceTime, ...]:
    """The times of a host that differs in its gather only."""
    return tuple(
        replace(k, a_s=times * k.a_s, b_s=times * k.a_s * (1 + noise), warm_s=times * k.warm_s)
        if k.name == "gather"
        else k
        for k in report("").kernels
    )


def admission() -> Admission:
    """One that has admitted a first host at the time 1000."""
    made = Admission(VERSIONS)
    assert made.join(A, report("first"), asked_unix_s=1000.0) == ""
    return made


def test_the_first_host_is_the_reference_and_the_others_agree_with_it() -> None:
    hosts = admission()
    assert hosts.join(B, report("b", 1.029), asked_unix_s=1000.0) == ""
    assert hosts.join(B, report("c", 1 / 1.029), asked_unix_s=1000.0) == ""
    line = hosts.join(B, report("d", 1.04), asked_unix_s=1000.0)
    assert line == (
        f"worker {B} takes 1.04 times as long as {A} for the reference kernels (1.03 times is allowed, faster or "
        "slower): see what slows it down, or leave it out"
    )
    assert "takes 0.90 times as long" in hosts.join(B, report("e", 0.9), asked_unix_s=1000.0)
    assert sorted(hosts.hosts) == ["b", "c", "first"]


def test_one_kernel_may_differ_more_than_all_of_them_but_not_without_limit() -> None:
    hosts = admission()
    assert hosts.join(B, report("b", kernels=one_kernel(1.09)), asked_unix_s=0.0) == ""
    line = hosts.join(B, report("c", kernels=one_kernel(1.2)), asked_unix_s=0.0)
    assert "takes 1.20 times as long" in line and "one reference kernel (gather, " in line
    line = hosts.join(B, report("d", kernels=one_kernel(1.0, noise=0.05)), asked_unix_s=0.0)
    assert line.endswith("times one binary as A and as B 5% apart (gather; 3% is allowed): end what else runs there")
    assert "has other reference kernels" in hosts.join(B, report("e", kernels=one_kernel(1)[:2]), asked_unix_s=0.0)


def test_targets_have_their_own_references_and_a_cpu_wider_limits() -> None:
    hosts = admission()
    assert hosts.join(B, report("cpu", 7.0, TARGET), asked_unix_s=0.0) == ""
    agree = limits_of(TARGET).agree
    assert agree > limits_of(H100).agree
    assert hosts.join(B, report("cpu2", 7.0 * (1 + 0.9 * agree), TARGET), asked_unix_s=0.0) == ""
    assert "times as long as" in hosts.join(B, report("cpu3", 7.0 * (1 + 1.1 * agree), TARGET), asked_unix_s=0.0)


def test_a_driver_that_goes_on_with_a_journal_has_its_reference(tmp_path: Path) -> None:
    """Whichever host joins first, and whatever hosts were admitted meanwhile: 3 % of 3 % add up."""
    first = report("first")
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        for hour, (run_id, reference) in enumerate([("old", {"kernels": 7}), ("first", first), ("b", first)]):
            kept = reference.whole if isinstance(reference, HostReport) else reference
            facts = {"report": report(run_id).facts, trust.REFERENCE: kept}
            journal.add_run(Run(run_id, f"2025-01-01T{hour:02}:00:00+00:00", "kcg", facts))
        journal.add_run(Run("alone", "2025-01-01T09:00:00+00:00", "kcg", {"device": "CUDA"}))
        earlier = references_of(journal, "the host that journal.sqlite began with")
        assert "a-host" not in str([run.description for run in journal.runs().values()])
    assert [replace(one, host="a-host") for one in earlier] == [first, first]

    hosts = Admission(VERSIONS, earlier=earlier)
    line = hosts.join(B, report("c", 1.04), asked_unix_s=0.0)
    assert f"worker {B} takes 1.04 times as long as the host that journal.sqlite began with for" in line
    assert hosts.join(B, report("d", 1.02), asked_unix_s=0.0) == ""
    assert hosts.reference_of(H100).run_id == "first"
    line = hosts.join(A, report("f", 1.035), asked_unix_s=0.0)
    assert "takes 1.03 times" in line, "though it is near to the one that was admitted here"
    assert hosts.join(A, report("e", 0.98), asked_unix_s=0.0) == ""
    assert sorted(hosts.hosts) == ["d", "e"]


@pytest.mark.parametrize(
    "changes",
    [
        {"toolchain": replace(TOOLCHAIN, compiler="NVRTC 12.4")},
        {"target": TARGET},
        {"kernels": tuple(replace(kernel, region_id="another") for kernel in report("").kernels)},
    ],
    ids=["toolchain", "target", "kernels"],
)
def test_a_reference_of_before_that_says_nothing_of_a_host_is_none(changes: dict[str, Any]) -> None:
    hosts = Admission(VERSIONS, earlier=[report("first", **changes)])
    assert hosts.join(B, report("b", 2.0), asked_unix_s=0.0) == ""
    assert f"takes 2.00 times as long as {B}" in hosts.join(A, report("a", 4.0, canary_s=2e-4), asked_unix_s=0.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tinygrad": "0.13.0"}, "has tinygrad 0.13.0, the driver 0.14.0: install the same"),
        ({"kcg": "0.0.9"}, "has kcg 0.0.9, the driver 0.1.0: install the same"),
        ({"triton": ""}, "has Triton (none), the driver 3.6.0: install the same"),
        ({"python": "3.12.1"}, "has Python 3.12, the driver 3.11: install the same"),
        (
            {"revision": "b" * 40},
            "has kcg of revision bbbbbbbbbbbb, the driver of aaaaaaaaaaaa: check out the same",
        ),
        ({"python": "3.11.9", "clang": "", "ptxas": ""}, ""),
        ({"revision": "b" * 40, "dirty": True}, ""),
        ({"revision": "unknown", "dirty": None}, ""),
    ],
)
def test_another_version_is_refused_by_its_name(changes: dict[str, object], words: str) -> None:
    line = admission().join(B, report("b", versions=replace(VERSIONS, **changes)), asked_unix_s=0.0)
    assert line == (f"worker {B} {words}" if words else "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compiler": "NVRTC 12.4"}, f"has compiler NVRTC 12.4, {A} X86: install the same"),
        ({"driver": "550.1"}, f"has device driver 550.1, {A} (none): install the same"),
        ({"assembler": "ptxas 12.8"}, f"has assembler ptxas 12.8, {A} (none): install the same"),
        ({"generator": 2}, f"has generator of tile programs 2, {A} (none): install the same"),
        ({"action_space": 2}, f"has list of actions 2, {A} 1: install the same"),
    ],
)
def test_another_toolchain_is_refused_by_its_name(changes: dict[str, object], words: str) -> None:
    line = admission().join(B, report("b", toolchain=replace(TOOLCHAIN, **changes)), asked_unix_s=0.0)
    assert line == f"worker {B} {words}"


def test_what_only_compiles_needs_the_same_compilers() -> None:
    other = replace(VERSIONS, ptxas="12.8.61")
    assert trust.other_version(other, VERSIONS) == ""
    assert trust.other_version(VERSIONS, VERSIONS, compiles_only=True) == ""
    words = trust.other_version(other, VERSIONS, compiles_only=True)
    assert words == "has ptxas 12.8.61, the driver 13.4.59: install the same"


def test_a_fault_or_a_slow_canary_is_refused_also_of_a_first_host() -> None:
    hosts = Admission(VERSIONS)
    wrong = report("a", kernels=(), fault="its canary is wrong: element 7 is 0, not 28")
    line = f"worker {A} is not to be trusted: its canary is wrong: element 7 is 0, not 28"
    assert hosts.join(A, wrong, asked_unix_s=0.0) == line
    assert hosts.join(A, report("b"), asked_unix_s=0.0) == ""
    line = hosts.join(B, report("c", canary_s=1.4e-4), asked_unix_s=0.0)
    assert f"has a canary of 0.14 ms, {A} of 0.1 ms" in line


def test_a_host_that_drifts_is_drained_and_doubted_since_its_last_check_that_passed() -> None:
    hosts = admission()
    hosts.join(B, report("b"), asked_unix_s=1300.0)
    assert hosts.due(1599.0) == []
    assert [host.address for host in hosts.due(1600.0)] == [A]
    assert [host.address for host in hosts.due(2000.0)] == [A, B]
    assert hosts.recheck(report("b", 1.02), asked_unix_s=2000.0) is None
    assert [host.address for host in hosts.due(2003.0)] == [A]
    doubt = hosts.recheck(report("b", 1.25), asked_unix_s=2600.0)
    assert doubt is not None
    assert (doubt.run_id, doubt.since_unix_s) == ("b", 2000.0)
    assert doubt.why.startswith("its host takes 1.25 times as long as the first host of its target")
    assert "10.0.0" not in doubt.why, "journals are published"
    assert list(hosts.hosts) == ["first"]
    assert hosts.join(B, report("b"), asked_unix_s=2700.0) == f"worker {B} was drained: start it again"
    assert hosts.join(B, report("b again"), asked_unix_s=2700.0) == ""


def test_the_first_host_drifts_as_any_other_and_stays_the_reference() -> None:
    hosts = admission()
    assert hosts.recheck(report("first", 0.5), asked_unix_s=1600.0) is not None
    assert hosts.hosts == {}
    assert hosts.join(B, report("b"), asked_unix_s=1602.0) == ""
    assert "takes 0.50 times" in hosts.join(B, report("c", 0.5), asked_unix_s=1602.0)
    moved = hosts.recheck(report("b", target=TARGET), asked_unix_s=1700.0)
    assert moved is not None and moved.why == "its host is of another target than it was"
    assert hosts.recheck(report("b", 9.0), asked_unix_s=1800.0) is None, "it is gone"


def test_a_host_that_leaves_is_not_doubted_and_may_come_back() -> None:
    hosts = admission()
    hosts.left("first")
    hosts.left("first")
    assert hosts.hosts == {} and hosts.due(1e9) == []
    assert hosts.join(A, report("first"), asked_unix_s=2000.0) == ""


def test_what_a_host_says_of_itself_is_one_line_of_some_length() -> None:
    line = Admission(VERSIONS).join(A, report("a", fault="no\n" * 1000), asked_unix_s=0.0)
    assert "\n" not in line and len(line) < 500
    tiny = tuple(replace(k, a_s=1e-320, b_s=1e-320, warm_s=1e300) for k in report("").kernels)
    assert "times as long as" in admission().join(B, report("b", kernels=tiny), asked_unix_s=0.0)


def test_rows_of_a_drained_host_are_measured_again(tmp_path) -> None:
    hosts = admission()
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        journal.add_run(Run("first", "2025-01-01T00:00:00+00:00", "kcg", {"report": report("first").facts}))
        for number, at in ((0, 999.0), (1, 1000.0), (2, 1600.0)):
            journal.record(measurement(number, run_id="first"), recorded_unix_s=at)
        doubt = hosts.recheck(report("first", 1.2), asked_unix_s=1600.0)
        assert isinstance(doubt, Doubt) and journal.add_doubt(doubt)
        known = list(journal.known(TARGET.fingerprint, TOOLCHAIN.fingerprint, 1))
        assert known == [measurement(0, run_id="first")]
        assert "a-host" not in str(journal.runs()["first"].description)


def test_a_report_travels_as_json_and_is_checked() -> None:
    sent = report("b", fault="é")
    assert noun_from_json(HostReport, noun_to_json(sent)) == sent
    text = noun_to_json(report("b"))
    assert noun_from_json(HostReport, text.replace(', "generator": 0', "", 1)) == report("b"), "kept by an older kcg"
    for right, wrong in (("[{", "[3, {"), ('"a_s": 0.001', '"a_s": 0'), ('"a_s": 0.001', '"a_s": "nan"')):
        with pytest.raises(ResultError, match="not a HostReport"):
            noun_from_json(HostReport, text.replace(right, wrong, 1))
    with pytest.raises(ValueError, match="a host without a fault"):
        report("b", kernels=())


@pytest.mark.parametrize("target", [TARGET, H100], ids=["CPU", "CUDA"])
def test_the_reference_kernels_are_the_same_whenever_asked(target: Target) -> None:
    first = reference_requests(target)
    trust._requests.cache_clear()
    assert reference_requests(target) == first
    assert len({request.region.id for request in first}) == len(first) == 4
    assert all(request.schedule for request in first)


# ---- A real host, and what is planted in the child that owns its device.


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with MeasureService(CPU, run_id="real", compile_workers=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def real(service: MeasureService) -> HostReport:
    return host_report(service)


def planted(service: MeasureService, job, *args: object) -> HostReport:
    """What a host reports whose child is no longer what it was; the next one is right again."""
    service._device.submit(job, *args, timeout_s=PATIENCE_S).result()
    try:
        return host_report(service)
    finally:
        service.fresh_child()


@pytest.mark.usefixtures("neighbours")
def test_a_real_host_is_admitted(service: MeasureService, real: HostReport) -> None:
    assert (real.fault, real.run_id) == ("", "real")
    assert (real.target, real.toolchain) == service.facts
    assert real.versions == trust.versions() and real.versions.tinygrad
    assert [kernel.name for kernel in real.kernels] == [r.sampler for r in reference_requests(real.target)]
    assert Admission(trust.versions()).join(A, real, asked_unix_s=0.0) == ""
    assert noun_from_json(HostReport, noun_to_json(real)) == real


@pytest.mark.usefixtures("neighbours")
def test_a_host_that_is_right_and_slow_is_refused_and_drained(
    service: MeasureService, real: HostReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = reference_requests(real.target)[1:3]
    monkeypatch.setattr(trust, "reference_requests", lambda target: few)
    first = replace(real, run_id="first", kernels=real.kernels[1:3])
    hosts = Admission(trust.versions())
    assert hosts.join(A, first, asked_unix_s=1000.0) == ""
    assert hosts.join(B, replace(first, run_id="real"), asked_unix_s=1000.0) == ""
    slow = planted(service, slow_hosts.slow_clock, 1000.0)
    assert slow.fault == "", "it computes what is right"
    assert "has a canary of" in hosts.join(B, replace(slow, run_id="b"), asked_unix_s=1000.0)
    as_ever = replace(slow, canary_s=first.canary_s)
    assert "times as long as" in hosts.join(B, replace(as_ever, run_id="b"), asked_unix_s=1000.0)
    doubt = hosts.recheck(as_ever, asked_unix_s=1600.0)
    assert doubt is not None and (doubt.run_id, doubt.since_unix_s) == ("real", 1000.0)


def test_a_host_whose_canary_is_wrong_is_refused(service: MeasureService, real: HostReport) -> None:
    wrong = planted(service, slow_hosts.wrong_reading)
    assert wrong.fault == "its canary is wrong: 1 of 1048576 elements are wrong, element 7 is 0, not 28"
    assert wrong.kernels == ()
    assert "is not to be trusted" in Admission(trust.versions()).join(A, wrong, asked_unix_s=0.0)
    assert noun_from_json(HostReport, noun_to_json(wrong)) == wrong
    assert service.read_canary().result().fault() == ""
