# Two commands do all the set-up: `make quickstart` and `make test`. Both make .venv and install on first use only.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# the NVRTC that PyTorch for CUDA 13.0 brings, beside the newest: tests compile with both
NVRTC_130 := $(VENV)/nvrtc-13.0
RUN    := $(if $(VENV),$(BIN)/python,$(PYTHON))
JOBS   ?= $(shell n=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); [ $$n -gt 8 ] && echo 8 || echo $$n)
# `make soak`: random programs (eight of ten on the CPU, one as CUDA text on the host, one through PoCL), option sets for each operator
PROGRAMS ?= 20000
LIBRARY  ?= 20
# processes killed while they write to a cache, and while they tune
KILLS    ?= 200
# seconds of threads that share defs under AddressSanitizer, and as many under ThreadSanitizer
THREADS  ?= 60
# random TorchScript programs, partitioned
SCRIPTS  ?= 10000
# for `make mutants`
MUTANTS  ?= build/mutants
# for `make gpu`: the benchmark's options, where results go, processes that share the GPU, seconds for one call, options of tests/cuda_ring.py
GPU      ?= --quick
OUT      ?= build/gpu
GPU_JOBS ?= 2
SECONDS  ?=
RING     ?=

# pip must neither choose a torch of its own nor check for news of itself
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# each process would otherwise compile the sources again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test lint types pytest matrix soak bench gpu mutants docs golden clean

quickstart: $(STAMP)
	$(BIN)/python examples/quickstart.py

test: lint types pytest

lint: $(STAMP)
	$(BIN)/ruff check setup.py tcjit tests examples benchmarks

types: $(STAMP)
	MYPY_NUM_WORKERS=$(JOBS) $(BIN)/mypy --strict -p tcjit

# the paths are explicit: through the root links a bare run would collect modules twice
pytest: $(STAMP)
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(PYTEST) tcjit tests

# all of those tests of which the suite runs a sample
matrix: $(STAMP)
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(PYTEST) --whole -m "sample or whole" tests

soak: $(STAMP)
	$(BIN)/python tests/soak.py --programs $(PROGRAMS) --jobs $(JOBS); programs=$$?; \
	  $(BIN)/python tests/soak.py --kills $(KILLS); kills=$$?; \
	  $(BIN)/python tests/soak.py --threads $(THREADS); threads=$$?; \
	  $(BIN)/python tests/byoc/fuzz_scripts.py --count $(SCRIPTS); scripts=$$?; \
	  $(BIN)/python tests/soak.py --library $(LIBRARY) --jobs $(JOBS) && exit $$((programs | kills | threads | scripts))

# faults of one operator each in the compiler's code, and whether a test sees them; results in MUTANTS, where the next call goes on
mutants: $(STAMP)
	$(BIN)/python tests/mutation_testing.py map --work $(MUTANTS) --jobs $(JOBS)
	$(BIN)/python tests/mutation_testing.py run --work $(MUTANTS) --jobs $(JOBS)

golden: $(STAMP)
	$(BIN)/pytest -q --update-golden tests

docs: $(STAMP)
	$(BIN)/python -c "import mkdocs" 2>/dev/null || $(BIN)/pip install --quiet -e ".[docs]"
	$(BIN)/mkdocs build --strict --site-dir build/docs

bench: $(VENV)/.peers
	$(BIN)/python benchmarks/peers/bench.py quick

# On a machine with an NVIDIA GPU: its tests file by file, then, whatever they say, the benchmark, whose options are in GPU. What has ended
# stands in OUT and is not run again; `SECONDS=480` stops in time, and the next call goes on. With `PYTHON=python3 VENV=` that Python runs
# all and nothing is installed; benchmarks/gpu/README.md tells how to bring packages where there is no network.
gpu: $(if $(VENV),$(STAMP))
	$(RUN) tests/cuda_ring.py --out $(OUT) --jobs $(GPU_JOBS) $(if $(SECONDS),--seconds $(SECONDS)) $(RING) -- $(GPU)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.10 to 3.13, or say make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || \
	  { echo "tcjit needs Python 3.10 to 3.13, found: $$($(PYTHON) --version); say make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A torch that imports is kept; otherwise one exact version is asked for by name, so that nothing below chooses another.
$(STAMP): setup.py pyproject.toml | $(BIN)/pip
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet -e ".[dev]"
	case "$$(uname -sm)" in "Linux x86_64") $(BIN)/pip install --quiet --no-deps --target $(NVRTC_130) nvidia-cuda-nvrtc==13.0.88;; esac
	@touch $@

$(VENV)/.peers: $(STAMP)
	$(BIN)/pip install --quiet numba opt_einsum
	$(BIN)/pip install --quiet jax || echo "jax does not install here: its column stays empty"
	@touch $@
