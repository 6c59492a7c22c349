------------------------------ MODULE segments ------------------------------
(* Ranges of many small published files in one region: who may add, publish and drop. The part of lease.md called
   "Segments" as a state machine, for the model checker TLC; check.sh runs it.

   The idea: one node with one region that may be a segment, which has room for a few ranges. There is no clock. What a
   session has sealed it may publish at any later time, any number of times, under any name: so publications are no
   messages, that they arrive is enabled for ever by what the node once answered ("sealed"). Rulings of brokers arrive
   at any later time, several times or never, while that life of the node lasts. A deposed broker goes on beside its
   successor, and the node may go back to it.

   A report is taken over the connection of the node's last offer only, as in lease.tla, so there is one at a time. A
   request to seal that comes again is answered as it was, which changes nothing.

   Left out, as other models have them: leases, gates and handles (lease.tla), copies that nodes make and how segments
   that are half empty are emptied (copies.tla), a host that needs all memory at once. *)
EXTENDS Integers, FiniteSets

CONSTANTS
    Sessions,      \* model values; interchangeable
    Names,         \* model values; interchangeable
    RoomMax,       \* a segment has room for so many ranges
    SealMax,       \* so many ranges are sealed
    EpochMax,      \* the region becomes a segment so often in a life of the node
    IncMax,        \* the node has so many lives
    TermMax,       \* the broker has so many lives
    SplitBrain,    \* whether a deposed broker goes on, and the node may go back to it
    MayEnd,        \* whether sessions end for good, and with them what they may send (for liveness)
    Mistake,       \* "none", or which of the mistakes below is made
    NONE           \* a model value

(* Deliberate mistakes, each of which must break an invariant. *)
DropWithoutBytes   == Mistake = "DropWithoutBytes"   \* an order to drop counts whatever was added since the report
OldTermDrop        == Mistake = "OldTermDrop"        \* a node follows rulings of deposed brokers
PendingNotNeeded   == Mistake = "PendingNotNeeded"   \* a publication needs no pending range
PendingDropped     == Mistake = "PendingDropped"     \* a node drops a segment in which something is pending
NamedNotCounted    == Mistake = "NamedNotCounted"    \* a broker orders a segment to be dropped that a name has
OldReportTrusted   == Mistake = "OldReportTrusted"   \* a new broker takes the reports to the life before for its own
PlaceReused        == Mistake = "PlaceReused"        \* a node adds in place of a range of which nothing is pending
NothingDropped     == Mistake = "NothingDropped"     \* a broker orders no segment to be dropped
FillingHidden      == Mistake = "FillingHidden"      \* a report does not show the range that is being copied

Places == 1..RoomMax
Seals  == 1..SealMax
Terms  == 1..TermMax

VARIABLES
    inc,      \* number of the node's present life
    seen,     \* highest term that the node has heard of
    link,     \* life of the broker that the node reports to, or 0
    seg,      \* the region: [e: epoch, is: whether it is a segment, end: ranges that were added,
              \* data: place -> number of the seal whose bytes are there, or 0;
              \* pending: place -> "filling" while bytes are copied there, a session, "orphan", or NONE]
    count,    \* seals that were begun
    filling,  \* the seal that is being carried out: [s, q, e, p], or NONE
    sealed,   \* what nodes have answered: [s, q, i, e, p]
    report,   \* report on its way: [b, e, end, pending], or NONE; e = 0 if there is no segment
    rulings,  \* what brokers have ruled, and may still have an effect: [t, e, p, end]; p # 0: this range is settled,
              \* p = 0: the segment is dropped
    names,    \* name -> [i, e, p, q], or NONE. Durable
    term,     \* life of the broker that leads
    known,    \* life -> names that it knows to be given; that of the one that leads is always "names"
    view,     \* life -> [i, e, pending] of the node's last report to it, or NONE
    letGo,    \* ranges that this life has taken from a name, until nothing is pending there: [i, e, p]
    ended     \* sessions that have ended for good

node   == <<inc, seen, link, seg, count, filling, sealed>>
broker == <<names, term, known, view, letGo>>
vars   == <<node, report, rulings, broker, ended>>

Empty(e) == [e |-> e, is |-> FALSE, end |-> 0, data |-> [p \in Places |-> 0], pending |-> [p \in Places |-> NONE]]
NoNames == [m \in Names |-> NONE]

\* Whether a place is one of the present segment.
Here(x) == x.i = inc /\ x.e = seg.e /\ seg.is
Has(ns, i, e) == \E m \in Names : ns[m] # NONE /\ ns[m].i = i /\ ns[m].e = e
Named(ns, i, e, p) == \E m \in Names : ns[m] # NONE /\ ns[m].i = i /\ ns[m].e = e /\ ns[m].p = p

Init ==
    /\ inc = 1 /\ seen = 0 /\ link = 0
    /\ seg = Empty(0)
    /\ count = 0 /\ filling = NONE /\ sealed = {}
    /\ report = NONE /\ rulings = {}
    /\ names = NoNames
    /\ term = 1
    /\ known = [b \in Terms |-> NoNames]
    /\ view = [b \in Terms |-> NONE]
    /\ letGo = {}
    /\ ended = {}

------------------------------------------------------------------------------
(* The node. *)

\* A place is set aside, behind those that were, and the region becomes a segment if it is none.
BeginSeal(s) ==
    /\ filling = NONE /\ count < SealMax /\ s \notin ended
    /\ seg.is \/ seg.e < EpochMax
    /\ LET now == IF seg.is THEN seg ELSE [Empty(seg.e + 1) EXCEPT !.is = TRUE] IN
       \E p \in Places :
        /\ p = now.end + 1 \/ (PlaceReused /\ p <= now.end /\ now.pending[p] = NONE)
        /\ filling' = [s |-> s, q |-> count + 1, e |-> now.e, p |-> p]
        /\ seg' = [now EXCEPT !.end = IF p > @ THEN p ELSE @, !.pending[p] = "filling"]
    /\ count' = count + 1
    /\ UNCHANGED <<inc, seen, link, sealed, report, rulings, broker, ended>>

\* The bytes are there, and the lease that they came from was the session's all the time. The session hears of it.
EndSeal ==
    /\ filling # NONE
    /\ LET f == filling IN
       /\ f.e = seg.e /\ seg.is
       /\ seg' = [seg EXCEPT !.data[f.p] = f.q, !.pending[f.p] = f.s]
       /\ sealed' = sealed \union {[s |-> f.s, q |-> f.q, i |-> inc, e |-> f.e, p |-> f.p]}
    /\ filling' = NONE
    /\ UNCHANGED <<inc, seen, link, count, report, rulings, broker, ended>>

\* It was not. The place is nobody's, and is not used again.
AbandonSeal ==
    /\ filling # NONE
    /\ seg' = IF filling.e = seg.e /\ seg.is THEN [seg EXCEPT !.pending[filling.p] = NONE] ELSE seg
    /\ filling' = NONE
    /\ UNCHANGED <<inc, seen, link, count, sealed, report, rulings, broker, ended>>

\* The session will not publish the range, or is gone from this node.
Orphan(p) ==
    /\ seg.pending[p] \in Sessions
    /\ seg' = [seg EXCEPT !.pending[p] = "orphan"]
    /\ UNCHANGED <<inc, seen, link, count, filling, sealed, report, rulings, broker, ended>>

Restart ==
    /\ inc < IncMax
    /\ inc' = inc + 1 /\ seen' = 0 /\ link' = 0
    /\ seg' = Empty(0) /\ filling' = NONE
    /\ report' = NONE /\ rulings' = {}
    /\ UNCHANGED <<count, sealed, broker, ended>>

\* An offer, and its answer. What is on an earlier connection is not taken any more.
Connect(b) ==
    /\ b = term \/ (b < term /\ SplitBrain)
    /\ link # b
    /\ link' = b /\ report' = NONE
    /\ view' = [view EXCEPT ![b] = NONE]
    /\ seen' = IF b > seen THEN b ELSE seen
    /\ UNCHANGED <<inc, seg, count, filling, sealed, rulings, names, term, known, letGo, ended>>

Shown(p) == IF seg.pending[p] = "filling" /\ FillingHidden THEN NONE ELSE seg.pending[p]

Report ==
    /\ link # 0 /\ report = NONE
    /\ report' = [b |-> link, e |-> IF seg.is THEN seg.e ELSE 0, end |-> seg.end,
                   pending |-> [p \in Places |-> Shown(p)]]
    /\ UNCHANGED <<node, rulings, broker, ended>>

\* A ruling arrives.
Rule(r) ==
    /\ r.t >= seen \/ OldTermDrop
    /\ seg.is /\ r.e = seg.e
    /\ IF r.p # 0
       THEN /\ seg.pending[r.p] \notin {NONE, "filling"}
            /\ seg' = [seg EXCEPT !.pending[r.p] = NONE]
       ELSE /\ r.end = seg.end \/ DropWithoutBytes
            /\ (\A p \in Places : seg.pending[p] = NONE) \/ PendingDropped
            /\ seg' = Empty(seg.e)
    /\ seen' = IF r.t > seen THEN r.t ELSE seen
    \* Epochs do not come again in a life, nor do places in an epoch.
    /\ rulings' = IF r.p # 0 THEN rulings \ {r} ELSE {}
    /\ UNCHANGED <<inc, link, count, filling, sealed, report, broker, ended>>

------------------------------------------------------------------------------
(* Brokers. *)

NamesAt(b) == IF b = term THEN names ELSE known[b]

\* A report is taken, and answered.
TakeReport ==
    /\ report # NONE
    /\ LET b == report.b  e == report.e
           letGoHere == IF b = term THEN letGo ELSE {}
           isLetGo(p) == [i |-> inc, e |-> e, p |-> p] \in letGoHere
           settled == {p \in Places : report.pending[p] \notin {NONE, "filling"} /\
                (report.pending[p] = "orphan" \/ Named(NamesAt(b), inc, e, p) \/ isLetGo(p))}
           drops == /\ e # 0 /\ ~NothingDropped
                    /\ ~Has(NamesAt(b), inc, e) \/ NamedNotCounted
                    /\ (\A p \in Places : report.pending[p] = NONE) \/ PendingDropped
       IN
       /\ view' = [view EXCEPT ![b] = [i |-> inc, e |-> e, pending |-> report.pending]]
       /\ letGo' = IF b = term THEN {x \in letGo : x.i = inc /\ x.e = e /\ report.pending[x.p] # NONE} ELSE letGo
       /\ rulings' = IF e # seg.e THEN rulings ELSE
            rulings \union {[t |-> b, e |-> e, p |-> p, end |-> 0] : p \in settled}
                    \union (IF drops THEN {[t |-> b, e |-> e, p |-> 0, end |-> report.end]} ELSE {})
    /\ report' = NONE
    /\ UNCHANGED <<node, names, term, known, ended>>

\* Another life begins over what is durable.
NewBroker ==
    /\ term < TermMax
    /\ term' = term + 1
    /\ known' = [known EXCEPT ![term] = names]
    /\ view' = IF OldReportTrusted THEN [view EXCEPT ![term + 1] = view[term]] ELSE view
    /\ letGo' = {}
    /\ UNCHANGED <<node, report, rulings, names, ended>>

LetsGo(m) == IF names[m] = NONE THEN {} ELSE {[i |-> names[m].i, e |-> names[m].e, p |-> names[m].p]}

\* A session gives a range that it sealed to a name, which lets go what it had. Whoever leads takes it.
Publish(x, m) ==
    LET v == view[term]  at == [i |-> x.i, e |-> x.e, p |-> x.p] IN
    /\ x.s \notin ended
    /\ \A o \in Names : ~(names[o] # NONE /\ names[o].q = x.q) \* else it was done already
    /\ \/ v # NONE /\ v.i = x.i /\ v.e = x.e /\ v.pending[x.p] = x.s /\ at \notin letGo
       \/ PendingNotNeeded
    /\ names' = [names EXCEPT ![m] = [i |-> x.i, e |-> x.e, p |-> x.p, q |-> x.q]]
    /\ letGo' = letGo \union LetsGo(m)
    /\ UNCHANGED <<node, report, rulings, term, known, view, ended>>

DropName(m) ==
    /\ names[m] # NONE
    /\ names' = [names EXCEPT ![m] = NONE]
    /\ letGo' = letGo \union LetsGo(m)
    /\ UNCHANGED <<node, report, rulings, term, known, view, ended>>

EndSession(s) ==
    /\ MayEnd /\ s \notin ended
    /\ ended' = ended \union {s}
    /\ UNCHANGED <<node, report, rulings, broker>>

Next ==
    \/ \E s \in Sessions : BeginSeal(s) \/ EndSession(s)
    \/ EndSeal \/ AbandonSeal \/ Restart \/ Report \/ TakeReport \/ NewBroker
    \/ \E p \in Places : Orphan(p)
    \/ \E b \in Terms : Connect(b)
    \/ \E r \in rulings : Rule(r)
    \/ \E m \in Names : DropName(m) \/ \E x \in sealed : Publish(x, m)

Spec == Init /\ [][Next]_vars

\* What can still have an effect. TLC takes states that differ in nothing else for the same. A place is not pending
\* again once it was settled.
Matters(r) == seg.is /\ r.e = seg.e /\ (r.p = 0 \/ seg.pending[r.p] # NONE)
View == <<inc, seen, link, seg, count, filling, {x \in sealed : x.i = inc \/ PendingNotNeeded}, report,
          {r \in rulings : Matters(r)}, broker, ended>>

------------------------------------------------------------------------------
\* A range that a name has is there, with the bytes that were sealed, as long as the node lives: so a segment that a
\* name has is not dropped.
NamedThere == \A m \in Names : names[m] # NONE /\ names[m].i = inc =>
    Here(names[m]) /\ seg.data[names[m].p] = names[m].q

\* Whoever was told of a place reads the bytes that were sealed there, or finds the epoch over: nothing is used again.
NeverOther == \A x \in sealed : Here(x) => seg.data[x.p] = x.q

(* What no name has goes: if the world does its part in the end. Sessions end, the node connects to the broker that
   leads, what is sent arrives. *)
Fair ==
    /\ WF_vars(\E p \in Places : seg.pending[p] \in ended /\ Orphan(p))
    /\ \A s \in Sessions : WF_vars(EndSession(s))
    /\ WF_vars(EndSeal) /\ WF_vars(Connect(term)) /\ WF_vars(Report) /\ WF_vars(TakeReport)
    /\ WF_vars(\E r \in rulings : Rule(r))
FairSpec == Spec /\ Fair

Idle == seg.is /\ ~Has(names, inc, seg.e)
I6 == Idle ~> ~Idle
==============================================================================
