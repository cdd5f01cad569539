# Two commands do everything: `make ask` and `make test`. PYTHON chooses the interpreter.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

QUESTION ?= Which error is raised when the graph has exhausted the maximum number of steps?
SITE = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

.PHONY: ask test quick lint format clean bench

ask: $(INSTALLED)  ## Read the installed source of LangGraph and LangChain, and answer from memory
	$(BIN)/memagent ask "$(QUESTION)" $(SITE)/langgraph $(SITE)/langchain_core

test: lint  ## Lint, types and all tests
	$(BIN)/python -m pytest

quick: lint  ## The same without the tests that take long
	$(BIN)/python -m pytest -m "not slow"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
