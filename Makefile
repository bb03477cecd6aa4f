# Every target sets up .venv by itself; nothing is done twice.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
EXTRAS := dev,docs,lab,onnx,flower,nvflare,web

.PHONY: setup demo demo-flower demo-nvflare test test-fast test-servers test-flower coverage lint format docs dist bench \
	arena clean

setup: $(READY)

# torch goes first and by itself, so that no other package's requirement chooses another build of it.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -e '.[$(EXTRAS)]'
	touch $@

demo: $(READY)
	$(BIN)/tramark demo --out demo

demo-flower: $(READY)
	$(BIN)/python examples/flower/demo.py --out runs/demo-flower

demo-nvflare: $(READY)
	$(BIN)/python examples/flare/demo_nvflare.py --out runs/demo-nvflare

# A process a core, each with one thread: two threads in each of them would only be in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

test: $(READY)
	$(PYTEST)

test-fast: $(READY)
	$(PYTEST) -m 'not slow'

# A leaked model behind every server of docs/reference/suspects.md, in environments that are made once and kept in SERVERS (some
# GB). What came of it is written to docs/reference/tried.json and the table.
SERVERS ?= .servers

test-servers: $(READY)
	TRAMARK_HEAVY=1 TRAMARK_RECORD=1 TRAMARK_SERVERS=$(SERVERS) OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -rs tests/suspects/served

# Flower's tests with another release of it, in an environment of its own: make test-flower FLWR=1.40.0
FLWR ?= 1.40.0
OTHER := .venv-flower-$(FLWR)

test-flower:
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/pip install -q --upgrade pip
	$(OTHER)/bin/pip install -q torch==2.13.0
	$(OTHER)/bin/pip install -q -e '.[lab]' 'flwr[simulation]==$(FLWR)' 'pytest>=8' 'hypothesis>=6.100'
	OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest tests/integrations/test_flower.py tests/integrations/test_flower_deployment.py

# How much of the source the tests run: a measure, not a gate.
coverage: $(READY)
	$(PYTEST) --cov=tramark --cov-report=term:skip-covered --cov-report=html

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in docs/_build/html. It needs no network; a warning is an error, and so is a link that leads nowhere.
docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

dist: $(READY)
	$(BIN)/python -m build

# Every method on one budget, and then every attack on each of them. It takes hours, and goes on where it was stopped.
ARENA := --samples-per-client 1000 --local-epochs 2 --rounds 24 --warmup 12
THIEVES ?= 1

arena: $(READY)
	for method in $$($(BIN)/python -c 'from tramark.lab.methods import METHODS; print(*METHODS)'); do \
		if [ -e runs/arena/$$method/summary.json ]; then continue; fi; \
		$(BIN)/tramark run --method $$method $(ARENA) --out runs/arena/$$method \
			$$(if [ -e runs/arena/$$method/config.json ]; then echo --resume; fi) || exit 1; \
	done
	$(BIN)/tramark attack runs/arena/*/ --all --clients $(THIEVES) --samples 1000 --table runs/arena/matrix.md --out runs/arena/matrix.png

bench: $(READY)
	$(BIN)/python benchmarks/round.py --presets default

clean:
	rm -rf $(VENV) .venv-flower-* .servers demo runs/demo-flower runs/demo-nvflare .pytest_cache .mypy_cache .ruff_cache htmlcov .coverage dist docs/_build
