# Weft. `make help` lists what there is.

CARGO       ?= $(or $(shell command -v cargo),$(HOME)/.cargo/bin/cargo)
CARGO_FLAGS ?=
TARGET      := $(or $(CARGO_TARGET_DIR),target)
CFLAGS      ?= -O2 -g
CXXFLAGS    ?= -O2 -g
WARNINGS    := -Wall -Wextra -Wpedantic
EXAMPLES    := $(TARGET)/examples-c
# Programs of one file, of one file and exchange.c, and random_fill.
ALONE       := $(addprefix $(EXAMPLES)/,hello pages epoll manual errors cancel file_pages)
PAIRS       := $(addprefix $(EXAMPLES)/,two_processes many_peers pages_back)
FILL_PARTS  := random_fill options session prefill decode pattern common
FILL_C      := $(FILL_PARTS:%=examples-c/%.c)
NIXL        := integrations/nixl
NIXL_PLUGIN := $(TARGET)/nixl/libplugin_WEFT.so
# PROFILE=dev builds in seconds, with debug assertions, into target/debug.
PROFILE     ?= release
LIBDIR      := $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
LIB         := $(LIBDIR)/libweft.so
LINK        := -L$(LIBDIR) -lweft -Wl,-rpath,'$$ORIGIN/../$(notdir $(LIBDIR))'

# A command is one word of the shell, whatever is in it.
lab_word    = $(if $(2),$(1) '$(subst ','\'',$(2))')

export CARGO CARGO_FLAGS

.PHONY: help demo compare t test test-all test-load loop coverage nixl nixl-figures nixl-gpu vllm ray disk-figures weights-figures interrupts weights-roundtrip checkpoint-kills checkpoint-figures dcp soak wheels deny reproducible trace-cost release test-distros test-aarch64 test-verbs test-files-vm test-efa test-staged p5 test-netem test-reset gpu-test figures fuzz sanitize miri loom lab chaos crate dist deb test-deb test-grafana header docs test-docs abi check check-msrv lib lib-simulated tested examples clean

help: ## Lists the targets
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 17
	@echo "WEFT_NO_INSTALL=1 makes any of them say what is missing instead of installing it."

demo: export WEFT_LIBRARY = $(abspath $(LIB))
demo: export PYTHONPATH = $(CURDIR)/python/src
demo: ## Shows it at work, in a minute: two processes of this host, the same over TCP, and (as root) two hosts of which a cable is cut
	@tools/need.sh demo
	@$(MAKE) --no-print-directory lib
	@PYTHONDONTWRITEBYTECODE=1 tools/demo.py

compare: ## Weft beside NIXL and Mooncake, in ROUNDS=5 turns (registry of Python packages): tables, target/compare.json, charts; SHORT=1: some minutes; RECORD=1: into docs/
	@tools/need.sh compare
	@$(MAKE) --no-print-directory lib
	@tools/compare.sh $(LIBDIR)

t: export WEFT_TEST_FABRICS := $(or $(FABRIC),first)
t: export WEFT_TEST_REPEAT := $(REPEAT)
t: export WEFT_TEST_DEBUG := $(DEBUG)
t: ## The C tests with T in their names, seconds after a change: make t T=transfers.pages [FABRIC="tcp host"] [REPEAT=20] [DEBUG=1]
	@$(MAKE) --no-print-directory lib-simulated PROFILE=dev
	@WEFT_TEST_SIMULATED=1 ffi-tests/run $(TARGET)/debug '$(T)'

test: ## Runs the tests that find regressions, in 25 minutes on two cores; ends with how many passed and failed
	@tools/need.sh test
	@$(MAKE) --no-print-directory tested examples
	@tools/test.sh $(TARGET)/release $(EXAMPLES)/random_fill

test-all: export WEFT_TEST_ALL := 1
test-all: test ## As test, with every C test on every fabric

test-networks: lib ## Two hosts in the networks that hosts have, some forty (root): who carries by the kernel's counters, a cut; T=a part of the names; SHORT=1: a few
	@tools/test-networks.py $(LIBDIR) $(if $(SHORT),--short,--vm) --only '$(T)'

test-load: ## The C tests on two processors beside eight busy loops; each that judges a time REPEAT=20 times
	@$(MAKE) --no-print-directory tested
	@tools/test-load.sh $(TARGET)/release $(or $(REPEAT),20) '$(T)'

loop: ## How long a change takes to be judged here, from an edit to the verdict of a test
	@tools/loop.sh

coverage: ## Which lines of src/ no test reaches: target/coverage/untested (LLVM's tools)
	@tools/coverage.sh '$(T)'

test-distros: ## The same build on this system, on Debian 13 and without libfabric (root; debootstrap); SYSTEMS="none" for a part
	@$(MAKE) --no-print-directory tested
	@tools/test-distros.sh $(TARGET)/release $(SYSTEMS)

test-aarch64: ## Builds it for 64-bit Arm, and runs a part of the tests under qemu-user
	@tools/test-aarch64.sh

figures: ## Measures it on this machine, beside bare libfabric
	@tools/need.sh figures
	@tools/floors.py
	@tools/words.py
	@tools/idioms.py
	@tools/first-hours.py
	@$(MAKE) --no-print-directory tested
	$(CARGO) run --release $(CARGO_FLAGS) -p weft-bench -- figures --json $(TARGET)/figures.json

nixl: lib ## Builds the WEFT backend of NIXL, target/nixl/libplugin_WEFT.so, and tests it in NIXL's wheels; SHORT=1: in one; T=a part of the names
	@tools/need.sh nixl
	@$(MAKE) --no-print-directory $(NIXL_PLUGIN)
	@tools/test-nixl.sh $(NIXL_PLUGIN) '$(T)'

nixl-figures: lib ## Measures the WEFT backend beside UCX and LIBFABRIC, through the same calls, in ROUNDS=3 turns: target/nixl/figures.json
	@tools/need.sh nixl
	@$(MAKE) --no-print-directory $(NIXL_PLUGIN)
	@tools/nixl-figures.sh $(NIXL_PLUGIN) $(LIBDIR) $(or $(ROUNDS),3)

nixl-gpu: lib ## Makes target/nixl-gpu, to be carried to a machine with two GPUs and measure the WEFT backend beside UCX there (PYTHON=3.12: its Python)
	@tools/need.sh nixl
	@$(MAKE) --no-print-directory $(NIXL_PLUGIN)
	@tools/nixl-gpu.sh $(NIXL_PLUGIN) $(LIBDIR) $(or $(PYTHON),3.12)

vllm: lib ## Runs vLLM, prefill and decode in two processes, over the WEFT backend of NIXL; it goes into target/vllm (6.7 GB)
	@tools/need.sh nixl
	@$(MAKE) --no-print-directory $(NIXL_PLUGIN)
	@tools/test-vllm.sh $(NIXL_PLUGIN) $(LIBDIR)

disk-figures: lib-simulated ## Measures files and a hung disk of a peer over tcp and host, beside fio (apt-get install fio; without it only the disk); T=hung, staging, files, random_reads or faults
	@tools/disk-figures.sh $(LIBDIR) '$(T)'

weights-figures: lib ## Measures libweft.weights over four rails between two network namespaces (root), GB=4
	@tools/weights-figures.sh $(LIBDIR) $(or $(GB),4)

interrupts: lib ## Exceptions out of Python's signal handlers, 10,000 of them: what is lost, and which closes hang
	@python3 python/build_native.py
	@WEFT_LIBRARY=$(abspath $(LIB)) PYTHONPATH=$(CURDIR)/python/src PYTHONDONTWRITEBYTECODE=1 python3 python/tests/interrupts.py

weights-roundtrip: lib ## Files of weights, served and pulled by libweft.weights: how many do not come out byte for byte
	@WEFT_LIBRARY=$(abspath $(LIB)) PYTHONPATH=$(CURDIR)/python/src PYTHONDONTWRITEBYTECODE=1 python3 python/tests/weights_roundtrip.py

dcp: lib ## Tests libweft.checkpoint under torch.distributed.checkpoint (torch without CUDA, 1.4 GB, goes into target/torch)
	@tools/test-dcp.sh $(LIBDIR)

checkpoint-figures: lib ## Measures it beside PyTorch's own files on the same disk, GB=2, ROUNDS=3 turns
	@tools/test-dcp.sh $(LIBDIR) figures $(or $(GB),2) $(or $(ROUNDS),3)

checkpoint-kills: lib ## Kills ranks and stores of libweft.checkpoint at N=500 random points and before each step: which checkpoints are torn
	@WEFT_LIBRARY=$(abspath $(LIB)) PYTHONPATH=$(CURDIR)/python/src PYTHONDONTWRITEBYTECODE=1 python3 python/tests/checkpoint_kills.py $(or $(N),500) $(SEED)

ray: lib ## Tests the transport for Ray (libweft.ray), which it installs into target/ray: actors in processes of their own
	@tools/test-ray.sh $(LIBDIR)

fuzz: ## Feeds all that reads what others sent with anything, for SECONDS=180 in all (nightly Rust)
	@tools/fuzz.sh $(or $(SECONDS),180)

sanitize: ## ffi-tests with AddressSanitizer, ThreadSanitizer and valgrind: an hour (FILTER=, KINDS="asan tsan valgrind"; SHORT=1: a minute)
	@tools/need.sh sanitize
	@$(MAKE) --no-print-directory tested
	@tools/sanitize.sh "$(FILTER)" $(KINDS)

miri: ## Endpoints over simulated NICs, and unit tests, in Miri: undefined behaviour, and weak memory (nightly Rust)
	@tools/miri.sh $(or $(SEEDS),16)

loom: ## The structures that threads share, in every order that threads can take
	CARGO_TARGET_DIR=$(CURDIR)/target/loom $(CARGO) test $(or $(CARGO_FLAGS),--locked) --manifest-path loom/Cargo.toml

lab: ## Two hosts in network namespaces (root): make lab RAILS=4 RATE=1gbit COMMAND="..."; tools/lab.sh --help
	@tools/lab.sh --rails $(or $(RAILS),4) --mtu $(or $(MTU),9000) $(RATE:%=--rate %) $(RATES:%=--rates %) $(LAB) \
		$(call lab_word,--left,$(LEFT)) $(call lab_word,--right,$(RIGHT)) $(call lab_word,,$(COMMAND))

test-verbs: ## Tests over verbs, on soft-RoCE in a virtual machine (Debian): half an hour on two quiet cores; SHORT=1: a few minutes; T=a part of the tests' names; CHAOS=5: minutes of chaos instead
	@tools/need.sh verbs || [ -n "$(SHORT)" ]
	@$(MAKE) --no-print-directory lib
	@$(MAKE) --no-print-directory $(EXAMPLES)/random_fill
	$(CARGO) build --release $(CARGO_FLAGS) -p weft-bench
	@tools/test-verbs.sh $(if $(CHAOS),--chaos $(LIBDIR) $(CHAOS) $(SEED),$(LIBDIR) $(EXAMPLES)/random_fill $(TARGET)/release/weft-bench '$(T)')

test-files-vm: ## Tests files on disks that fail, hang and lose their power, beside the kernel's NVMe over tcp, in a virtual machine (root; Debian): half an hour; SHORT=1: some minutes; PARTS="faults beside durable checkpoint"; T=a part of the faults' names
	@tools/need.sh files-vm
	@$(MAKE) --no-print-directory lib-simulated
	@T='$(T)' tools/test-files-vm.sh $(LIBDIR) '$(PARTS)'

test-efa: ## Tests over libfabric's own efa provider, on emulated EFA NICs (root; Debian): half an hour; SHORT=1: a few minutes; T=a part of the tests' names; CHAOS=5: minutes of chaos instead; DEATHS=100: one NIC of four dies, again and again
	@tools/need.sh efa
	@$(MAKE) --no-print-directory lib
	@$(MAKE) --no-print-directory $(EXAMPLES)/random_fill
	@tools/test-efa.sh $(if $(DEATHS),--deaths $(LIBDIR) $(DEATHS) $(SEED),$(if $(CHAOS),--chaos $(LIBDIR) $(CHAOS) $(SEED),$(LIBDIR) $(EXAMPLES)/random_fill '$(T)'))

test-staged: ## Files and memory of fake devices over NICs that do not reach them, soft-RoCE and emulated EFA (root; Debian); SHORT=1: a choice of the former; T=a part of the tests' names
	@tools/need.sh verbs
	@tools/need.sh efa
	@$(MAKE) --no-print-directory lib-simulated
	@tools/test-staged.sh $(TARGET)/release '$(T)'

p5: ## Two p5 in a box, of 32 emulated EFA NICs each: the line's share, and what each technique is worth, as table and picture
	@tools/need.sh efa
	@cargo build --release --locked -p weft-bench
	@tools/p5.py target/release

test-netem: ## Tests tcp where packets are lost and late, beside a plain socket, in a virtual machine (Debian): some minutes
	@tools/need.sh verbs
	@$(MAKE) --no-print-directory tested
	$(CARGO) build --release $(CARGO_FLAGS) -p weft-bench
	@tools/test-netem.sh $(TARGET)/release/weft-bench

test-reset: ## Tests tcp to a virtual machine that is reset in the middle of transfers (root; Debian): some minutes
	@tools/need.sh verbs
	@$(MAKE) --no-print-directory lib
	@tools/test-reset.sh $(LIBDIR) '$(T)'

gpu-test: ## Makes target/gpu-test, to be carried to a machine with GPUs, and says how to run it there
	@tools/need.sh test
	@$(MAKE) --no-print-directory tested
	@tools/gpu-test.sh $(TARGET)/release

dist: ## Packs headers, library, CMake package, weft-bench and licences into target/dist, for machines without Rust (GLIBC=2.28: for old ones)
	@tools/need.sh dist
	@TOOLS=1 tools/dist.sh $(TARGET)/dist $(GLIBC)

deb: ## Builds Debian packages into target/deb: libweft0, libweft-dev, python3-libweft, weft-tools (Debian; registry of Python packages)
	@tools/need.sh deb
	@tools/zig.sh
	@PATH=$(CURDIR)/$(TARGET)/wheels/env/bin:$$PATH tools/deb.sh $(TARGET)/deb

test-deb: ## Has lintian look at the last make deb, and uses them in clean roots (root): SUITES="trixie bookworm bullseye noble jammy"
	@tools/need.sh deb
	@tools/test-deb.sh $(SUITES)

test-grafana: ## Asks each query of grafana/weft.json of Debian's prometheus (45 MB, unpacked into target/prometheus), beside a load
	@tools/need.sh lib
	$(CARGO) build --profile $(PROFILE) $(CARGO_FLAGS) -p weft-bench
	@tools/test-grafana.py $(LIBDIR)/weft-bench

wheels: ## Builds libweft, libweft-tools and libweft-nixl into target/wheels (registry of Python packages), and tests them in roots of Debian; MACHINES="x86_64 aarch64"
	@tools/need.sh wheels
	@tools/wheels.sh $(MACHINES)
	@tools/test-wheels.sh

crate: ## The crate libweft: its tests and doctests, that all of it is documented, and that cargo package passes (no registry is asked)
	@tools/need.sh lib
	@tools/crate.sh

chaos: ## Three hosts (root), and everything that can fail does: make chaos MINUTES=10 SEED=1; a ledger at the end
	@tools/need.sh chaos
	@$(MAKE) --no-print-directory lib
	@tools/chaos.sh $(TARGET)/release '$(or $(MINUTES),10)' '$(SEED)' $(TARGET)/chaos.json

soak: lib ## Four processes whose clients connect and close, over host and tcp, for HOURS=2 at a tenth of a CPU: nothing may grow
	@WEFT_LIBRARY=$(abspath $(LIB)) PYTHONPATH=$(CURDIR)/python/src PYTHONDONTWRITEBYTECODE=1 tools/soak.py $(or $(HOURS),2)

deny: ## Licences, versions and sources of what the library is made of, by cargo-deny (deny.toml)
	@tools/deny.sh

reproducible: ## Whether the last commit gives the same tarball and Debian packages in another folder (after make wheels)
	@tools/reproducible.sh

trace-cost: ## Instructions per slice that traces cost while they are off, beside a build without them
	@tools/need.sh figures
	$(CARGO) build --release $(CARGO_FLAGS) -p weft-bench
	@tools/trace-cost.sh $(TARGET)/release/weft-bench

release: ## Everything of a release but pushing it: target/release-VERSION and a tag; then it says what is left to a person
	@tools/release.sh

header: ## Makes include/weft.h again from src/capi; of it, docs/reference.md and python/src/libweft/c.py; of docstrings, docs/python.md
	@tools/header.sh write

docs: ## The documents as a site, with a search and rustdoc: target/docs/site (registry, the first time)
	@tools/need.sh docs
	@tools/docs.py

test-docs: ## The documents: names and links; the site, in headless Chromium too; their blocks of code (root for those of the shell)
	@tools/need.sh test-docs
	@tools/test-docs.py
	@tools/docs.py
	@tools/test-site.py
	@$(MAKE) --no-print-directory tested
	$(CARGO) build --release $(CARGO_FLAGS) -p weft-bench
	$(CARGO) build $(CARGO_FLAGS) -p libweft --features futures --example parameter_server
	@tools/test-blocks.py $(TARGET)/release

abi: ## Adds the fields of include/weft.h to the layout that is promised: docs/abi.md
	@tools/need.sh test
	@tools/abi.sh write

check: ## Formatting, lints, floors (ARCHITECTURE.md), words (tools/words.py), idioms (tools/idioms.py), and that the header is the one that src/capi makes
	@tools/need.sh check
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	@tools/header.sh check
	@tools/contracts.py check
	@tools/reasons.py
	@tools/floors.py
	@tools/words.py
	@tools/idioms.py

check-msrv: ## That the oldest Rust that Cargo.toml names compiles it, if rustup has that one
	@tools/check-msrv.sh

lib: ## Builds target/release/libweft.so (PROFILE=dev: target/debug/libweft.so, in seconds)
	@tools/need.sh lib
	$(CARGO) build --profile $(PROFILE) $(CARGO_FLAGS) -p weft
	@ln -sf libweft.so $(LIB).0

lib-simulated: ## Builds target/release/libweft_simulated.so: with simulated NICs and devices, for tests
	@tools/need.sh lib
	$(CARGO) build --profile $(PROFILE) $(CARGO_FLAGS) -p weft-simulated

tested: ## Builds both, lib and lib-simulated
	@tools/need.sh lib
	$(CARGO) build --profile $(PROFILE) $(CARGO_FLAGS) -p weft -p weft-simulated

examples: lib ## Builds the examples, in C and C++, into target/examples-c
	@$(MAKE) --no-print-directory $(ALONE) $(PAIRS) $(EXAMPLES)/random_fill \
		$(if $(shell command -v $(CXX)),$(EXAMPLES)/prefill_decode $(EXAMPLES)/cold_pages $(EXAMPLES)/pages_back_cpp \
		$(EXAMPLES)/coroutines $(EXAMPLES)/no_exceptions)

$(EXAMPLES)/random_fill: $(FILL_C) $(wildcard examples-c/*.h) include/weft.h $(LIB)
	@mkdir -p $(@D)
	$(CC) -std=c11 $(WARNINGS) $(CFLAGS) -Iinclude $(FILL_C) $(LINK) -o $@

$(ALONE): $(EXAMPLES)/%: examples-c/%.c examples-c/check.h include/weft.h $(LIB)
	@mkdir -p $(@D)
	$(CC) -std=c11 $(WARNINGS) $(CFLAGS) -Iinclude $< $(LINK) -o $@

$(EXAMPLES)/exchange.o: examples-c/exchange.c examples-c/exchange.h
	@mkdir -p $(@D)
	$(CC) -std=c11 $(WARNINGS) $(CFLAGS) -c $< -o $@

$(PAIRS): $(EXAMPLES)/%: examples-c/%.c $(EXAMPLES)/exchange.o examples-c/check.h include/weft.h $(LIB)
	$(CC) -std=c11 $(WARNINGS) $(CFLAGS) -Iinclude $< $(EXAMPLES)/exchange.o $(LINK) -o $@

$(EXAMPLES)/prefill_decode: examples-c/prefill_decode/prefill_decode.cpp
$(EXAMPLES)/cold_pages: examples-c/cold_pages.cpp
$(EXAMPLES)/pages_back_cpp: examples-c/pages_back.cpp
$(EXAMPLES)/coroutines: examples-c/coroutines.cpp
$(EXAMPLES)/coroutines: CXX_STD := c++20
$(EXAMPLES)/no_exceptions: examples-c/no_exceptions.cpp
$(EXAMPLES)/no_exceptions: CXX_STD := c++17 -fno-exceptions
$(EXAMPLES)/prefill_decode $(EXAMPLES)/cold_pages $(EXAMPLES)/pages_back_cpp $(EXAMPLES)/coroutines $(EXAMPLES)/no_exceptions: $(EXAMPLES)/exchange.o $(wildcard examples-c/*/*.hpp include/*.h*) $(LIB)
	$(CXX) -std=$(or $(CXX_STD),c++17) $(WARNINGS) $(CXXFLAGS) -Iinclude $(filter %.cpp,$^) $(EXAMPLES)/exchange.o $(LINK) -lpthread -o $@

# Its library lies beside it when it is installed.
$(NIXL_PLUGIN): $(wildcard $(NIXL)/*.cpp $(NIXL)/*.hpp) $(NIXL)/exports.map include/weft.h $(LIB)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 $(WARNINGS) $(CXXFLAGS) -fPIC -shared -fvisibility=hidden -Iinclude $(wildcard $(NIXL)/*.cpp) \
		-Wl,--version-script=$(NIXL)/exports.map -Wl,--no-undefined -pthread $(LINK) -Wl,-rpath,'$$ORIGIN' -o $@

clean: ## Removes what was built
	rm -rf $(TARGET)
