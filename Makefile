# Short names for verbs of `cargo xtask`. The code of the verbs is in xtask/.
# A verb installs the programs that it needs (Debian and Ubuntu, as root), or prints what is missing.

.DEFAULT_GOAL := help
.PHONY: help demo test build deb check bench evidence test-long test-vm fuzz

help:
	@echo 'make demo        the same mix of traffic without and with netnice; a table and a report (root)'
	@echo 'make test        every test: unit tests, then system tests in network namespaces (root)'
	@echo 'make build       release programs netnice, netniced, netnice-driver, netnice-peer and netnice-lab'
	@echo 'make deb         three Debian packages in target/deb'
	@echo 'make check       formatting, lints, the rules of the tree, documentation, dependencies'
	@echo 'make bench       benchmarks, and what enforcement costs (root)'
	@echo 'make evidence    measure what the page of all figures lacks (hours), and write it (root)'
	@echo 'make test-long   every test, long ones too, then every experiment (root)'
	@echo 'make test-vm     the system tests on the stock kernel of Debian 12, in qemu (root)'
	@echo 'make fuzz        every property with new cases, 600 s each (FOR=60: 60 s; ONLY=ring: those with that in the name;'
	@echo '                 LEARN=1: the targets of fuzz/ instead, by coverage)'

demo: | cargo
	@cargo xtask demo

test: | cargo
	@cargo xtask test

build: | cargo
	@cargo xtask build

deb: | cargo
	@cargo xtask deb

check: | cargo
	@cargo xtask check

bench: | cargo
	@cargo xtask bench

evidence: | cargo
	@cargo xtask evidence

test-long: | cargo
	@cargo xtask long

test-vm: | cargo
	@cargo xtask vm

fuzz: | cargo
	@cargo xtask fuzz $(if $(LEARN),--learn) --for $(or $(FOR),600) $(ONLY)

.PHONY: cargo
cargo:
	@command -v cargo >/dev/null || { echo 'make: cargo is not on the PATH; netnice is built with Rust 1.91 or newer' >&2; exit 1; }
