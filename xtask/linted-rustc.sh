#!/usr/bin/env bash
# Compiles a crate of the workspace, after Clippy has found nothing in it: cargo's RUSTC_WORKSPACE_WRAPPER in `make test`.
# `cargo clippy` would check all dependencies once more, only to know their types; here they are compiled once.
# Not sh: dash drops variables that have a dash in their name, as CARGO_BIN_EXE_farpool-sandbox has.
set -euo pipefail
rustc=$1
shift
lint() { # Runs Clippy with the same arguments, but for what it writes, which nobody needs.
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
      # Cargo must not take what Clippy writes for the crate.
      --json=*) argument=$(echo "$argument" | sed 's/artifacts,\|,artifacts//') ;;
    esac
    set -- "$@" "$argument"
  done
  CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__" clippy-driver "$rustc" "$@" --emit=metadata --out-dir "$out"
}
# Cargo asks for the compiler's version and settings through the wrapper, too.
case " $* " in
  *" --emit="*) (lint "$@") || exit ;;
esac
exec "$rustc" "$@"
