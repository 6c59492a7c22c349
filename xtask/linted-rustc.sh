#!/usr/bin/env bash
# Runs Clippy on a crate of the workspace, and compiles the crate if Clippy finds nothing. It is cargo's
# RUSTC_WORKSPACE_WRAPPER in `make test`. `cargo clippy` would check all dependencies again, only to know their types;
# here they are compiled once.
# This script needs bash: dash drops environment variables with a dash in their name, such as
# CARGO_BIN_EXE_farpool-sandbox.
set -euo pipefail
rustc=$1
shift
lint() { # Runs Clippy with the compiler's arguments. Its output files go to a temporary folder: nobody needs them.
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
  previous=
  for argument; do
    shift
    [ "$previous" != --out-dir ] || { previous= && continue; }
    previous=$argument
    case $argument in
      --out-dir) continue ;;
      --out-dir=* | --emit=*) continue ;;
      # Cargo must not mistake Clippy's output files for those of the crate.
      --json=*) argument=$(echo "$argument" | sed 's/artifacts,\|,artifacts//') ;;
    esac
    set -- "$@" "$argument"
  done
  CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__" clippy-driver "$rustc" "$@" --emit=metadata --out-dir "$out"
}
# Cargo also asks for the compiler's version and settings through the wrapper. Those calls have no --emit.
case " $* " in
  *" --emit="*) (lint "$@") || exit ;;
esac
exec "$rustc" "$@"
