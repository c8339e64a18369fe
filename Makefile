# make            what there is to make
# make optimize   install what is needed, then search faster schedules for Flux on this machine (a few minutes)
# make test       install, then every check: ruff, mypy, pytest, the README's own commands
#
# `make optimize` also installs a clang, as the wheel ziglang, where there is none: CPU kernels are 3 times faster by it.
# Both install into .venv at the pinned versions of constraints.txt, once: a second `make` goes straight to the work.
# Variables: PYTHON (an interpreter, 3.11 or newer, which makes .venv; one that is there keeps its own), ARGS (for kcg.optimize, e.g. ARGS="--budget 60s", or for pytest).

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
ARGS ?=

# not for what is run: tinygrad reads a variable of this name as a device
unexport PYTHON
# nor this one, which some shells and containers set: what is installed is not compiled ahead, and hundreds of processes
# would each compile kcg and tinygrad anew (2.1 s of CPU time to import what optimises, 1.0 s once it is compiled)
unexport PYTHONDONTWRITEBYTECODE

# an environment keeps the Python that made it: whoever names another is told, once
PLACE := -c 'import sys; print("%d.%d.%d of %s" % (*sys.version_info[:3], sys.base_prefix))'
ifeq ($(MAKELEVEL),0)
ifneq ($(strip $(PYTHON)),)
ifneq ($(wildcard $(VENV)/.created),)
MADE_BY := $(shell $(BIN)/python $(PLACE) 2>/dev/null)
ifneq ($(MADE_BY),$(shell $(PYTHON) $(PLACE) 2>/dev/null))
$(info kcg: $(VENV) keeps its Python, $(MADE_BY), whatever PYTHON says; to take $(PYTHON): make clean, then again)
endif
endif
endif
endif

.PHONY: help optimize test test-evaluation checks lint types tests clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# make/make/p' Makefile

optimize: $(VENV)/.installed-core $(VENV)/.installed-clang
	@$(BIN)/python -m kcg.optimize flux $(ARGS)
	@echo "for the other commands of the README: . $(VENV)/bin/activate"

# every check runs, also after one that fails
test: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory --keep-going checks tests

# what makes the figures: no part of `test`, run before a change of evaluation/ is called done
test-evaluation: $(VENV)/.installed-dev
	$(PYTEST) tests/evaluation --numprocesses 2 --dist loadfile $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

ifeq ($(strip $(ARGS)),)
checks:
	@:
else
checks: lint types
endif

# faults and fleets, which mostly wait, have a core whenever they want one, one after the other, each in a process of its
# own: what one of them leaves behind in its process the next finds always, or never. Behind them in the line for it, so
# that no core waits, are ruff, mypy and all other tests, two at once: first what only computes, then what starts
# processes and waits. A third gains nothing: it imports and captures again what the two have.
# What the two would each compile of Python, libraries and tests, is compiled once before, the first time
PYTEST := $(BIN)/python -m pytest -rs -m "not slow"
LATER := nice -n 5
WAITING := tests/faults tests/fleet
OTHERS := $(WAITING:%=--ignore %) --ignore tests/evaluation

tests: $(VENV)/.installed-dev
ifeq ($(strip $(ARGS)),)
	@echo 'kcg: ruff, mypy, the tests of faults and fleets, which are shown last, and all other tests, at once'; \
	status=0; compiled=0; [ -d tests/__pycache__ ] && compiled=1; \
	$(LATER) $(MAKE) --no-print-directory --keep-going lint types & checks=$$!; \
	{ all=0; for part in $(WAITING); do $(PYTEST) $$part >$(VENV)/$$(basename $$part).log 2>&1 || all=1; done; exit $$all; } & waiting=$$!; \
	[ $$compiled = 1 ] || $(LATER) $(PYTEST) -q $(OTHERS) --collect-only >/dev/null; \
	$(LATER) $(PYTEST) $(OTHERS) --numprocesses 2 --dist loadfile --no-loadscope-reorder || status=1; \
	wait $$waiting || status=1; cat $(WAITING:tests/%=$(VENV)/%.log); \
	wait $$checks || status=1; \
	exit $$status
else
	$(BIN)/python -m pytest -rs $(ARGS)
endif

$(VENV)/.installed-core: pyproject.toml constraints.txt | $(VENV)/.created
	@echo 'kcg: installing into $(VENV), a few minutes the first time'
	@$(PIP) install -c constraints.txt -e .
	@touch $@

# a clang as a wheel, where there is none: without it the CPU runs too, through tinygrad's own assembler
$(VENV)/.installed-clang: | $(VENV)/.installed-core
	@command -v clang >/dev/null || $(PIP) install -c constraints.txt ziglang || \
	  echo "kcg: there is no clang, nor a wheel of it for this machine: using tinygrad's own assembler"
	@touch $@

# one pip unpacks on one core. So what is large goes first, by two at once: PyTorch and Triton with what they need, and
# these, which they do not need, alone. The last pip has all to say: it installs what is left, what does not fit, what failed
APART := ziglang pyarrow scipy pandas matplotlib wandb tinygrad mypy sqlalchemy torch-geometric lightgbm hf-xet
TRITON := "triton; platform_system == 'Linux' and platform_machine == 'x86_64'"

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/.created
	@echo 'kcg: installing into $(VENV) with what the tests need, a few minutes the first time'
	@$(PIP) install --no-compile --no-deps -c constraints.txt $(APART) >/dev/null 2>&1 & apart=$$!; \
	$(PIP) install --no-compile -c constraints.txt torch $(TRITON) >/dev/null 2>&1; wait $$apart; \
	$(PIP) install --no-compile -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.installed-core $@

# the first of these interpreters that is 3.11 or newer makes the environment; an older one is never used silently. The pip
# that comes with Python 3.11 takes half as long again to install all of this
$(VENV)/.created:
	@[ -z "$(PYTHON)" ] || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  echo 'kcg: PYTHON=$(PYTHON) is no Python 3.11 or newer, so another one is looked for' >&2
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14 python; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    $$python -m venv $(VENV) && { $(PIP) install -c constraints.txt --upgrade pip || \
	      echo 'kcg: installing with the older pip of this Python'; } && touch $@ && exit 0; \
	    echo "kcg: $$python cannot make a virtual environment (Debian: apt install python3-venv)" >&2; exit 1; \
	  fi; \
	done; \
	echo 'kcg: no Python 3.11 or newer found; install one, or name it: make PYTHON=/path/to/python3 ...' >&2; exit 1

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build kcg.egg-info
