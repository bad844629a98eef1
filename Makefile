# The commands of this repository: "make help" lists them. Everything that they make is under .venv and build. Commands of CI alone are in .ci.

PYTHON ?= python3
PYTHONS ?= $(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
# What compiles the package, in an environment of its own: the package's environment has what users need.
TOOLS := build/tools
TOOL := $(TOOLS)/bin
PACKAGE_BUILD := build/package
DRIVER_BUILD := build/software-driver
# The commands of the software driver, with the compilers of this Makefile.
DRIVER = $(MAKE) -C software_driver TOOLS=$(CURDIR)/$(TOOLS)
WHEEL := build/wheel
STRICT := --config-settings=cmake.define.CUDA_GCTX_WERROR=ON
# The tools of the environments come first, so that a machine without CMake and Ninja can build.
export PATH := $(CURDIR)/$(BIN):$(CURDIR)/$(TOOL):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Ninja, which builds with all cores, takes no part in the jobs of make.
unexport MAKEFLAGS
# What is compiled when it is first imported is kept for the hundreds of processes of the tests, wherever the caller keeps nothing.
unexport PYTHONDONTWRITEBYTECODE
# What checks the sources and what builds the pages have environments of their own too, so that "make --jobs=2 lint test docs" can work in all of them
# at once. The pip of the tools installs into all of them: to install one itself takes longer than most of what it installs. Nothing is compiled before it is
# imported: most modules never are. Commands that install into the package's environment take turns.
LINTERS := build/linters
PAGES := build/pages
install_into = $(TOOL)/python -m pip --python $1/bin/python install -q --no-compile
INSTALL := flock $(VENV) $(call install_into,$(VENV))

# Files alone: an import into __pycache__ changes the time of its folder.
SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE $(shell find cmake cuda_gctx -type f -not -name '*.pyc')
DRIVER_SOURCES := $(addprefix software_driver/,pyproject.toml CMakeLists.txt README.md LICENSE) \
  $(shell find software_driver/cmake software_driver/cpp software_driver/src -type f -not -name '*.pyc')
CXX_FILES = $(shell find cuda_gctx software_driver/cpp tests benchmarks -name '*.cpp' -o -name '*.hpp' -o -name '*.h')

.DELETE_ON_ERROR:
.PHONY: help environments demo develop test long lint lint-cpp lint-cython lint-python format docs wheels fuzz gpu releases clean FORCE

help:
	@sed -n 's/^\([a-z]*\):.*  ## /  \1\t/p' Makefile | expand -t 12

demo: $(VENV)/package  ## build, and show the main job end to end
	$(BIN)/cuda-gctx demo

# The next "make demo" or "make test" puts the installed package back. Both compile in the same folder, which is compiled once.
develop: $(TOOLS)/builders $(VENV)/test-requirements.txt  ## install the sources in place, compiled when they are imported
	@echo $(COMPILING)
	rm -rf $(WHEEL) && mkdir -p $(WHEEL)
	$(TOOL)/python tools/editable.py . $(WHEEL) $(PACKAGE_BUILD) CUDA_GCTX_WERROR
	$(TOOL)/python tools/editable.py software_driver $(WHEEL) $(DRIVER_BUILD) SOFTWARE_DRIVER_WERROR
	$(INSTALL) --force-reinstall --no-deps $(WHEEL)/*.whl
	$(INSTALL) $$(echo $(WHEEL)/cuda_gctx-*.whl)[cli] pip -r $(VENV)/test-requirements.txt
	ln -sf $(CURDIR)/$(TOOL)/cmake $(CURDIR)/$(TOOL)/ninja $(BIN)
	rm -f $(VENV)/package $(VENV)/software-driver

# The tests of C++ and the test files of Python run in JOBS processes. There is one process where there may be a GPU, which the tests need to
# themselves. ORDER=random runs the tests in a new random order, and ORDER=SEED repeats it.
JOBS ?= $(if $(wildcard /dev/nvidia0 /dev/dxg),1,$(shell nproc))
ORDER ?= files
PARALLEL = $(if $(filter-out 1,$(JOBS)),--numprocesses=$(JOBS) --dist=loadfile)
test: order := $(if $(filter random,$(ORDER)),$(shell date +%s),$(ORDER))
test: $(VENV)/package $(VENV)/testers $(VENV)/torch  ## build, and run every test: C++ and Python
	for folder in $(DRIVER_BUILD) $(PACKAGE_BUILD); do \
	  cmake --build $$folder --target cpp_tests && \
	  CUDA_SOFTWARE_DRIVER=$$($(BIN)/python -m cuda_software_driver path)/libcuda_software_driver.so \
	    ctest --test-dir $$folder --output-on-failure --parallel $(JOBS) || exit 1; \
	done
	$(BIN)/pytest --order=$(order) $(PARALLEL)
	$(BIN)/pytest $(PARALLEL) software_driver/tests

ORDER_SEEDS ?= 20
long: $(VENV)/package $(VENV)/testers $(VENV)/torch  ## run all cases that "make test" samples: over an hour
	$(BIN)/pytest --long
	$(BIN)/pytest --long software_driver/tests
	CUDA_GCTX_SPLIT_REQUESTS=20000 CUDA_GCTX_EXIT_RUNS=1000 CUDA_GCTX_FORKS=1000 $(BIN)/pytest tests/core/test_split_oracle.py tests/core/test_exit.py tests/core/test_fork.py
	$(BIN)/python tests/comm/simulate.py --interleavings 20000
	$(BIN)/python -m tests.trust.fault_sweep
	$(BIN)/python -m tests.trust.allocation_sweep
	$(BIN)/python -m tests.trust.silent_answers --programs 1400
	CUDA_GCTX_DRIVER=sim:h200@13.0,devices=3 $(BIN)/python -m tests.trust.races all
	$(BIN)/python tests/partitions/order_model.py --seeds $(ORDER_SEEDS)

lint: lint-cpp lint-cython lint-python  ## check C++, Cython and Python
lint-cpp lint-cython lint-python format: private export PATH := $(CURDIR)/$(LINTERS)/bin:$(PATH)

lint-cpp: $(LINTERS)/installed
	clang-format --dry-run -Werror $(CXX_FILES)

lint-cython: $(LINTERS)/installed
	cython-lint cuda_gctx benchmarks

lint-python: $(LINTERS)/installed
	ruff format --check
	ruff check
	mypy

format: $(LINTERS)/installed  ## correct the findings of lint that a tool can correct
	clang-format -i $(CXX_FILES)
	ruff check --fix-only
	ruff format

# The reference comes from the built package.
docs: version = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' cuda_gctx/__init__.py)
docs: $(VENV)/package $(PAGES)/installed  ## build the documentation into build/docs, in a folder of its version
	$(call install_into,$(PAGES)) --force-reinstall --no-deps $(WHEEL)/cuda_gctx-*.whl build/driver-wheel/*.whl
	rm -rf build/docs build/doctrees
	$(PAGES)/bin/sphinx-build -q --fail-on-warning --keep-going -b html -d build/doctrees docs build/docs/$(version)
	rm -f build/docs/$(version)/.buildinfo
	$(PAGES)/bin/python tools/site.py build/docs
	$(PAGES)/bin/python tools/links.py build/docs
	-$(PAGES)/bin/python tools/english.py

# The archives have the date of the last commit. The wheels come from the source distributions, and auditwheel names the oldest glibc that they run on.
DIST ?= dist
wheels: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
wheels: $(VENV)/wheel-tools  ## build the distributions into dist, for each interpreter in PYTHONS
	rm -rf $(DIST) build/wheels
	$(BIN)/python -m build --sdist --outdir $(DIST)
	$(BIN)/python -m build --sdist --outdir $(DIST) software_driver
	set -e; for python in $(PYTHONS); do $(TOOL)/python -m pip --python $$(command -v $$python) wheel -q --no-deps --wheel-dir build/wheels $(DIST)/cuda_gctx-*.tar.gz; done
	$(TOOL)/python -m pip wheel -q --no-deps --wheel-dir build/wheels $(DIST)/cuda_software_driver-*.tar.gz
	set -e; for wheel in build/wheels/*.whl; do $(BIN)/auditwheel repair --exclude libcuda-real.so.1 --wheel-dir $(DIST) $$wheel; done

FUZZ_SECONDS ?= 60
FUZZ_SEED ?= $(shell date +%s)
fuzz: $(TOOLS)/builders  ## call the software driver at random for FUZZ_SECONDS, with sanitizers
	$(DRIVER) fuzz FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_SEED=$(FUZZ_SEED)

# STEPS names steps of the script, separated by commas.
gpu:  ## run the tests and benchmarks that need a GPU, into build/gpu
	tests/run_on_gpu.sh $(if $(STEPS),--only $(STEPS)) build/gpu

# Downloads 500 MB.
releases:  ## compare the newest releases of other projects with the drop-ins
	$(PYTHON) tests/outside/releases.py

clean:  ## remove .venv and build
	rm -rf $(VENV) build
	$(MAKE) -C software_driver clean

# The environments of "make test", "make lint" and "make docs".
environments: $(VENV)/package $(VENV)/testers $(VENV)/torch $(LINTERS)/installed $(PAGES)/installed

# Checks the machine before anything is installed, and removes environments that another interpreter made.
build/interpreter: FORCE
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) here: install Python 3.10 or newer, or set PYTHON"; exit 1; }
	@MAKE_VERSION=$(MAKE_VERSION) $(PYTHON) tools/preflight.py $@

$(VENV)/made: build/interpreter
	$(PYTHON) -m venv --without-pip $(VENV)
	touch $@

$(TOOLS)/pip: build/interpreter
	$(PYTHON) -m venv $(TOOLS)
	$(TOOL)/python -m pip install -q 'pip>=23.1'
	touch $@

# The build requirements are installed once, so that a second build compiles only what has changed.
$(TOOLS)/builders: pyproject.toml $(TOOLS)/pip
	$(TOOL)/python tools/requirements.py of build > $(TOOLS)/requirements.txt
	$(call install_into,$(TOOLS)) -r $(TOOLS)/requirements.txt 'cmake>=3.20' ninja
	touch $@

COMPILING := "Compiling the package: about 3 minutes of one core the first time, later only what has changed."
$(VENV)/package: $(TOOLS)/builders $(SOURCES) $(VENV)/made | $(VENV)/software-driver
	@echo $(COMPILING)
	rm -rf $(WHEEL)
	$(TOOL)/python -m pip wheel -q --no-deps --no-build-isolation --config-settings=build-dir=$(PACKAGE_BUILD) $(STRICT) --wheel-dir $(WHEEL) .
	$(INSTALL) --force-reinstall --no-deps $(WHEEL)/cuda_gctx-*.whl
	$(INSTALL) $$(echo $(WHEEL)/cuda_gctx-*.whl)[cli] pip
	touch $@

# The package and its tests run on the software driver where there is no GPU.
$(VENV)/software-driver: $(TOOLS)/builders $(DRIVER_SOURCES) $(VENV)/made
	rm -rf build/driver-wheel
	$(TOOL)/python -m pip wheel -q --no-deps --no-build-isolation --config-settings=build-dir=$(CURDIR)/$(DRIVER_BUILD) \
	  --config-settings=cmake.define.SOFTWARE_DRIVER_WERROR=ON --wheel-dir build/driver-wheel ./software_driver
	$(INSTALL) --force-reinstall --no-deps build/driver-wheel/*.whl
	touch $@

# What the tests need besides: the demo does not install it.
$(VENV)/test-requirements.txt: pyproject.toml tools/requirements.py $(VENV)/made $(TOOLS)/pip
	$(BIN)/python tools/requirements.py of test comm > $@

$(VENV)/testers: $(VENV)/test-requirements.txt
	$(INSTALL) -r $<
	touch $@

$(VENV)/wheel-tools: pyproject.toml $(VENV)/made $(TOOLS)/pip
	$(BIN)/python tools/requirements.py of wheels > $(VENV)/wheels-requirements.txt
	$(INSTALL) -r $(VENV)/wheels-requirements.txt
	touch $@

# The CPU build of torch, for the tests of ranks. Its local version keeps pip from a build for CUDA, which is gigabytes;
# where no such build can be had for this Python, those tests are skipped and say so.
TORCH_CPU ?= torch==2.13.0+cpu
$(VENV)/torch: $(VENV)/made | $(VENV)/testers
	if $(INSTALL) '$(TORCH_CPU)'; \
	  then $(BIN)/python -c 'import torch._dynamo, torch.distributed'; \
	  else echo "$(TORCH_CPU) cannot be had: tests of ranks will be skipped"; fi
	touch $@

$(LINTERS)/installed: pyproject.toml $(TOOLS)/pip
	$(PYTHON) -m venv --without-pip $(LINTERS)
	$(LINTERS)/bin/python tools/requirements.py of lint > $(LINTERS)/requirements.txt
	$(call install_into,$(LINTERS)) -r $(LINTERS)/requirements.txt
	touch $@

$(PAGES)/installed: pyproject.toml $(TOOLS)/pip
	$(PYTHON) -m venv --without-pip $(PAGES)
	$(PAGES)/bin/python tools/requirements.py of docs cli > $(PAGES)/requirements.txt
	$(call install_into,$(PAGES)) -r $(PAGES)/requirements.txt
	touch $@
