# make demo: set up and run the main job.   make test: set up and pass the tests.   make docs: set up and build the pages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-to-run
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check format clean browser docs dist fresh audit mutants coverage
.DEFAULT_GOAL := demo

# Two steps, so that the demonstration need not wait for what only developers use.
$(RUN_STAMP): pyproject.toml constraints.txt
	@echo "Installing what the demonstration needs into $(VENV)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[report]'
	touch $@

$(STAMP): $(RUN_STAMP)
	@echo "Installing what developers need into $(VENV)"
	$(INSTALL) -e '.[report,tensorboard,cluster,tune,onnx,parquet,hub,docs,dev]'
	touch $@

demo: $(RUN_STAMP)
	$(BIN)/cpaan demo --out demo

# Two processes with one thread each, in an order that changes from run to run; `-v` prints its seed.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v -n 2 --dist worksteal --durations=10

# The tests of the report want a browser; without one they are skipped and say so.
CHROMIUM := apt-get install --yes --no-install-recommends chromium
browser:
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || $(CHROMIUM) || (apt-get update && $(CHROMIUM))

# The variable silences a word of the theme's makers about another program.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Written: site/index.html"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What others install: a source archive, and a wheel that is built from it.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist

# The wheel alone in an empty environment.
fresh: dist
	rm -rf build/fresh
	$(PYTHON) -m venv build/fresh
	build/fresh/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	build/fresh/bin/python .ci/fresh.py

# What is installed against lists of known holes, which are on servers. The tool is no part of what it looks at.
audit: $(STAMP)
	test -x build/audit/bin/pip-audit || ($(PYTHON) -m venv build/audit && build/audit/bin/python -m pip install --quiet pip-audit)
	build/audit/bin/pip-audit --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# Small mistakes made on purpose, one at a time: which do the tests miss? An hour or two on one core; it goes on where it
# was stopped, and `build/mutants/bin/mutmut show NAME` prints one. mutmut 3.8 fails under pytest 9.2.
mutants:
	test -x build/mutants/bin/mutmut || ($(PYTHON) -m venv build/mutants && build/mutants/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt mutmut 'pytest<9' hypothesis scipy -e .)
	OMP_NUM_THREADS=1 build/mutants/bin/mutmut run
	build/mutants/bin/mutmut results

# Lines of the package that the tests run through, in their own process.
coverage: $(STAMP)
	$(BIN)/python -m coverage run --source=src/cpaan -m pytest
	$(BIN)/python -m coverage report --skip-covered --skip-empty

clean:
	rm -rf $(VENV) demo site dist build mutants .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
