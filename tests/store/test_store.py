"""A store keeps the fastest verified schedule of each region, whoever writes to it, and trusts no file in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.errors import DataError, ExitCode, UsageError
from kcg.kernel.opts.schedule import Opt
from kcg.kernel.opts.schedule import schedule_of as opts_schedule
from kcg.kernel.tile.parameters import CONTRACTION, TF32, TileParameters
from kcg.kernel.tile.space import schedule_of
from kcg.report.result import write_result
from kcg.store.__main__ import main
from kcg.store.entry import OLDEST, SCHEMA, Entry, Nothing, entries_of, from_json, to_json
from kcg.store.folder import MARKER, Store, file_name
from kcg.store.location import open_store
from kcg.types import Kernel, ModelCheck, Region, Result, Schedule, content_id
from tests.commands import Ended, ended
from tests.store.conftest import faster


def entries(store: Store) -> list[Entry]:
    return [entry for one in store.all() if (entry := one.entry) is not None]


def looked_up(store: Store, entry: Entry, **given: Any) -> list[Entry]:
    found = store.look_up(entry.region.id, entry.ends, entry.target, entry.toolchain, **given)
    return [one.entry for one in found if one.entry is not None]


def timed(entry: Entry, cold_s: float, schedule: Schedule | None = None) -> Entry:
    """The same with another time."""
    chosen = replace(entry.chosen, cold_s=cold_s, interval_s=(cold_s, cold_s))
    return replace(entry, chosen=chosen if schedule is None else replace(chosen, schedule=schedule))


def other_schedule(number: int = 1) -> Schedule:
    return opts_schedule((Opt("UPCAST", 0, 100 + number),))


def store_command(*arguments: str | Path) -> Ended:
    return ended(main, *arguments)


# ---- what is kept


def test_what_improved_and_was_verified_is_found_by_its_region_and_target(store: Store, result: Result) -> None:
    improved = [row for row in result.regions if row.outcome == "improved"]
    assert len(improved) == len(entries(store)) == len(result.regions) - 1
    for entry in entries(store):
        assert looked_up(store, entry) == [entry]
        assert from_json(to_json(entry).encode()) == entry
        assert looked_up(store, replace(entry, target=replace(entry.target, cores=entry.target.cores + 1))) == []
        assert looked_up(store, replace(entry, toolchain=replace(entry.toolchain, compiler="another"))) == []
        assert looked_up(store, replace(entry, ends=((("start_pos", 3),),))) == []


def test_what_was_not_verified_or_is_written_by_hand_is_not_kept(result: Result) -> None:
    row = result.regions[0]
    assert len(entries_of(result, [row])) == 1
    unverified = replace(row.chosen, verification=replace(row.chosen.verification, passed=False))
    by_hand = replace(row.chosen, schedule=Schedule("source", "{}"))
    for other in (replace(row, chosen=unverified), replace(row, chosen=by_hand), replace(row, outcome="kept")):
        assert entries_of(result, [other]) == []
    both = replace(row, chosen=by_hand, opts=faster(row.chosen, 1.5e-6))
    assert [entry.chosen.schedule for entry in entries_of(result, [both])] == [row.chosen.schedule], "the best Opts"


def test_of_two_schedules_the_faster_one_stays(store: Store) -> None:
    entry, other = entries(store)[0], other_schedule()
    slower, faster_one = timed(entry, 1.5e-6, other), timed(entry, 0.5e-6, other)
    assert not store.add(slower) and looked_up(store, entry) == [entry]
    assert not store.add(timed(entry, 0.5e-6)), "the same schedule, timed once more"
    assert store.add(faster_one) and looked_up(store, entry) == [faster_one]
    assert len(list((store.folder / entry.key).iterdir())) == 1, "the slower one is gone"


def test_what_did_not_prove_true_gives_way_to_what_did(store: Store) -> None:
    entry, other = entries(store)[0], other_schedule()
    verified, file = timed(entry, 1.5e-6, other), store.folder / entry.key / file_name(entry)
    assert store.add(verified, instead_of=[file])
    assert looked_up(store, entry) == [verified] and not file.exists()


def test_of_many_that_claim_too_much_each_run_removes_one(store: Store) -> None:
    """Though what it found itself is not the fastest that is claimed."""
    entry = entries(store)[0]
    wrong = [timed(entry, 1e-8 * number, other_schedule(number)) for number in (3, 2, 1)]
    assert all(map(store.add, wrong))
    for number, one in enumerate(wrong):  # two that wrote at once left both
        if number < 2:
            store._write(one, [])
    for claimed in (wrong[2], wrong[1], wrong[0]):
        assert looked_up(store, entry) == [claimed]
        kept = store.add(entry, instead_of=[store.folder / entry.key / file_name(claimed)])
    assert kept and looked_up(store, entry) == [entry]


def test_many_writers_at_once_leave_the_fastest(store: Store) -> None:
    entry = entries(store)[0]
    others = [timed(entry, 1e-6 - 1e-8 * number, other_schedule(number)) for number in range(1, 20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.add, others))
    assert looked_up(store, entry) == [others[-1]]
    assert all(one.entry is not None for one in store.all())
    assert not [path for path in store.folder.rglob("*") if path.name.endswith(".tmp")]


def test_a_program_that_rounds_to_tf32_is_for_those_who_allow_it(store: Store) -> None:
    entry = entries(store)[0]
    tile = schedule_of(TileParameters(CONTRACTION, ((0,), (1,)), (16, 16), reduce_tile=16, precision=TF32))
    rounded = timed(entry, 1e-7, tile)
    assert store.add(rounded)
    assert looked_up(store, entry) == [entry]
    assert looked_up(store, entry, allow_tf32=True) == [entry, rounded]


# ---- that nothing was found


def nothing_of(entry: Entry, search_s: float = 10.0) -> Nothing:
    place = {name: getattr(entry, name) for name in ("region", "ends", "target", "toolchain", "created")}
    run = {"kcg_version": entry.kcg_version, "revision": entry.revision, "dirty": entry.dirty}
    return Nothing(**place, **run, search_s=search_s, share=0.5, tried=7, search="mcts", allow_tf32=False)


def claimed(store: Store, one: Nothing, *, search: str = "mcts", allow_tf32: bool = False, **given: Any) -> Any:
    return store.nothing_for(
        one.region.id, one.ends, one.target, one.toolchain, search=search, allow_tf32=allow_tf32, **given
    )


def test_that_nothing_was_found_is_kept_for_the_longest_search_and_beside_entries(store: Store) -> None:
    entry, count = entries(store)[0], len(entries(store))
    one = nothing_of(entry)
    assert claimed(store, one) is None
    assert store.add_nothing(one) and claimed(store, one) == one
    assert not store.add_nothing(nothing_of(entry, 9.0)) and store.add_nothing(longer := nothing_of(entry, 20.0))
    assert claimed(store, one) == longer and len(list((store.folder / one.key).iterdir())) == 1
    assert claimed(store, one, search="random") is claimed(store, one, allow_tf32=True) is None
    assert claimed(store, replace(one, toolchain=replace(one.toolchain, compiler="another"))) is None
    assert looked_up(store, entry) == [entry] and len(entries(store)) == count
    listed = " ".join(store_command("list", store.folder).stdout.split())
    assert f"{count} schedules, and 1 kernel for which nothing was found" in listed
    assert f"{count + 1} entries, all whole" in store_command("verify", store.folder).stdout


def test_entries_of_before_generators_had_a_version_are_read_and_their_tile_programs_are_of_another(
    store: Store,
) -> None:
    opts, other, *_ = entries(store)
    tile = schedule_of(TileParameters(CONTRACTION, ((0,), (1,)), (64, 64), reduce_tile=32))
    before = replace(other.toolchain, assembler="ptxas 13.4.59")
    after = replace(before, generator=1)
    old = timed(replace(other, toolchain=before), 1e-7, tile)
    assert store.add(old)
    text = json.loads(to_json(old))
    assert text["schema"] == OLDEST and "generator" not in text["toolchain"], "the format that they had"
    assert looked_up(store, old) == [other, old]
    assert looked_up(store, replace(opts, toolchain=after)) == [opts]
    new = timed(replace(old, toolchain=after), 2e-7)
    assert looked_up(store, new) == [other]
    assert store.add(new) and looked_up(store, new) == [other, new]
    assert store_command("verify", store.folder).returncode == 0
    unnamed = _with(lambda d: d["toolchain"].pop("generator"))(to_json(new).encode())
    with pytest.raises(DataError, match="'generator' is missing"):
        from_json(unnamed)


def test_what_is_provisional_neither_takes_the_place_of_what_is_verified_nor_stands_in_its_way(store: Store) -> None:
    base = entries(store)[0]
    slow, between, fast = (timed(base, base.chosen.cold_s / times, other_schedule(times)) for times in (2, 3, 4))
    young = replace(fast, launches=1000, launches_due=10_000)
    assert store.add(slow) and store.add(young) and looked_up(store, young)[0] == young
    assert slow in entries(store), "what is verified stays"
    assert json.loads(to_json(young))["schema"] == SCHEMA and json.loads(to_json(slow))["schema"] < SCHEMA
    assert not store.add(replace(young, launches=500)) and not store.add(young)
    older = replace(young, launches=4000)
    assert store.add(older) and young not in entries(store) and looked_up(store, young)[0] == older
    assert store.add(between) and older in entries(store) and slow not in entries(store)
    assert store.add(fast) and older not in entries(store) and between not in entries(store), "it passed all by now"
    assert not store.add(older) and store_command("verify", store.folder).returncode == 0
    odd = _with(lambda d: d.update(launches=20_000))(to_json(older).encode())
    with pytest.raises(DataError, match="passed more than it has to"):
        from_json(odd)


# ---- what is refused


def _with(change: Callable[[dict[str, Any]], object], *, sealed: bool = True) -> Callable[[bytes], bytes]:
    """A file with a change, and a hash that fits it if it is to be `sealed`."""

    def changed(data: bytes) -> bytes:
        document = json.loads(data)
        change(document)
        if sealed:
            document["id"] = content_id({name: value for name, value in document.items() if name != "id"})
        return json.dumps(document).encode()

    return changed


BAD = {
    "truncated": (lambda data: data[: len(data) // 2], "truncated"),
    "no JSON": (lambda data: b"\x00\xff", "truncated or not JSON"),
    "a list": (lambda data: b"[]", "no schema number"),
    "another schema": (_with(lambda d: d.update(schema=SCHEMA + 1)), f"this kcg reads {OLDEST} to {SCHEMA}"),
    "tampered": (_with(lambda d: d["chosen"].update(cold_s=1e-9), sealed=False), "was changed"),
    "another kernel": (_with(lambda d: d.update(asts=dict.fromkeys(d["asts"], "{}"))), "kernel was changed"),
    "a field more": (_with(lambda d: d.update(more=1)), "unknown"),
    "a time that is none": (_with(lambda d: d["chosen"].update(cold_s="nan")), "time is none"),
    "no time at all": (_with(lambda d: d["chosen"].update(cold_s=1e-10, interval_s=[1e-10, 1e-10])), "time is none"),
    "never verified": (_with(lambda d: d.update(rules=[])), "not verified"),
    "not faster": (_with(lambda d: d["chosen"].update(cold_s=1.0)), "not faster"),
    "no schedule": (_with(lambda d: d["chosen"]["schedule"].update(body="[[1]]")), "chosen.schedule"),
    "code": (_with(lambda d: d["chosen"]["schedule"].update(kind="source", body="{}")), "keeps no kind"),
    "no parts": (_with(lambda d: d["chosen"].update(schedule={"kind": "parts", "body": "garbage"})), "no JSON"),
    "no parts of the baseline": (
        _with(lambda d: d["baseline"].update(schedule={"kind": "parts", "body": "[]"})),
        "list of",
    ),
    "parts that are none": (_with(lambda d: d["chosen"].update(schedule={"kind": "parts", "body": "[[1]]"})), "part 0"),
    "a part by hand": (
        _with(lambda d: d["chosen"].update(schedule={"kind": "parts", "body": '[[[0],"source","{}"]]'})),
        "keeps no kind",
    ),
    "a foreign kind": (_with(lambda d: d["chosen"]["schedule"].update(kind="\x1b[2J")), "keeps no kind"),
    "another place": (_with(lambda d: d.update(name="x")), "another entry's place"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_entry_is_one_line_and_counts_for_nothing(name: str, store: Store) -> None:
    change, words = BAD[name]
    entry, *_ = entries(store)
    file = store.folder / entry.key / file_name(entry)
    file.write_bytes(change(file.read_bytes()))
    said = []
    assert looked_up(store, entry, warn=said.append) == []
    (bad,) = said
    assert bad.path == file and words in bad.problem and "\n" not in bad.problem and bad.problem.isprintable()
    done = store_command("verify", store.folder)
    assert done.returncode == ExitCode.USAGE and str(file) in done.stdout and words in done.stdout
    assert "1 of" in done.stderr and done.stderr.count("\n") == 1
    listed = store_command("list", store.folder)
    assert listed.returncode == 0 and "1.0 µs" in listed.stdout, "the others are listed"
    assert listed.stderr == f"kcg: {file}: {bad.problem}\n"


@pytest.mark.parametrize("made", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_what_is_no_file_is_neither_waited_for_nor_read(made: Callable[[Path], object], store: Store) -> None:
    entry, *_ = entries(store)
    file = store.folder / entry.key / file_name(entry)
    file.unlink()
    made(file)
    said: list[Any] = []
    assert looked_up(store, entry, warn=said.append) == [] and len(said) == 1
    done = store_command("verify", store.folder)
    assert done.returncode == ExitCode.USAGE and str(file) in done.stdout and done.stderr.count("\n") == 1


def test_a_link_to_nothing_in_the_place_of_an_entry_is_named(store: Store) -> None:
    entry, *_ = entries(store)
    file = store.folder / entry.key / file_name(entry)
    file.unlink()
    file.symlink_to("absent")
    done = store_command("verify", store.folder)
    assert done.returncode == ExitCode.USAGE and f"{file}: a link to a file that is not there" in done.stdout
    file.unlink()
    assert store.read(file) is None, "removed by another process"


def test_a_kernel_that_no_codec_decodes_is_found_by_verify(store: Store) -> None:
    entry, *_ = entries(store)
    odd = replace(entry, region=Region((Kernel('{"garbage": true}'),)))
    store.add(odd)
    file = store.folder / odd.key / file_name(odd)
    done = store_command("verify", store.folder)
    assert done.returncode == ExitCode.USAGE and done.stdout.startswith(
        f"{file}: kernel {odd.region.kernels[0].id[:12]}: "
    )
    assert done.stdout.count("\n") == 1


BAD_NOTHING = {
    "truncated": BAD["truncated"],
    "tampered": (_with(lambda d: d.update(search_s=1e3), sealed=False), "was changed"),
    "no time": (_with(lambda d: d.update(search_s=-1.0)), "no time of a search"),
    "for ever": (_with(lambda d: d.update(search_s=1e300)), "no time of a search"),
    "more than all": (_with(lambda d: d.update(share=1e9)), "no share"),
    "an entry": (_with(lambda d: d.update(chosen=1)), "unknown"),
    "another place": (_with(lambda d: d.update(tried=8)), "another entry's place"),
}


@pytest.mark.parametrize("name", BAD_NOTHING)
def test_what_does_not_say_well_that_nothing_was_found_is_one_line_and_counts_for_nothing(
    name: str, store: Store
) -> None:
    change, words = BAD_NOTHING[name]
    one = nothing_of(entries(store)[0])
    store.add_nothing(one)
    file = store.folder / one.key / file_name(one)
    file.write_bytes(change(file.read_bytes()))
    said: list[Any] = []
    assert claimed(store, one, warn=said.append) is None
    (bad,) = said
    assert bad.path == file and words in bad.problem and "\n" not in bad.problem
    done = store_command("verify", store.folder)
    assert done.returncode == ExitCode.USAGE and str(file) in done.stdout
    assert store.add_nothing(nothing_of(entries(store)[0], 11.0), instead_of=[file]) and not file.exists()


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path, store: Store) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    for location in (tmp_path / "other", tmp_path / "absent", tmp_path / "other" / "notes.txt"):
        with pytest.raises(UsageError, match=MARKER):
            open_store(str(location))
    with pytest.raises(UsageError, match="empty folder"):
        open_store(str(tmp_path / "other"), new=True)
    assert not open_store(str(tmp_path / "absent"), new=True).folder.exists(), "nothing is made before it is needed"
    (tmp_path / "loop").symlink_to("loop")
    for location in (tmp_path / "other" / "notes.txt" / "new", tmp_path / "loop", Path("long" * 2000)):
        with pytest.raises(UsageError) as refused:
            open_store(str(location), new=True)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
    for marker, words in (
        ('{"kcg store": 99}', "schema '99'"),
        ("{}", "not that of a store"),
        ("", "not that of"),
        ("[" * 5000, "not that of"),
    ):
        (store.folder / MARKER).write_text(marker)
        with pytest.raises(DataError, match=words):
            open_store(str(store.folder))


@pytest.mark.parametrize("location", ["hf://owner/name", "hf://owner/name@main", "hf://@" + "a" * 40, ""])
def test_a_location_that_is_not_pinned_is_refused(location: str) -> None:
    with pytest.raises(UsageError, match="hf://OWNER/NAME@"):
        open_store(location)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_only_read(store: Store) -> None:
    store.folder.chmod(0o500)
    assert not open_store(str(store.folder)).writable
    store.folder.chmod(0o700)


# ---- the commands


def test_a_result_is_added_and_listed(result: Result, tmp_path: Path) -> None:
    write_result(result, tmp_path / "RESULT.json")
    folder = tmp_path / "made" / "here"
    count = len(result.regions) - 1
    assert f"{count} of {count} schedules added" in store_command("add", tmp_path / "RESULT.json", folder).stdout
    assert f"0 of {count} schedules added" in store_command("add", tmp_path / "RESULT.json", folder).stdout
    shown = store_command("list", folder)
    assert shown.returncode == 0 and f"{count} schedules" in shown.stdout and "2.00×" in shown.stdout
    rows = [json.loads(line) for line in store_command("list", folder, "--json").stdout.splitlines()]
    assert {row["region"] for row in rows} == {row.region.id for row in result.regions if row.outcome == "improved"}
    assert f"{count} entries, all whole" in store_command("verify", folder).stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: replace(r, regions=r.regions[-1:], expectations=()), "no verified schedule"),
        (lambda r: replace(r, model_check=ModelCheck(False, "it is wrong")), "none is added"),
    ],
)
def test_a_result_that_has_nothing_to_add_says_so(
    change: Callable[[Result], Result], words: str, result: Result, tmp_path: Path
) -> None:
    write_result(change(result), tmp_path / "RESULT.json")
    done = store_command("add", tmp_path / "RESULT.json", tmp_path / "made")
    assert done.returncode == ExitCode.USAGE and words in done.stderr and not (tmp_path / "made").exists()
