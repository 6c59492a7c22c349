#!/usr/bin/env bash
# Builds the program that SQLite's own tests run in, from the source of this machine's SQLite version.
# Leaves the source in FOLDER/source and the program as FOLDER/testfixture.
#   build.sh FOLDER
set -euo pipefail
folder=$1

configuration() { ls /usr/lib/tcl8.6/tclConfig.sh /usr/lib/*/tcl8.6/tclConfig.sh 2> /dev/null | head -1; }
[ -n "$(configuration)" ] || apt-get install --yes --quiet --no-install-recommends tcl8.6-dev ||
  (apt-get update && apt-get install --yes --quiet --no-install-recommends tcl8.6-dev)
mkdir -p "$folder"
"$(dirname "$0")/../../debian-source.sh" sqlite3 "$folder/source"
build=$(mktemp -d "$folder/build.XXXXXX")
trap 'rm -rf "$build"' EXIT
cd "$build"
(../source/configure --enable-load-extension --with-tcl="$(dirname "$(configuration)")" && make testfixture) > "$folder/build.log" 2>&1 ||
  { tail -20 "$folder/build.log" >&2; exit 1; }
mv testfixture "$folder/testfixture"
