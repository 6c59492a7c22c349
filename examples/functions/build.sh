#!/usr/bin/env bash
# Builds the examples of shipped functions into $CACHE/functions.
#
#   build.sh                   Wasm modules of those in C, *.wasm, and *.simd.wasm, with vectors, of those that gain by it
#   build.sh --native          shared objects of those in C, *.so
#   build.sh --rust            Wasm modules of those in Rust, rust/*.wasm
#   build.sh --all             all three
#   build.sh ... FILE.c        this one alone, of whatever folder
#
# Compilers come from sdk/toolchain.sh; shared objects are built by cc. Every module is checked against the rules of
# spec/function.md. Environment: CACHE ($HOME/.cache/farpool), CC (cc), CARGO (cargo), OUT ($CACHE/functions).
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
    *) echo "build.sh: \"$argument\" is not known; there are --native, --rust, --all and files of C" >&2 && exit 2 ;;
    esac
done
[ -n "$native$rust" ] || wasm=yes
[ ${#sources[@]} -gt 0 ] || sources=("$here"/*.c "$sdk/c/header_test.c")
mkdir -p "$OUT"

# Without a C library, and so that results do not depend on the processor: additions and products are not fused.
flags=(-std=c11 -Wall -Wextra -Werror -O3 -ffreestanding -ffp-contract=off "-I$sdk/c")

module() { # SOURCE NAME FLAGS...: bulk instructions do not reach the window
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
    # As of WebAssembly's first release, core and alloc included, so that nothing of theirs is a bulk instruction. What
    # lints crates in `make test` knows another compiler's core, not this one's.
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
