"""A card says what an export holds, with its numbers and nothing else's, and never makes the export less trusted."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from kcg.dataset.__main__ import main
from kcg.dataset.columns import kernels_schema, stored_schema, timings_schema
from kcg.dataset.export import CHECKSUMS, export, read_export
from kcg.dataset.export import FILES as EXPORTED
from kcg.dataset.journal import Journal
from kcg.dataset.publish import CARD, COLUMNS, FILES, HUB_SPLIT, LICENSE, SAMPLERS, STATUSES, render_card, write_card
from kcg.errors import DataError, ExitCode
from kcg.search.replay import COLUMNS as REPLAY_COLUMNS
from kcg.types import Status
from tests.commands import ended, python
from tests.dataset.test_journal import KERNELS, measurement
from tests.dataset.test_stats_page import sample

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    with Journal.open(folder / "a.sqlite") as journal:
        sample(journal)
        export(journal, folder / "out")
    write_card(folder / "out")
    return folder / "out"


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "out"))


@pytest.fixture(scope="module")
def card(exported: Path) -> str:
    return (exported / CARD).read_text(encoding="utf-8")


def section(card: str, title: str) -> str:
    return card.split(f"\n## {title}\n")[1].split("\n## ")[0]


# -- what it says


def test_the_hub_reads_its_header(card: str) -> None:
    from huggingface_hub import DatasetCard

    data = DatasetCard(card).data
    assert data.license == LICENSE and "H200" in data.pretty_name and "tinygrad" in data.tags
    assert data.size_categories == ["n<1K"]
    configs = {c["config_name"]: c["data_files"] for c in data.to_dict()["configs"]}
    assert configs == {
        name: [{"split": HUB_SPLIT, "path": f"{name}.parquet"}] for name in ("measurements", "timings", "kernels")
    }, "not `train`, which the Hub calls a file of no split: it has the rows of the tests"
    assert [c["config_name"] for c in data.to_dict()["configs"] if c.get("default")] == ["measurements"]


def test_its_licence_is_that_of_the_repository(card: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"].lower() == LICENSE
    assert (ROOT / "LICENSE").read_text().startswith(f"{LICENSE.upper()} License")
    assert section(card, "Licence").strip().startswith("MIT")


def test_it_reports_the_numbers(card: str) -> None:
    for expected in (
        "| distinct schedules with status ok | 12 of 14 |",
        "| rows | 17, of them 15 ok and 15 of few samples |",
        "| unique binaries | 13; 2 schedules share theirs |",
        "| `flux` | one denoising step of Flux.1-dev | 1 | 2 | 8 | 2.00× | 4.00× |",
        "| a captured script | 1 | 1 | 4 |",
        "| `walk:raw` | random legal walks of any length from the unoptimised kernel | 3 | 67% |",
        "| 2026-01-01 to 2026-01-02 | 2 | 17 | mix beam:2/8=0.5 walk:raw=0.5, seed 0 |",
        "| `compile_error` | did not compile | 1 | 5.9% |",
        "| 1 | compile_error: no / registers |",
        "| noise: timed in full, twice in one run | below 100 µs | 1 | 2.0% | 2.0% |",
        "| drift: a later run against the first | below 100 µs | 1 | 10% | 10% |",
        "| workload | test | 2 |",
        "Timing protocol v1",
        "tinygrad 0.14.0, NVRTC 13.0, driver 580",
        "of 3 to 9 samples",
    ):
        assert expected in card, expected


def test_foreign_text_is_no_markup(card: str) -> None:
    assert "<b>" not in card and "<i>" not in card
    assert "\n# Measured schedules of tinygrad kernels on NVIDIA &lt;b>H200&lt;/b>\n" in card
    assert "output # differs by &lt;i>" in card
    assert all(line.count("|") >= 3 for line in card.splitlines() if line.startswith("|"))


def test_it_lists_the_sums_of_the_other_files(exported: Path, card: str) -> None:
    checksums = json.loads((exported / CHECKSUMS).read_text())
    assert set(checksums) == {*EXPORTED, CARD}
    for name in EXPORTED:
        digest = hashlib.sha256((exported / name).read_bytes()).hexdigest()
        assert checksums[name] == digest
        assert f"| {name} | {FILES[name]} | {(exported / name).stat().st_size:,} | `{digest}` |" in card
    assert checksums[CARD] == hashlib.sha256(card.encode()).hexdigest()


def test_every_column_status_and_sampler_has_words() -> None:
    schemas = {
        "kernels.parquet": kernels_schema().names,
        "measurements.parquet": stored_schema({}, with_choices=True).names,
        "timings.parquet": timings_schema(["*"]).names,
        "replay.parquet": REPLAY_COLUMNS,
    }
    assert schemas.keys() == COLUMNS.keys()
    for name, columns in schemas.items():
        report = [column for names in COLUMNS[name] for column in names.split(", ")]
        assert sorted(report) == sorted(columns), name
    assert set(STATUSES) == set(Status)
    assert set(SAMPLERS) >= {"hand-coded", "raw", "walk:raw", "walk:hand-coded", "beam", "greedy"}


def test_columns_that_never_differ_are_on_the_card_and_the_others_in_the_table(exported: Path, card: str) -> None:
    same, files = read_export(exported).constants(), section(card, "Files and columns")
    table, rest = files.split("\nmeasurements.parquet:\n")[1].split("\ntimings.parquet:\n")
    assert same and {"schedule_kind", "protocol"} <= same.keys()
    for column in stored_schema({}).names:
        assert (f"`{column}`" in table) == (column not in same), column
    for column, value in same.items():
        text = value if isinstance(value, str) else json.dumps(value)
        assert f"| measurements.parquet | `{column}` | `{text or ' '}` |" in rest


def test_replay_tables_have_a_config_and_their_columns_explained() -> None:
    from huggingface_hub import DatasetCard

    recorded = (ROOT / "datasets" / "h200" / CARD).read_text(encoding="utf-8")
    configs = {c["config_name"]: c for c in DatasetCard(recorded).data.to_dict()["configs"]}
    assert configs["replay"]["data_files"] == [{"split": HUB_SPLIT, "path": "replay.parquet"}]
    assert "default" not in configs["replay"]
    files = section(recorded, "Files and columns")
    assert all(f"`{column}`" in files.split("\nreplay.parquet:\n")[1] for column in REPLAY_COLUMNS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h200", "h200-tiles", "cpu"])
def test_the_recorded_datasets_have_todays_card(name: str) -> None:
    folder = ROOT / "datasets" / name
    data = read_export(folder)
    assert render_card(data) == (folder / CARD).read_text(encoding="utf-8")
    stored = data.stored()
    assert stored is not None and 0 < stored["median_s"].null_count < len(stored) / 50


def test_rows_that_could_not_be_judged_have_their_own_count_and_words(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "a.sqlite") as journal:
        sample(journal)
        row = measurement(50, status=Status.UNJUDGED, samples_s=(), reason="cannot be judged: all are 0")
        journal.add_kernel(next(k for k in KERNELS if k.id == row.region_id))
        journal.record(row)
        export(journal, tmp_path / "out")
    report = write_card(tmp_path / "out").read_text()
    assert "| rows that could not be judged | 1 |" in report and "neither right nor wrong" in STATUSES[Status.UNJUDGED]
    assert f"| `unjudged` | {STATUSES[Status.UNJUDGED]} | 1 |" in report and "judged" not in STATUSES[Status.WRONG]
    assert "could not be judged (1 of them)" in section(report, "Known limits")


def test_the_samplers_are_those_of_a_campaign() -> None:
    from kcg.campaign.settings import DEFAULT_MIX
    from kcg.campaign.tables import LATTICE
    from kcg.dataset.noise import RETIMED

    asked = (*DEFAULT_MIX, RETIMED, LATTICE)
    assert [name for name in asked if name not in SAMPLERS and name.partition(":")[0] not in SAMPLERS] == []


@pytest.mark.slow
def test_what_it_shows_for_loading_works(exported: Path, card: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", section(card, "How to load it"), re.DOTALL)
    assert len(blocks) == 3
    code = "\n".join([*blocks[:2], "print(len(rows), len(timings), len(kernels), len(table))"])
    done = python("-c", code, cwd=exported)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "17 17 4 17"


# -- how it is written


def test_it_is_the_same_each_time_and_the_export_stays_whole(folder: Path, card: str) -> None:
    assert render_card(read_export(folder)) == card
    assert write_card(folder) == folder / CARD
    assert (folder / CARD).read_text() == card
    assert read_export(folder).checksums[CARD] == hashlib.sha256(card.encode()).hexdigest()
    assert not list(folder.glob("*.part"))


def test_a_card_that_was_edited_or_lost_is_written_again(folder: Path, card: str) -> None:
    (folder / CARD).write_text("edited")
    with pytest.raises(DataError, match=r"README\.md does not agree"):
        read_export(folder)
    write_card(folder)
    assert (folder / CARD).read_text() == card
    (folder / CARD).unlink()
    write_card(folder)
    assert (folder / CARD).read_text() == card and read_export(folder)


def test_of_what_is_not_trusted_there_is_no_card(folder: Path) -> None:
    before = (folder / CHECKSUMS).read_bytes()
    (folder / "runs.json").write_text("{}")
    with pytest.raises(DataError, match=r"runs\.json does not agree"):
        write_card(folder)
    assert (folder / CHECKSUMS).read_bytes() == before
    with pytest.raises(DataError, match="no complete export"):
        write_card(folder / "none")


# -- the commands


def test_export_card_and_verify_as_commands(exported: Path, tmp_path: Path, card: str) -> None:
    journal, out = exported.parent / "a.sqlite", tmp_path / "out"
    done = ended(main, "export", journal, out)
    assert done.returncode == ExitCode.OK and CARD in done.stdout, done.stderr
    assert (out / CARD).read_text() == card
    assert ended(main, "card", out).stdout == f"{out / CARD}\n"
    done = ended(main, "verify", out, "--workers", "1", "--quiet")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert done.stdout == f"{out}: 17 rows, 4 kernels, 14 schedules, 13 binaries; no problem was found\n"
    (out / "targets.json").write_text("{}")
    done = ended(main, "verify", out, "--quiet")
    assert done.returncode == ExitCode.VERIFICATION_FAILED
    first, last = done.stdout.splitlines()
    assert "targets.json does not agree" in first and last.endswith("1 lines of problems")


def test_bad_input_is_one_line(exported: Path, tmp_path: Path) -> None:
    for arguments, says in (
        (("verify", tmp_path / "none"), "is no folder"),
        (("card", tmp_path), "no complete export"),
        (("push", tmp_path, "owner/name"), "holds no export"),
        (("pull", "owner/name", tmp_path / "new", "--revision", "main"), "40 hex digits"),
    ):
        done = ended(main, *arguments)
        assert done.returncode == ExitCode.USAGE, done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("kcg: ") and says in line
    assert not (tmp_path / "new").exists()
