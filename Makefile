# Two commands matter: `make repro` runs the whole pipeline, `make test` the tests. Both set themselves up.
# PYTHON=/path/to/python3.11 chooses the interpreter .venv is made with.

SHELL := /bin/bash
PY := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

.DEFAULT_GOAL := help
.PHONY: harnesses warmstart world worker nightly help repro study test test-all fuzz speed venv up down status params size lock lint structure report clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

repro: venv ## reproduce everything that is stale: data, training, evaluation, rehearsal, report
	@$(PY) -m envace.params --quiet
	@$(PY) -m flows.reproduce $(ARGS)

study: ## the learning study: seeds, controls, rehearsal (sizes/study.yaml; hours; goes on where it stopped)
	@$(MAKE) --no-print-directory size NAME=study
	@$(MAKE) --no-print-directory repro ARGS="$(ARGS)"

test: venv ## the fast tests and short verl trainings, on all cores
	$(PY) -m pytest -m "not heavy" -n auto --dist loadfile $(ARGS)

test-all: venv ## everything, with the parts that start servers and whole pipelines
	$(PY) -m pytest $(ARGS)

fuzz: venv ## fuzz what reads model output, two minutes a parser (atheris, in .state/fuzz): ARGS="calls --seconds 600"
	@.venv/bin/uv pip install --quiet --no-deps --target .state/fuzz/packages -r locks/fuzz.lock
	@PYTHONPATH=.state/fuzz/packages $(PY) tests/fuzz/fuzz_run.py $(ARGS)

speed: venv ## the speed comparisons with named peers (docs/speed.md; minutes)
	$(PY) -m benchmarks $(ARGS)

venv: .venv/.ready ## make .venv when it is missing or the lock changed
.venv/.ready: locks/control.lock locks/install.sh
	@bash locks/install.sh

harnesses: venv ## build the environments of the upstream benchmark harnesses (.harness/; network once): ARGS="bfcl tau2"
	@$(PY) -m envace.bench.harness build $(ARGS)

warmstart: venv ## rebuild and measure the bundled start policy of the desk
	@OMP_WAIT_POLICY=PASSIVE $(PY) -m envace.warmstart $(ARGS)

world: venv ## write my_NAME.py, a world of your own to start from (docs/your-world.md): make world NAME=shop
	@$(PY) -m envace.worlds $(NAME)

up: venv ## start the Prefect and MLflow servers (ports: prefect.port, mlflow.port)
	@$(PY) -m flows.services up

down: venv ## stop them
	@$(PY) -m flows.services down

status: venv ## which servers run, and where
	@$(PY) -m flows.services status

worker: venv ## serve the schedule (cron prefect.cron) until make down; needs make up
	@$(PY) -m flows.deploy worker

nightly: venv ## run the scheduled pipeline now: make up worker nightly
	@$(PY) -m flows.deploy nightly

params: venv ## check params.yaml and print the resolved method
	@$(PY) -m envace.params

size: venv ## write a size into params.yaml: make size NAME=laptop|study|presets|bench|gpu1|paper|paper-table
	@$(PY) -m envace.params --size $(NAME)

lock: venv ## compile locks/control.lock anew
	UV_FIND_LINKS= .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header \
	  --override locks/overrides.txt locks/control.in -o locks/control.lock

lint: venv ## ruff, mypy, the order of packages
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports

structure: venv ## how much code there is, and what ties it together: ARGS="envace/judge --where"
	@PYTHONPATH=. $(PY) benchmarks/structure.py $(ARGS)

clean: ## forget this machine's state: servers' stores, training work folders
	rm -rf .state
