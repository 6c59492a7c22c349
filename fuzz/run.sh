#!/bin/sh
# Fuzzes every target for SECONDS each (default 60), or for EXECUTIONS executions if that is set, guided by coverage.
# Stops at the first crash and prints how to replay it. Stable Rust suffices: without a sanitizer, cargo-fuzz needs
# only LLVM's coverage pass.
set -eu
seconds=${1:-60}
executions=${EXECUTIONS:--1}
cd "$(dirname "$0")/.."
# Cargo writes what it compiles to standard error. tests/run.py, which ends what is silent for too long, reads standard
# output.
exec 2>&1
cargo fuzz --version >/dev/null 2>&1 || env -u RUSTC_WORKSPACE_WRAPPER cargo install cargo-fuzz --version 0.13.2 --locked
state=${FARPOOL_FUZZ_DIR:-$HOME/.cache/farpool/fuzz}
target=$state/target
triple=$(rustc -vV | sed -n 's/^host: //p')
log=$state/last.log
cargo fuzz build --sanitizer none --target-dir "$target"
for name in header request reply read write conversation answers program table manifest packed lookup; do
    mkdir -p "$state/corpus/$name" "$state/crashes/$name"
    # -timeout: an input that takes two seconds is taken for an endless loop. -malloc_limit_mb: an input that
    # allocates this much at once has escaped its limit.
    if ! "$target/$triple/release/$name" -max_total_time="$seconds" -runs="$executions" -max_len=8192 -timeout=2 \
        -malloc_limit_mb=64 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$state/crashes/$name/" "$state/corpus/$name" >"$log" 2>&1; then
        tail -40 "$log"
        echo "fuzz: $name crashed; replay: $target/$triple/release/$name <the file named above>"
        exit 1
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    took=$(sed -n 's/^Done .* in \([0-9]*\) second.*/\1/p' "$log")
    covered=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
    echo "fuzz: $name: $runs executions in $took s, $covered edges covered, no crash"
done
