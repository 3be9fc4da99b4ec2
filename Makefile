# make demo: the main job, start to end.  make test: lint and tests.  make test-thorough: the long tests, too.  make results: docs/results.md
# anew.  make pretrain: the network that proposes moves to searches.  Each sets everything up first.
PYTHON ?= $(firstword $(foreach p,python3.11 python3 python,$(if $(shell $(p) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo yes),$(p))))
BIN := .venv/bin
CLI := $(BIN)/python -m doppler_tf
DEMO := runs/demo

# Each of our processes would compile all of TensorFlow anew, for ten seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-thorough lint bench results pretrain setup clean

setup: .venv/installed

PIP = $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check

# Written last, so that an interrupted set-up starts anew and a finished one is not repeated. uv installs five times as fast as pip, which
# follows where uv cannot: pip alone reads pip.conf. Only what is imported is compiled, by the first import.
.venv/installed: requirements.txt constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 is needed and none was found; install it (Debian: apt install python3.11 python3-pip) or run make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "make: Python 3.11 is needed, $(PYTHON) is another version; run make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { echo "make: pip is needed for $(PYTHON); install it (Debian: apt install python3-pip)" >&2; exit 2; }
	@rm -rf .venv && $(PYTHON) -m venv --without-pip .venv
	@echo "installing the requirements into .venv (once; 3 GB on disk, a minute or more) ..."
	@$(PIP) install --quiet -c constraints.txt uv 2>.venv/pip.log && $(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.txt 2>>.venv/pip.log || $(PIP) install --quiet --no-compile --retries 2 -r requirements.txt 2>>.venv/pip.log || { echo "make: the requirements could not be installed; the network (PyPI) is needed once: check the connection and run make again (.venv/pip.log says more)" >&2; exit 2; }
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable . 2>>.venv/pip.log || { echo "make: the project could not be installed into .venv: .venv/pip.log says why" >&2; exit 2; }
	@touch $@

# As many pieces and devices as this machine has cores, up to 8.
CORES := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 2 ? 2 : n > 8 ? 8 : n)))

demo: setup
	@rm -rf $(DEMO)
	@echo "1. A Keras model, MobileNetV2, cut for $(CORES) devices"
	@$(CLI) capture examples/mobilenet_v2.py:model --batch 4 --pieces $(CORES) --out $(DEMO)/mobilenet_v2.json
	@echo "2. Its kernels and the links, measured on this machine"
	@$(CLI) calibrate $(DEMO)/mobilenet_v2.json --topology local --assignments 12 --out $(DEMO)/measured
	@echo "3. Three stages: imitate the critical path, learn in the simulator, learn from real runs"
	@$(CLI) train $(DEMO)/measured/graph.json --topology $(DEMO)/measured/topology.json --run-dir $(DEMO) --real 128
	@echo "4. The learned assignment beside TensorFlow alone and the heuristics, on this machine"
	@$(CLI) compare $(DEMO)/measured/graph.json --topology $(DEMO)/measured/topology.json --policy $(DEMO) --methods one_device,round_robin,critical_path,annealing --measure 15
	@echo "5. A run of it, checked and drawn"
	@$(CLI) run $(DEMO)/measured/graph.json --topology $(DEMO)/measured/topology.json --assignment $(DEMO)/assignments/mobilenet_v2.json --executor tf --merge --repeats 5 --trace $(DEMO)/traces/mobilenet_v2.json --gantt $(DEMO)/report/mobilenet_v2.png
	@echo "6. All of it on a page"
	@$(CLI) report $(DEMO)
	@echo "Look at it: $(DEMO)/report/index.html, $(DEMO)/traces/mobilenet_v2.json (ui.perfetto.dev), $(BIN)/tensorboard --logdir $(DEMO)/train"

test: lint
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Hundreds of faults, 20 kills, ten times as many examples of each property.
test-thorough: lint
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --thorough

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo

# make bench NAME=simulation: a table of ratios and, as its last line, one JSON object.
bench: setup
	@$(BIN)/python -m benchmarks.$(or $(NAME),simulation)

# JOBS=8, RAY=HOST:PORT: how many processes, and where (docs/sweeps.md).
SWEEP = $(if $(JOBS)$(RAY),$(if $(JOBS),--jobs $(JOBS)) $(if $(RAY),--ray $(RAY)),--jobs 2)

# docs/results.md and its pictures; interrupted, it goes on where it stopped. Remove build/results to measure everything again.
results: setup
	@$(CLI) bench benchmarks/results.toml --out build/results --page docs/results.md $(SWEEP)

# Interrupted, it goes on where it stopped.
pretrain: setup
	@$(BIN)/python -m benchmarks.pretrain $(SWEEP)

clean:
	@rm -rf .venv *.egg-info runs .pytest_cache .hypothesis .ruff_cache .import_linter_cache
