"""What developers run: the fault campaign, fuzzers, benchmarks and the makers of packages."""
