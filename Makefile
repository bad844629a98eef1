# The commands of this repository. All that they make is under .venv and build.
#   make demo     build, and show the main job end to end
#   make test     build, and run every test: C++ and Python
#   make test-long  what takes longer: every case of the tests that "make test" runs a sample of
#   make test-under-load  every test in a random order, while BUSY (12) processes want a core each
#   make order    run ORDER_SEEDS (20) random programs of pools on each card and driver, against a model of what may run at once
#   make outside  run ten public programs, reduced to their calls, on four drivers
#   make releases compare the newest releases of other projects with the drop-ins; downloads 500 MB
#   make cluster  run the examples of many processes that need torch and Ray, which come from the registry: hundreds of MB
#   make develop  install the package so that Python uses the sources, and compiles what has changed when it imports them
#   make sanitize build the C++ tests with sanitizers (addresses and undefined behaviour; threads), and run them: minutes
#   make sanitize-python  the Python tests of the core rooms, with sanitizers in the core and its modules (the same two kinds): many minutes
#   make fuzz     call the software driver at random for FUZZ_SECONDS (60), with sanitizers for addresses and undefined behaviour; work against waits for a tenth of that
#   make peers    run test suites of other projects on the software driver; CUDA_PYTHON names a checkout of NVIDIA/cuda-python
#   make lint     check C++, Cython and Python; make format writes what can be put right by itself
#   make docs     build the documentation into build/docs
#   make wheels   build the distributions into dist, for every interpreter in PYTHONS
#   make reproducible  build them twice, and fail where the bytes differ
#   make sbom     write the bill of materials of the package and what it requires
#   make clean    remove .venv and build

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

SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE $(shell find cmake cuda_gctx -not -name __pycache__ -not -name '*.pyc')
DRIVER_SOURCES := $(addprefix software_driver/,pyproject.toml CMakeLists.txt README.md LICENSE) \
  $(shell find software_driver/cmake software_driver/cpp software_driver/cuda_software_driver -not -name __pycache__ -not -name '*.pyc')
CXX_FILES = $(shell find cuda_gctx software_driver/cpp tests benchmarks -name '*.cpp' -o -name '*.hpp' -o -name '*.h')

.DELETE_ON_ERROR:
.PHONY: demo test test-long test-under-load order outside releases peers develop sanitize sanitize-python fuzz lint lint-cpp lint-cython lint-python format docs wheels reproducible sbom clean

demo: $(VENV)/package
	$(BIN)/cuda-gctx demo

# The tests of C++ and the test files of Python run in JOBS processes. There is one process where there may be a GPU, which the tests need to
# themselves. ORDER=random runs the tests in a new random order, and ORDER=SEED repeats it.
JOBS ?= $(if $(wildcard /dev/nvidia0 /dev/dxg),1,$(shell nproc))
ORDER ?= files
test: order := $(if $(filter random,$(ORDER)),$(shell date +%s),$(ORDER))
test: $(VENV)/package $(VENV)/testers $(VENV)/torch
	for folder in $(DRIVER_BUILD) $(PACKAGE_BUILD); do \
	  cmake --build $$folder --target cpp_tests && \
	  CUDA_SOFTWARE_DRIVER=$$($(BIN)/python -m cuda_software_driver path)/libcuda_software_driver.so \
	    ctest --test-dir $$folder --output-on-failure --parallel $(JOBS) || exit 1; \
	done
	$(BIN)/pytest --order=$(order) $(if $(filter-out 1,$(JOBS)),--numprocesses=$(JOBS) --dist=loadfile)

test-long: $(VENV)/package $(VENV)/testers $(VENV)/torch
	$(BIN)/pytest --long
	CUDA_GCTX_SPLIT_REQUESTS=20000 CUDA_GCTX_EXIT_RUNS=1000 CUDA_GCTX_FORKS=1000 $(BIN)/pytest tests/core/test_split_oracle.py tests/core/test_exit.py tests/core/test_fork.py
	$(BIN)/python tests/comm/simulate.py --interleavings 20000
	$(BIN)/python -m tests.trust.fault_sweep
	$(BIN)/python -m tests.trust.allocation_sweep
	$(BIN)/python -m tests.trust.state_machine
	$(BIN)/python -m tests.trust.silent_answers --programs 1400

test-under-load: $(VENV)/package $(VENV)/testers $(VENV)/torch
	tests/under_load.sh $(MAKE) test ORDER=random

ORDER_SEEDS ?= 20
order: $(VENV)/package $(VENV)/testers
	$(BIN)/python tests/partitions/order_model.py --seeds $(ORDER_SEEDS)

outside: $(VENV)/package $(VENV)/testers
	CUDA_GCTX_DRIVER=sim $(BIN)/pytest tests/outside

releases:
	$(PYTHON) tests/outside/releases.py

cluster: $(VENV)/package $(VENV)/testers $(VENV)/torch
	$(INSTALL) ray cuda-bindings
	CUDA_GCTX_DRIVER=sim $(BIN)/pytest --long tests/docs/test_cluster_examples.py

# The suites are installed from the registry, hundreds of MB, which is why they are no part of "make test".
CUDA_PYTHON ?=
peers: $(VENV)/package $(VENV)/testers
	$(BIN)/python tests/peers/run.py numba-cuda
	$(if $(CUDA_PYTHON),$(BIN)/python tests/peers/run.py cuda-core --source $(CUDA_PYTHON))
	$(if $(CUDA_PYTHON),$(BIN)/python tests/peers/run.py cuda-bindings --source $(CUDA_PYTHON))

# The next "make demo" or "make test" puts the installed package back. Both compile in the same folder, which is compiled once.
develop: $(TOOLS)/builders $(VENV)/test-requirements.txt
	@echo $(COMPILING)
	rm -rf $(WHEEL) && mkdir -p $(WHEEL)
	$(TOOL)/python tools/editable.py . $(WHEEL) $(PACKAGE_BUILD) CUDA_GCTX_WERROR
	$(TOOL)/python tools/editable.py software_driver $(WHEEL) $(DRIVER_BUILD) SOFTWARE_DRIVER_WERROR
	$(INSTALL) --force-reinstall --no-deps $(WHEEL)/*.whl
	$(INSTALL) $$(echo $(WHEEL)/cuda_gctx-*.whl)[cli] pip -r $(VENV)/test-requirements.txt
	ln -sf $(CURDIR)/$(TOOL)/cmake $(CURDIR)/$(TOOL)/ninja $(BIN)
	rm -f $(VENV)/package $(VENV)/software-driver

# One build per kind of sanitizer: they cannot be mixed. cuda.h is that of the wheel, as in the package's own build.
SANITIZERS := address,undefined thread
CUDA_INCLUDE = $(shell $(TOOL)/python tools/requirements.py cuda-include)
# $(call configure,PROJECT,FOLDER,SANITIZERS): the package or the core in a build folder of its own.
configure = cmake -G Ninja -S $1 -B $2 -DCUDA_GCTX_CUDA_INCLUDE="$(CUDA_INCLUDE)" -DCUDA_GCTX_SANITIZE=$3 -DCUDA_GCTX_WERROR=ON
sanitize: $(TOOLS)/builders
	$(DRIVER) sanitize
	set -e; for kind in $(SANITIZERS); do \
	  folder=build/sanitize-$${kind%%,*}; \
	  $(call configure,cuda_gctx/_cpp,$$folder,$$kind); \
	  cmake --build $$folder; \
	  CUDA_SOFTWARE_DRIVER=$(CURDIR)/software_driver/$$folder/lib/libcuda_software_driver.so \
	    ctest --test-dir $$folder --output-on-failure; \
	done

# The Python tests of the core rooms on a package whose C++ and Cython are built with sanitizers. Leaks are not reported:
# the interpreter itself leaves memory, and what the package leaves is in the software driver's ledger.
SANITIZED_TESTS ?= tests/core tests/partitions
sanitize-python: $(TOOLS)/builders $(VENV)/testers
	set -e; for kind in $(SANITIZERS); do \
	  folder=build/sanitize-python-$${kind%%,*}; \
	  $(call configure,.,$$folder,$$kind) -DCMAKE_CXX_FLAGS=-O1 -DPython_EXECUTABLE="$(CURDIR)/$(TOOL)/python" \
	    -DSKBUILD_SOABI="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))')"; \
	  cmake --build $$folder; \
	  rm -rf $$folder/package; \
	  cmake --install $$folder --prefix $$folder/package; \
	  cp -r cuda_gctx $$folder/package; \
	  cmake -G Ninja -S software_driver -B $$folder/driver -DSOFTWARE_DRIVER_CUDA_INCLUDE="$(CUDA_INCLUDE)" -DSOFTWARE_DRIVER_SANITIZE=$$kind; \
	  cmake --build $$folder/driver --target cuda_software_driver; \
	  cmake --install $$folder/driver --prefix $$folder/package; \
	  cp -r software_driver/cuda_software_driver $$folder/package; \
	  PYTHONPATH=$(CURDIR)/$$folder/package CUDA_GCTX_DRIVER=sim tests/sanitized.sh $$kind \
	    $(BIN)/python -P -m pytest -q -p no:cacheprovider $(SANITIZED_TESTS); \
	done

FUZZ_SECONDS ?= 60
FUZZ_SEED ?= $(shell date +%s)
fuzz: $(TOOLS)/builders
	$(DRIVER) fuzz FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_SEED=$(FUZZ_SEED)

lint: lint-cpp lint-cython lint-python
lint-cpp lint-cython lint-python format: private export PATH := $(CURDIR)/$(LINTERS)/bin:$(PATH)

lint-cpp: $(LINTERS)/installed
	clang-format --dry-run -Werror $(CXX_FILES)

lint-cython: $(LINTERS)/installed
	cython-lint cuda_gctx benchmarks

lint-python: $(LINTERS)/installed
	ruff format --check
	ruff check
	mypy

format: $(LINTERS)/installed
	clang-format -i $(CXX_FILES)
	ruff check --fix-only
	ruff format

# The reference comes from the built package.
docs: $(VENV)/package $(PAGES)/installed
	$(call install_into,$(PAGES)) --force-reinstall --no-deps $(WHEEL)/cuda_gctx-*.whl build/driver-wheel/*.whl
	rm -rf build/docs
	$(PAGES)/bin/sphinx-build -q --fail-on-warning --keep-going -b html docs build/docs
	$(PAGES)/bin/python tools/links.py build/docs

# The archives have the date of the last commit. The wheels come from the source distribution, and auditwheel names the oldest glibc that they run on.
DIST ?= dist
wheels: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
wheels: $(VENV)/wheel-tools
	rm -rf $(DIST) build/wheels
	$(BIN)/python -m build --sdist --outdir $(DIST)
	set -e; for python in $(PYTHONS); do $(TOOL)/python -m pip --python $$(command -v $$python) wheel -q --no-deps --wheel-dir build/wheels $(DIST)/cuda_gctx-*.tar.gz; done
	$(TOOL)/python -m pip wheel -q --no-deps --wheel-dir build/wheels ./software_driver
	set -e; for wheel in build/wheels/*.whl; do $(BIN)/auditwheel repair --wheel-dir $(DIST) $$wheel; done

reproducible: $(VENV)/wheel-tools
	set -e; for folder in first second; do $(MAKE) wheels DIST=build/$$folder; done
	cd build/first && sha256sum * | (cd ../second && sha256sum --check)

sbom: $(VENV)/package $(VENV)/wheel-tools
	$(BIN)/python -m venv --clear --without-pip build/sbom
	$(call install_into,build/sbom) $(WHEEL)/cuda_gctx-*.whl
	version=$$(build/sbom/bin/python -c "import importlib.metadata as m; print(m.version('cuda-gctx'))") && \
	  sed "s/^dynamic = .*/version = \"$$version\"/" pyproject.toml > build/sbom-pyproject.toml
	$(BIN)/cyclonedx-py environment --pyproject build/sbom-pyproject.toml --mc-type library --output-reproducible \
	  --output-file build/sbom.cdx.json build/sbom/bin/python

clean:
	rm -rf $(VENV) build

$(BIN)/python:
	$(PYTHON) -m venv --without-pip $(VENV)

$(TOOLS)/pip:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOL)/python -m pip install -q 'pip>=23.1'
	touch $@

# The build requirements are installed once, so that a second build compiles only what has changed.
$(TOOLS)/builders: pyproject.toml | $(TOOLS)/pip
	$(TOOL)/python tools/requirements.py of build > $(TOOLS)/requirements.txt
	$(call install_into,$(TOOLS)) -r $(TOOLS)/requirements.txt 'cmake>=3.20' ninja
	touch $@

COMPILING := "Compiling the package: about 3 minutes of one core the first time, later only what has changed."
$(VENV)/package: $(TOOLS)/builders $(SOURCES) | $(BIN)/python $(VENV)/software-driver
	@echo $(COMPILING)
	rm -rf $(WHEEL)
	$(TOOL)/python -m pip wheel -q --no-deps --no-build-isolation --config-settings=build-dir=$(PACKAGE_BUILD) $(STRICT) --wheel-dir $(WHEEL) .
	$(INSTALL) --force-reinstall --no-deps $(WHEEL)/cuda_gctx-*.whl
	$(INSTALL) $$(echo $(WHEEL)/cuda_gctx-*.whl)[cli] pip
	touch $@

# The package and its tests run on the software driver where there is no GPU.
$(VENV)/software-driver: $(TOOLS)/builders $(DRIVER_SOURCES) | $(BIN)/python
	rm -rf build/driver-wheel
	$(TOOL)/python -m pip wheel -q --no-deps --no-build-isolation --config-settings=build-dir=$(CURDIR)/$(DRIVER_BUILD) \
	  --config-settings=cmake.define.SOFTWARE_DRIVER_WERROR=ON --wheel-dir build/driver-wheel ./software_driver
	$(INSTALL) --force-reinstall --no-deps build/driver-wheel/*.whl
	touch $@

# What the tests need besides: the demo does not install it.
$(VENV)/test-requirements.txt: pyproject.toml tools/requirements.py | $(BIN)/python $(TOOLS)/pip
	$(BIN)/python tools/requirements.py of test comm > $@

$(VENV)/testers: $(VENV)/test-requirements.txt
	$(INSTALL) -r $<
	touch $@

$(VENV)/wheel-tools: pyproject.toml | $(BIN)/python $(TOOLS)/pip
	$(BIN)/python tools/requirements.py of wheels > $(VENV)/wheels-requirements.txt
	$(INSTALL) -r $(VENV)/wheels-requirements.txt
	touch $@

# The CPU build of torch, for the tests of ranks. Its local version keeps pip from a build for CUDA, which is gigabytes;
# where no such build can be had for this Python, those tests are skipped and say so.
TORCH_CPU ?= torch==2.13.0+cpu
$(VENV)/torch: | $(VENV)/testers
	if $(INSTALL) '$(TORCH_CPU)'; \
	  then $(BIN)/python -c 'import torch._dynamo, torch.distributed'; \
	  else echo "$(TORCH_CPU) cannot be had: tests of ranks will be skipped"; fi
	touch $@

$(LINTERS)/installed: pyproject.toml | $(TOOLS)/pip
	$(PYTHON) -m venv --without-pip $(LINTERS)
	$(LINTERS)/bin/python tools/requirements.py of lint > $(LINTERS)/requirements.txt
	$(call install_into,$(LINTERS)) -r $(LINTERS)/requirements.txt
	touch $@

$(PAGES)/installed: pyproject.toml | $(TOOLS)/pip
	$(PYTHON) -m venv --without-pip $(PAGES)
	$(PAGES)/bin/python tools/requirements.py of docs cli > $(PAGES)/requirements.txt
	$(call install_into,$(PAGES)) -r $(PAGES)/requirements.txt
	touch $@
