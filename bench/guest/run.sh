#!/usr/bin/env bash
# Runs a program in a temporary QEMU guest with two NUMA nodes. The second node has no CPUs. The guest makes it possible
# to test the placement of memory in two tiers on any machine. Times measured in it mean nothing.
#
#   bench/guest/run.sh PROGRAM [ARGUMENTS...]                 the guest has only the program and its libraries
#   bench/guest/run.sh --host-root COMMAND [ARGUMENTS...]     as root, in this folder of this machine's root file system
#   bench/guest/run.sh --systemd COMMAND [ARGUMENTS...]       the same, beside a systemd that has booted
#
# The guest of --host-root has all programs of this machine and cgroups of version 2 with all controllers. It can read
# the files that the caller can read. It writes to its own disk, which is deleted at the end: /var/tmp is on that disk
# (ext4 on a virtio block device), everything else is an overlay. The environment is PATH, HOME and TMPDIR; `env
# NAME=VALUE` sets more.
#
# Exit code: that of the program; 124 if it took too long, 125 if the guest did not report an exit code.
#
# QEMU, a kernel and busybox are downloaded from this machine's Debian or Ubuntu mirror and unpacked under $CACHE/guest.
# They are not installed, and no root is needed. These variables name other files to use:
#   GUEST_QEMU     a qemu-system-x86_64            GUEST_KERNEL   a bzImage with NUMA, HMAT and a serial console
#   GUEST_BUSYBOX  a static busybox                GUEST_ACCEL    tcg (default) or kvm
#   GUEST_MODULES  folder of GUEST_KERNEL's modules, for --host-root; other drivers must be built in
# Limits: GUEST_MIB, memory of each node (512, or 1536 with --host-root); GUEST_SECONDS, time until it is stopped (300);
# GUEST_DISK_MIB, size of the disk that --host-root writes to (8192; the file is sparse). GUEST_DAX_MIB takes so much
# memory (a multiple of 128) of the second node for a device /dev/dax0.0, by the kernel parameter memmap=.
set -euo pipefail

HOST_ROOT=
SYSTEMD=
case "${1:-}" in
  --host-root) HOST_ROOT=yes ;;
  --systemd) HOST_ROOT=yes SYSTEMD=yes ;;
esac
[ -z "$HOST_ROOT" ] || shift
PROGRAM=${1:?a program to run in the guest}
shift
CACHE=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/farpool}/guest
DAX_MIB=${GUEST_DAX_MIB:-}
MIB=${GUEST_MIB:-$([ -n "$HOST_ROOT" ] && echo 1536 || echo 512)}
mkdir -p "$CACHE"

say() { echo "guest: $*" >&2; }

# apt uses its own lists, archives and locks. Packages that this machine has installed are not downloaded.
apt_root=$CACHE/apt
apt_options=(-o "Dir::State::lists=$apt_root/lists" -o "Dir::Cache=$apt_root/cache" -o Debug::NoLocking=true
  -o "APT::Sandbox::User=$(id -un)" -o APT::Install-Recommends=false -qq)
fetch() { # NAME PACKAGES...: unpacks packages to $CACHE/NAME, for qemu with the dependencies that this machine lacks
  local name=$1 deb
  shift
  [ -e "$CACHE/$name/.ready" ] && return
  command -v apt-get > /dev/null || { say "no apt-get: set GUEST_QEMU, GUEST_KERNEL and GUEST_BUSYBOX"; exit 2; }
  say "fetching $*"
  mkdir -p "$apt_root/lists/partial" "$apt_root/cache/archives/partial"
  [ -n "$(ls "$apt_root/lists"/*Packages* 2> /dev/null)" ] || apt-get "${apt_options[@]}" update >&2
  rm -rf "$apt_root/cache/archives"/*.deb "${CACHE:?}/$name"
  mkdir -p "$CACHE/$name"
  if [ "$name" = qemu ]; then
    apt-get "${apt_options[@]}" install --download-only --yes "$@" >&2
  else
    (cd "$apt_root/cache/archives" && apt-get "${apt_options[@]}" download "$@" >&2)
  fi
  for deb in "$apt_root/cache/archives"/*.deb; do dpkg-deb -x "$deb" "$CACHE/$name"; done
  touch "$CACHE/$name/.ready"
}

QEMU=${GUEST_QEMU:-}
QEMU_FLAGS=()
if [ -z "$QEMU" ]; then
  fetch qemu qemu-system-x86
  QEMU=$CACHE/qemu/usr/bin/qemu-system-x86_64
  QEMU_FLAGS=(-L "$CACHE/qemu/usr/share/qemu" -L "$CACHE/qemu/usr/share/seabios")
  libraries=$(find "$CACHE/qemu" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
fi
KERNEL=${GUEST_KERNEL:-}
if [ -z "$KERNEL" ]; then
  # Not the smaller cloud image, which has no 9p.
  if [ ! -e "$CACHE/linux/.ready" ]; then
    # This meta package depends on the newest kernel. The package lists exist, because QEMU was fetched before.
    fetch lists linux-image-amd64
    newest=$(apt-cache "${apt_options[@]}" depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
    fetch linux "${newest:?no kernel in the package lists}"
  fi
  KERNEL=$(ls "$CACHE"/linux/boot/vmlinuz-* | tail -1)
  GUEST_MODULES=$CACHE/linux/lib/modules
fi
BUSYBOX=${GUEST_BUSYBOX:-}
if [ -z "$BUSYBOX" ]; then
  fetch busybox busybox-static
  BUSYBOX=$(find "$CACHE/busybox" -type f -name busybox -perm -u+x | head -1)
fi

run=$(mktemp -d "$CACHE/run.XXXXXX")
trap 'rm -rf "$run"' EXIT
root=$run/root
mkdir -p "$root"/{bin,dev,proc,sys,tmp}
cp "$BUSYBOX" "$root/bin/busybox"

copy_program() { # copies the program and its libraries, at the paths where it looks for them
  local library
  cp -L "$PROGRAM" "$root/program"
  chmod +x "$root/program"
  { ldd "$PROGRAM" 2> /dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -Ln "$library" "$root$library"
  done
}

copy_module() { # NAME: copies a kernel module, after its dependencies, unless it is built in
  local file needed
  file=$(find "${GUEST_MODULES:-/nonexistent}" -name "${1//_/[-_]}.ko*" 2> /dev/null | head -1)
  if [ -z "$file" ] || grep -qsx "$1.ko" "$root/modules/order"; then return 0; fi
  mkdir -p "$root/modules"
  case $file in
    *.xz) xz -dc "$file" > "$root/modules/$1.ko" ;;
    *.zst) zstd -qdc "$file" > "$root/modules/$1.ko" ;;
    *) cp "$file" "$root/modules/$1.ko" ;;
  esac
  for needed in $(tr '\0' '\n' < "$root/modules/$1.ko" | sed -n 's/^depends=//p' | tr ',' ' '); do
    copy_module "$needed"
  done
  echo "$1.ko" >> "$root/modules/order"
}

{
  cat << 'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox mount -t tmpfs none /tmp
export HOME=/tmp
/bin/busybox --install -s /bin
ifconfig lo up
for module in $(cat /modules/order 2> /dev/null); do insmod "/modules/$module"; done
INIT
  # The memory is a namespace of persistent memory. A device of the kind `dax` claims it, and is bound to its driver.
  [ -z "$DAX_MIB" ] || cat << 'INIT'
cd /sys/bus/nd/devices
[ ! -e namespace0.0/driver ] || echo namespace0.0 > namespace0.0/driver/unbind
seed=$(cat region0/dax_seed)
echo 2097152 > "$seed/align"
cat /proc/sys/kernel/random/uuid > "$seed/uuid"
echo ram > "$seed/mode"
echo namespace0.0 > "$seed/namespace"
echo "$seed" > /sys/bus/nd/drivers/dax_pmem/bind
cd /
INIT
  [ -z "$HOST_ROOT" ] || cat << 'INIT'
mkdir /host /disk /merged
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,access=any,msize=524288 host /host
mount -t ext4 /dev/vda /disk
mkdir /disk/upper /disk/work /disk/tmp
chmod 1777 /disk/tmp
mount -t overlay -o lowerdir=/host,upperdir=/disk/upper,workdir=/disk/work overlay /merged
mount -t proc none /merged/proc
mount -t sysfs none /merged/sys
mount -t devtmpfs none /merged/dev
mkdir -p /merged/dev/pts /merged/dev/shm
mount -t devpts none /merged/dev/pts
mount -t tmpfs none /merged/dev/shm
mount -t tmpfs none /merged/run
mount -t cgroup2 none /merged/sys/fs/cgroup
mount -o bind /disk/tmp /merged/var/tmp
INIT
  [ -z "$SYSTEMD" ] || cat << 'INIT'
cp /command /merged/guest-command
units=/merged/etc/systemd/system
printf '[Unit]\nRequires=basic.target guest.service\nAfter=basic.target\n' > $units/guest.target
printf '[Unit]\nAfter=basic.target\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\n' > $units/guest.service
echo 'ExecStart=/bin/sh /guest-run' >> $units/guest.service
cat > /merged/guest-run << 'RUN'
sh /guest-command > /dev/ttyS0 2>&1
echo "exit $?" > /dev/ttyS1
systemctl poweroff --force --force
RUN
exec switch_root /merged /lib/systemd/systemd --unit=guest.target --show-status=false
INIT
  cat << 'INIT'
/bin/busybox sh /command
echo "exit $?" > /dev/ttyS1
/bin/busybox poweroff -f
INIT
} > "$root/init"
chmod +x "$root/init"
if [ -n "$DAX_MIB" ]; then
  for module in nd_e820 nd_pmem device_dax dax_pmem; do copy_module "$module"; done
fi
if [ -n "$HOST_ROOT" ]; then
  for module in virtio_pci 9pnet_virtio 9p virtio_blk crc32c_generic ext4 overlay fuse; do copy_module "$module"; done
  {
    [ -n "$SYSTEMD" ] || printf 'chroot /merged '
    printf '/usr/bin/env -i -C %q HOME=%q' "$PWD" "$HOME"
    printf ' %q' "PATH=$PATH" TMPDIR=/var/tmp "$PROGRAM" "$@"
    echo
  } > "$root/command"
  truncate -s "${GUEST_DISK_MIB:-8192}M" "$run/disk"
  PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -F -E lazy_itable_init=1 "$run/disk"
  QEMU_FLAGS+=(-virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"
    -drive "file=$run/disk,if=virtio,format=raw,cache=unsafe")
else
  copy_program
  { printf '/program'; [ $# = 0 ] || printf ' %q' "$@"; echo; } > "$root/command"
fi
(cd "$root" && find . | "$BUSYBOX" cpio -o -H newc 2> /dev/null) > "$run/initrd"

memmap=${DAX_MIB:+ memmap=${DAX_MIB}M!$((MIB + 128))M}
say "booting with two nodes of $MIB MiB, the second without CPUs"
status=0
LD_LIBRARY_PATH=${libraries:-${LD_LIBRARY_PATH:-}} timeout --foreground "${GUEST_SECONDS:-300}" "$QEMU" "${QEMU_FLAGS[@]}" \
  -nodefaults -display none -no-reboot -accel "${GUEST_ACCEL:-tcg}" -cpu max -smp 2 -machine q35,hmat=on -m "$((2 * MIB))" \
  -object "memory-backend-ram,id=near,size=${MIB}M" -object "memory-backend-ram,id=far,size=${MIB}M" \
  -numa node,nodeid=0,memdev=near,cpus=0-1 -numa node,nodeid=1,memdev=far,initiator=0 \
  -numa dist,src=0,dst=1,val=30 -numa dist,src=1,dst=0,val=30 \
  -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-latency,latency=100 \
  -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-bandwidth,bandwidth=30G \
  -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=300 \
  -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-bandwidth,bandwidth=20G \
  -kernel "$KERNEL" -initrd "$run/initrd" -append "console=ttyS0 quiet panic=-1$memmap" \
  -serial stdio -serial "file:$run/ended" < /dev/null || status=$?
ended=$(sed -n 's/^exit \([0-9]*\).*/\1/p' "$run/ended" 2> /dev/null | tail -1)
[ -n "$ended" ] && exit "$ended"
[ "$status" = 124 ] && { say "it took longer than ${GUEST_SECONDS:-300} s"; exit 124; }
say "the guest ended without a result (QEMU: $status)"
exit 125
