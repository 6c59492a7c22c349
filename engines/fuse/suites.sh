#!/usr/bin/env bash
# Runs public test suites for file systems: fsx (OPERATIONS operations), pjdfstest, and fio, which verifies
# what it wrote.
# Each runs on a scratch mount, on a cached mount, and on a cached mount with --exclusive.
# Needs root, /dev/fuse, and about 3 GiB of memory.
#   suites.sh OPERATIONS
set -euo pipefail
# Other users must be able to enter the folders made here.
umask 022
operations=$1
suites=$CACHE/suites

export CARGO_TARGET_DIR=$suites/target
for suite in fsx@0.3.2 pjdfstest@0.2.2; do
  # `make test` wraps rustc with a linter; it must not check this foreign code.
  [ -x "$suites/bin/${suite%@*}" ] || env -u RUSTC_WORKSPACE_WRAPPER cargo install --quiet --locked --root "$suites" "$suite"
done
command -v fio > /dev/null || { echo "suites.sh: fio is not installed (Debian: fio)" >&2; exit 1; }

stage=$(mktemp -d)
chmod 755 "$stage"
pids=()
finish() {
  umount --lazy "$stage/scratch" "$stage/cached" "$stage/alone" 2> /dev/null || true
  kill "${pids[@]}" 2> /dev/null || true
  wait
  rm -rf "$stage"
}
trap finish EXIT

# Starts a process of Farpool and waits until it reports that it is ready.
start() {
  local said="$stage/said-${#pids[@]}"
  mkfifo "$said"
  "$BIN" "$@" > "$said" &
  pids+=($!)
  read -r ready < "$said"
  case $ready in "ready "*) ready=${ready#ready } ;; *) exit 1 ;; esac
}

mkdir "$stage/scratch" "$stage/cached" "$stage/folder" "$stage/alone" "$stage/own"
start broker --listen 127.0.0.1:0 --store memory
pool=$ready
start node --name suites --broker "$pool" --memory 3GiB
start mount scratch "$stage/scratch" --pool "$pool" --allow-other --protection none
start mount cache "$stage/folder" "$stage/cached" --pool "$pool" --allow-other
start mount cache "$stage/own" "$stage/alone" --pool "$pool" --allow-other --exclusive

cat > "$stage/pjdfstest.toml" << 'END'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"], ["www-data", "www-data"]]
END

for mount in scratch cached alone; do
  echo "== pjdfstest, $mount"
  (cd "$stage" && "$suites/bin/pjdfstest" --configuration-file pjdfstest.toml --path "$stage/$mount" > "$stage/told") \
    || { grep -A 20 FAILED "$stage/told"; exit 1; }
  tail -1 "$stage/told"
  echo "== fio, $mount"
  fio --directory="$stage/$mount" --aux-path="$stage" --name=verified --ioengine=psync --bs=8k --size=256m --numjobs=2 --rw=randrw --verify=crc32c \
    --do_verify=1 --verify_fatal=1 --fallocate=none --end_fsync=1 | grep -E "err=|READ:|WRITE:"
  rm "$stage/$mount"/verified.*
  echo "== fsx, $operations operations, $mount"
  # Many short runs: fsx keeps its mappings, and becomes slower the longer it runs.
  for ((seed = 1; seed * 20000 <= operations; seed++)); do
    "$suites/bin/fsx" -q -N 20000 -S "$seed" -P "$stage" "$stage/$mount/fsx" > /dev/null
    rm "$stage/$mount/fsx"
  done
  echo "$(((seed - 1) * 20000)) operations, no difference"
done
