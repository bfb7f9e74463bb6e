# SPDX-License-Identifier: Apache-2.0
# Two commands do everything: `make demo` and `make test`. Both set up first what they need.

PY := .venv/bin/python
# Hundreds of processes import the package in a run of the suite: what is compiled is kept.
unexport PYTHONDONTWRITEBYTECODE
CLANG_FORMAT := .venv/bin/clang-format
# Generated constants keep the layout of their generator.
NATIVE_SOURCES = $(shell git ls-files '*.c' '*.h' '*.cpp' ':!udfs/**/*constants.h')

.PHONY: help setup demo site site-tools test test-slow test-sanitizers test-torch test-oldest oldest test-newest newest test-python wheel test-wheel lint format bench results docs verify fuzz clean

help:
	@echo 'make demo       LeNet on MNIST under the stock functions and under corem, side by side'
	@echo 'make test       lint, types, and the whole suite (tests marked slow left out)'
	@echo 'make test-slow  the tests marked slow'
	@echo 'make test-sanitizers  the native parts under ASan, UBSan and TSan; needs libclang-rt-19-dev'
	@echo 'make test-torch TORCH=2.11.0 [TESTS=...]  the suite with that torch, in .venv-torch-2.11.0'
	@echo 'make test-python PYTHON=3.13 [TESTS=...]  the same with python3.13, in .venv-python-3.13'
	@echo 'make verify     certificates over all 2^32 inputs for every function of corem'
	@echo 'make fuzz       every reader of outside data, for MINUTES=60 of processor time'
	@echo 'make wheel [TORCH=2.15.0]  a wheel for machines without a compiler, in dist/; for one torch, in minutes'
	@echo 'make test-wheel the tests of that wheel, with every compiler hidden'
	@echo 'make bench      the benches; writes out.json'
	@echo 'make docs       render the stored results into README and docs'
	@echo 'make site       the documentation as a site, in build/site; works offline'
	@echo 'make results    measure again what README and docs show, and render them'
	@echo 'make setup      toolchain, .venv and the package; run by all of the above'

setup:
	@.ci/setup

demo:
	@FOR=demo .ci/setup
	$(PY) -m benches.experiments.demo_lenet

# Much of the suite waits for compilers: two processes take little more than half of the time.
test: lint build/plugins
	$(PY) -m pytest -n 2 --dist loadfile

# Tools that tests/plugin/test_other_plugins.py runs suites beside. They lie apart from .venv, or
# they would change the runs of all other tests. Without them it says what it skips.
build/plugins:
	-@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target $@ beartype \
	  coverage jaxtyping jinja2 markupsafe pytest-asyncio pytest-cov pytest-html pytest-instafail \
	  pytest-metadata pytest-mock pytest-order pytest-randomly pytest-rerunfailures \
	  pytest-sugar pytest-timeout termcolor wadler-lindig
# pytest-forked 1.7.5 cannot send the reports of pytest 9.2 to its parent.
	-@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target $@/forked \
	  'pytest<9' pytest-forked

test-slow: site-tools build/plugins
	$(PY) -m pytest -m slow --timeout 7200 -o faulthandler_timeout=7500

test-sanitizers: setup
	$(PY) -m pytest -m 'slow or not slow' --timeout 7200 -o faulthandler_timeout=7500 \
	  tests/native/test_sanitizers.py

TESTS = tests

test-torch:
	@test -n '$(TORCH)' || { echo 'Name a version: make test-torch TORCH=2.11.0' >&2; exit 2; }
	@TORCH=$(TORCH) .ci/setup
	.venv-torch-$(TORCH)/bin/python -m pytest -n 2 --dist loadfile $(TESTS)

# The oldest torch that pyproject.toml allows, and what shows most cheaply that it is supported.
OLDEST = 2.11.0
OLDEST_TESTS = tests/base/test_compat.py tests/swap/test_cuda_registration.py \
  tests/swap/test_inductor_triton.py tests/plugin/test_options.py

oldest:
	@echo $(OLDEST)

test-oldest:
	@$(MAKE) --no-print-directory test-torch TORCH=$(OLDEST) TESTS='$(OLDEST_TESTS)'

# The newest torch that the registry offers, which may be newer than that of .venv.
newest: setup
	@$(PY) -m pip index versions torch 2>/dev/null | sed -n '1s/.*(\(.*\)).*/\1/p'

test-newest: setup
	@$(MAKE) --no-print-directory test-torch TESTS='$(TESTS)' \
	  TORCH=$$($(MAKE) --no-print-directory newest | tail -n 1)

test-python:
	@test -n '$(PYTHON)' || { echo 'Name a version: make test-python PYTHON=3.13' >&2; exit 2; }
	@WITH_PYTHON=$(PYTHON) .ci/setup
	.venv-python-$(PYTHON)/bin/python -m pytest -n 2 --dist loadfile $(TESTS)

# TORCH names the torch of the wheel, and not one for an environment of its own.
wheel:
	@TORCH= .ci/setup
	@TORCH=$(TORCH) .ci/wheel

test-wheel: wheel
	$(PY) -m pytest -m slow tests/plugin/test_wheel.py

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-cache
	$(CLANG_FORMAT) --dry-run -Werror $(NATIVE_SOURCES)

format: setup
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(CLANG_FORMAT) -i $(NATIVE_SOURCES)

verify: setup
	.venv/bin/udftorch verify corem

MINUTES = 60

fuzz: setup
	$(PY) -m pip install -q atheris
	$(PY) -m benches.experiments.fuzz --minutes $(MINUTES)

bench: setup
	$(PY) -m pytest benches --benchmark-json=out.json

results: setup
	$(PY) -m benches.store
	$(PY) -m benches.render.docs

# Not in .venv by default: what only the site needs.
site-tools: setup
	@$(PY) -c 'import mkdocs, material, mkdocstrings, nbclient, ipykernel' 2>/dev/null || \
	  $(PY) -m pip install --quiet --disable-pip-version-check -e '.[docs]'

site: site-tools
	$(PY) -m benches.render.site

docs: setup
	$(PY) -m benches.render.docs

clean:
	rm -rf build .venv .venv-torch-* .venv-python-* .mypy_cache .ruff_cache .pytest_cache
