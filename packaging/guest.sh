#!/usr/bin/env bash
# Starts the units of the packages in a systemd that has booted, as bench/guest/run.sh --systemd gives one.
#   guest.sh PACKAGE        the folder of an unpacked Debian package
# Changes the system it runs on: never call it outside a guest.
set -euo pipefail
package=$1
checks=0

say() { echo "units: $*"; }
fail() {
  say "$*"
  journalctl --no-pager --lines 60 --output cat
  exit 1
}
check() { # DESCRIPTION COMMAND...
  local what=$1
  shift
  local said
  said=$("$@" 2>&1) || fail "$what: failed: $said"
  checks=$((checks + 1))
  say "$what"
}
until_so() { # DESCRIPTION COMMAND...: waits until it holds, at most two minutes
  local what=$1 tries
  shift
  for ((tries = 0; tries < 600; tries++)); do
    if "$@" > /dev/null 2>&1; then
      check "$what" "$@"
      return
    fi
    sleep 0.2
  done
  fail "$what: not within two minutes"
}
restarts() { [ "$(systemctl show --property NRestarts --value "$1")" = "$2" ] && systemctl is-active "$1"; }
main_process() { systemctl show --property MainPID --value "$1"; }
# Writes a file below a directory that is mounted once, and reads it.
is_usable() {
  [ "$(grep -c " $1 fuse" /proc/mounts)" = 1 ] && echo far > "$1/file" && grep -q far "$1/file" &&
    [ "$(ls "$1")" = file ]
}
is_silent() { ! journalctl --no-pager --output cat -u "$1" | grep -F "$2"; }

[ -d /run/systemd/system ] || fail "systemd has not booted this system"
# Keeps /sbin if it is a link to a folder, as dpkg does.
tar --create --directory "$package" --exclude ./DEBIAN . |
  tar --extract --directory / --no-same-owner --keep-directory-symlink --no-overwrite-dir
check "the package's script makes user and folder" sh "$package/DEBIAN/postinst" configure ""
cat >> /etc/farpool/farpool.toml << 'SETTINGS'
name = "n1"
memory = "64MiB"
region-size = "1MiB"
no-reserve = true
SETTINGS
check "settings have no mistake" farpool config check
mkdir -p /srv/far /srv/listed
# Permissions that udev would give; it does not run here.
chmod 666 /dev/fuse

# Each start returns when the server says that it is ready.
check "broker starts" systemctl start farpool-broker
check "node starts" systemctl start farpool-node
check "status knows the node" sh -c 'farpool status | grep -w n1'
check "functions of the node have their namespaces" is_silent farpool-node "without namespaces"
check "memory of the node is locked" grep -q "^Max locked memory *unlimited" "/proc/$(main_process farpool-node)/limits"
check "mount starts" systemctl start farpool-mount@srv-far
check "others write to the mount and read it" is_usable /srv/far
check "mount has no privileges" grep -q "^CapEff:[[:space:]]*0*$" "/proc/$(main_process farpool-mount@srv-far)/status"
kill -KILL "$(main_process farpool-mount@srv-far)"
until_so "mount that was killed is replaced" restarts farpool-mount@srv-far 1
check "directory is mounted again, once" is_usable /srv/far
# The same directory may have another mount below: only Farpool's is taken away.
mkdir /srv/other
mount -t tmpfs none /srv/other
check "mount over another file system starts" systemctl start farpool-mount@srv-other
check "it stops" systemctl stop farpool-mount@srv-other
echo kept > /srv/other/file
check "start over files fails" sh -c '! systemctl start farpool-mount@srv-other'
systemctl stop farpool-mount@srv-other
check "other file system stays" grep -q kept /srv/other/file
umount /srv/far
until_so "mount that was unmounted ends well" sh -c \
  '[ "$(systemctl show --property ActiveState,Result --value farpool-mount@srv-far | xargs)" = "success inactive" ]'
check "mount starts again" systemctl start farpool-mount@srv-far
check "others write to it" is_usable /srv/far
check "worker starts" systemctl start farpool-sql-worker
check "query over the worker" farpool sql --workers http://127.0.0.1:7800 -c "SELECT 42"

# A server that hangs is noticed by the watchdog.
mkdir -p /run/systemd/system/farpool-broker.service.d
printf '[Service]\nWatchdogSec=2\nWatchdogSignal=KILL\n' > /run/systemd/system/farpool-broker.service.d/watchdog.conf
systemctl daemon-reload
check "broker restarts" systemctl restart farpool-broker
kill -STOP "$(main_process farpool-broker)"
until_so "broker that hangs is replaced" restarts farpool-broker 1
check "others still read the mount" grep -q far /srv/far/file

# fstab.
echo 'farpool /srv/listed farpool allow_other,protection=none 0 0' >> /etc/fstab
check "directory of fstab is mounted" mount /srv/listed
check "others write to the directory of fstab" is_usable /srv/listed
check "it is unmounted" umount /srv/listed
until_so "log of the mount is in the journal" \
  sh -c 'journalctl --no-pager -t mount.farpool | grep "written to far memory"'

for unit in farpool-sql-worker farpool-mount@srv-far farpool-node farpool-broker; do
  check "$unit stops" systemctl stop "$unit"
  check "$unit ended well" sh -c "[ \$(systemctl show --property Result --value $unit) = success ]"
done
check "unit is enabled" systemctl enable farpool-mount@srv-far
check "the package is removed" sh "$package/DEBIAN/prerm" remove
check "nothing is enabled" sh -c '! ls /etc/systemd/system/*.wants/farpool*'
say "$checks checks passed"
