#!/usr/bin/env bash
# Runs csi-sanity, the conformance tests of the Container Storage Interface, against the driver, over a pool of its own.
#
#   PROGRAMS=DIR SANITY=PROGRAM engines/csi/sanity.sh [FLAGS OF csi-sanity]
#
# PROGRAMS is the folder with farpool and farpool-csi. Needs root and /dev/fuse.
set -euo pipefail

: "${PROGRAMS:?folder with farpool and farpool-csi}" "${SANITY:?program csi-sanity}"
work=$(mktemp -d /tmp/farpool-sanity-XXXXXX)
pids=()
clean() {
	for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
		kill "${pids[i]}" 2>/dev/null || true
		wait "${pids[i]}" 2>/dev/null || true
	done
	awk -v work="$work/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | xargs -r umount --lazy
	rm -rf "$work"
}
trap clean EXIT
export FARPOOL_CONFIG=/dev/null

# Starts a server, and waits for its line `ready ..`; sets `ready` to the rest of it.
serve() {
	local out="$work/out-${#pids[@]}"
	: >"$out"
	"$@" >>"$out" 2>>"$work/log" &
	pids+=($!)
	for ((i = 0; i < 6000; i++)); do
		if ready=$(sed -n 's/^ready //p' "$out") && [ -n "$ready" ]; then return; fi
		kill -0 "${pids[-1]}" 2>/dev/null || break
		sleep 0.1
	done
	echo "sanity.sh: $* did not get ready:" >&2
	cat "$work/log" >&2
	exit 1
}

mkdir "$work/kubelet"
serve "$PROGRAMS/farpool" broker --listen 127.0.0.1:0
pool=$ready
serve "$PROGRAMS/farpool" node --name n1 --memory 512MiB --no-prefault --no-lock --no-reserve --broker "$pool"
serve "$PROGRAMS/farpool-csi" volume-server --listen "$work/volumes.sock" --volumes "$work/volumes" \
	--targets "$work/kubelet" --pool "$pool"
serve "$PROGRAMS/farpool-csi" driver --endpoint "$work/csi.sock" --volume-server "$work/volumes.sock" \
	--records "$work/records" --node-id machine --pool "$pool"
"$SANITY" --csi.endpoint "$work/csi.sock" --csi.mountdir "$work/kubelet/target" --csi.stagingdir "$work/kubelet/stage" \
	--csi.testvolumesize $((64 << 20)) --ginkgo.no-color "$@" || {
	cat "$work/log" >&2
	exit 1
}
