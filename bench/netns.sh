#!/bin/sh
# Measures far memory over links of 1 and 10 Gbit/s beside a disk of this machine, to find where far memory is slower.
#
# Two network namespaces are joined by a veth pair. Both ends are limited to a rate (tbf). The node and the broker run
# in one namespace, the client in the other. Traffic is real TCP over a real queue, but one kernel runs both sides: the
# latency is that of this machine, and there is no NIC.
#
#   bench/netns.sh FARPOOL [FLAGS OF farpool bench io]       e.g. bench/netns.sh target/release/farpool --rounds 5
#                                                            writes OUT/netns-RATE.json, and a drawing to .svg
#   MEASURE=scan bench/netns.sh FARPOOL [FLAGS OF farpool bench scan]        queries that are fetched, shipped and split
#   MEASURE=place bench/netns.sh FARPOOL [FLAGS OF farpool bench place]      and with the planner's choice; writes
#                                                                            OUT/place-RATE.json, for bench/drawing.py
#   MEASURE=sql bench/netns.sh FARPOOL [FLAGS OF bench/sql/run.py]           SQL, with all placements
#   MEASURE=joins bench/netns.sh FARPOOL [FLAGS OF bench/sql/joins.py]       joins that spill into the pool
#   MEASURE=tpc bench/netns.sh FARPOOL ENGINE [FLAGS OF bench/engines/tpc.py]          TPC-H or TPC-DS in little memory
#   MEASURE=remote-memory bench/netns.sh FARPOOL FIGURE [FLAGS OF bench/papers/remote-memory/run.py]
#   MEASURE=farview bench/netns.sh FARPOOL FIGURE [FLAGS OF bench/papers/farview/run.py]  RCPU's server beside the node
#   MEASURE=functions bench/netns.sh FARPOOL [FLAGS OF farpool bench functions]
#
# Environment, with defaults: RATES="1gbit 10gbit", DISK=/var/tmp (a folder on a disk), OUT=. (folder for results),
# MEMORY=2GiB (of the node) and NODE_FLAGS= (flags of the node, such as "--cpu-limit 0.125").
# Needs root, ip and tc (Debian: iproute2), nsenter (util-linux) and a kernel with network namespaces, veth and sch_tbf.
set -eu

farpool=${1:?usage: bench/netns.sh FARPOOL [FLAGS OF farpool bench io]}
shift
rates=${RATES:-1gbit 10gbit}
disk=${DISK:-/var/tmp}
out=${OUT:-.}
memory=${MEMORY:-2GiB}
measure=${MEASURE:-io}
client=fp-client-$$ server=fp-server-$$
client_ip=10.203.0.1 server_ip=10.203.0.2
broker_pid= node_pid=
folder=$(mktemp -d)

fail() {
	echo "bench/netns.sh: $*" >&2
	exit 2
}

stop() {
	for pid in $node_pid $broker_pid; do
		kill "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	node_pid= broker_pid=
}

clean() {
	stop
	ip netns del "$client" 2>/dev/null || true
	ip netns del "$server" 2>/dev/null || true
	rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM

case $measure in
io | scan | place | sql | joins | tpc | remote-memory | farview | functions) ;;
*) fail "MEASURE: there are io, scan, place, sql, joins, tpc, remote-memory, farview and functions, not $measure" ;;
esac
[ "$(id -u)" = 0 ] || fail "network namespaces need root"
[ -x "$farpool" ] || fail "$farpool is no program; make benches makes one, and what measures"
for program in ip tc; do
	command -v $program >/dev/null || fail "$program is missing (apt-get install iproute2)"
done

ip netns add "$client" 2>"$folder/why" || fail "no network namespaces: $(cat "$folder/why")"
ip netns add "$server"
ip -n "$client" link add veth0 type veth peer name veth0 netns "$server" 2>"$folder/why" ||
	fail "no veth in this kernel: $(cat "$folder/why")"
ip -n "$client" addr add $client_ip/24 dev veth0
ip -n "$server" addr add $server_ip/24 dev veth0
for namespace in "$client" "$server"; do
	ip -n "$namespace" link set lo up
	ip -n "$namespace" link set veth0 up
done

# Limits both ends to a rate, with tbf, or with netem if the kernel has no tbf.
shape() {
	gbit=${1%gbit}
	case $gbit in
	*[!0-9]* | "") fail "RATES: $1 is no rate; a whole number of gbit is, such as 10gbit" ;;
	esac
	for namespace in "$client" "$server"; do
		# The bucket holds 1 ms of traffic. With a smaller one, segments of 64 KiB do not reach the rate.
		if tc -n "$namespace" qdisc replace dev veth0 root tbf rate "$1" burst "$((gbit * 125))kb" latency 20ms \
			2>"$folder/why"; then
			how=tbf
		elif tc -n "$namespace" qdisc replace dev veth0 root netem rate "$1" 2>>"$folder/why"; then
			how=netem
		else
			fail "neither sch_tbf nor sch_netem in this kernel: $(cat "$folder/why")"
		fi
	done
}

# Waits until a program prints "ready", and prints the rest of that line.
ready() {
	tries=0
	until grep -q '^ready ' "$1"; do
		tries=$((tries + 1))
		[ $tries -le 100 ] || fail "not ready after 10 s: $(cat "$1")"
		sleep 0.1
	done
	sed -n 's/^ready //p' "$1" | head -n 1
}

ip netns exec "$server" "$farpool" broker --listen $server_ip:7700 --plaintext >"$folder/broker" 2>&1 &
broker_pid=$!
url=$(ready "$folder/broker")
ip netns exec "$server" "$farpool" node --name n1 --memory $memory --listen $server_ip:0 \
	--broker "$url" --no-shm --plaintext ${NODE_FLAGS:-} >"$folder/node" 2>&1 &
node_pid=$!
ready "$folder/node" >/dev/null

for rate in $rates; do
	shape "$rate"
	if [ "$measure" = scan ]; then
		echo "== veth held to $rate by $how; node: ${NODE_FLAGS:-without limits}"
		ip netns exec "$client" "$farpool" bench scan --pool "$url" --plaintext --transports tcp "$@"
		echo
		continue
	fi
	if [ "$measure" = functions ]; then
		echo "== veth held to $rate by $how; node: ${NODE_FLAGS:-without limits}"
		ip netns exec "$client" "$farpool" bench functions --pool "$url" --plaintext --transports tcp "$@"
		echo
		continue
	fi
	if [ "$measure" = farview ]; then
		echo "== veth held to $rate by $how; node: ${NODE_FLAGS:-without limits}"
		ip netns exec "$client" "${PYTHON:-python3}" "$(dirname "$0")/papers/farview/run.py" "$@" --pool "$url" --plaintext \
			--transports tcp --rcpu-netns "$server" --rcpu-ip $server_ip
		echo
		continue
	fi
	if [ "$measure" = sql ]; then
		echo "== veth held to $rate by $how; node: ${NODE_FLAGS:-without limits}"
		ip netns exec "$client" "${PYTHON:-python3}" "$(dirname "$0")/sql/run.py" "$@" --pool "$url" --plaintext
		echo
		continue
	fi
	if [ "$measure" = joins ]; then
		echo "== veth held to $rate by $how; node: ${NODE_FLAGS:-without limits}"
		ip netns exec "$client" "${PYTHON:-python3}" "$(dirname "$0")/sql/joins.py" "$@" --pool "$rate=$url" --plaintext
		echo
		continue
	fi
	if [ "$measure" = tpc ] || [ "$measure" = remote-memory ]; then
		program=engines/tpc.py
		[ "$measure" = tpc ] || program=papers/remote-memory/run.py
		echo "== veth held to $rate by $how; node: ${NODE_FLAGS:-without limits}"
		# "ip netns exec" would hide memory cgroups.
		nsenter --net=/run/netns/"$client" "${PYTHON:-python3}" "$(dirname "$0")/$program" "$@" --pool "$rate=$url" --plaintext
		echo
		continue
	fi
	if [ "$measure" = place ]; then
		echo "== veth held to $rate by $how; node: ${NODE_FLAGS:-without limits}; to $out/place-$rate.json"
		ip netns exec "$client" "$farpool" bench place --pool "$url" --plaintext --transports tcp \
			--link "${rate%gbit} Gbit/s" --json "$@" >"$out/place-$rate.json"
		echo
		continue
	fi
	echo "== veth held to $rate by $how; disk: O_DIRECT in $disk; to $out/netns-$rate.json and .svg"
	ip netns exec "$client" "$farpool" bench io --pool "$url" --plaintext --node-pid "$node_pid" \
		--depths 1,4,16,64 --beside disk --disk "$disk" --json "$@" >"$out/netns-$rate.json"
	"${PYTHON:-python3}" "$(dirname "$0")/drawing.py" io "$out/netns-$rate.json" >"$out/netns-$rate.svg"
	echo
done
