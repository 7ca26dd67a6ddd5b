# make demo   its own virtual environment, then GPT-2 pretraining on JAX
# make test   its own virtual environment, then the tests on every backend
# make help   the other targets

PYTHON ?= python3
VENV := .venv
DEMO_VENV := .venv-demo
DOCS_VENV := .venv-docs
NOTEBOOKS_VENV := .venv-notebooks
OLDEST := .keras-oldest
NIGHTLY := .keras-nightly
OLDEST_KERAS := 3.10.0
OLDEST_JAX := 0.6.1
BACKENDS := jax torch tensorflow
ON_JAX := KERAS_BACKEND=jax
export TF_CPP_MIN_LOG_LEVEL := 3
# Two workers share two cores; threads of each would only wait for the other.
THREADS := OMP_NUM_THREADS=1
# What JAX has compiled for one test, or for one Keras, it need not again.
JAX_CACHE := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.jax-cache \
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
  JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

# The builds without CUDA: any other spec of torch pulls gigabytes.
TORCH := torch==2.13.0
# Python compiles what is imported, which is a third of what is installed.
PIP := -m pip --disable-pip-version-check install --quiet --no-compile
# Of an environment and an extra: the command that prints what the extra lists.
requirements = $(1)/bin/python -c 'import tomllib; \
  project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  print(*project["optional-dependencies"]["$(2)"])'

.PHONY: help results paper pictures demo demo-llama sweep sweep-all \
  environment test test-newest test-oldest test-nightly test-all \
  faults bench bench-gpu docs docs-serve notebooks lint format \
  package clean

help:
	@grep -E '^# make|^## ' Makefile | sed 's/^# //; s/^## /make /'

## demo         train a small GPT-2 with Lanton and AdamW, 3 minutes
demo: $(DEMO_VENV)/ready
	$(ON_JAX) $(DEMO_VENV)/bin/python examples/gpt2_pretraining.py

## demo-llama   the same with a small Llama
demo-llama: $(DEMO_VENV)/ready
	$(ON_JAX) $(DEMO_VENV)/bin/python examples/llama_pretraining.py

## sweep        the learning-rate sweep behind the demo's defaults
sweep: $(DEMO_VENV)/ready
	$(ON_JAX) $(DEMO_VENV)/bin/python -m experiments.pretraining --sweep

## sweep-all    the same sweep with every optimizer of docs/baselines.md
sweep-all: $(DEMO_VENV)/ready
	$(ON_JAX) $(DEMO_VENV)/bin/python -m experiments.pretraining \
	  --sweep --resume --output runs/gpt2_sweep_all --optimizer lanton \
	  lanton_paper adamw keras_muon muon d_muon adamuon scion mars \
	  blockwise_adamw lamb

## paper        the paper's experiments on two cores, then docs/paper.md
paper: $(VENV)/ready
	$(ON_JAX) $(VENV)/bin/python -m experiments.paper
	$(VENV)/bin/python -m experiments.paper.report

## pictures     the pictures of docs/how_it_works.md, a minute
pictures: $(VENV)/ready
	$(ON_JAX) $(VENV)/bin/python tools/make_pictures.py

# TEXTS: the folder of wiki.txt and sotu.txt, or .txt.gz, .txt.xz. LIMIT: stops
# after so many runs.
## results      the missing runs of docs/results.md, then the page: days
results: $(VENV)/ready
	$(ON_JAX) $(VENV)/bin/python -m experiments \
	  $(if $(TEXTS),--texts $(TEXTS)) $(if $(LIMIT),--limit $(LIMIT))
	$(VENV)/bin/python -m experiments.report

# ALL: `--all` also runs what CONTRIBUTING.md lists as left to `make test-all`.
PYTEST = -m pytest -n 2 --dist worksteal $(ALL)

## environment  .venv, with the three backends
environment: $(VENV)/ready $(OLDEST)/ready

## test         the tests on every backend, some 15 minutes
test: test-newest test-oldest

# Each backend's seconds, with its name: `make test` has a budget.
test-newest: $(VENV)/ready
	@set -e; for backend in $(BACKENDS); do \
	  begin=$$(date +%s); \
	  $(THREADS) $(JAX_CACHE) KERAS_BACKEND=$$backend \
	    $(VENV)/bin/python $(PYTEST); \
	  echo "newest Keras, $$backend: $$(($$(date +%s) - begin)) s"; \
	done

# What Keras' versions differ in: the hooks, and what stands on them.
OLDEST_TESTS := $(patsubst %,tests/keras/test_%.py,contract accumulation ema \
  missing_gradients nonfinite overwriting weight_decay)
# The oldest Keras and JAX lie before the newest on the path: one environment
# serves both, and KerasHub, which needs the newest, is skipped with its reason.
# TensorFlow's XLA, which has no cache, compiles without optimizing there: the
# newest has been through with it.
test-oldest: $(VENV)/ready $(OLDEST)/ready
	@set -e; for backend in $(BACKENDS); do \
	  begin=$$(date +%s); flags=; \
	  case $$backend in \
	    tensorflow) flags=XLA_FLAGS=--xla_backend_optimization_level=0;; \
	  esac; \
	  env $$flags $(THREADS) $(JAX_CACHE) KERAS_BACKEND=$$backend \
	    PYTHONPATH=$(OLDEST) $(VENV)/bin/python $(PYTEST) $(OLDEST_TESTS); \
	  echo "oldest Keras, $$backend: $$(($$(date +%s) - begin)) s"; \
	done

## test-nightly the hooks, and what stands on them, on tomorrow's Keras
test-nightly: $(VENV)/ready $(NIGHTLY)/ready
	PYTHONPATH=$(NIGHTLY) KERAS_BACKEND=torch $(VENV)/bin/python -c \
	  "import keras; print(keras.__version__)"
	@set -e; for backend in $(BACKENDS); do \
	  $(THREADS) $(JAX_CACHE) KERAS_BACKEND=$$backend PYTHONPATH=$(NIGHTLY) \
	    $(VENV)/bin/python $(PYTEST) tests/keras tests/optimizer tests/tools \
	    tests/roles; \
	done

## test-all     every test, also on the oldest Keras: before a release
test-all:
	$(MAKE) test-newest test-oldest ALL=--all OLDEST_TESTS=tests
	$(MAKE) faults

# On PyTorch: nothing is compiled, and no fault is of a backend's.
## faults       more kills, damaged files, wrong gradients and arguments
faults: $(VENV)/ready
	$(THREADS) KERAS_BACKEND=torch FAULTS=20 \
	  $(VENV)/bin/python -m pytest --all tests/keras/test_faults.py

## bench        the benchmarks on the CPU; benchmarks/tables.py prints them
bench: $(VENV)/ready
	@set -e; for backend in $(BACKENDS); do \
	  KERAS_BACKEND=$$backend $(VENV)/bin/python benchmarks/step_time.py \
	    --model gpt2; \
	  KERAS_BACKEND=$$backend $(VENV)/bin/python benchmarks/step_time.py \
	    --model llama --steps 2 --rounds 1 --warm-up 1; \
	done
	KERAS_BACKEND=torch $(VENV)/bin/python benchmarks/step_time.py --narrow \
	  --dtype bfloat16 --ns-dtype bfloat16 --steps 50 --rounds 20
	@set -e; for backend in jax torch; do \
	  KERAS_BACKEND=$$backend $(VENV)/bin/python benchmarks/collectives.py; \
	  KERAS_BACKEND=$$backend $(VENV)/bin/python benchmarks/memory.py; \
	done
	@set -e; for backend in jax tensorflow; do \
	  KERAS_BACKEND=$$backend $(VENV)/bin/python benchmarks/compile.py; \
	done

# The environment there has the builds with CUDA. GPU=--pretend: on a CPU,
# with tiny sizes, to see that it runs.
GPU = --gpu
## bench-gpu    the same on a GPU: bfloat16, larger shapes
bench-gpu:
	@set -e; for backend in jax torch; do \
	  for model in gpt2 llama; do \
	    KERAS_BACKEND=$$backend $(PYTHON) benchmarks/step_time.py $(GPU) \
	      --model $$model; \
	  done; \
	  KERAS_BACKEND=$$backend $(PYTHON) benchmarks/memory.py $(GPU); \
	done
	KERAS_BACKEND=jax $(PYTHON) benchmarks/compile.py $(GPU)

# The code blocks of its pages run in the tests.
## docs         the documentation as a site, in site/
docs: $(DOCS_VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict

## docs-serve   the same on a local port, built anew while you write
docs-serve: $(DOCS_VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs serve --strict

## notebooks    docs/examples: notebooks with their results
notebooks: $(NOTEBOOKS_VENV)/ready
	$(NOTEBOOKS_VENV)/bin/python tools/make_notebooks.py

## lint         ruff, mypy; words, sentences and links of the documents
lint: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python tools/check_prose.py
	$(VENV)/bin/md-dead-link-check

## format       what lint asks for
format: $(VENV)/ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# TAG: of a release: it has to be the version's, which has to have a date.
## package      wheel and sdist into dist/, tried outside the checkout
package: $(VENV)/ready
	$(if $(TAG),tools/check_release.sh $(TAG))
	rm -rf dist
	$(VENV)/bin/check-manifest --quiet
	$(VENV)/bin/python -m build --quiet
	$(VENV)/bin/twine check --strict dist/*
	$(VENV)/bin/check-wheel-contents --package keras_lanton dist/*.whl
	for backend in $(BACKENDS); do \
	  tools/try_package.sh $(PYTHON) $$backend $(TORCH) || exit; \
	done

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP) --upgrade pip
	$(VENV)/bin/python $(PIP) $(TORCH) -e ".[jax,torch,tensorflow,hub,examples,dev]"
	touch $@

# KerasHub without its requirements, which pull TensorFlow (1.9 GB): on JAX it
# needs those of the extra `demo` alone. So for the notebooks below.
$(DEMO_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python $(PIP) --upgrade pip
	$(DEMO_VENV)/bin/python $(PIP) -e ".[jax,demo]"
	$(DEMO_VENV)/bin/python $(PIP) --no-deps \
	  $$($(call requirements,$(DEMO_VENV),hub))
	touch $@

$(NOTEBOOKS_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(NOTEBOOKS_VENV)
	$(NOTEBOOKS_VENV)/bin/python $(PIP) --upgrade pip
	$(NOTEBOOKS_VENV)/bin/python $(PIP) -e ".[jax,notebooks]"
	$(NOTEBOOKS_VENV)/bin/python $(PIP) --no-deps \
	  $$($(call requirements,$(NOTEBOOKS_VENV),hub))
	touch $@

# Not the package itself: its sources are read, without Keras.
$(DOCS_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python $(PIP) --upgrade pip
	$(DOCS_VENV)/bin/python $(PIP) $$($(call requirements,$(DOCS_VENV),docs))
	touch $@

$(OLDEST)/ready: $(VENV)/ready
	$(VENV)/bin/python $(PIP) --no-deps --upgrade --target $(OLDEST) \
	  keras==$(OLDEST_KERAS) jax==$(OLDEST_JAX) jaxlib==$(OLDEST_JAX)
	touch $@

# Beside the newest Keras, as the oldest one is.
$(NIGHTLY)/ready: | $(VENV)/ready
	$(VENV)/bin/python $(PIP) --no-deps --upgrade --target $(NIGHTLY) \
	  keras-nightly
	touch $@

## clean        remove environments, packages and runs
clean:
	rm -rf $(VENV) $(DEMO_VENV) $(DOCS_VENV) $(NOTEBOOKS_VENV) $(OLDEST) \
	  $(NIGHTLY) .jax-cache build dist runs site
