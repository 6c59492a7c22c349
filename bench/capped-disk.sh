#!/usr/bin/env bash
# Runs a command with a folder on a disk with limited rates: a file system on a loop device. The kernel's block layer
# limits the device (blkio throttling of cgroups version 1). The limits are set in the root group, so that they also
# apply to writes from the page cache.
#
#   bench/capped-disk.sh IOPS MB/s SIZE COMMAND ..     {} in the command stands for the folder
#   bench/capped-disk.sh 3000 125 8G bench/papers/remote-memory/run.py rangescan --folder {}
#
# 3,000 requests and 125 MB per second are the rates of a general-purpose cloud volume. Needs root. The image is in the
# folder DISK (default: /var/tmp).
set -euo pipefail

fail() {
	echo "capped-disk.sh: $*" >&2
	exit 2
}

[ $# -ge 4 ] || fail "usage: capped-disk.sh IOPS MB/s SIZE COMMAND .."
iops=$1 rate=$2 size=$3
shift 3
[[ $iops =~ ^[1-9][0-9]*$ ]] || fail "IOPS $iops: a number from 1 on is permitted"
[[ $rate =~ ^[1-9][0-9]*$ ]] || fail "MB/s $rate: a number from 1 on is permitted"
[ "$(id -u)" = 0 ] || fail "it takes root"
throttle=/sys/fs/cgroup/blkio/blkio.throttle
[ -e $throttle.read_iops_device ] || fail "it takes $throttle, of cgroups version 1"

folder=$(mktemp -d "${DISK:-/var/tmp}/farpool-capped-XXXXXX")
chmod 755 "$folder"
loop=
clean() {
	umount "$folder/at" 2>/dev/null || umount --lazy "$folder/at" 2>/dev/null || true
	if [ -n "$loop" ]; then
		for what in read_iops write_iops read_bps write_bps; do echo "$device 0" >"$throttle.${what}_device"; done
		losetup -d "$loop"
	fi
	rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM

truncate -s "$size" "$folder/image"
# Direct I/O: the page cache of the image would be a second, faster disk.
loop=$(losetup --find --show --direct-io=on "$folder/image")
device=$(cat "/sys/block/${loop#/dev/}/dev")
mkfs.ext4 -q -E nodiscard "$loop"
mkdir "$folder/at"
mount "$loop" "$folder/at"
chmod 1777 "$folder/at"
for what in read write; do
	echo "$device $iops" >"$throttle.${what}_iops_device"
	echo "$device $((rate * 1000000))" >"$throttle.${what}_bps_device"
done
echo "== a disk of $iops requests and $rate MB a second" >&2
"${@//\{\}/$folder/at}"
