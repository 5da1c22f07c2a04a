# Every target sets up what it needs, in .venv, from Python 3.11+ and make alone.
#
#   make demo        train and measure the demo; TASK=segment, obb or keypoints for another task
#   make test        run the tests that need no GPU; ARGS="-k name" picks some
#   make gpu         run the tests that need an NVIDIA GPU
#   make lint        ruff and mypy
#   make test-floor  run the tests with the oldest versions that pyproject.toml allows, in a second environment
#   make docs        rewrite the pages that are made from the code
#
# TORCH names the torch to install (TORCH=torch==2.13.0); default: the newest, and the oldest allowed for test-floor.
# PYTHON names the interpreter that makes the environment, JOBS the number of processes that tests run in.

PYTHON ?= python3
VENV ?= .venv
TORCH ?=
TASK ?=
ARGS ?=
JOBS ?= 2

BIN := $(VENV)/bin
FLOOR := $(VENV)-floor
MAKES := pyproject.toml setup.py src/lucid_accel/pyproject.toml

.PHONY: demo test gpu lint test-floor docs clean FORCE
.DELETE_ON_ERROR:

# A step with masks or key points takes longer on a CPU: with fewer epochs it is minutes, too.
EPOCHS_segment := 7
EPOCHS_keypoints := 9

demo: $(VENV)/ready
	$(BIN)/lucid fit --config demo $(if $(TASK),--config task-$(TASK)) \
	  $(if $(EPOCHS_$(TASK)),--trainer.max_epochs $(EPOCHS_$(TASK))) $(ARGS)

# One thread in each process: the processes have the cores.
test: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

gpu: $(VENV)/ready
	$(BIN)/python -m pytest -m gpu $(ARGS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/ready
	$(BIN)/python docs/build.py

test-floor: $(FLOOR)/ready
	$(FLOOR)/bin/python -m pytest -n $(JOBS) $(ARGS)

clean:
	rm -rf $(VENV) $(FLOOR) build dist src/*.egg-info src/lucid_accel/build src/lucid_accel/*.egg-info *.egg-info

# torch comes first and alone, so that nothing else decides which one is taken.
$(VENV)/ready: $(MAKES) $(VENV)/torch
	$(BIN)/python -m pip install $(or $(TORCH),torch)
	$(BIN)/python -m pip install -e ".[test]" -e src/lucid_accel
	touch $@

$(FLOOR)/ready: $(MAKES) $(FLOOR)/torch
	$(FLOOR)/bin/python -m pip install $(or $(TORCH),torch==2.9.0)
	$(FLOOR)/bin/python tests/packaging/floor.py pyproject.toml > $(FLOOR)/floor.txt
	$(FLOOR)/bin/python -m pip install -r $(FLOOR)/floor.txt -e ".[test]" -e src/lucid_accel
	touch $@

# Holds the name of the torch that was asked for, and changes only when that does.
$(VENV)/torch $(FLOOR)/torch: FORCE
	@test -x $(@D)/bin/python || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")' \
	  && $(PYTHON) -m venv $(@D); }
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

FORCE:
