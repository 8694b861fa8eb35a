# Two commands: `make demo` shows the whole system on real input, `make test` passes the tests.
# Both need make, Python >= 3.11 and python3-venv; everything else goes into .venv.

PYTHON ?= python3
VENV   ?= .venv
# The API's port in `make demo`.
PORT   ?= 8080
# EXIT=1: `make demo` ends by itself, with status 1 when an answer was wrong.
EXIT   ?=
# How many processes share the tests; each has Redis servers of its own. Two more than two cores, as
# a third of what the tests take is waiting.
TEST_PROCESSES ?= 4
# For which Python `make wheelhouse` gathers: that of the GPU host.
GPU_PYTHON ?= 3.12
# Where `make torchserve` installs the real TorchServe, for tests/extensions/torchserve/compat and benchmarks/torchserve.
TORCHSERVE ?= .venv-torchserve
# Where `make clients` installs published clients: of OpenAI's API, and of the inference protocols.
CLIENTS ?= .venv-clients
PROTOCOL_CLIENTS ?= .venv-protocol-clients
CLIENT_FILES := tests/extensions/openai/integration/clients
PROTOCOL_CLIENT_FILES := tests/extensions/inference_protocols/integration/clients
# Where npm installs what checks the console: its types, its style, and axe.
CONSOLE ?= .venv-console
CONSOLE_CHECKS := tests/extensions/console/npm
# More arguments for pytest, such as ARGS="-k claim -x".
ARGS   ?=
# A folder of the product: `make test ROOM=workers/batching` runs its tests and those of what imports it.
ROOM   ?=

# `make chaos`: how many jobs, under how many kills; SEED repeats a schedule, FLAVOUR is the Redis
# (valkey9, redis7, redis62), FSYNC its appendfsync (always, everysec).
JOBS    ?= 20000
KILLS   ?= 60
SEED    ?=
FLAVOUR ?= valkey9
FSYNC   ?= always

# Where torch comes from when no GPU is seen: PyPI's wheel for Linux brings 3 GB of CUDA libraries.
# Not used where nvidia-smi sees a GPU, where pip has an index or a wheel folder besides PyPI
# (pip.conf or PIP_*), or where it cannot be reached. `make TORCH_INDEX= ...` never uses it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

BIN  := $(VENV)/bin
PY   := $(BIN)/python
CODE := headrace api workers handlers extensions tests benchmarks examples

DEV_STAMP  := $(VENV)/.installed-dev
DEMO_STAMP := $(VENV)/.installed-demo
TS_STAMP   := $(TORCHSERVE)/.installed
# Whoever has the development environment needs no second installation for the demo.
INSTALLED  = $(if $(wildcard $(DEV_STAMP)),$(DEV_STAMP),$(DEMO_STAMP))

# The .proto files, and what protoc writes of them. Those of Google are in packages.
PROTOC = $(PY) -m grpc_tools.protoc --include_imports -I $(1) -I $$($(PY) -c "import google.rpc; print(next(iter(google.rpc.__path__))[:-11])") --descriptor_set_out=$(1)/$(2).binpb

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup fmt lint types contracts test test-slow test-all test-containers check chaos demo docs bench openapi manifests protos kube-tools torchserve clients ray wheelhouse clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) \
		| awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(DEV_STAMP)  ## Create .venv with everything that development needs

fmt: $(DEV_STAMP) $(CONSOLE)/.installed  ## Format the code
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)
	@if [ -d $(CONSOLE)/node_modules ]; then \
		$(CONSOLE)/node_modules/.bin/biome format --write --config-path=$(CONSOLE_CHECKS) extensions/console/static; fi

lint: $(DEV_STAMP) $(CONSOLE)/.installed  ## Check format and style
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	@if [ -d $(CONSOLE)/node_modules ]; then \
		$(CONSOLE)/node_modules/.bin/biome check --config-path=$(CONSOLE_CHECKS) --error-on-warnings extensions/console/static && \
		$(CONSOLE)/node_modules/.bin/tsc -p $(CONSOLE_CHECKS); \
		else echo "make: there is no npm, so the console's scripts are not checked" >&2; test -z "$$CI"; fi

types: $(DEV_STAMP)  ## Check types (mypy --strict)
	$(BIN)/mypy

contracts: $(DEV_STAMP)  ## Check who imports whom
	$(BIN)/lint-imports

# Without the last option, a run whose test process crashes waits for ever.
PYTEST = $(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

test: $(DEV_STAMP)  ## Run the tests, without the slow ones of tests/conftest.py (ROOM=folder)
	$(PYTEST) -m "not slow" $(if $(ROOM),$$($(PY) -m tests.room $(ROOM))) $(ARGS)

test-slow: $(DEV_STAMP)  ## Run the slow tests alone (whole systems, browsers, kills)
	$(PYTEST) -m slow $(ARGS)

test-containers: $(DEV_STAMP)  ## Run the tests on a container engine: images, Compose, pods (DOCKER_HOST)
	$(PY) -m pytest tests/containers $(ARGS)

test-all: test test-slow  ## Run all tests

check: lint types contracts test  ## lint, types, contracts and test

chaos: $(DEV_STAMP)  ## Run 20,000 jobs while everything is killed at random (SEED, FLAVOUR, FSYNC, JOBS, KILLS)
	@$(PY) -m tests.chaos --jobs $(JOBS) --kills $(KILLS) --flavour $(FLAVOUR) --fsync $(FSYNC) $(if $(SEED),--seed $(SEED))

demo: $(INSTALLED)  ## Run the whole system, classify images, ask a language model (PORT=8080, EXIT=1)
	@$(PY) examples/demo.py --port $(PORT) $(if $(EXIT),--exit)

openapi: $(DEV_STAMP)  ## Record the description of the API, after a change of it
	@$(PY) -m api.openapi docs/openapi.json

manifests: $(DEV_STAMP)  ## Write deploy/kubernetes from the Helm chart, after a change of it
	@$(PY) -m tests.harness.deploy.helm manifests

kube-tools: $(DEV_STAMP)  ## Bring helm, kubectl and checkov for the tests of the chart, where there are none
	@$(PY) -m tests.harness.deploy.helm

protos: $(DEV_STAMP)  ## Write the descriptors of the .proto files, after a change of them
	$(call PROTOC,extensions/inference_protocols/grpc/protos,inference) grpc_service.proto tensorflow_serving.proto
	$(call PROTOC,extensions/torchserve/grpc/protos,torchserve) inference.proto management.proto

docs: $(DEV_STAMP)  ## Build the documentation into site/; a broken link or anchor fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html; to read it with search: $(PY) -m http.server -d site"

bench: $(DEV_STAMP)  ## Measure; the table is in docs/performance.md
	$(PY) -m benchmarks $(ARGS)

torchserve: $(TS_STAMP)  ## Install the real TorchServe for tests/extensions/torchserve/compat (needs Java 17)

clients: $(CLIENTS)/.installed $(PROTOCOL_CLIENTS)/.installed  ## Install published clients of all interfaces for their tests

ray: $(DEV_STAMP)  ## Install Ray Data into .venv for tests/extensions/ray
	@$(PY) -m pip install --disable-pip-version-check --quiet -c constraints.txt 'ray[data]'

wheelhouse: | $(PY)  ## Gather wheels for a GPU host without a network (GPU_PYTHON=3.12)
	@$(PY) deploy/wheelhouse.py --python $(GPU_PYTHON) --into wheelhouse

clean:  ## Remove what make and the tools made; .headrace, where jobs are kept, stays
	rm -rf $(VENV) $(TORCHSERVE) $(CLIENTS) $(PROTOCOL_CLIENTS) $(CONSOLE) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist site wheelhouse .gpu-venv
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: $(PYTHON) is older than Python 3.11; name another: make PYTHON=python3.12 ..." >&2; \
		exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
		echo "make: $(PYTHON) cannot create $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; \
		rm -rf $(VENV); exit 1; }

$(DEV_STAMP): pyproject.toml constraints.txt | $(PY)
	$(call install,.[dev])
	@touch $@

$(DEMO_STAMP): pyproject.toml constraints.txt | $(PY)
	$(call install,.[api$(,)worker$(,)generation$(,)embedded])
	@touch $@

# Its workers use the packages of .venv, so that torch is there once; their own come first.
$(TS_STAMP): tests/extensions/torchserve/compat/torchserve.txt $(DEV_STAMP)
	$(PYTHON) -m venv --clear $(TORCHSERVE)
	$(TORCHSERVE)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r $<
	@$(PY) -c 'import importlib.util, pathlib; \
		print(pathlib.Path(importlib.util.find_spec("torch").origin).parent.parent)' \
		> $$($(TORCHSERVE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth
	@command -v java >/dev/null || \
		echo "make: TorchServe needs Java 17, and there is no java; on Debian: apt install openjdk-17-jre-headless" >&2
	@touch $@

$(CLIENTS)/.installed: $(CLIENT_FILES)/clients.txt $(CLIENT_FILES)/node/package-lock.json
	$(PYTHON) -m venv --clear $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r $<
	@mkdir -p $(CLIENTS)/node && cp $(CLIENT_FILES)/node/package*.json $(CLIENTS)/node
	@if command -v npm >/dev/null; then npm ci --silent --prefix $(CLIENTS)/node; \
		else echo "make: there is no npm, so the clients for Node are left out" >&2; fi
	@touch $@

$(PROTOCOL_CLIENTS)/.installed: $(PROTOCOL_CLIENT_FILES)/clients.txt
	$(PYTHON) -m venv --clear $(PROTOCOL_CLIENTS)
	$(PROTOCOL_CLIENTS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r $<
	$(PROTOCOL_CLIENTS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --target $(PROTOCOL_CLIENTS)/protobuf-3 protobuf==3.20.3
	@touch $@

$(CONSOLE)/.installed: $(CONSOLE_CHECKS)/package-lock.json
	@mkdir -p $(CONSOLE) && cp $(CONSOLE_CHECKS)/package*.json $(CONSOLE)
	@if command -v npm >/dev/null; then npm ci --silent --prefix $(CONSOLE); fi
	@touch $@

, := ,
define install
	@echo "make: installing Headrace with what it needs into $(VENV), about 1 GB"
	@index=$$($(PY) deploy/torch_index.py "$(TORCH_INDEX)"); \
	echo "pip install $$index -c constraints.txt -e '$(1)'"; \
	$(PY) -m pip install --disable-pip-version-check $$index -c constraints.txt -e '$(1)'
endef
