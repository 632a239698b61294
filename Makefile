# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A test waits for its processes most of the time.
TESTS_AT_ONCE ?= 2

.PHONY: setup demo test check clean
.DEFAULT_GOAL := test

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "prefetchd needs Python 3.10 or newer; choose one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[compat,demo,strangers,test,trainers]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/prefetchd demo $(if $(DATA),--data $(DATA)) $(DEMO_ARGS)

test: check
	PREFETCHD_TESTS_PACKAGES=all $(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
