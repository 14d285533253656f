# Everything sets itself up in .venv from Python >= 3.11 alone; the stamp makes later runs start at once.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# The compiled kernels; an install builds them, and so does the next target after a change of their sources.
NATIVE := src/mssvm/engines/native
LIBRARY := $(NATIVE)/lib/.built
READY := $(STAMP) $(LIBRARY)

.PHONY: install demo studio check test coverage test-native test-torch test-hf test-gpu test-studio lint bench bench-sweeps attack docs gallery \
  test-docs wheel

install: $(READY)

$(STAMP): pyproject.toml
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	  found=; \
	  for p in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	    if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$p; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "mssvm needs Python 3.11 or newer and found none on PATH: install one, then run make again." >&2; exit 1; \
	  fi; \
	  if ! $$found -m venv $(VENV); then \
	    echo "$$found could not create $(VENV): install its venv module (python3-venv on Debian and Ubuntu), then run make again." >&2; exit 1; \
	  fi; \
	fi
	@echo "Installing mssvm and its development tools into $(VENV) (needed again only when pyproject.toml changes)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

$(LIBRARY): $(wildcard $(NATIVE)/cpp/*.?pp) tools/native.py | $(STAMP)
	@$(PY) tools/native.py

demo: $(READY)
	$(PY) -m mssvm.experiments.demo

# The page on which one labels a little and sees the rest, on embedded pictures (the folder studio-example).
studio: $(READY)
	$(VENV)/bin/mssvm studio

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

# While working: the linters, the types and the fast tests, under a minute once caches are warm.
check: lint
	$(PY) -m pytest -q -n auto -m "not slow"

# Everything.
test: lint
	$(PY) -m pytest -q -n auto

# Branches that tests do not take, by file (minutes); COVERAGE names the tests, such as COVERAGE="tests/uai -m 'not slow'".
COVERAGE := tests
coverage: $(READY)
	@$(PY) -c "import coverage" 2>/dev/null || $(PY) -m pip install --quiet --disable-pip-version-check coverage
	$(PY) -m coverage run --branch --source=src/mssvm -m pytest -q $(COVERAGE)
	$(PY) -m coverage report --skip-covered --skip-empty --show-missing --sort=cover

# The boundary, the conformance table and the threads with a library that watches itself: AddressSanitizer and
# UndefinedBehaviorSanitizer, then ThreadSanitizer (g++ on Linux). Python itself is not watched and is said to leak.
SANITIZED := build/sanitized
NATIVE_TESTS := tests/engines/test_native_library.py tests/conformance tests/engines/test_forests_native.py \
  tests/engines/test_elimination_native.py tests/inference/test_propagate_kernels.py tests/data/test_features.py \
  tests/core/test_orders.py tests/engines/test_elimination.py tests/inference/test_bounds.py tests/uai/test_support.py \
  tests/inference/test_segments.py \
  tests/uai/test_conditional.py tests/uai/test_proof.py
# One in so many cases of the conformance table, not those of the reference engine; EVERY=1 runs them all.
EVERY := 3
THREAD_TESTS := tests/engines/test_native_library.py tests/core/test_threads.py
# Of these, the tests of threads that share one picture or one pass, and of annealing.
SHARED_TESTS := tests/inference tests/engines
# Addresses as every kernel lays them out for ThreadSanitizer.
FIXED := $(shell command -v setarch >/dev/null && echo setarch -R)

test-native: $(STAMP)
	CXX=g++ $(PY) tools/native.py --sanitize address --out $(SANITIZED)/address
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(PY) -m pytest -q --native $(SANITIZED)/address --every $(EVERY) -k "not reference" $(NATIVE_TESTS)
	CXX=g++ $(PY) tools/native.py --sanitize thread --out $(SANITIZED)/thread
	LD_PRELOAD="$$(g++ -print-file-name=libtsan.so)" TSAN_OPTIONS="die_after_fork=0 halt_on_error=1" \
	  $(FIXED) $(PY) -m pytest -q --native $(SANITIZED)/thread $(THREAD_TESTS)
	LD_PRELOAD="$$(g++ -print-file-name=libtsan.so)" TSAN_OPTIONS="die_after_fork=0 halt_on_error=1" \
	  $(FIXED) $(PY) -m pytest -q --native $(SANITIZED)/thread -k "thread or anneal" $(SHARED_TESTS)

# PyTorch in an environment of its own on top of .venv. One that is installed in .venv already is used as it is;
# otherwise its CPU build, a tenth of the size of the others. Where pip's index lacks it, PIP_EXTRA_INDEX_URL names one
# that has it, or TORCH another build: make test-torch TORCH=torch
TORCH := torch==2.13.0+cpu
TORCH_VENV := $(VENV)-torch
TORCH_STAMP := $(TORCH_VENV)/.installed

$(TORCH_STAMP): $(STAMP) Makefile
	@$(PY) -m venv --clear $(TORCH_VENV)
	@$(TORCH_VENV)/bin/python -c "import sysconfig, pathlib, sys; \
	  pathlib.Path(sysconfig.get_path('purelib'), 'base.pth').write_text('import site; site.addsitedir(%r)\n' % sys.argv[1])" \
	  "$$($(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))")"
	@if $(TORCH_VENV)/bin/python -c "import torch; print('PyTorch', torch.__version__, 'is installed already')" 2>/dev/null; then :; else \
	  echo "Installing $(TORCH) into $(TORCH_VENV)"; \
	  $(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"; \
	fi
	@touch $@

test-torch: $(TORCH_STAMP) $(LIBRARY)
	$(TORCH_VENV)/bin/python -m pytest -q -n auto tests/with_torch

# transformers, ONNX and its runtime, and spaCy beside PyTorch, in the same environment: they keep its build.
HF := transformers accelerate onnx onnxruntime onnxscript spacy
HF_STAMP := $(TORCH_VENV)/.installed-hf

$(HF_STAMP): $(TORCH_STAMP)
	@echo "Installing $(HF) into $(TORCH_VENV)"
	@$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(HF)
	@touch $@

test-hf: $(HF_STAMP) $(LIBRARY)
	$(TORCH_VENV)/bin/python -m pytest -q -n auto tests/with_hf

# On a machine with a GPU, where nothing is installed: whatever python3 there has PyTorch for it.
test-gpu:
	PYTHONPATH=src python3 -m pytest -q --noconftest -p no:cacheprovider tests/with_torch

# The studio in a real browser: Chromium, which must be installed. Playwright's driver is; its own browsers are not.
test-studio: $(READY)
	@$(PY) -c "import playwright" 2>/dev/null || $(PY) -m pip install --quiet --disable-pip-version-check playwright
	$(PY) -m pytest -q tests/with_browser

# On a quiet machine. Options: make bench BENCH="--rows crf-fit hcrf-iteration --repeats 3", or BENCH=--quick.
bench: $(READY)
	$(PY) benchmarks/bench.py $(BENCH)
	@case "$(BENCH)" in *--quick*|*--output*|*--list*) ;; *) $(PY) benchmarks/bench_table.py ;; esac

bench-sweeps: $(READY)
	$(PY) benchmarks/bench_sweeps.py $(BENCH)

# Every public entry point with every bad input, damaged files of every format, kills and full disks, a soak, and exact
# inference against long double: about an hour. Options: make attack ATTACK="--parts faults soak"; counts are kept in
# benchmarks/results/attack.json.
attack: $(READY)
	$(PY) tools/attack.py $(ATTACK)

# The documentation as a site under docs/_build/html; warnings are errors, and nothing is fetched but the tools.
docs: $(READY)
	@$(PY) -c "import sphinx, myst_parser, furo" 2>/dev/null || $(PY) -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# The pictures of the gallery, drawn again by its scripts (the deep one in the environment with PyTorch).
gallery: $(READY) $(TORCH_STAMP)
	@for script in docs/gallery/*.py; do \
	  case $$script in *deep*) python=$(TORCH_VENV)/bin/python ;; *) python=$(PY) ;; esac; \
	  echo $$script; MPLBACKEND=Agg $$python $$script docs/gallery || exit 1; \
	done

# How many public names have an example that runs, and the built site in a browser, where there is one (Chromium).
test-docs: docs
	$(PY) tools/public_names.py
	$(PY) -m pytest -q tests/with_site

# Wheel and sdist, and the wheel in an empty environment (minutes); WHEEL="python3.12 python3.13" names other interpreters.
wheel: $(READY)
	$(PY) tools/wheel.py $(WHEEL)
