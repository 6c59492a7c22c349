------------------------------- MODULE copies -------------------------------
(* Copies of a published file: who makes them again, and what is listed. The part of lease.md called "Repair" as a
   state machine, for the model checker TLC; check.sh runs it.

   The idea: one run of bytes of one file, which should have two copies. Runs do not depend on each other, so one is
   enough. There is no clock: the broker may think at any moment that a node is silent or gone, rightly or not, and
   hears of nodes again. What a node has sent may arrive at any later time, any number of times, or never.

   Left out, as lease.tla has them: leases, gates, deposed brokers that go on, the store. *)
EXTENDS Integers, FiniteSets

CONSTANTS
    NodeCount,     \* nodes are 1..NodeCount; the file is published with copies on the first two
    HostCount,     \* nodes are on 1..HostCount, dealt in turn
    RegionCount,   \* each node has so many regions
    IncMax,        \* each node has so many lives
    EpochMax,      \* bound of the epochs of a region
    TermMax,       \* the broker has so many lives
    OrderMax,      \* so many orders are given
    HitMax,        \* so many copies are lost by accidents
    Mistake        \* "none", or which of the mistakes below is made

(* Deliberate mistakes, each of which must break an invariant. *)
EpochNotChecked  == Mistake = "EpochNotChecked"   \* a node reads whatever is at the place of a source
ChecksumSkipped  == Mistake = "ChecksumSkipped"   \* a node does not compare what it has read with the checksum
CopyNotShown     == Mistake = "CopyNotShown"      \* a broker lists a copy that no report has shown it
SilentListed     == Mistake = "SilentListed"      \* a broker lists a copy of a node that it has not heard of lately
GivenUpListed    == Mistake = "GivenUpListed"     \* a broker lists a copy that it has told the node to free
FreedTooEarly    == Mistake = "FreedTooEarly"     \* a drained copy is freed once its successor is ordered
HostNotCompared  == Mistake = "HostNotCompared"   \* a broker lists two copies on one host
OldDropTaken     == Mistake = "OldDropTaken"      \* a node follows rulings of deposed brokers

Nodes   == 1..NodeCount
Regions == 1..RegionCount
Host(n) == ((n - 1) % HostCount) + 1

VARIABLES
    up,      \* node -> whether its process runs
    inc,     \* node -> the number of its present life
    seen,    \* node -> the last term of a broker that its present life has heard of
    reg,     \* node -> region -> [e: epoch, st: state, c: content, from: source of a copy that is being made]
    drains,  \* nodes that are being drained
    list,    \* copies that the catalog lists: [n, i, r, e]. Durable
    term,    \* life of the broker
    awaits,  \* whether nodes may still come of which this life has not heard
    know,    \* node -> what this life of the broker knows: [i: incarnation or 0, st: state]
    shown,   \* node -> regions of its last report to this life: <<r, e, state>>
    given,   \* copies that this life has told their nodes to free, or is about to
    orders,  \* orders that were given: [n, i, src]
    sent,    \* reports of copies that were made: [n, i, r, e]
    drops,   \* rulings that were sent: [t, n, i, r, e]
    hits,    \* copies that were lost by accidents since two were listed and there
    wrong    \* whether a copy with other bytes was ever listed

broker == <<term, awaits, know, shown, given>>
world  == <<up, inc, seen, reg, drains>>
vars   == <<world, list, broker, orders, sent, drops, hits, wrong>>

Free(e) == [e |-> e, st |-> "free", c |-> "none", from |-> <<>>]
Copy(n, r) == [n |-> n, i |-> inc[n], r |-> r, e |-> reg[n][r].e]
Unknown == [i |-> 0, st |-> "here"]

\* Whether a place has what was put there when it got this epoch.
Is(c) == up[c.n] /\ inc[c.n] = c.i /\ reg[c.n][c.r].e = c.e /\ reg[c.n][c.r].st \in {"copied", "named"}
Right(c) == Is(c) /\ reg[c.n][c.r].c = "right"
Listed == {c \in list : Right(c)}

Init ==
    /\ up = [n \in Nodes |-> TRUE]
    /\ inc = [n \in Nodes |-> 1]
    /\ seen = [n \in Nodes |-> 1]
    /\ reg = [n \in Nodes |-> [r \in Regions |->
            IF n <= 2 /\ r = 1 THEN [e |-> 1, st |-> "named", c |-> "right", from |-> <<>>] ELSE Free(1)]]
    /\ drains = {}
    /\ list = {[n |-> n, i |-> 1, r |-> 1, e |-> 1] : n \in {1, 2}}
    /\ term = 1
    /\ awaits = FALSE
    /\ know = [n \in Nodes |-> [i |-> 1, st |-> "here"]]
    /\ shown = [n \in Nodes |-> IF n <= 2 THEN {<<1, 1, "named">>} ELSE {}]
    /\ given = {}
    /\ orders = {}
    /\ sent = {}
    /\ drops = {}
    /\ hits = 0
    /\ wrong = FALSE

------------------------------------------------------------------------------
(* What the broker thinks. *)
Shows(c) == \E st \in {"copied", "named"} : <<c.r, c.e, st>> \in shown[c.n]
Standing(c) ==
    CASE know[c.n].i = 0 -> IF awaits THEN "good" ELSE "gone"
      [] know[c.n].i # 0 /\ (know[c.n].i # c.i \/ ~Shows(c) \/ know[c.n].st = "gone") -> "gone"
      [] OTHER -> IF c.n \in drains THEN "leaving" ELSE "good"
Good == {c \in list : Standing(c) = "good"}
IsHere(c) == know[c.n].i = c.i /\ know[c.n].st = "here" /\ Shows(c)
Takes(n) ==
    /\ Cardinality({Host(c.n) : c \in Good}) < 2
    /\ HostNotCompared \/ \A c \in Good : Host(c.n) # Host(n)
MayAct == ~awaits

\* The best copy on another host, of those that the list may keep beside a new one.
Others(n) == {c \in list : HostNotCompared \/ Host(c.n) # Host(n)}
Rank(c) == CASE Standing(c) = "good" -> 0 [] Standing(c) = "leaving" -> 1 [] OTHER -> 2
Kept(n) == IF Others(n) = {} THEN {{}} ELSE
    {{c} : c \in {c \in Others(n) : \A d \in Others(n) : Rank(c) <= Rank(d)}}

------------------------------------------------------------------------------
(* Accidents. *)
Holds(n) == \E r \in Regions : reg[n][r].c = "right" /\ reg[n][r].st \in {"copied", "named"}

Crash(n) ==
    /\ up[n] /\ (Holds(n) => hits < HitMax)
    /\ up' = [up EXCEPT ![n] = FALSE]
    /\ hits' = IF Holds(n) THEN hits + 1 ELSE hits
    /\ UNCHANGED <<inc, seen, reg, drains, list, broker, orders, sent, drops, wrong>>

Restart(n) ==
    /\ ~up[n] /\ inc[n] < IncMax
    /\ up' = [up EXCEPT ![n] = TRUE]
    /\ inc' = [inc EXCEPT ![n] = @ + 1]
    /\ seen' = [seen EXCEPT ![n] = 0]
    /\ reg' = [reg EXCEPT ![n] = [r \in Regions |-> Free(1)]]
    /\ drains' = drains \ {n}
    /\ UNCHANGED <<list, broker, orders, sent, drops, hits, wrong>>

Loses(n, r) == IF reg[n][r].c = "right" THEN 1 ELSE 0

\* The host needs the memory at once.
TakeBack(n, r) ==
    /\ up[n] /\ reg[n][r].st \in {"copied", "named"} /\ reg[n][r].e < EpochMax
    /\ hits + Loses(n, r) <= HitMax
    /\ reg' = [reg EXCEPT ![n][r] = Free(@.e + 1)]
    /\ hits' = hits + Loses(n, r)
    /\ UNCHANGED <<up, inc, seen, drains, list, broker, orders, sent, drops, wrong>>

\* Memory that goes bad.
Rot(n, r) ==
    /\ up[n] /\ reg[n][r].st = "named" /\ reg[n][r].c = "right" /\ hits < HitMax
    /\ reg' = [reg EXCEPT ![n][r].c = "bad"]
    /\ hits' = hits + 1
    /\ UNCHANGED <<up, inc, seen, drains, list, broker, orders, sent, drops, wrong>>

\* Two copies are there again, and the broker takes nothing for a copy that is not there.
Whole ==
    /\ hits > 0 /\ Cardinality({Host(c.n) : c \in Listed}) >= 2
    /\ \A n \in Nodes : know[n].i # 0 /\ know[n].st = "here" => \A s \in shown[n] :
            Right([n |-> n, i |-> know[n].i, r |-> s[1], e |-> s[2]])
    /\ hits' = 0
    /\ UNCHANGED <<world, list, broker, orders, sent, drops, wrong>>

------------------------------------------------------------------------------
(* Nodes. *)
BeginCopy(n, r, o, c) ==
    /\ up[n] /\ o.n = n /\ o.i = inc[n] /\ c \in o.src
    /\ reg[n][r].st = "free" /\ reg[n][r].e < EpochMax
    /\ reg' = [reg EXCEPT ![n][r] = [e |-> @.e, st |-> "copying", c |-> "none", from |-> c]]
    /\ UNCHANGED <<up, inc, seen, drains, list, broker, orders, sent, drops, hits, wrong>>

\* The last byte has come, or the source refused.
EndCopy(n, r) ==
    /\ up[n] /\ reg[n][r].st = "copying"
    /\ LET c == reg[n][r].from
           found == IF Is(c) THEN reg[c.n][c.r].c
                    ELSE IF EpochNotChecked /\ up[c.n] THEN "bad" ELSE "none"
           isTaken == found = "right" \/ (found = "bad" /\ (ChecksumSkipped \/ EpochNotChecked))
       IN reg' = [reg EXCEPT ![n][r] =
            IF isTaken THEN [e |-> @.e + 1, st |-> "copied", c |-> found, from |-> <<>>] ELSE Free(@.e + 1)]
    /\ UNCHANGED <<up, inc, seen, drains, list, broker, orders, sent, drops, hits, wrong>>

Send(n, r) ==
    /\ up[n] /\ reg[n][r].st = "copied" /\ Copy(n, r) \notin sent
    /\ sent' = sent \union {Copy(n, r)}
    /\ UNCHANGED <<world, list, broker, orders, drops, hits, wrong>>

\* A ruling arrives.
Drop(d) ==
    /\ up[d.n] /\ inc[d.n] = d.i /\ reg[d.n][d.r].e = d.e /\ reg[d.n][d.r].st \in {"copied", "named"}
    /\ d.t = seen[d.n] \/ OldDropTaken
    /\ reg' = [reg EXCEPT ![d.n][d.r] = Free(d.e + 1)]
    /\ UNCHANGED <<up, inc, seen, drains, list, broker, orders, sent, drops, hits, wrong>>

\* A report and its answer. What is listed becomes the name's; what is not listed any more, or given up, is dropped.
Report(n) ==
    /\ up[n]
    /\ LET here == {r \in Regions : reg[n][r].st \in {"copied", "named"}}
           freed == {r \in here : Copy(n, r) \notin list /\ (reg[n][r].st = "named" \/ Copy(n, r) \in given)}
       IN /\ know' = [know EXCEPT ![n] = [i |-> inc[n], st |-> "here"]]
          /\ shown' = [shown EXCEPT ![n] = {<<r, reg[n][r].e, reg[n][r].st>> : r \in here}]
          /\ reg' = [reg EXCEPT ![n] = [r \in Regions |->
                IF Copy(n, r) \in list /\ r \in here THEN [reg[n][r] EXCEPT !.st = "named"] ELSE reg[n][r]]]
          /\ drops' = drops \union {[t |-> term, n |-> n, i |-> inc[n], r |-> r, e |-> reg[n][r].e] : r \in freed}
          /\ given' = given \union {Copy(n, r) : r \in freed}
    /\ seen' = [seen EXCEPT ![n] = term]
    /\ UNCHANGED <<up, inc, drains, list, term, awaits, orders, sent, hits, wrong>>

------------------------------------------------------------------------------
(* The broker. *)
Think(n, st) ==
    /\ know[n].i # 0 /\ know[n].st # st
    /\ know' = [know EXCEPT ![n].st = st]
    /\ UNCHANGED <<world, list, term, awaits, shown, given, orders, sent, drops, hits, wrong>>

Drain(n) ==
    /\ n \notin drains /\ drains = {}
    /\ drains' = {n}
    /\ UNCHANGED <<up, inc, seen, reg, list, broker, orders, sent, drops, hits, wrong>>

NewBroker ==
    /\ term < TermMax
    /\ term' = term + 1
    /\ awaits' = TRUE
    /\ know' = [n \in Nodes |-> Unknown]
    /\ shown' = [n \in Nodes |-> {}]
    /\ given' = {}
    /\ UNCHANGED <<world, list, orders, sent, drops, hits, wrong>>

Settle ==
    /\ awaits /\ awaits' = FALSE
    /\ UNCHANGED <<world, list, term, know, shown, given, orders, sent, drops, hits, wrong>>

Order(n) ==
    /\ MayAct /\ know[n].i # 0 /\ know[n].st = "here" /\ n \notin drains /\ Takes(n)
    /\ Cardinality({o \in orders : up[o.n] /\ inc[o.n] = o.i}) < OrderMax
    /\ LET src == {c \in list : IsHere(c)}
           early == IF FreedTooEarly THEN {c \in src : Standing(c) = "leaving"} ELSE {}
       IN /\ src # {}
          /\ orders' = orders \union {[n |-> n, i |-> know[n].i, src |-> src]}
          /\ drops' = drops \union {[t |-> term, n |-> c.n, i |-> c.i, r |-> c.r, e |-> c.e] : c \in early}
    /\ UNCHANGED <<world, list, broker, sent, hits, wrong>>

EndRepair(m) ==
    /\ MayAct /\ know[m.n].i = m.i /\ m \notin list
    /\ know[m.n].st = "here" \/ SilentListed
    /\ <<m.r, m.e, "copied">> \in shown[m.n] \/ CopyNotShown
    /\ m \notin given \/ GivenUpListed
    /\ IF Takes(m.n) /\ m.n \notin drains
       THEN \E kept \in Kept(m.n) :
            /\ list' = kept \union {m}
            /\ given' = given \union (list \ kept)
            /\ wrong' = (wrong \/ (Is(m) /\ ~Right(m)))
       ELSE /\ given' = given \union {m}
            /\ UNCHANGED <<list, wrong>>
    /\ UNCHANGED <<world, term, awaits, know, shown, orders, sent, drops, hits>>

Next ==
    \/ \E n \in Nodes :
        \/ Crash(n) \/ Restart(n) \/ Report(n) \/ Drain(n) \/ Order(n)
        \/ \E st \in {"silent", "gone"} : Think(n, st)
        \/ \E r \in Regions :
            \/ TakeBack(n, r) \/ Rot(n, r) \/ EndCopy(n, r) \/ Send(n, r)
            \/ \E o \in orders : \E c \in o.src : BeginCopy(n, r, o, c)
    \/ \E d \in drops : Drop(d)
    \/ \E m \in sent : EndRepair(m)
    \/ NewBroker \/ Settle \/ Whole

Spec == Init /\ [][Next]_vars

\* What can still have an effect. TLC takes states that differ in nothing else for the same. The memory of a process
\* that has ended, and messages about places that were used again, are only history.
Matters(c) == Is(c) \/ (know[c.n].i = c.i /\ <<c.r, c.e, "copied">> \in shown[c.n]) \/ CopyNotShown
View ==
    LET asked == {m \in sent : m \notin list /\ Matters(m)} IN
    <<up, inc, [n \in Nodes |-> IF up[n] THEN seen[n] ELSE 0],
      [n \in Nodes |-> IF up[n] THEN reg[n] ELSE <<>>], drains, list, term, awaits, know, shown,
      {c \in given : Is(c) \/ c \in asked}, {o \in orders : up[o.n] /\ inc[o.n] = o.i}, asked,
      {d \in drops : Is([n |-> d.n, i |-> d.i, r |-> d.r, e |-> d.e])}, hits, wrong>>

------------------------------------------------------------------------------
\* The bytes are there as long as no more than one copy was lost since there were two.
Readable == hits <= 1 => Listed # {}

\* No copy is ever listed that has other bytes. (One that goes bad afterwards is a hit.)
NeverWrong == ~wrong

\* Copies that are listed lie on different hosts.
Apart == \A c, d \in list : c # d => Host(c.n) # Host(d.n)

\* There are never more copies listed than there should be.
AtMostTwo == Cardinality(list) <= 2
==============================================================================
