# Two commands do everything on a fresh machine: `make demo` and `make test`. Each installs what it needs into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_STAMP := $(VENV)/.installed-demo
STAMP := $(VENV)/.installed
# As many as the CPUs of a small machine.
TESTS_AT_ONCE ?= 2
# These tests wait for their processes some of the time.
FORKING_AT_ONCE ?= 3
PYTEST := PREFETCHD_TESTS_PACKAGES=all $(BIN)/python -m pytest
# Where a process of its dies, pytest-xdist 3.8 runs the others' files to their end and then waits for good, unless none
# is started in its place.
FILES_AT_ONCE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
AT_ONCE := -n $(TESTS_AT_ONCE) $(FILES_AT_ONCE)
# Shares of the examples that properties name.
BUDGET ?= 0.2
FAST_BUDGET ?= 0.1
# These fork most. A process of many packages is dear to fork: it must not import what the others need.
FORKING := tests/attacks tests/contract tests/scenario
# Nothing may run beside these.
TIMED := tests/timed
# A Ray cluster takes the CPUs for itself.
CLUSTER := tests/cluster
# On a terminal pip shows what it downloads; into a file it says nothing but what goes wrong.
PIP_INSTALL = q=$$([ -t 1 ] || echo -q); $(BIN)/python -m pip install --disable-pip-version-check $$q -c constraints.txt

# Python keeps its bytecode, whatever the caller's environment says: daemons and trainers are started by the hundred.
unexport PYTHONDONTWRITEBYTECODE

# For the demo nothing is compiled before it is imported: compiling all took pip 15 s of CPU, what is imported takes 6.

.PHONY: setup demo test test-slow test-fast fuzz check docs clean
.DEFAULT_GOAL := test

setup: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "prefetchd needs Python 3.10 or newer; choose one with: make PYTHON=python3.12"; exit 1; }
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the demo needs into $(VENV): torch, torchvision and what makes its pictures, some 3 GB, one to three minutes"
	@$(PIP_INSTALL) --no-compile -e '.[demo]'
	@touch $(DEMO_STAMP)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the tests need into $(VENV): torch, the trainers' frameworks and other packages, some 6 GB, two to five minutes"
	@$(PIP_INSTALL) -e '.[compat,demo,docs,images,ray,strangers,test,trainers]'
	@touch $(STAMP) $(DEMO_STAMP)

demo: $(DEMO_STAMP)
	$(BIN)/prefetchd demo $(if $(DATA),--data $(DATA)) $(DEMO_ARGS)

# What one runs before a commit. Of the properties fewer examples are tried than in `test-slow`. What is left to that
# one, and why: docs/decisions/0118.
test: check
	@failed=; set -x; export PREFETCHD_TESTS_BUDGET=$(BUDGET); \
	$(PYTEST) -m 'not slow' -n $(FORKING_AT_ONCE) $(FILES_AT_ONCE) $(FORKING) || failed=1; \
	$(PYTEST) -m 'not slow' $(AT_ONCE) $(patsubst %,--ignore=%,$(FORKING) $(TIMED)) || failed=1; \
	[ -z "$$failed" ]

# The dashboard's tests need chromium and chromedriver, which no target installs: `apt-get install chromium
# chromium-driver` does on Debian, as .ci/run. Without them these tests are skipped, unless CI=true.
# What takes long: others' programs, each case beside DataLoader, times, and all examples of the properties.
test-slow: $(STAMP)
	@failed=; set -x; \
	$(PYTEST) -m slow $(AT_ONCE) $(FORKING) || failed=1; \
	$(PYTEST) -m slow $(AT_ONCE) $(patsubst %,--ignore=%,$(FORKING) $(CLUSTER) $(TIMED) tests/property) || failed=1; \
	$(PYTEST) $(AT_ONCE) tests/property || failed=1; \
	$(PYTEST) $(CLUSTER) || failed=1; \
	$(PYTEST) $(TIMED) || failed=1; \
	[ -z "$$failed" ]

# Random programs with DataLoader as their oracle, for so many seconds.
FUZZ_SECONDS ?= 600
fuzz: $(STAMP)
	@d=$$(mktemp -d); trap 'PREFETCHD_SOCKET=$$d/d.sock $(BIN)/prefetchd stop > /dev/null 2>&1; rm -rf $$d' EXIT; \
	PREFETCHD_SOCKET=$$d/d.sock XDG_STATE_HOME=$$d $(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

# What one runs at each change: what needs no daemon, and few examples of the properties.
test-fast: check
	PREFETCHD_TESTS_BUDGET=$(FAST_BUDGET) $(PYTEST) -m 'not slow' $(AT_ONCE) tests/unit tests/property

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site: the pages where they lie, and the API from its docstrings. Needs Python 3.11.
docs: $(STAMP)
	$(BIN)/python -m sphinx -c website -b html -W --keep-going -q . build/site
	@echo "build/site/index.html"

clean:
	rm -rf build/site $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
