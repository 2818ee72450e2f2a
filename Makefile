# Everything runs from .venv, which every target makes by itself. System packages are installed
# by `make deps` only.

PYTHON ?= python3
ARGS ?=
# More processes than cores that may be used (taskset counts): a test with a broker waits a good deal,
# and starts processes of its own. On two quick cores four took 17:22, five 15:38, six 15:14.
JOBS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores > 1 ? 6 : 3)))
# Without compiled modules each process of a test, workers too, compiles the whole package anew.
unexport PYTHONDONTWRITEBYTECODE
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
BIN := .venv/bin
READY := .venv/.ready
# Downloads, and builds that start other programs, may fail for a moment.
RETRY := .ci/retry
# Tests start their own: what Debian would start now (RUNLEVEL) and at every boot stays masked;
# `systemctl unmask` undoes it.
# Program:unit.
UNITS := prometheus:prometheus prometheus-alertmanager:prometheus-alertmanager etcd:etcd \
  containerd:containerd initdb:postgresql
# Program:package.
PROGRAMS := chromium:chromium chromedriver:chromium-driver java:openjdk-17-jre-headless \
  etcd:etcd-server containerd:containerd runc:runc /usr/lib/cni/bridge:containernetworking-plugins \
  iptables:iptables ip:iproute2 openssl:openssl buildah:buildah mmdebstrap:mmdebstrap \
  prometheus:prometheus prometheus-alertmanager:prometheus-alertmanager initdb:postgresql

BENCHES := roll sync-join failover start worker observe history simulate rebalance-table clients scaling packing

.PHONY: help .venv deps demo cluster cluster-down programs images test test-demo docs lint bench faults \
  mutants conformance clean java $(BENCHES:%=bench-%)

help: ## this list
	@sed -nE 's/^([.a-z-]+):.*## (.*)$$/  make \1@\2/p' $(MAKEFILE_LIST) | column -t -s@

.venv: $(READY) ## the Python environment, as pinned in requirements.lock

# From scratch whenever the lock changes, so that nothing unpinned stays behind.
.venv/.locked: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Fleet needs Python 3.11 or newer, '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1):" \
	       "name another, e.g. make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@rm -rf .venv
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "$(PYTHON) cannot make virtual environments: on Debian, apt-get install python3-venv" >&2; exit 1; }
	@$(RETRY) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements.lock
	@# On all cores; pip takes one. What is hardly imported is compiled by whoever does.
	@$(BIN)/python -m compileall -q -j 0 -x '/(tests|moto|pip)/' .venv/lib || true
	@touch $@

$(READY): .venv/.locked pyproject.toml
	@$(RETRY) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

java:
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" >/dev/null || { \
	  echo "no Java: install Java 17 or 21 ('make deps' does on Debian) or set JAVA_HOME" >&2; exit 1; }
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 \
	  | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' | head -n 1); \
	if [ "$${version:-0}" -lt 17 ]; then \
	  echo "Java $${version:-of unknown version} is too old: install Java 17 or 21, or set JAVA_HOME" >&2; exit 1; fi

deps: ## what the tests need of Debian: Chromium, Java, Prometheus, Postgres, a cluster's parts
	@command -v apt-get >/dev/null || { \
	  echo "no apt-get here: install chromium, chromedriver, Java 17, prometheus, alertmanager," \
	       "postgresql, etcd, containerd, runc, CNI plugins, iptables, buildah by your own means" \
	       >&2; exit 1; }
	@PATH=$$PATH:/usr/sbin:/sbin:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :); wanted=(); \
	for each in $(PROGRAMS); do \
	  command -v $${each%%:*} >/dev/null || wanted+=($${each#*:}); done; \
	if [ $${#wanted[@]} -eq 0 ]; then echo "nothing to install"; exit 0; fi; \
	sudo=(); if [ "$$(id -u)" -ne 0 ]; then sudo=(sudo); fi; \
	for unit in $(UNITS); do \
	  if command -v $${unit%%:*} >/dev/null; then continue; fi; \
	  "$${sudo[@]}" mkdir -p /etc/systemd/system; \
	  "$${sudo[@]}" ln -sf /dev/null "/etc/systemd/system/$${unit#*:}.service"; done; \
	$(RETRY) "$${sudo[@]}" apt-get update -qq && \
	$(RETRY) "$${sudo[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
	  apt-get install -y -qq --no-install-recommends "$${wanted[@]}" </dev/null

cluster: $(READY) ## a real Kubernetes of one node (root; built once, 5 to 10 minutes)
	@$(BIN)/python -m k8s.cluster up

cluster-down: $(READY) ## end that cluster and delete all of it
	@$(BIN)/python -m k8s.cluster down

programs: ## what that cluster runs, built from Go's modules; needs no .venv
	@$(PYTHON) -m k8s.cluster build

images: $(READY) ## images of worker, Spark server and manager, brought to the cluster; ARGS="--tag x"
	@$(BIN)/python -m k8s.images load $(ARGS)

demo: java $(READY) ## a whole fleet on this machine; ARGS="--help" for options
	@exec $(BIN)/fleet demo $(ARGS)

test: $(READY) ## all tests that can run here; ARGS="-m unit" for the fast ones, JOBS=2 for less memory
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
	  -m "not alone" $(ARGS)

test-demo: $(READY) ## the demo as a test, with the machine to itself
	$(BIN)/python -m pytest -m alone tests/demo $(ARGS)

docs: $(READY) ## the documentation as a site, in build/site; every link is checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Long forms: they run the folder's tests where there are any.
define long
	FLEET_LONG=1 $(BIN)/python -m pytest $(wildcard tests/$@) $($@) --timeout=3600 $(ARGS)
endef

bench: bench = tests/benchmarks
bench: $(READY) ## every benchmark in its small form; in full: make bench-roll, ARGS="--help"
	$(long)

$(BENCHES:%=bench-%): bench-%: $(READY)
	@exec $(BIN)/python -m benchmarks $* $(ARGS)

faults: faults = tests/membership tests/promises tests/ranges tests/security tests/worker \
  tests/history tests/alerts tests/spark_cluster tests/kubernetes tests/k8s_store tests/page tests/slots \
  tests/sinks tests/observe tests/program tests/counting tests/decide/test_expected_costs.py \
  tests/runtime/test_class_sharing.py tests/demo/test_demo.py tests/acting/test_batches.py \
  tests/orchestration/test_dg_project.py \
  tests/dagster_ui/test_power_cut.py tests/dagster_ui/test_many_groups.py
faults: $(READY) ## fault injection, long form
	$(long)

mutants: $(READY) ## planted faults: do the tests notice? ARGS="-k name", ARGS="-o json"
	@$(BIN)/python -m tests.mutants --jobs $(JOBS) $(ARGS)

conformance: conformance = tests/scenarios tests/schedules tests/sim/test_consumer_space.py
conformance: $(READY) ## the simulator against the real coordinator, long form
	$(long)

clean: ## build results and caches; keeps .venv and .fleet
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
