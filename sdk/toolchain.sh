#!/usr/bin/env bash
# Provides the compilers that build functions to Wasm. Prints their paths as assignments for a shell.
#
#   eval "$(sdk/toolchain.sh)"            CLANG, WASM_LD: functions in C
#   eval "$(sdk/toolchain.sh --rust)"     also RUSTC_WASM: functions in Rust, for `cargo -Zbuild-std=core,alloc`
#
# Programs in PATH are used if they are clang and wasm-ld of version 16 or newer that know wasm32. Missing ones are
# downloaded from this machine's Debian or Ubuntu mirror and unpacked under $CACHE/wasm-toolchain. They are not
# installed, and no root is needed. Later runs download nothing and print no progress. CLANG, WASM_LD and RUSTC_WASM
# are used as they are if set.
# Environment: CACHE ($HOME/.cache/farpool).
set -euo pipefail

rust=
for argument; do
    case $argument in
    --rust) rust=yes ;;
    *) echo "toolchain.sh: unknown argument \"$argument\"; the only option is --rust" >&2 && exit 2 ;;
    esac
done
root=${CACHE:-$HOME/.cache/farpool}/wasm-toolchain
release=19

say() { echo "toolchain.sh: $*" >&2; }

# apt with lists, archives and locks of its own. Packages that this machine has installed are not downloaded.
apt_options=(-o "Dir::State::lists=$root/apt/lists" -o "Dir::Cache=$root/apt/cache" -o Debug::NoLocking=true
    -o "APT::Sandbox::User=$(id -un)" -o APT::Install-Recommends=false -qq)
fetch() { # NAME PACKAGES...: unpacks the packages, with their dependencies that this machine lacks, to $root/NAME
    local name=$1 deb
    shift
    [ -e "$root/$name/.ready" ] && return
    command -v apt-get >/dev/null || {
        say "apt-get was not found: put clang and wasm-ld 16 or newer into PATH, or set CLANG and WASM_LD"
        exit 1
    }
    say "fetching $*"
    mkdir -p "$root/apt/lists/partial" "$root/apt/cache/archives/partial"
    apt-get "${apt_options[@]}" update >&2
    rm -rf "$root/apt/cache/archives"/*.deb "${root:?}/$name"
    mkdir -p "$root/$name"
    apt-get "${apt_options[@]}" install --download-only --yes "$@" >&2
    for deb in "$root/apt/cache/archives"/*.deb; do dpkg-deb -x "$deb" "$root/$name"; done
    rm -rf "$root/apt/cache/archives"/*.deb
    touch "$root/$name/.ready"
}

# An unpacked program finds its libraries only if it is told where they are.
wrap() { # NAME PROGRAM UNPACKED: writes $root/bin/NAME
    local libraries
    libraries=$(find "$root/$3" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
    mkdir -p "$root/bin"
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "%s" "$@"\n' \
        "$libraries" "$2" >"$root/bin/$1.new"
    chmod +x "$root/bin/$1.new"
    mv "$root/bin/$1.new" "$root/bin/$1"
}

version() { "$1" --version 2>/dev/null | sed -n 's/.*\(version\|LLD\) \([0-9]*\)\..*/\2/p' | head -1; }
recent() { # PROGRAM: reports whether it exists and has version 16 or newer
    local found
    command -v "$1" >/dev/null || return 1
    found=$(version "$1")
    [ "${found:-0}" -ge 16 ]
}
makes_wasm() { recent "$1" && "$1" --print-targets | grep -q wasm32; }
first() { # CHECK PROGRAMS...: prints the path of the first program that passes the check
    local check=$1 program
    shift
    for program; do
        if "$check" "$program"; then command -v "$program" && return; fi
    done
}

CLANG=${CLANG:-$(first makes_wasm "clang-$release" clang clang-22 clang-21 clang-20 clang-18 clang-17 clang-16)}
WASM_LD=${WASM_LD:-$(first recent "wasm-ld-$release" wasm-ld wasm-ld-22 wasm-ld-21 wasm-ld-20 wasm-ld-18 wasm-ld-17 wasm-ld-16)}
if [ -z "$CLANG" ] || [ -z "$WASM_LD" ]; then
    fetch c "clang-$release" "lld-$release"
    [ -x "$root/bin/clang" ] || wrap clang "$root/c/usr/lib/llvm-$release/bin/clang" c
    [ -x "$root/bin/wasm-ld" ] || wrap wasm-ld "$root/c/usr/lib/llvm-$release/bin/wasm-ld" c
    CLANG=${CLANG:-$root/bin/clang}
    WASM_LD=${WASM_LD:-$root/bin/wasm-ld}
fi
printf 'CLANG=%q\nWASM_LD=%q\n' "$CLANG" "$WASM_LD"

if [ -n "$rust" ]; then
    RUSTC_WASM=${RUSTC_WASM:-}
    if [ -z "$RUSTC_WASM" ]; then
        # Debian's compiler for building its browsers. It is newer than the distribution's, and a package has its
        # sources of `core`.
        fetch rust rustc-web rust-web-src
        [ -x "$root/bin/rustc" ] || wrap rustc "$root/rust/usr/bin/rustc" rust
        RUSTC_WASM=$root/bin/rustc
    fi
    printf 'RUSTC_WASM=%q\n' "$RUSTC_WASM"
fi
