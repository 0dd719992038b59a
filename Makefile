# The two commands that matter: `make run` shows what penstock does, `make test` proves it.
# Both need only Python 3.11+ and make; they set up .venv themselves and use uv when it is there.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready
EXTRAS := all

.DEFAULT_GOAL := help
.PHONY: help run test nightly test-fast coverage check format torture bench docs dist clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml scripts/setup.py
	@$(PYTHON) scripts/setup.py $(VENV) $(EXTRAS) dev strangers
	@touch $(STAMP)

$(VENV)/.peers: $(STAMP)
	@$(PYTHON) scripts/setup.py $(VENV) $(EXTRAS) bench
	@touch $@

run: $(STAMP)  ## run the main job and show a summary
	@$(PY) -m examples.main_job

$(VENV)/.azurite: $(STAMP) scripts/azurite.py
	@$(PYTHON) scripts/azurite.py $(VENV)
	@touch $@

test: $(STAMP) $(VENV)/.azurite  ## run all tests, or some: make test ARGS="tests/cli -k topics", ARGS=--lf
	@$(PY) scripts/run_tests.py $(ARGS)

nightly: $(STAMP) $(VENV)/.azurite  ## what make test leaves to the night, whole or one part (PART=matrix; PART=list names them)
	@$(PY) tests/nightly.py $(PART)

test-fast: $(STAMP)  ## under 45 s: memory and SQLite, no Spark, no browser, no kills
	@$(PY) scripts/run_tests.py --fast $(ARGS)

coverage: $(STAMP) $(VENV)/.azurite  ## which branches of src make test takes, or some tests: make coverage ARGS=tests/cli
	@rm -rf out/coverage* && mkdir -p out
	@-$(PY) -m coverage run scripts/run_tests.py $(ARGS)
	@$(PY) -m coverage combine --quiet
	@$(PY) -m coverage report

check: $(STAMP)  ## lint, format check, types, layers, prose
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports
	@$(PY) scripts/prose.py

format: $(STAMP)  ## put the code into shape
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

torture: $(STAMP)  ## look for faults with new seeds until the time is up (MINUTES=10 PART=kills ENGINE=sqlite SEED=1 COUNT=10000)
	@$(PY) tests/nightly.py $(PART) --minutes $(or $(MINUTES),10) $(if $(ENGINE),--engine $(ENGINE)) $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT))

bench: $(VENV)/.peers  ## measure penstock beside its peers (BENCH=journal|queue|entity|buffer|spark…), or a commit beside the tree (BENCH=compare OLD=<commit> ROW="take + ack")
	@env -u PYTHONDONTWRITEBYTECODE $(PY) -m benchmarks $(BENCH) $(OLD) $(if $(ROW),"$(ROW)")

$(VENV)/.docs: $(STAMP)
	@$(PYTHON) scripts/setup.py $(VENV) $(EXTRAS) docs
	@touch $@

docs: $(VENV)/.docs  ## build the generated pages and the site, in site/; VERSION=0.1 commits the site to the branch gh-pages
	@for page in scripts/*_page.py; do $(PY) $$page; done
	@$(VENV)/bin/$(if $(VERSION),mike deploy --update-aliases $(VERSION) latest,mkdocs build --strict)

dist: $(STAMP)  ## build a wheel and a source archive, in dist/
	@rm -rf dist
	@$(PY) -m build --outdir dist .
	@ls -1 dist

clean:  ## remove what was made here
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .import_linter_cache .pytest_cache dist out site
