#!/usr/bin/env bash
# Fetches and unpacks the source of a Debian package, from the mirrors that this machine's packages come from.
# The source packages contain test suites of databases that no binary package has.
#   debian-source.sh PACKAGE[=VERSION] FOLDER
# Without a version it fetches the newest. FOLDER is replaced; its parent must exist.
set -euo pipefail
package=$1 folder=$2

stage=$(mktemp -d "$(dirname "$folder")/source.XXXXXX")
trap 'rm -rf "$stage"' EXIT
command -v dpkg-source > /dev/null || apt-get install --yes --quiet --no-install-recommends dpkg-dev
where() {
  apt-get indextargets 'Created-By: Packages' 'Origin: Debian' \
    --format 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) $(COMPONENT)' | sort -u
}
[ -n "$(where)" ] || apt-get update
where > "$stage/sources.list"
# Separate package lists, so that those of the machine stay unchanged.
mkdir -p "$stage/lists/partial" "$stage/cache/archives/partial"
apt=(-o "Dir::Etc::sourcelist=$stage/sources.list" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$stage/lists" -o "Dir::Cache=$stage/cache" -o APT::Sandbox::User=root)
apt-get "${apt[@]}" --quiet update > /dev/null
(cd "$stage" && apt-get "${apt[@]}" --quiet --download-only source "$package" > /dev/null)
dpkg-source --no-check --extract "$stage"/*.dsc "$stage/source" > /dev/null
rm -rf "$folder"
mv "$stage/source" "$folder"
