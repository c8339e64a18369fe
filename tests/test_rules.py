"""The rules of the packages, read off the files: who imports whom, what is never called, what `--help` loads."""

from __future__ import annotations

import inspect
import re
from collections import Counter

import pytest

import kcg
from kcg import errors
from kcg.kernel.kinds import KINDS
from kcg.kernel.tile import parameters
from kcg.kernel.tile.forms import REGISTRY
from tests.rules import (
    HEAVY,
    ROOT,
    asks_for_architectures,
    asks_for_forms,
    circles,
    decides_while_writing,
    defined_names,
    drawn_tree,
    forbidden_calls,
    imports_of_kinds,
    imports_of_scripts,
    imports_of_training,
    loaded_by,
    many_parameters,
    own_words,
    private_tinygrad,
    sources,
    timed_asserts,
    upward_imports,
    wall_clocks,
    words_of_kinds,
)
from tests.slow import first

LIBRARY = sources(ROOT, "kcg")
SCRIPTS = [*sources(ROOT, "training"), *sources(ROOT, "evaluation")]


def test_imports_only_go_down() -> None:
    assert [line for source in LIBRARY for line in upward_imports(source)] == []


def test_no_imports_in_circles() -> None:
    assert list(circles(LIBRARY)) == []


def test_only_compat_touches_tinygrads_internals() -> None:
    assert [line for source in (*LIBRARY, *SCRIPTS) for line in private_tinygrad(source)] == []


def test_only_a_kind_knows_its_schedules() -> None:
    assert [line for source in LIBRARY for line in words_of_kinds(source)] == []


def test_devices_of_tile_programs_are_records() -> None:
    assert [line for source in LIBRARY for line in asks_for_architectures(source)] == []


def test_only_a_form_of_tile_programs_knows_what_depends_on_it() -> None:
    forms = {name: (type(form).__module__, type(form).__name__) for name, form in REGISTRY.items()}
    constants = {name for name, value in vars(parameters).items() if isinstance(value, str) and value in forms}
    assert {*parameters.FORMS} == {*forms} and len(constants) == len(forms)
    assert [line for source in LIBRARY for line in asks_for_forms(source, forms, constants)] == []


def test_whoever_writes_a_tile_program_sees_its_plan_alone() -> None:
    assert [line for source in LIBRARY for line in decides_while_writing(source)] == []


def test_nobody_but_the_registry_imports_a_kind_nor_do_the_readers() -> None:
    kinds = {name: entry.module for name, entry in KINDS.items()}
    assert [line for source in LIBRARY for line in imports_of_kinds(source, kinds)] == []


def test_names_are_the_fields_words() -> None:
    assert [line for source in LIBRARY for line in own_words(source)] == []


def test_functions_have_at_most_eight_parameters() -> None:
    assert [line for source in (*LIBRARY, *SCRIPTS) for line in many_parameters(source)] == []


def test_nothing_is_executed_or_unpickled() -> None:
    assert [line for source in (*LIBRARY, *SCRIPTS) for line in forbidden_calls(source)] == []


def test_deadlines_and_durations_are_of_a_clock_that_never_steps() -> None:
    assert [line for source in (*LIBRARY, *SCRIPTS) for line in wall_clocks(source)] == []


def test_nothing_imports_scripts() -> None:
    assert [line for source in LIBRARY for line in imports_of_scripts(source)] == []


def test_only_scripts_train() -> None:
    assert [line for source in LIBRARY for line in imports_of_training(source)] == []


def test_datasets_is_no_package() -> None:
    assert not list((ROOT / "datasets").rglob("*.py")), "it would shadow the package `datasets`"


def test_no_two_files_of_tests_have_one_name() -> None:
    """The folders are no packages: the second would be an error of collecting, and its tests never run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


ON_A_GPU = "tests.faults.test_faults_cuda"  # in what time it has recovered is promised, and measured where it is alone


def test_no_test_asserts_how_long_something_took() -> None:
    tests = [source for source in sources(ROOT, "tests") if source.module != ON_A_GPU]
    assert [line for source in tests for line in timed_asserts(source)] == []


@pytest.mark.parametrize(
    "command",
    first(
        6,
        [
            "kcg",
            "kcg.optimize",
            "kcg.apply",
            "kcg.run",
            "kcg.dataset",
            "kcg.fleet worker",
            "kcg.optimize apply",
            "kcg.optimize export",
            "kcg.export",
            "kcg.list",
            "kcg.calibrate",
            "kcg.compare",
            "kcg.fleet",
            "kcg.ui",
            "kcg.fleet scheduler",
            "kcg.doctor",
        ],
    ),
)
def test_help_loads_nothing_heavy(command: str) -> None:
    module, *rest = command.split()
    assert loaded_by("-m", module, *rest, "--help") & HEAVY == set()


def test_kcg_itself_loads_nothing_heavy() -> None:
    assert (
        loaded_by("-c", "import kcg, kcg.errors, kcg.types, kcg.kernels, kcg.search, kcg.search.problem") & HEAVY
        == set()
    )


def test_what_runs_a_script_loads_nothing_before_it() -> None:
    """tinygrad reads its settings from what a script sets before it imports it."""
    assert loaded_by("-c", "import kcg.workloads.script, kcg.judge.script_run") & HEAVY == set()


def test_only_training_and_the_graphs_of_a_dataset_need_pytorch() -> None:
    """Which takes seconds and gigabytes. torch-geometric takes two seconds more: training loads it with the first
    messages."""
    every = [(s.module, f"{item.module}.{item.name}", item.lazy) for s in LIBRARY for item in s.imports]
    torch = {module for module, name, _ in every if name.startswith("torch")}
    assert {module for module in torch if not module.startswith("kcg.training.")} == {"kcg.predictor.pyg"}
    early = [(module, name) for module, name, lazy in every if not lazy]
    geometric = {module for module, name in early if name.startswith("torch_geometric")}
    assert geometric == {"kcg.training.messages", "kcg.predictor.pyg"}
    assert [module for module, name in early if name.startswith(tuple(geometric))] == []


def test_the_drawn_error_tree_is_the_real_one() -> None:
    real = {
        name: found.__base__.__name__ if found is not errors.KcgError else ""
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, errors.KcgError) and found.__base__ is not None
    }
    assert drawn_tree(errors.__doc__ or "") == real


def test_the_drawn_error_tree_reports_the_exit_codes() -> None:
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"^\W*([A-Z]\w+) .*exit code (\d+)$", line):
            assert getattr(errors, match[1]).exit_code == int(match[2]), line


PUBLIC = {
    "kcg": ["__version__", "autotuned", "data", "load", "predict", "tune", "tuned"],
    "kcg.data": ["COLUMNS", "Data", "load", "names"],
    "kcg.errors": [
        "CodecError", "DataError", "DeviceError", "ExitCode", "JournalError", "KcgError", "MismatchError",
        "ResultError", "ScheduleError", "ScriptError", "UnknownName", "UsageError", "VerificationError", "WeightsError",
    ],
    "kcg.types": [
        "Action", "CacheState", "Dropped", "Expectation", "Finalist", "Job", "JobKind", "JobOutcome", "Kernel",
        "LeftOut", "Measurement", "ModelCheck", "Outlook", "Plan", "PlannedRegion", "Planning", "Prediction",
        "ProgressPoint", "RegionInPlan", "SeenAs", "TriedPlan", "Recompute", "Region", "RegionResult", "Result",
        "Schedule", "ScheduleKind", "SearchedRegion", "Sequence", "SequenceBuffer", "SequenceCall", "SlotBinding",
        "Status", "Target", "TimedAt", "Toolchain", "Variables", "Verification", "Workload", "WorkloadCall",
        "canonical_json", "content_id", "malformed",
    ],
    "kcg.kernels": [
        "BufferView", "DEVICES", "F", "HandwrittenKernel", "ID_DIGITS", "KernelView", "Launch", "Matches", "collecting",
        "handwritten",
    ],
    "kcg.search.problem": [
        "Correct", "FAILURE_COST", "LEAST_DOUBT", "Ledger", "Measure", "Observation", "PRIOR_GAIN", "Predict",
        "Problem", "STANDS_FOR", "Expected", "Strategy", "Trials", "best", "expected_improvement",
    ],
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_these(module: str) -> None:
    """A change here is a change for users: it belongs into CHANGELOG.md."""
    path = ROOT / (module.replace(".", "/") + ("/__init__.py" if module == "kcg" else ".py"))
    assert sorted(defined_names(path)) == sorted(PUBLIC[module])


def test_every_public_name_of_the_package_is_there() -> None:
    assert all(hasattr(kcg, name) for name in kcg.__all__)
    with pytest.raises(AttributeError):
        kcg.no_such_name  # noqa: B018


def test_the_version_is_in_the_changelog() -> None:
    assert f"## [{kcg.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
