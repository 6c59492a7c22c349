#!/usr/bin/env bash
# Fetches PostgreSQL's regression tests, of the version that is installed here, and builds
# the C functions that they call.
# Leaves the tests in FOLDER/regress, and all libraries that they load in FOLDER/libraries.
#   build.sh FOLDER
set -euo pipefail
folder=$1

version=$(dpkg-query --show --showformat '${Version}' postgresql-15)
mkdir -p "$folder"
stage=$(mktemp -d "$folder/build.XXXXXX")
trap 'rm -rf "$stage"' EXIT
"$(dirname "$0")/../../debian-source.sh" "postgresql-15=$version" "$stage/source"
# The server's headers are unpacked and not installed, because the package depends on all of LLVM.
(cd "$stage" && apt-get -o APT::Sandbox::User=root --quiet download "postgresql-server-dev-15=$version" > /dev/null)
dpkg -x "$stage"/postgresql-server-dev-15_*.deb "$stage/headers"
cc -O2 -fPIC -shared -I "$stage/headers/usr/include/postgresql/15/server" -o "$stage/regress.so" \
  "$stage/source/src/test/regress/regress.c"
rm -rf "$folder/regress" "$folder/libraries"
mv "$stage/source/src/test/regress" "$folder/regress"
mkdir "$folder/libraries"
# The server package contains these two.
cp /usr/lib/postgresql/15/lib/{autoinc,refint}.so "$folder/libraries"
mv "$stage/regress.so" "$folder/libraries"
