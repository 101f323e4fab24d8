# Weft. `make help` lists what there is.

CARGO       ?= $(or $(shell command -v cargo),$(HOME)/.cargo/bin/cargo)
CARGO_FLAGS ?=
TARGET      := $(or $(CARGO_TARGET_DIR),target)
CFLAGS      ?= -O2 -g
WARNINGS    := -std=c11 -Wall -Wextra -Wpedantic
EXAMPLES    := $(TARGET)/examples-c
FILL_PARTS  := random_fill options session prefill decode pattern common
FILL_C      := $(FILL_PARTS:%=examples-c/%.c)
LIB         := $(TARGET)/release/libweft.so
LINK        := -L$(TARGET)/release -lweft -Wl,-rpath,'$$ORIGIN/../release'

# A command is one word of the shell, whatever is in it.
lab_word    = $(if $(2),$(1) '$(subst ','\'',$(2))')

export CARGO CARGO_FLAGS

.PHONY: help demo test gpu-test figures fuzz lab header check lib examples clean

help: ## Lists the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12
	@echo "WEFT_NO_INSTALL=1 makes any of them say what is missing instead of installing it."

demo: ## Shows it at work: two processes over tcp, over shm, and (as root) between two network namespaces
	@tools/need.sh demo
	@$(MAKE) --no-print-directory examples
	@tools/demo.sh $(EXAMPLES)/random_fill

test: ## Runs every test; ends with how many passed and failed
	@tools/need.sh test
	@$(MAKE) --no-print-directory examples
	@tools/test.sh $(TARGET)/release $(EXAMPLES)/random_fill

figures: ## Measures it on this machine, beside bare libfabric
	@tools/need.sh figures
	@$(MAKE) --no-print-directory lib
	$(CARGO) run --release $(CARGO_FLAGS) -p weft-bench -- figures --json $(TARGET)/figures.json

fuzz: ## Feeds all that reads what others sent with anything, for SECONDS=180 in all (nightly Rust)
	@tools/fuzz.sh $(or $(SECONDS),180)

lab: ## Two hosts in network namespaces (root): make lab RAILS=4 RATE=1gbit COMMAND="..."; tools/lab.sh --help
	@tools/lab.sh --rails $(or $(RAILS),4) --mtu $(or $(MTU),9000) $(RATE:%=--rate %) $(RATES:%=--rates %) $(LAB) \
		$(call lab_word,--left,$(LEFT)) $(call lab_word,--right,$(RIGHT)) $(call lab_word,,$(COMMAND))

gpu-test: ## Makes target/gpu-test, to be carried to a machine with GPUs, and says how to run it there
	@tools/need.sh test
	@$(MAKE) --no-print-directory lib
	@tools/gpu-test.sh $(TARGET)/release

header: ## Makes include/weft.h again from src/capi
	@tools/header.sh write

check: ## Formatting, lints, and that the header is the one that src/capi makes
	@tools/need.sh check
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	@tools/header.sh check

lib: ## Builds target/release/libweft.so
	$(CARGO) build --release $(CARGO_FLAGS) -p weft
	@ln -sf libweft.so $(LIB).0

examples: lib ## Builds the C examples into target/examples-c
	@$(MAKE) --no-print-directory $(EXAMPLES)/random_fill $(EXAMPLES)/hello $(EXAMPLES)/epoll

$(EXAMPLES)/random_fill: $(FILL_C) $(wildcard examples-c/*.h) include/weft.h $(LIB)
	@mkdir -p $(@D)
	$(CC) $(WARNINGS) $(CFLAGS) -Iinclude $(FILL_C) $(LINK) -o $@

$(EXAMPLES)/hello $(EXAMPLES)/epoll: $(EXAMPLES)/%: examples-c/%.c include/weft.h $(LIB)
	@mkdir -p $(@D)
	$(CC) $(WARNINGS) $(CFLAGS) -Iinclude $< $(LINK) -o $@

clean: ## Removes what was built
	rm -rf $(TARGET)
