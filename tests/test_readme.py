"""What README and docs show works: marked blocks run, commands exist with their options, links lead somewhere.

`<!-- run -->` on the line before a bash or python block marks it for running; `<!-- run: exit 0 3 -->` allows those
exit codes. The marked blocks of one document run in their order in one empty folder, as a reader would run them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from evaluation import cold_starts, own_script
from evaluation.pictures import MOST_BYTES
from kcg import commands as commands_module
from kcg.report.formats import format_seconds
from tests.commands import Ended, ended, python

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md")))
    if path.exists()
]
BLOCK_TIMEOUT_S = 1200
UNHURRIED = re.compile(r"(\bdataset generate\b.* --budget )\S+")
"""A generation that ends when all is measured does so whatever its budget; this machine may be ten times as slow."""
FEW = re.compile(r"(\bdataset generate\b.* --schedules-per-kernel )\d+")
"""What generates, shows and exports a dataset does so with one schedule a kernel as with four."""
OF_ITS_OWN = ("README.md", "python")
"""What runs as it stands, in a test of its own."""
HELD = {"docs/dataset.md", "docs/search.md", "docs/predictor.md"}
"""Documents whose blocks run with the slow tests: what they do, the tests of searches, predictors and datasets do."""
SOME_RUN = [pytest.param(d, marks=pytest.mark.slow) if d in HELD else d for d in DOCUMENTS]
SOME_SLOW = [pytest.param(d, marks=pytest.mark.slow) if d == "docs/dataset.md" else d for d in DOCUMENTS]


@pytest.fixture(autouse=True)
def as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one command was started as is not what the next one is."""
    monkeypatch.setattr(commands_module, "_started", [])


SHELLS = ("bash", "sh", "shell", "console")
MARK = re.compile(r"^<!--\s*run(?::\s*exit\s+(\d+(?:\s+\d+)*))?\s*-->$")
FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([\w+-]*).*$")
PLACEHOLDER = re.compile(r"\.\.\.|…|<\w|\[-|\[\w+\]|\|")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    language: str
    text: str
    line: int  # of its fence
    run: bool
    exit_codes: tuple[int, ...] = (0,)


def blocks(text: str) -> list[Block]:
    """Every fenced block. Raises ValueError for a block that does not end, or a mark before anything else."""
    found: list[Block] = []
    lines = iter(enumerate(text.splitlines(), 1))
    mark: re.Match[str] | None = None
    for number, line in lines:
        if (fence := FENCE.match(line)) is None:
            if mark is not None and line.strip():
                raise ValueError(f"line {number}: a mark for running must stand right before a block")
            mark = MARK.match(line.strip()) or (mark if not line.strip() else None)
            continue
        indent, ticks, language = fence.groups()
        body = []
        for _, inner in lines:
            if inner.strip() == ticks:
                break
            body.append(inner.removeprefix(indent))
        else:
            raise ValueError(f"line {number}: the block does not end")
        codes = tuple(map(int, mark[1].split())) if mark and mark[1] else (0,)
        found.append(Block(language, "\n".join(body) + "\n", number, mark is not None, codes))
        mark = None
    return found


def commands(block: Block) -> list[list[str]]:
    """The words of each simple command of a shell block, without prompts, comments and variables set before it."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if block.language == "console" and not line.startswith("$ "):
            continue  # what the command printed
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("&|;<>"):
                words.append(word)
                continue
            while words and re.match(r"^\w+=", words[0]):
                words.pop(0)
            if words:
                found.append(words)
            words = []
    return found


def inline_commands(text: str) -> list[list[str]]:
    """Commands between single backticks, outside of blocks, that name modules or scripts of this repository or make."""
    outside = re.sub(r"(?ms)^\s*(`{3,}).*?^\s*\1\s*$", "", text)
    spans = re.findall(
        r"`((?:python -m (?:kcg|evaluation|training)\b|python (?:evaluation|training)/|make |kcg )[^`]*)`", outside
    )
    return [words for span in spans for words in commands(Block("bash", " ".join(span.split()), 0, False))]


def problem(words: list[str]) -> str:
    """What is wrong with a command as it is shown, empty where nothing is. Only commands of this repository are."""
    shown = shlex.join(words)
    program = Path(words[0]).name
    if program == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
        unknown = [w for w in words[1:] if "=" not in w and not w.startswith("-") and w not in targets]
        return f"{shown}: no such target in the Makefile" if unknown else ""
    if words[0] == "kcg":
        return module_problem("kcg", words[1:])
    if not re.fullmatch(r"python[\d.]*", program) or len(words) < 2:
        return ""
    if words[1] == "-m" and len(words) > 2 and words[2].split(".")[0] == "kcg":
        return module_problem(words[2], words[3:])
    if words[1] == "-m" and len(words) > 2 and words[2].split(".")[0] in ("evaluation", "training"):
        path = ROOT / words[2].replace(".", "/")
        exists = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        return "" if exists else f"{shown}: no such module"
    if re.match(r"^(training|evaluation|tests)/", words[1]) and not (ROOT / words[1]).is_file():
        return f"{shown}: no such file"
    return ""


def module_problem(module: str, arguments: list[str]) -> str:
    """What `python -m module arguments --help` says against the arguments: unknown options fail before the help."""
    shown = shlex.join(["python", "-m", module, *arguments])
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        return f"{shown}: no such module"
    if any(PLACEHOLDER.search(a) for a in arguments):
        return ""
    if spec.submodule_search_locations is None and module.count(".") > 1:
        return ""  # a module inside a package, started by kcg itself
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    own = own if "--help" in own else [*own, "--help"]
    if "run" in (module.rpartition(".")[2], *own[:1]):  # where it is the program's help that is asked for, it runs
        done: Ended | subprocess.CompletedProcess[str] = python("-m", module, *own, cwd=ROOT)
    else:
        place = module if spec.submodule_search_locations is None else f"{module}.__main__"
        done = ended(importlib.import_module(place).main, *own)
    if done.returncode != 0:
        return f"{shown}: {(done.stderr.strip().splitlines() or ['it fails'])[-1]}"
    return ""


def run_block(block: Block, folder: Path) -> None:
    """Run one block in `folder`. Raises AssertionError with its output where the exit code is another one."""
    bin_folder = folder.parent / f"{folder.name}-bin"
    bin_folder.mkdir(exist_ok=True)
    for name, module in (("python", ""), ("kcg", "-m kcg ")):
        (program := bin_folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module}"$@"\n')
        program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}",
        "CACHEDB": str(bin_folder / "cache.db"),
    }
    if block.language in SHELLS:
        text = "\n".join(shlex.join(words) for words in commands(block)) if block.language == "console" else block.text
        command = ["bash", "-euo", "pipefail", "-c", FEW.sub(r"\g<1>1", UNHURRIED.sub(r"\g<1>1h", text))]
    else:
        script = folder / f"block_{block.line}.py"  # a file, since children that kcg starts import the main module
        script.write_text(block.text, encoding="utf-8")
        command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BLOCK_TIMEOUT_S, check=False
    )
    printed = f"{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode in block.exit_codes, (
        f"the block at line {block.line} ended with {done.returncode}\n{printed}"
    )


# -- the documents


def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def test_there_is_a_readme() -> None:
    if "README.md" not in DOCUMENTS:
        pytest.skip("README.md is not written yet")


@pytest.mark.parametrize("document", SOME_RUN)
def test_marked_blocks_run(document: str, tmp_path: Path) -> None:
    marked = [block for block in blocks(read(document)) if block.run and (document, block.language) != OF_ITS_OWN]
    if not marked:
        pytest.skip(f"{document} has no block marked for running")
    folder = tmp_path / "reader"
    folder.mkdir()
    for block in marked:
        assert block.language in (*SHELLS, "python"), f"line {block.line}: cannot run {block.language!r}"
        run_block(block, folder)


HIDING = """
import sys
from importlib.machinery import PathFinder
class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in HIDDEN else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Others
"""
"""What hides modules from a process, and from those that it starts, as its `sitecustomize`."""


def not_brought() -> set[str]:
    """The modules here that `pip install 'kcg[clang]'` would not have brought."""

    def name_of(text: str) -> str:
        return re.split(r"[^\w.-]", text)[0].lower().replace("_", "-")

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["clang"]]
    modules = {m: set(map(name_of, names)) for m, names in metadata.packages_distributions().items()}
    there, needed, waiting = set().union(*modules.values()), {"kcg"}, [*map(name_of, wanted)]
    while waiting:
        if (name := waiting.pop()) in there and name not in needed:
            needed.add(name)
            waiting += [name_of(line) for line in metadata.requires(name) or () if "extra ==" not in line]
    return {module for module, names in modules.items() if not names & needed}


def test_the_python_of_the_readme_runs_verbatim_in_an_environment_with_nothing_else(tmp_path: Path) -> None:
    """No compiler but that of the wheel, no setting, no home with anything in it, and no package that kcg does not
    need."""
    hiding, home = tmp_path / "hiding", tmp_path / "home"
    for folder in (hiding, home):
        folder.mkdir()
    (hiding / "sitecustomize.py").write_text(HIDING.replace("HIDDEN", repr(not_brought())), encoding="utf-8")
    environment = {"PATH": str(home), "HOME": str(home), "PYTHONPATH": os.pathsep.join((str(hiding), str(ROOT)))}
    (block,) = (block for block in blocks(read("README.md")) if block.language == "python" and block.run)
    seen = "import importlib.util, sys; print([n for n in sys.argv[1:] if importlib.util.find_spec(n)])"
    for code, *arguments in ((seen, "ziglang", "torch", "triton", "pyarrow", "numpy"), (block.text,)):
        (home / "script.py").write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "script.py", *arguments],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if arguments:
            assert done.stdout == "['ziglang', 'numpy']\n"
    assert "kernel" in done.stdout and (home / "attend" / "RESULT.json").is_file()


@pytest.mark.parametrize("document", SOME_SLOW)
def test_every_shown_command_exists(document: str) -> None:
    text = read(document)
    shown = inline_commands(text)
    shown += [words for block in blocks(text) if block.language in SHELLS for words in commands(block)]
    unique = {tuple(words): words for words in shown}
    assert [wrong for words in unique.values() if (wrong := problem(words))] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_blocks_are_python(document: str) -> None:
    for block in blocks(read(document)):
        if block.language == "python":
            compile(block.text, f"{document}:{block.line}", "exec")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_to_files_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", read(document))
    local = [link for link in links if not re.match(r"^[a-z]+:", link)]
    assert [link for link in local if not ((ROOT / document).parent / link).exists()] == []


def headings(text: str) -> set[str]:
    """The anchors of a document, as GitHub makes them of headings outside of blocks."""
    outside = re.sub(r"(?ms)^\s*(`{3,}).*?^\s*\1\s*$", "", text)
    titles = re.findall(r"(?m)^#{1,6} (.+)$", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", outside))
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_to_headings_lead_somewhere(document: str) -> None:
    lost = []
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", read(document)):
        page = (ROOT / document).parent / link if link else ROOT / document
        if not re.match(r"^[a-z]+:", link) and anchor not in headings(page.read_text(encoding="utf-8")):
            lost.append(f"{link}#{anchor}")
    assert lost == []


def test_every_page_is_reached_from_the_index_of_the_documents() -> None:
    """From README.md to docs/README.md, and from there to each page, link by link."""
    left, seen = [ROOT / "README.md"], set()
    while left:
        page = left.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        left += [(page.parent / link).resolve() for link in links]
    assert [document for document in DOCUMENTS if ROOT / document not in seen] == []
    index = read("docs/README.md")
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert [page for page in pages if f"({page}" not in index] == []


METHODS = {
    "tinygrad, hand-coded": "hand-coded",
    "BEAM=2": "tinygrad-beam:2",
    "BEAM=8": "tinygrad-beam:8",
    "kcg": "kcg:normal",
    "kcg, `--effort thorough --budget 8m`": "kcg:thorough:8m",
}


def test_the_table_of_the_readme_is_that_of_the_results() -> None:
    runs = json.loads((ROOT / "evaluation/results/flux_table.json").read_text(encoding="utf-8"))["runs"]
    lines = [line for line in read("README.md").splitlines() if line.startswith("| ")]
    rows = {cells[0]: cells[1:] for line in lines if (cells := [c.strip() for c in line.strip("|").split("|")])}
    for shown, method in METHODS.items():
        expected = []
        for run in ("1024_cuda", "768_cuda"):
            row = runs[run]["methods"][method]
            wrong = f", **{row['wrong']} wrong**" if row["wrong"] else ""
            expected += [f"{row['over_kcg'][0]:.3f}", f"{row['total_s'][0] * 1e3:,.0f} ms{wrong}"]
            searched = [f"{row['measurements']:,}", f"{row['wall_s']:,.0f} s"]
            expected += searched if row["measurements"] else ["", ""]
        assert rows[shown] == expected, shown


def test_the_steps_of_the_readme_are_those_of_the_results() -> None:
    """Of the GPUs on which kcg's share is worst. What kcg found on an H100 stands in the sentence below."""
    equal = json.loads((ROOT / "evaluation/results/flux_equal.json").read_text(encoding="utf-8"))
    of_gpus = [[*equal["runs"][f"{preset}_cuda"]["rows"].values()] for preset in ("1024", "768")]
    worst = [max((row["compared"] for row in rows), key=lambda one: one["default"]["kcg_vs"][0]) for rows in of_gpus]
    lines = read("README.md").partition("on equal terms:")[2].partition("Opts alone")[0].splitlines()

    def shown(name: str) -> list[str]:
        (line,) = (line for line in lines if line.startswith(f"| {name} |"))
        return [cell.strip() for cell in line.strip("|").split("|")[1:]]

    for name, contender in (("PyTorch, eager", "eager"), ("torch.compile, default mode", "default"), ("kcg", "kcg")):
        steps = [one[contender]["step_s"] for one in worst]
        assert shown(name) == [f"{step_s * 1e3:.1f} ms" for step_s in steps]
    shares = [one["default"]["kcg_vs"] for one in worst]
    expected = [f"{share:.3f} ({low:.3f} to {high:.3f})".replace("0.", ".") for share, low, high in shares]
    assert shown("kcg's share of torch.compile's time, with its 95 % interval") == expected
    headline = equal["headline"]
    assert [headline[f"step_vs_compile_{preset}"] for preset in ("1024", "768")] == [share for share, *_ in shares]

    report = json.loads((ROOT / "evaluation/results/optimize_flux.json").read_text(encoding="utf-8"))
    runs = [report["runs"][f"{preset}_cuda_regions"] for preset in ("1024", "768")]
    assert all(run["model_check"]["passed"] and "H100" in run["target"]["model"] for run in runs)
    plans = [{plan["chosen"]: plan["step_s"] for plan in run["plans"]} for run in runs]
    own_ms, alone_ms, ms = (
        [f"{value * 1e3:,.0f}" for value in values]
        for values in (
            [run["model_check"]["before_s"] for run in runs],
            [plan[False] for plan in plans],
            [plan[True] for plan in plans],
        )
    )
    seconds = [f"{run['search_s']:.0f}" for run in runs]
    words = (
        f"tinygrad's own schedules take {own_ms[0]} and {own_ms[1]} ms, kcg with every kernel alone {alone_ms[0]} and "
        f"{alone_ms[1]}, with regions of several kernels {ms[0]} and {ms[1]}, found and verified in {seconds[0]} and "
        f"{seconds[1]} s"
    )
    assert words in read("README.md")


def generated(document: str, name: str) -> list[str]:
    """The lines of a document between the marks of one part, without those that are empty at both ends."""
    _, mark, after = read(document).partition(f"<!-- generated: {name} -->\n")
    part, end, _ = after.partition("<!-- end -->")
    assert mark and end, f"{document} has no place for {name}"
    return part.strip("\n").splitlines()


def test_the_script_of_the_readme_and_what_it_printed_are_those_of_the_results() -> None:
    """The script verbatim from its file; of what was printed some lines in their order, each as it was."""
    known, shown = own_script.OUT.is_file(), generated("README.md", own_script.MARK)
    run = json.loads(own_script.OUT.read_text(encoding="utf-8"))["runs"]["block"] if known else None
    assert shown == own_script.part_of_readme(run)
    script, printed = (block.text for block in blocks("\n".join(shown)))
    assert script == own_script.SCRIPT.read_text(encoding="utf-8")
    if run is None:
        return
    assert script == run["script"]
    left = iter(run["printed"])
    assert all(line in left for line in printed.splitlines()), "other lines, or in another order"
    assert run["typed"] in "\n".join(shown) and run["improved"] > 0 and run["passed"] is not False
    assert f"{format_seconds(run['before_s'])} → {format_seconds(run['after_s'])}" in printed


def test_what_budgets_bring_is_that_of_the_results() -> None:
    """Before they were measured nothing is said."""
    known = cold_starts.OUT.is_file()
    report = json.loads(cold_starts.OUT.read_text(encoding="utf-8")) if known else {"headline": {}, "runs": {}}
    assert generated("README.md", cold_starts.MARK) == cold_starts.lines_of(report)
    assert generated("docs/optimize.md", cold_starts.MARK) == cold_starts.table_of(report)


def test_readme_fits_a_few_screens() -> None:
    assert len(read("README.md").splitlines()) <= 160


def test_the_pictures_of_the_documents_are_small() -> None:
    shown = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"!\[[^\]]*\]\([^)]*pictures/([\w-]+\.png)", read(document))
    }
    there = {path.name: path.stat().st_size for path in (ROOT / "docs" / "pictures").glob("*.png")}
    assert shown == there.keys() and all(0 < size <= MOST_BYTES for size in there.values())


def test_every_experiment_is_in_the_index_with_its_question_and_answer() -> None:
    index = read("docs/experiments/README.md")
    entries = [d for d in DOCUMENTS if d.startswith("docs/experiments/") and not d.endswith("README.md")]
    assert entries
    for entry in entries:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+\.md", Path(entry).name), entry
        assert f"({Path(entry).name})" in index, entry
        text = read(entry)
        assert "\n**Question.** " in text and "\n**Answer.** " in text, entry


# -- the extractor and the checks, on made-up documents

SAMPLE = """\
Text with `python -m kcg.optimize flux --budget 60s` and `make test`.

<!-- run -->
```bash
echo one > file  # a comment
```

<!-- run: exit 0 3 -->

```python
raise SystemExit(3)
```

- in a list

  ```console
  $ BEAM=2 python -m kcg.dataset stats --json \\
      out.sqlite | head && make test
  kernels: 3
  ```
"""


def test_blocks_are_found() -> None:
    found = blocks(SAMPLE)
    assert [(b.language, b.run, b.exit_codes) for b in found] == [
        ("bash", True, (0,)),
        ("python", True, (0, 3)),
        ("console", False, (0,)),
    ]
    assert commands(found[0]) == [["echo", "one"], ["file"]]
    assert commands(found[2]) == [
        ["python", "-m", "kcg.dataset", "stats", "--json", "out.sqlite"],
        ["head"],
        ["make", "test"],
    ]
    assert inline_commands(SAMPLE) == [
        ["python", "-m", "kcg.optimize", "flux", "--budget", "60s"],
        ["make", "test"],
    ]


@pytest.mark.parametrize("text", ["```bash\necho\n", "<!-- run -->\ntext\n```bash\necho\n```\n"])
def test_a_broken_document_is_noticed(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        blocks(text)


def test_marked_blocks_run_in_order_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    for block in blocks(SAMPLE)[:2]:
        run_block(block, folder)
    assert (folder / "file").read_text(encoding="utf-8") == "one\n"
    run_block(Block("bash", 'test "$(cat file)" = one\npython -c "import kcg"\n', 1, True), folder)
    run_block(Block("console", "$ test -s file\nit prints this\n", 1, True), folder)


@pytest.mark.parametrize(
    "block", [Block("bash", "false\ntrue\n", 1, True), Block("python", "raise SystemExit(1)\n", 1, True)]
)
def test_a_block_that_fails_is_noticed(block: Block, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    with pytest.raises(AssertionError, match="line 1 ended with 1"):
        run_block(block, folder)


@pytest.mark.parametrize(
    "command",
    [
        "make no-such-target",
        "python -m kcg.no_such_module flux",
        "python -m kcg.optimize flux --no-such-option",
        "python -m kcg.optimize flux --budget",
        "python -m kcg.optimize apply RESULT.json --no-such-option",
        "python -m kcg.dataset no-such-command",
        "python -m kcg.doctor --no-such-option",
        "kcg optimize flux --no-such-option",
        "kcg no-such-command",
        "python evaluation/no_such_script.py",
        "python -m evaluation.no_such_subject.no_such_script --anything",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(command: str) -> None:
    assert problem(shlex.split(command)) != ""


@pytest.mark.parametrize(
    "command",
    [
        "make test",
        "make optimize ARGS=--json",
        "python -m kcg.optimize flux --budget 60s --json",
        "python -m kcg.optimize script.py --search random -- --its own",
        "python -m kcg.optimize apply RESULT.json --beam 2",
        "python -m kcg.optimize flux [options]",
        "python -m kcg.dataset --help",
        "kcg dataset stats FILE",
        "kcg run --result RESULT.json script.py ...",
        "python train.py --anything",
        "git clone https://example.org/kcg",
    ],
)
def test_a_command_that_exists_passes(command: str) -> None:
    assert problem(shlex.split(command)) == ""
