#!/usr/bin/env bash
# Builds the example functions into $CACHE/functions.
#
#   build.sh                   C to Wasm: *.wasm; also *.simd.wasm, with vectors, for those that gain by it
#   build.sh --native          C to shared objects: *.so
#   build.sh --rust            Rust to Wasm: rust/*.wasm
#   build.sh --all             all three
#   build.sh ... FILE.c        only this file, from any folder
#
# sdk/toolchain.sh provides the compilers for Wasm; cc builds the shared objects. Every module is checked against the
# rules of spec/function.md.
# Environment: CACHE ($HOME/.cache/farpool), CC (cc), CARGO (cargo), OUT ($CACHE/functions).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sdk=$here/../../sdk
export CACHE=${CACHE:-$HOME/.cache/farpool}
OUT=${OUT:-$CACHE/functions}

wasm='' native='' rust=''
sources=()
for argument; do
    case $argument in
    --native) native=yes ;;
    --rust) rust=yes ;;
    --all) wasm=yes native=yes rust=yes ;;
    *.c) sources+=("$argument") ;;
    *) echo "build.sh: unknown argument \"$argument\"; use --native, --rust, --all or C files" >&2 && exit 2 ;;
    esac
done
[ -n "$native$rust" ] || wasm=yes
[ ${#sources[@]} -gt 0 ] || sources=("$here"/*.c "$sdk/c/header_test.c")
mkdir -p "$OUT"

# There is no C library. Additions and products are not fused, so that results do not depend on the processor.
flags=(-std=c11 -Wall -Wextra -Werror -O3 -ffreestanding -ffp-contract=off "-I$sdk/c")

module() { # SOURCE NAME FLAGS...: builds a module without bulk memory instructions, which cannot access a table's bytes
    local source=$1 name=$2
    shift 2
    "$CLANG" --target=wasm32 "${flags[@]}" -mno-bulk-memory "$@" -c "$source" -o "$OUT/$name.o"
    "$WASM_LD" --no-entry --stack-first -z stack-size=65536 --strip-debug "$OUT/$name.o" -o "$OUT/$name.wasm"
    rm "$OUT/$name.o"
    python3 "$here/check_module.py" "$OUT/$name.wasm"
}

if [ -n "$wasm" ]; then
    paths=$("$sdk/toolchain.sh")
    eval "$paths"
    for source in "${sources[@]}"; do
        name=$(basename "$source" .c)
        module "$source" "$name"
        case $name in
        filter_sum | knn | sum) module "$source" "$name.simd" -msimd128 ;;
        esac
    done
fi
if [ -n "$native" ]; then
    for source in "${sources[@]}"; do
        "${CC:-cc}" "${flags[@]}" -fPIC -shared -nostdlib "$source" -o "$OUT/$(basename "$source" .c).so"
    done
fi
if [ -n "$rust" ]; then
    paths=$("$sdk/toolchain.sh" --rust)
    eval "$paths"
    mkdir -p "$OUT/rust"
    # `mvp` is WebAssembly's first release, which has no bulk memory instructions. `core` and `alloc` are built for it
    # too. The lint wrapper of `make test` is turned off: it works only with another compiler's `core`.
    RUSTC_WORKSPACE_WRAPPER='' RUSTC=$RUSTC_WASM RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$OUT/rust/target \
        CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=$WASM_LD \
        RUSTFLAGS="-Ctarget-cpu=mvp -Clink-arg=-zstack-size=65536 -Clink-arg=--strip-debug" \
        "${CARGO:-cargo}" build --quiet --release --locked --manifest-path "$here/rust/Cargo.toml" \
        --target wasm32-unknown-unknown -Zbuild-std=core,alloc -Zbuild-std-features=compiler-builtins-mem
    for module in "$OUT"/rust/target/wasm32-unknown-unknown/release/*.wasm; do
        cp "$module" "$OUT/rust/"
        python3 "$here/check_module.py" "$OUT/rust/$(basename "$module")"
    done
fi
