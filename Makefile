# SPDX-License-Identifier: MIT
# `make demo` and `make test` do all the set-up they need: system packages, .venv, torch, the build. Stamps keep a
# second run from doing it again. PYTHON names the interpreter that .venv is made from, JOBS the compile jobs.
PYTHON ?= python3
JOBS ?= 2
FUZZ_SECONDS ?= 20
# Where a GPU is, its torch is not the one of .venv: the interpreter that has it, and the folder of its build.
GPU_PYTHON ?= python3
GPU_BUILD := build-gpu
TORCH := torch==2.13.0

VENV := .venv
PY := $(VENV)/bin/python
CXX_FILES = $(shell find include src tests examples benchmarks -name '*.[ch]pp' 2>/dev/null)
PYTHON_FILES := python tests benchmarks examples tools
say = @printf '== %s\n'

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

.PHONY: build build-gpu build-without-gpu run-gpu-tests run-gpu-bench demo test test-gpu bench bench-gpu bench-mpi \
  kernels lint format cpp-test sanitize model fuzz-test python-test slow-test slow-python-test consumer-test \
  sources-test wheel-test clean help
.DEFAULT_GOAL := build

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1|/' | awk -F'|' '{printf "%-17s %s\n", $$1, $$2}'

# --- set-up -----------------------------------------------------------------------------------------------------------
.stamps/system-%: tools/system_packages.sh
	$(say) "system packages ($*)"
	@PYTHON=$(PYTHON) tools/system_packages.sh $*
	@mkdir -p .stamps && touch $@

# These stamps lie in what they vouch for, and vanish with it.
$(VENV)/.made: | .stamps/system-build
	$(say) "virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.made
	$(say) "$(TORCH)"
	@$(PY) -m pip install --disable-pip-version-check "$(TORCH)"
	@touch $@

# The path file makes `import sheaf` work on the sources; the library is then looked up in build/.
$(VENV)/.ready: requirements-dev.txt $(VENV)/.torch
	$(say) "development tools"
	@$(PY) -m pip install --disable-pip-version-check -r requirements-dev.txt
	@echo "$(CURDIR)/python" > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sheaf-sources.pth"
	@touch $@

CONFIGURE = @cmake --preset release -DPython_EXECUTABLE=$(CURDIR)/$(PY)

build/.configured: $(VENV)/.ready CMakePresets.json
	$(say) "configure"
	$(CONFIGURE) -DSHEAF_TESTS=OFF
	@touch $@

build/.configured-tests: build/.configured | .stamps/system-test
	$(say) "configure the tests"
	$(CONFIGURE) -DSHEAF_TESTS=ON
	@touch $@

# --- what one does with it --------------------------------------------------------------------------------------------
build: build/.configured ## the library; then `.venv/bin/python -c "import sheaf"` works
	$(say) "build the library"
	@cmake --build build --target sheaf

demo: build ## the main job: four processes train on ragged batches
	$(say) "demo"
	@$(PY) examples/contrastive.py

bench: build ## Sheaf beside the padded way and others, in tables and in out/bench.json
	$(say) "benchmarks"
	@cmake --build build --target sheaf_noop
	@$(PY) -m benchmarks --json out/bench.json

bench-mpi: $(VENV)/.ready | .stamps/system-mpi ## the shared-memory engine beside Open MPI and MPICH, without torch
	$(say) "benchmarks beside MPI"
	@$(PY) -m benchmarks.mpi --json out/mpi.json

test: cpp-test fuzz-test consumer-test python-test ## every test but the slow ones; slow-test, sanitize and model check more
	$(say) "all tests passed"

cpp-test: build build/.configured-tests ## C++ tests
	$(say) "build the C++ tests"
	@cmake --build build
	$(say) "C++ tests"
	@ctest --test-dir build --verbose --no-tests=error -j 4

sanitize: | .stamps/system-build .stamps/system-test ## the torch-free C++ tests under the address, undefined and thread sanitizers
	$(say) "address and undefined-behaviour sanitizers"
	@cmake --preset asan > /dev/null
	@cmake --build --preset asan --target core_tests
	@ctest --preset asan --verbose --no-tests=error -j $(JOBS)
	$(say) "thread sanitizer"
	@cmake --preset tsan > /dev/null
	@cmake --build --preset tsan --target core_tests
	@ctest --preset tsan --verbose --no-tests=error -j $(JOBS)

model: | .stamps/system-test ## the shared-memory protocol in every order of events, by SPIN
	$(say) "model of the shared-memory protocol"
	@tests/model/run.sh

# Says what is missing, and is empty where nothing is. Asked by recipes alone: it imports torch.
NO_GPU = $$($(GPU_PYTHON) -c 'import torch; print("" if torch.cuda.is_available() else "torch sees no GPU")' 2> /dev/null \
  || echo "$(GPU_PYTHON) has no torch")
# What compute-sanitizer runs: racecheck follows every access, so it sees fewer numbers of ranks.
MEMCHECKED := -Huge*
RACECHECKED := Place.*:cuda_sum.*:Place/Ranks.*/1:Place/Ranks.*/3:Place/Ranks.*/65

SANITIZED = tools/sanitize_kernels.sh $(GPU_BUILD)/tests/cuda_tests

build-gpu:
	$(say) "build for CUDA"
	@cmake -S . -B $(GPU_BUILD) -DSHEAF_CUDA=ON -DSHEAF_TESTS=ON -DSHEAF_WERROR=ON -DCMAKE_CUDA_ARCHITECTURES=native \
	  -DPython_EXECUTABLE=$$(command -v $(GPU_PYTHON)) > /dev/null
	@cmake --build $(GPU_BUILD) --target sheaf cuda_tests place_kernels cpp_cases

test-gpu: ## CUDA tests: kernels, also under compute-sanitizer, several ranks on one GPU, a build without CUDA; GPU_PYTHON has torch and pytest
	@missing="$(NO_GPU)"; if [ -n "$$missing" ]; then echo "== GPU tests skipped: $$missing"; else $(MAKE) run-gpu-tests; fi

# The same machine, where torch has CUDA: the library is to have no trace of it.
build-without-gpu:
	$(say) "build without CUDA"
	@cmake -S . -B $(GPU_BUILD)/without -DSHEAF_CUDA=OFF -DSHEAF_TESTS=OFF -DSHEAF_WERROR=ON \
	  -DPython_EXECUTABLE=$$(command -v $(GPU_PYTHON)) > /dev/null
	@cmake --build $(GPU_BUILD)/without --target sheaf
	@$(GPU_PYTHON) tools/check_no_cuda.py $(GPU_BUILD)/without/libsheaf.so

run-gpu-tests: build-gpu build-without-gpu
	$(say) "kernels"
	@$(GPU_BUILD)/tests/cuda_tests --gtest_brief=1
	$(say) "ranks on one GPU"
	@SHEAF_LIBRARY=$(CURDIR)/$(GPU_BUILD)/libsheaf.so PYTHONPATH=$(CURDIR)/python timeout 1800 \
	  $(GPU_PYTHON) -m pytest tests/python/test_gpu*.py
	$(say) "kernels under compute-sanitizer"
	@$(SANITIZED) memcheck '$(MEMCHECKED)'
	@$(SANITIZED) racecheck '$(RACECHECKED)'

bench-gpu: ## CUDA: placement beside one copy, and whole gathers beside the padded way, in docs/benchmarks.md
	@missing="$(NO_GPU)"; if [ -n "$$missing" ]; then echo "== GPU benchmarks skipped: $$missing"; else $(MAKE) run-gpu-bench; fi

run-gpu-bench: build-gpu
	$(say) "GPU benchmarks"
	@SHEAF_LIBRARY=$(CURDIR)/$(GPU_BUILD)/libsheaf.so PYTHONPATH=$(CURDIR)/python \
	  $(GPU_PYTHON) -m benchmarks.gpu --kernels $(GPU_BUILD)/benchmarks/libplace_kernels.so --json out/bench-gpu.json \
	  --write-docs

STRICT_NVCC := -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror,-Wno-missing-field-initializers

# The headers of a torch without CUDA lack one that its own build for CUDA generates.
kernels: $(VENV)/.ready | .stamps/system-test ## compiles the CUDA kernels, their tests and what calls them, where nvcc is there; runs nothing
	$(say) "CUDA kernels"
	@mkdir -p build-kernels/c10/cuda/impl && : > build-kernels/c10/cuda/impl/cuda_cmake_macros.h
	@if command -v nvcc > /dev/null; then \
	  headers=$$(echo $(VENV)/lib/python3*/site-packages/torch/include); \
	  for file in $$(find src tests benchmarks -name '*.cu') $$(find src/cuda -name '*.cpp'); do \
	    echo $$file; nvcc -std=c++20 -arch=sm_90 --expt-relaxed-constexpr $(STRICT_NVCC) -Iinclude -Isrc -Ibuild-kernels \
	    -isystem $$headers -isystem $$headers/torch/csrc/api/include -c $$file -o build-kernels/out.o || exit 1; \
	  done; else echo "skipped: no nvcc"; fi

fuzz-test: $(VENV)/.ready | .stamps/system-test ## random bytes to the header decoder, FUZZ_SECONDS long
	$(say) "fuzz the header decoder, $(FUZZ_SECONDS) s"
	@cmake --preset fuzz > /dev/null
	@cmake --build --preset fuzz
	@mkdir -p build-fuzz/corpus
	@cd build-fuzz && ./tests/fuzz_header -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 -verbosity=1 corpus 2>&1 \
	  | tee fuzz.log | grep -E 'DONE|ERROR|SUMMARY|number_of_executed_units|runtime error'; \
	  grep -q '^Done' fuzz.log

python-test: build build/.configured-tests ## Python tests but the slow ones
	$(say) "build what the Python tests load"
	@cmake --build build --target sheaf_noop cpp_cases from_env
	$(say) "Python tests"
	@timeout 1800 $(PY) -m pytest -m "not slow" --durations=15

slow-python-test: build build/.configured-tests ## Python tests that kill, stop, stress and compile for minutes
	$(say) "slow Python tests"
	@cmake --build build
	@timeout 1800 $(PY) -m pytest -m slow --durations=15

# Packages are compiled and the model is gone through where the tests leave a core idle; they use nothing of build/.
slow-test: build .stamps/system-test ## the slow Python tests, with sources-test, wheel-test and model beside them
	@nice -n 19 $(MAKE) sources-test wheel-test model > build/beside.log 2>&1 & beside=$$!; trap "kill $$beside" INT TERM; \
	  $(MAKE) slow-python-test; python=$$?; \
	  wait $$beside; beside=$$?; cat build/beside.log; exit $$((python || beside))

consumer-test: build ## a program against the installed package
	$(say) "a consumer of the CMake package"
	@tests/consumer/run.sh $(CURDIR)/$(PY) installed

sources-test: $(VENV)/.ready ## a program with Sheaf as a sub-directory
	$(say) "a consumer of the sources"
	@tests/consumer/run.sh $(CURDIR)/$(PY) subdirectory

wheel-test: $(VENV)/.ready ## the wheel, in an environment of its own, and on another torch
	$(say) "wheel"
	@$(PY) tools/wheel_test.py

lint: $(VENV)/.ready ## formats, lints, types, and paths named in documents
	$(say) "clang-format"
	@$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)
	$(say) "ruff"
	@$(VENV)/bin/ruff check $(wildcard $(PYTHON_FILES))
	@$(VENV)/bin/ruff format --check $(wildcard $(PYTHON_FILES))
	$(say) "mypy --strict"
	@$(VENV)/bin/mypy
	$(say) "paths in documents"
	@$(PY) tools/check_doc_paths.py

format: $(VENV)/.ready ## put C++ and Python into form
	@$(VENV)/bin/clang-format -i $(CXX_FILES)
	@$(VENV)/bin/ruff check --fix $(wildcard $(PYTHON_FILES))
	@$(VENV)/bin/ruff format $(wildcard $(PYTHON_FILES))

clean: ## all builds; .venv stays
	@rm -rf build build-* dist
