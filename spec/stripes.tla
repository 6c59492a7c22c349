------------------------------ MODULE stripes ------------------------------
(* A stripe of a published file: shards of which any Data give all others. Who computes a lost one, and what is listed.
   The part of lease.md called "Repair" as far as it differs from that of copies, for the model checker TLC; check.sh
   runs it.

   The idea: one stripe, whose shards should lie on different hosts. There is no clock: the broker may think at any
   moment that a node is silent or gone, rightly or not, and hears of nodes again. What a node has sent may arrive at
   any later time, any number of times, or never.

   Left out, as copies.tla has them: drains, lives of the broker. A shard that is copied is one that is computed from
   itself. *)
EXTENDS Integers, FiniteSets

CONSTANTS
    Data,          \* so many shards give all others
    Parity,        \* there are so many others
    NodeCount,     \* nodes are 1..NodeCount; the first have a shard each
    HostCount,     \* nodes are on 1..HostCount, dealt in turn
    IncMax,        \* each node has so many lives
    EpochMax,      \* bound of the epochs of a region
    OrderMax,      \* so many orders are open
    HitMax,        \* so many shards are lost by accidents
    Mistake        \* "none", or which of the mistakes below is made

(* Deliberate mistakes, each of which must break an invariant. *)
ShardEpochNotChecked == Mistake = "ShardEpochNotChecked" \* a node reads whatever is at the place of a shard
RunNotChecked        == Mistake = "RunNotChecked"        \* a node does not compare what it computed with the checksum
ShardMistaken        == Mistake = "ShardMistaken"        \* a node takes a shard for another one, and checks nothing
StripeOnOneHost      == Mistake = "StripeOnOneHost"      \* a broker compares hosts with those of the same shard alone
SilentHostForgotten  == Mistake = "SilentHostForgotten"  \* a broker leaves out hosts of nodes that may come back
TooFewShards         == Mistake = "TooFewShards"         \* a node computes from one shard less

Shards == 1..(Data + Parity)
Nodes  == 1..NodeCount
Host(n) == ((n - 1) % HostCount) + 1

ASSUME NodeCount >= Data + Parity /\ HostCount >= Data + Parity

VARIABLES
    up,      \* node -> whether its process runs
    inc,     \* node -> the number of its present life
    reg,     \* node -> its region: [e: epoch, st: state, c: content, for: shard that is computed, from: shards to read]
    list,    \* shard -> the place that the catalog lists: [n, i, e]. Durable
    know,    \* node -> what the broker knows: [i: incarnation or 0, st: state]
    shown,   \* node -> whether its last report had its region, and at which epoch; 0 if it had not
    given,   \* places that the broker has told their nodes to free, or is about to
    orders,  \* orders that were given: [n, i, s: shard, src: shard -> place]
    sent,    \* reports of shards that were computed: [s, c: place]
    drops,   \* rulings that were sent: places
    hits,    \* shards that were lost by accidents since all were listed and there
    wrong    \* whether a place with other bytes was ever listed

vars == <<up, inc, reg, list, know, shown, given, orders, sent, drops, hits, wrong>>

Nothing == [n |-> 0, i |-> 0, e |-> 0]
Free(e) == [e |-> e, st |-> "free", c |-> 0, for |-> 0, from |-> {}]
Bad == 0 - 1
Place(n) == [n |-> n, i |-> inc[n], e |-> reg[n].e]

\* Whether a place has what was put there when it got this epoch.
Is(c) == c.n # 0 /\ up[c.n] /\ inc[c.n] = c.i /\ reg[c.n].e = c.e /\ reg[c.n].st \in {"made", "named"}
Right(s, c) == Is(c) /\ reg[c.n].c = s
There == {s \in Shards : Right(s, list[s])}

Init ==
    /\ up = [n \in Nodes |-> TRUE]
    /\ inc = [n \in Nodes |-> 1]
    /\ reg = [n \in Nodes |->
         IF n \in Shards THEN [e |-> 1, st |-> "named", c |-> n, for |-> 0, from |-> {}] ELSE Free(1)]
    /\ list = [s \in Shards |-> [n |-> s, i |-> 1, e |-> 1]]
    /\ know = [n \in Nodes |-> [i |-> 1, st |-> "here"]]
    /\ shown = [n \in Nodes |-> IF n \in Shards THEN 1 ELSE 0]
    /\ given = {} /\ orders = {} /\ sent = {} /\ drops = {}
    /\ hits = 0
    /\ wrong = FALSE

------------------------------------------------------------------------------
(* What the broker thinks. A place is good; or silent, and may come back; or gone. *)
Standing(c) ==
    IF c.n = 0 \/ know[c.n].i # c.i \/ shown[c.n] # c.e THEN "gone"
    ELSE IF know[c.n].st = "gone" THEN "silent" ELSE "good"
IsHere(c) == Standing(c) = "good" /\ know[c.n].st = "here"

\* Whether a node may have a shard: it has no good place, and no other shard may be on the node's host.
Beside(s) == {t \in Shards \ {s} :
    Standing(list[t]) = "good" \/ (Standing(list[t]) = "silent" /\ ~SilentHostForgotten)}
Takes(n, s) ==
    /\ Standing(list[s]) # "good"
    /\ StripeOnOneHost \/ \A t \in Beside(s) : Host(list[t].n) # Host(n)

------------------------------------------------------------------------------
(* Accidents. *)
Holds(n) == reg[n].c > 0 /\ reg[n].st \in {"made", "named"}
Hit(n) == IF Holds(n) THEN 1 ELSE 0

Crash(n) ==
    /\ up[n] /\ hits + Hit(n) <= HitMax
    /\ up' = [up EXCEPT ![n] = FALSE]
    /\ hits' = hits + Hit(n)
    /\ UNCHANGED <<inc, reg, list, know, shown, given, orders, sent, drops, wrong>>

Restart(n) ==
    /\ ~up[n] /\ inc[n] < IncMax
    /\ up' = [up EXCEPT ![n] = TRUE]
    /\ inc' = [inc EXCEPT ![n] = @ + 1]
    /\ reg' = [reg EXCEPT ![n] = Free(1)]
    /\ UNCHANGED <<list, know, shown, given, orders, sent, drops, hits, wrong>>

\* The host needs the memory at once.
TakeBack(n) ==
    /\ up[n] /\ reg[n].st \in {"made", "named"} /\ reg[n].e < EpochMax /\ hits + Hit(n) <= HitMax
    /\ reg' = [reg EXCEPT ![n] = Free(@.e + 1)]
    /\ hits' = hits + Hit(n)
    /\ UNCHANGED <<up, inc, list, know, shown, given, orders, sent, drops, wrong>>

\* Memory that goes bad.
Rot(n) ==
    /\ up[n] /\ reg[n].st = "named" /\ Holds(n) /\ hits < HitMax
    /\ reg' = [reg EXCEPT ![n].c = Bad]
    /\ hits' = hits + 1
    /\ UNCHANGED <<up, inc, list, know, shown, given, orders, sent, drops, wrong>>

\* All shards are there again, and the broker takes nothing for a shard that is not there.
Whole ==
    /\ hits > 0 /\ There = Shards
    /\ \A n \in Nodes : know[n].i # 0 /\ know[n].st = "here" /\ shown[n] # 0 =>
            Is([n |-> n, i |-> know[n].i, e |-> shown[n]]) /\ reg[n].c > 0
    /\ hits' = 0
    /\ UNCHANGED <<up, inc, reg, list, know, shown, given, orders, sent, drops, wrong>>

------------------------------------------------------------------------------
(* Nodes. A shard is computed from as many as there are data. They are read one after the other. *)
Needed == IF TooFewShards THEN Data - 1 ELSE Data

Begin(o, from) ==
    /\ up[o.n] /\ inc[o.n] = o.i /\ reg[o.n].st = "free" /\ reg[o.n].e < EpochMax
    /\ Cardinality(from) = Needed
    /\ reg' = [reg EXCEPT ![o.n] =
         [e |-> @.e, st |-> "computing", c |-> o.s, for |-> o.s, from |-> {[s |-> t, c |-> o.src[t]] : t \in from}]]
    /\ UNCHANGED <<up, inc, list, know, shown, given, orders, sent, drops, hits, wrong>>

\* What is computed is right only if each shard is the one that it is taken for.
Read(n, f) ==
    /\ up[n] /\ reg[n].st = "computing" /\ f \in reg[n].from
    /\ LET found == IF Is(f.c) THEN reg[f.c.n].c ELSE IF ShardEpochNotChecked /\ up[f.c.n] THEN Bad ELSE 0
           isRight == found = f.s /\ ~ShardMistaken
       IN reg' = [reg EXCEPT ![n] =
            IF found = 0 THEN Free(@.e + 1)
            ELSE [@ EXCEPT !.from = @ \ {f}, !.c = IF isRight THEN @ ELSE Bad]]
    /\ UNCHANGED <<up, inc, list, know, shown, given, orders, sent, drops, hits, wrong>>

\* The checksum of the run is compared. With too few shards, anything comes out.
Finish(n) ==
    /\ up[n] /\ reg[n].st = "computing" /\ reg[n].from = {}
    /\ LET made == IF TooFewShards THEN Bad ELSE reg[n].c
           isTaken == made > 0 \/ RunNotChecked \/ ShardEpochNotChecked \/ ShardMistaken \/ TooFewShards
       IN reg' = [reg EXCEPT ![n] =
            IF isTaken THEN [e |-> @.e + 1, st |-> "made", c |-> made, for |-> @.for, from |-> {}]
            ELSE Free(@.e + 1)]
    /\ UNCHANGED <<up, inc, list, know, shown, given, orders, sent, drops, hits, wrong>>

Send(n) ==
    /\ up[n] /\ reg[n].st = "made"
    /\ sent' = sent \union {[s |-> reg[n].for, c |-> Place(n)]} /\ sent' # sent
    /\ UNCHANGED <<up, inc, reg, list, know, shown, given, orders, drops, hits, wrong>>

\* A ruling arrives.
Drop(d) ==
    /\ Is(d)
    /\ reg' = [reg EXCEPT ![d.n] = Free(d.e + 1)]
    /\ UNCHANGED <<up, inc, list, know, shown, given, orders, sent, drops, hits, wrong>>

\* A report and its answer. What is listed becomes the name's; what is not listed any more, or given up, is dropped.
Report(n) ==
    /\ up[n]
    /\ LET isHere == reg[n].st \in {"made", "named"}
           isListed == isHere /\ \E s \in Shards : list[s] = Place(n)
           isFreed == isHere /\ ~isListed /\ (reg[n].st = "named" \/ Place(n) \in given)
       IN /\ know' = [know EXCEPT ![n] = [i |-> inc[n], st |-> "here"]]
          /\ shown' = [shown EXCEPT ![n] = IF isHere THEN reg[n].e ELSE 0]
          /\ reg' = IF isListed THEN [reg EXCEPT ![n].st = "named"] ELSE reg
          /\ drops' = IF isFreed THEN drops \union {Place(n)} ELSE drops
          /\ given' = IF isFreed THEN given \union {Place(n)} ELSE given
    /\ UNCHANGED <<up, inc, list, orders, sent, hits, wrong>>

------------------------------------------------------------------------------
(* The broker. *)
Think(n, st) ==
    /\ know[n].i # 0 /\ know[n].st # st
    /\ know' = [know EXCEPT ![n].st = st]
    /\ UNCHANGED <<up, inc, reg, list, shown, given, orders, sent, drops, hits, wrong>>

Order(n, s) ==
    /\ know[n].i # 0 /\ know[n].st = "here" /\ Takes(n, s)
    /\ Cardinality({o \in orders : up[o.n] /\ inc[o.n] = o.i}) < OrderMax
    /\ LET src == [t \in Shards |-> IF t # s /\ IsHere(list[t]) THEN list[t] ELSE Nothing] IN
       /\ Cardinality({t \in Shards : src[t] # Nothing}) >= Data
       /\ orders' = orders \union {[n |-> n, i |-> know[n].i, s |-> s, src |-> src]}
    /\ UNCHANGED <<up, inc, reg, list, know, shown, given, sent, drops, hits, wrong>>

EndRepair(m) ==
    /\ know[m.c.n].i = m.c.i /\ know[m.c.n].st = "here" /\ list[m.s] # m.c
    /\ shown[m.c.n] = m.c.e /\ m.c \notin given
    /\ IF Takes(m.c.n, m.s)
       THEN /\ list' = [list EXCEPT ![m.s] = m.c]
            /\ given' = given \union {list[m.s]}
            /\ wrong' = (wrong \/ (Is(m.c) /\ ~Right(m.s, m.c)))
       ELSE /\ given' = given \union {m.c}
            /\ UNCHANGED <<list, wrong>>
    /\ UNCHANGED <<up, inc, reg, know, shown, orders, sent, drops, hits>>

Next ==
    \/ \E n \in Nodes :
        \/ Crash(n) \/ Restart(n) \/ TakeBack(n) \/ Rot(n) \/ Report(n) \/ Finish(n) \/ Send(n)
        \/ \E st \in {"silent", "gone"} : Think(n, st)
        \/ \E s \in Shards : Order(n, s)
        \/ \E f \in reg[n].from : Read(n, f)
    \/ \E o \in orders : \E from \in SUBSET {t \in Shards : o.src[t] # Nothing} : Begin(o, from)
    \/ \E d \in drops : Drop(d)
    \/ \E m \in sent : EndRepair(m)

Spec == Init /\ [][Next]_vars

\* What can still have an effect. TLC takes states that differ in nothing else for the same.
Matters(m) == list[m.s] # m.c /\ (Is(m.c) \/ (know[m.c.n].i = m.c.i /\ shown[m.c.n] = m.c.e))
View ==
    LET asked == {m \in sent : Matters(m)} IN
    <<up, inc, [n \in Nodes |-> IF up[n] THEN reg[n] ELSE <<>>], list, know, shown,
      {c \in given : Is(c) \/ \E m \in asked : m.c = c}, {o \in orders : up[o.n] /\ inc[o.n] = o.i}, asked,
      {d \in drops : Is(d)}, hits, wrong>>

------------------------------------------------------------------------------
\* The bytes are there, or can be computed, as long as no more shards were lost than there are with parity.
Readable == hits <= Parity => Cardinality(There) >= Data

\* No place is ever listed that has other bytes. (One that goes bad afterwards is a hit.)
NeverWrong == ~wrong

\* Shards lie on different hosts, those of nodes that may come back too.
Apart == \A s, t \in Shards :
    s # t /\ Standing(list[s]) # "gone" /\ Standing(list[t]) # "gone" => Host(list[s].n) # Host(list[t].n)
==============================================================================
