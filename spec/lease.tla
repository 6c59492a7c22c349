------------------------------- MODULE lease -------------------------------
(* Who may touch which region, until when: the protocol of lease.md as a state machine, for the model checker
   TLC. lease.md says it in words, and what is left out here; check.sh runs it.

   The idea: every party does what its code may do, one locked step of the code being one step here, and the
   world does its worst. What a client could have sent once may arrive at any later time, any number of
   times, in any order, or never: so requests of clients are not kept as messages, but their arrival is
   enabled for ever by what the client once learned (Tickets, "held"). There is no clock: a lease may expire
   at any moment, and whoever believes that it has not is a late client. A deposed broker goes on beside its
   successor and does what it always did; a broker that crashed is one that does nothing more.

   Constants bound how often things happen. No invariant needs the bounds: they make the states finite.

   The invariants are at the end, named as in lease.md. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
    Sessions,      \* model values; interchangeable
    Names,         \* model values; interchangeable
    NodeCount,     \* nodes are 1..NodeCount
    RegionCount,   \* regions are 1..RegionCount, dealt to the nodes in turn
    EpochMax,      \* no lease is made above this epoch, or two less with each restart of the node
    IncMax,        \* a node has so many lives
    TermMax,       \* the broker has so many lives
    TicketsMax,    \* one life of the broker signs so many tickets for one session and one life of a node
    FileMax,       \* so many files are published
    CopyMax,       \* so many copies are in gates at once
    LookMax,       \* so many reads by shared memory go on at once
    SharedKinds,   \* {FALSE}, {TRUE} or both: leases over the network, or mapped by clients of the same host
    SplitBrain,    \* whether a deposed broker goes on, and nodes may go back to it
    LateReports,   \* whether the broker may take a report after the connection that brought it has ended
    LateOffers,    \* whether it may take offers late too: those of earlier lives, and those given up
    Draining,      \* whether the broker may drain nodes
    MayDie,        \* whether sessions may end for good; then their late requests end too (for liveness)
    Mistake,       \* "none", or which of the mistakes below is made
    NONE           \* a model value

ASSUME NodeCount >= 1 /\ RegionCount >= NodeCount /\ SharedKinds \subseteq BOOLEAN

(* Deliberate mistakes. check.sh makes each of them and expects an invariant to break: what the model cannot
   see when it is wrong, it does not show when it is right. *)
SkipTokenCheck       == Mistake = "SkipTokenCheck"       \* an open gate lets in whoever once had a token
HandleReuse          == Mistake = "HandleReuse"          \* a handle is the same in every life of the node
LookThenAnnounce     == Mistake = "LookThenAnnounce"     \* a copy looks at the word, then announces itself
OpenBeforeClosed    == Mistake = "OpenBeforeClosed"    \* a close does not wait for the copies inside
NoScrub              == Mistake = "NoScrub"              \* a region is freed as it was left
FileReuse            == Mistake = "FileReuse"            \* a memory file is zeroed and used again
SealInPlace          == Mistake = "SealInPlace"          \* a sealed region stays in the file of its lease
NoSecondLook         == Mistake = "NoSecondLook"         \* a reader does not look at the word after its copy
TicketTwice          == Mistake = "TicketTwice"          \* a node does not remember spent tickets
OldTicketTaken       == Mistake = "OldTicketTaken"       \* a node redeems tickets of deposed brokers
OldRulingTaken       == Mistake = "OldRulingTaken"       \* a node follows rulings of deposed brokers
RulingWithoutEpoch   == Mistake = "RulingWithoutEpoch"   \* a node follows a ruling at whatever epoch it has
OrphanFreed          == Mistake = "OrphanFreed"          \* a node frees what a session sealed when it goes
LeaseDropped         == Mistake = "LeaseDropped"         \* a new broker drops leases that it does not know
NamesForgotten       == Mistake = "NamesForgotten"       \* a new broker does not load the names
KeyNotStored         == Mistake = "KeyNotStored"         \* a new broker makes a new key
AckBeforeCommit      == Mistake = "AckBeforeCommit"      \* a publication is answered before it is durable
DeposedCommits       == Mistake = "DeposedCommits"       \* the store takes records of a deposed broker
GivenUpForgotten     == Mistake = "GivenUpForgotten"     \* what a ruling drops can still be published
PublishWithoutReport == Mistake = "PublishWithoutReport" \* a broker publishes what no node has shown it
NameTwice            == Mistake = "NameTwice"            \* a region is given to a second name
OrphanKept           == Mistake = "OrphanKept"           \* a broker leaves alone what nobody owns
AnyConnection        == Mistake = "AnyConnection"        \* a broker takes reports over whatever connection
GrantWhileDraining   == Mistake = "GrantWhileDraining"   \* a node that is draining grants leases

Regions == 1..RegionCount
Nodes   == 1..NodeCount
Terms   == 1..TermMax
Home(r) == ((r - 1) % NodeCount) + 1
At(n)   == {r \in Regions : Home(r) = n}

Symmetry == Permutations(Sessions) \union Permutations(Names)

VARIABLES
    reg,      \* region -> the node's word on it, its gate and its bytes
    node,     \* node -> what else its present life knows
    copies,   \* copies that are announced at a gate, or inside
    looks,    \* reads by shared memory that are under way
    held,     \* every handle that a client ever learned
    life,     \* term -> what that life of the broker has in memory
    store,    \* what the broker's store has
    report,   \* region -> what the node's last report on its present connection says of it
    stale,    \* region -> one report of an earlier connection that the broker may still come to
    ruling,   \* region -> the answer to a report, on the node's present connection
    promised, \* files whose publication was acknowledged, and that nobody has dropped since
    fault,    \* what must never happen and cannot be seen in a state alone
    dead      \* sessions that ended for good

bytes   == <<copies, looks>>
wires   == <<report, stale, ruling>>
brokers == <<life, store, promised>>
rest    == <<held, fault, dead>>
vars == <<reg, node, bytes, wires, brokers, rest>>

------------------------------------------------------------------------------
(* What is in the variables.

   A region: epoch e; state st and its owner own (a session, a file, or NONE); the gate; the bytes, of which
   it only matters whether they are zero or who wrote them at which epoch; the memory file they are in, 0 if
   none that a client could have mapped, named by the epoch it was made for; the bytes as they were sealed.

   gate   "closed"; "opening": granted and being made ready, closed as yet; "open"; "suspended";
          "closing": the word has changed, copies of the old epoch are waited for; "moving":
          closed, and the sealed bytes move to a new file.

   A handle (in "held"): made for session s, for region r at incarnation i and epoch e; k "w" to read and
   write or "r" to read; f the memory file that goes with it. Whoever opens a name learns its "r" handles.
   Who reads under them makes no difference to a node, so here it is always s.

   A node: its incarnation; the highest term seen; the life of the broker it is connected to (0: none);
   whether it is draining; spent tickets of that term; its sessions: "none", "live" or "suspended".

   A life of the broker: the incarnation that each node offered last, and which ever did; whether that offer
   came over the last connection that the node used with it (heard); the regions <<region, incarnation, epoch>>
   shown as sealed and nobody's, and those given up; the names with their files [f: id, x: regions]; the key of
   the sessions' secrets. *)
Zero == NONE

FreshRegion ==
    [e |-> 0, st |-> "free", own |-> NONE, gate |-> "closed", data |-> Zero, file |-> 0, sealed |-> Zero]
FreshNode(i) ==
    [inc |-> i, term |-> 0, link |-> 0, drain |-> FALSE, spent |-> {},
     sess |-> [s \in Sessions |-> "none"]]
NoNames == [m \in Names |-> NONE]
FreshLife(names, key) ==
    [known |-> [n \in Nodes |-> 0], ever |-> {}, heard |-> [n \in Nodes |-> FALSE], sealed |-> {}, gone |-> {},
     names |-> names, key |-> key]
Unborn == FreshLife(NoNames, 0)

TypeOK ==
    /\ \A r \in Regions :
        /\ reg[r].st \in {"free", "leased", "sealed", "orphan", "named", "cleaning"}
        /\ reg[r].gate \in {"closed", "opening", "open", "suspended", "closing", "moving"}
        /\ reg[r].st \in {"leased", "sealed"} <=> reg[r].own \in Sessions
        /\ reg[r].gate = "closing" => reg[r].st \in {"sealed", "cleaning"}
        /\ reg[r].gate \in {"opening", "suspended"} => reg[r].st = "leased"
        /\ reg[r].gate = "moving" => reg[r].st \in {"sealed", "orphan"}
        /\ reg[r].st = "free" => reg[r].gate = "closed"
    /\ \A n \in Nodes : node[n].inc \in 1..IncMax /\ node[n].term \in 0..TermMax
    /\ \A c \in copies : c.ph \in {"coming", "looked", "inside"}
    /\ store.term \in Terms

Init ==
    /\ reg = [r \in Regions |-> FreshRegion]
    /\ node = [n \in Nodes |-> FreshNode(1)]
    /\ copies = {} /\ looks = {} /\ held = {}
    /\ store = [term |-> 1, key |-> 1, next |-> 1, names |-> NoNames]
    /\ life = [b \in Terms |-> IF b = 1 THEN FreshLife(NoNames, 1) ELSE Unborn]
    /\ report = [r \in Regions |-> NONE]
    /\ stale = [r \in Regions |-> NONE]
    /\ ruling = [r \in Regions |-> NONE]
    /\ promised = {} /\ fault = {} /\ dead = {}

(* Every step of a node but copies, moving, opening and wiping holds its lease lock until what it decided has
   reached the gates, the wait for copies included. *)
Locked(n) == \E r \in At(n) : reg[r].gate = "closing"
Alive(s)  == s \notin dead

------------------------------------------------------------------------------
(* Nodes: leases. *)

Closing(x, st, own) == [x EXCEPT !.e = @ + 1, !.st = st, !.own = own, !.gate = "closing"]
TakenBack(x) == Closing(x, "cleaning", NONE)

\* Every ticket that a life of the broker may have signed: what it believes to be free is not modelled, it may
\* promise anything to anybody at a node that has offered itself. Of equal ones, one after the other is used.
Tickets ==
    {t \in [term : 1..store.term, s : Sessions, n : Nodes, i : 1..IncMax, k : 1..TicketsMax] :
        /\ <<t.n, t.i>> \in life[t.term].ever
        /\ t.i = node[t.n].inc \* others are refused
        /\ t.k = 1 \/ [t EXCEPT !.k = t.k - 1] \in node[t.n].spent}

\* With a higher term, the spent tickets of the last one are forgotten.
Seen(x, term) ==
    IF term <= x.term THEN x ELSE [x EXCEPT !.term = term, !.spent = IF OldTicketTaken THEN @ ELSE {}]

\* A ticket's term is seen also if the ticket is refused for another reason.
SeeTerm(t) ==
    /\ t.term > node[t.n].term /\ ~Locked(t.n)
    /\ node' = [node EXCEPT ![t.n] = Seen(@, t.term)]
    /\ UNCHANGED <<reg, bytes, wires, brokers, rest>>

\* A ticket becomes a lease of one free region.
Redeem(t, r, shared) ==
    LET n == t.n  me == node[n] IN
    /\ Alive(t.s) /\ Home(r) = n /\ ~Locked(n)
    /\ t.term >= me.term \/ OldTicketTaken
    /\ t \notin me.spent \/ TicketTwice
    /\ ~me.drain \/ GrantWhileDraining
    /\ reg[r].st = "free" /\ reg[r].e + 1 + 2 * (me.inc - 1) <= EpochMax
    /\ reg' = [x \in Regions |->
         IF x = r THEN
           [reg[r] EXCEPT !.e = @ + 1, !.st = "leased", !.own = t.s, !.gate = "opening",
                !.file = IF ~shared THEN 0 ELSE IF FileReuse /\ @ # 0 THEN @ ELSE reg[r].e + 1]
         ELSE IF Home(x) = n /\ reg[x].own = t.s /\ reg[x].gate = "suspended" THEN
           [reg[x] EXCEPT !.gate = "open"]
         ELSE reg[x]]
    /\ node' = [node EXCEPT ![n] = [Seen(me, t.term) EXCEPT !.spent = @ \union {t}, !.sess[t.s] = "live"]]
    /\ fault' = fault \union (IF t \in me.spent THEN {"ticket spent twice"} ELSE {})
                      \union (IF t.term < me.term THEN {"ticket of a deposed broker"} ELSE {})
                      \union (IF me.drain THEN {"granted while draining"} ELSE {})
    /\ UNCHANGED <<held, dead, bytes, wires, brokers>>

\* The gate opens and the answer goes out. If the region was taken back meanwhile, this does not happen.
OpenGranted(r) ==
    /\ reg[r].gate = "opening"
    /\ LET s == reg[r].own  n == Home(r) IN
       /\ reg' = [reg EXCEPT ![r].gate = IF node[n].sess[s] = "suspended" THEN "suspended" ELSE "open"]
       /\ held' = held \union
            {[s |-> s, r |-> r, i |-> node[n].inc, e |-> reg[r].e, k |-> "w", f |-> reg[r].file]}
    /\ UNCHANGED <<node, fault, dead, bytes, wires, brokers>>

\* TTL without a renewal.
Suspend(n, s) ==
    /\ node[n].sess[s] = "live" /\ ~Locked(n)
    /\ node' = [node EXCEPT ![n].sess[s] = "suspended"]
    /\ reg' = [x \in Regions |->
         IF Home(x) = n /\ reg[x].own = s /\ reg[x].st = "leased" /\ reg[x].gate = "open"
         THEN [reg[x] EXCEPT !.gate = "suspended"] ELSE reg[x]]
    /\ UNCHANGED <<bytes, wires, brokers, rest>>

Renew(n, s) ==
    /\ Alive(s) /\ node[n].sess[s] = "suspended" /\ ~Locked(n)
    /\ node' = [node EXCEPT ![n].sess[s] = "live"]
    /\ reg' = [x \in Regions |->
         IF Home(x) = n /\ reg[x].own = s /\ reg[x].gate = "suspended"
         THEN [reg[x] EXCEPT !.gate = "open"] ELSE reg[x]]
    /\ UNCHANGED <<bytes, wires, brokers, rest>>

\* The end of the grace, or the session gives back everything.
Leave(n, s) ==
    /\ ~Locked(n)
    /\ node[n].sess[s] = "suspended" \/ (node[n].sess[s] = "live" /\ Alive(s))
    /\ node' = [node EXCEPT ![n].sess[s] = "none"]
    /\ reg' = [x \in Regions |->
         IF Home(x) = n /\ reg[x].own = s /\ reg[x].st = "leased" THEN TakenBack(reg[x]) ELSE reg[x]]
    /\ UNCHANGED <<bytes, wires, brokers, rest>>

IsOwn(h) == /\ reg[h.r].st = "leased" /\ reg[h.r].own = h.s
            /\ h.i = node[Home(h.r)].inc /\ h.e = reg[h.r].e

\* The session gives back one region.
Release(h) ==
    /\ Alive(h.s) /\ h.k = "w" /\ IsOwn(h) /\ ~Locked(Home(h.r))
    /\ reg' = [reg EXCEPT ![h.r] = TakenBack(@)]
    /\ UNCHANGED <<node, bytes, wires, brokers, rest>>

Seal(h) ==
    /\ Alive(h.s) /\ h.k = "w" /\ IsOwn(h) /\ ~Locked(Home(h.r))
    /\ reg' = [reg EXCEPT ![h.r] = Closing(@, "sealed", h.s)]
    /\ UNCHANGED <<node, bytes, wires, brokers, rest>>

\* No copy is inside any more, and the lease lock goes.
Closed(r) ==
    /\ reg[r].gate = "closing"
    /\ OpenBeforeClosed \/ \A c \in copies : c.r # r \/ (LookThenAnnounce /\ c.ph # "inside")
    /\ reg' = [reg EXCEPT ![r].gate = IF reg[r].st = "sealed" THEN "moving" ELSE "closed"]
    /\ UNCHANGED <<node, bytes, wires, brokers, rest>>

\* What was closed to be sealed moves to a file that no client writes, opens, and the answer goes out; unless
\* its epoch is over by then.
OpenSealed(r) ==
    LET x == reg[r]
        file == IF SealInPlace /\ x.file # 0 THEN x.file ELSE x.e
        sealer == (CHOOSE h \in held : h.r = r /\ h.i = node[Home(r)].inc /\ h.e = x.e - 1).s
    IN
    /\ x.gate = "moving"
    /\ reg' = [reg EXCEPT ![r].gate = "open", ![r].sealed = x.data, ![r].file = file]
    /\ held' = held \union
         {[s |-> sealer, r |-> r, i |-> node[Home(r)].inc, e |-> x.e, k |-> "r", f |-> file]}
    /\ UNCHANGED <<node, fault, dead, bytes, wires, brokers>>

Scrub(r) ==
    /\ reg[r].st = "cleaning" /\ reg[r].gate = "closed"
    /\ reg' = [reg EXCEPT ![r].st = "free", ![r].sealed = Zero,
                          ![r].data = IF NoScrub THEN @ ELSE Zero, ![r].file = IF FileReuse THEN @ ELSE 0]
    /\ UNCHANGED <<node, bytes, wires, brokers, rest>>

\* A sealed region outlives its session until the broker has said whether a name has it.
Orphan(r) ==
    /\ reg[r].st = "sealed" /\ node[Home(r)].sess[reg[r].own] = "none" /\ ~Locked(Home(r))
    /\ reg' = [reg EXCEPT ![r] =
         IF OrphanFreed THEN TakenBack(@) ELSE [@ EXCEPT !.st = "orphan", !.own = NONE]]
    /\ UNCHANGED <<node, bytes, wires, brokers, rest>>

\* A life of the broker takes reports of a node over the connection that brought the node's last offer.
IsHeard(b, n) == AnyConnection \/ life[b].heard[n]

\* What a connection brought may be taken after its end. Lines that can only lead to refusals are left out.
Overtaken(n) ==
    [r \in Regions |-> IF /\ LateReports /\ Home(r) = n /\ report[r] # NONE /\ report[r].of = "sealed"
                          /\ IsHeard(report[r].b, n)
                       THEN report[r] ELSE stale[r]]

\* Of these, those that are still taken once b has taken an offer of n over another connection.
Outlasting(lines, b, n) ==
    [r \in Regions |-> IF Home(r) = n /\ lines[r] # NONE /\ lines[r].b = b /\ ~AnyConnection
                       THEN NONE ELSE lines[r]]

\* The process ends and another begins: memory, handles and what was on the connections are gone.
Restart(n) ==
    /\ node[n].inc < IncMax
    /\ node' = [node EXCEPT ![n] = FreshNode(node[n].inc + 1)]
    /\ reg' = [r \in Regions |-> IF Home(r) = n THEN FreshRegion ELSE reg[r]]
    /\ copies' = {c \in copies : Home(c.r) # n}
    /\ looks' = {l \in looks : Home(l.r) # n}
    /\ stale' = Overtaken(n)
    /\ report' = [r \in Regions |-> IF Home(r) = n THEN NONE ELSE report[r]]
    /\ ruling' = [r \in Regions |-> IF Home(r) = n THEN NONE ELSE ruling[r]]
    /\ UNCHANGED <<brokers, rest>>

------------------------------------------------------------------------------
(* Nodes: bytes. What a client has mapped, it may also write at any time without asking. *)

\* An operation arrives under any handle that was ever given out, and announces itself at the gate. Under a
\* handle "w" it may read and write, under "r" it may read.
Arrive(h) ==
    /\ Alive(h.s) /\ Cardinality(copies) < CopyMax
    /\ copies' = copies \union {[s |-> h.s, r |-> h.r, i |-> h.i, e |-> h.e, k |-> h.k, ph |-> "coming"]}
    /\ UNCHANGED <<reg, node, looks, wires, brokers, rest>>

\* What the fence shows admits it. A handle is random, so it says incarnation, epoch and right at once.
Admitted(c) ==
    LET x == reg[c.r] IN
    /\ x.gate = "open"
    /\ c.i = node[Home(c.r)].inc \/ HandleReuse
    /\ c.e = x.e \/ SkipTokenCheck
    /\ c.k = "w" => x.st = "leased"

\* Then it looks at the fence word.
Look(c) ==
    /\ c.ph = "coming"
    /\ copies' = (copies \ {c}) \union
         (IF Admitted(c) THEN {[c EXCEPT !.ph = IF LookThenAnnounce THEN "looked" ELSE "inside"]} ELSE {})
    /\ UNCHANGED <<reg, node, looks, wires, brokers, rest>>

AnnounceLate(c) ==
    /\ c.ph = "looked"
    /\ copies' = (copies \ {c}) \union {[c EXCEPT !.ph = "inside"]}
    /\ UNCHANGED <<reg, node, looks, wires, brokers, rest>>

\* The copy takes place at some moment while it is inside, and it leaves.
Copy(c) ==
    /\ c.ph = "inside"
    /\ reg' = IF c.k = "w" THEN [reg EXCEPT ![c.r].data = <<c.s, c.e>>] ELSE reg
    /\ copies' = copies \ {c}
    /\ UNCHANGED <<node, looks, wires, brokers, rest>>

\* A client that mapped the file of its lease writes to it. A write to any other file goes where nobody reads.
IsMappedForWriting(h) ==
    /\ h.k = "w" /\ h.f # 0 /\ h.i = node[Home(h.r)].inc /\ h.f = reg[h.r].file
WriteMapped(h) ==
    /\ Alive(h.s) /\ IsMappedForWriting(h)
    /\ reg' = [reg EXCEPT ![h.r].data = <<h.s, h.e>>]
    /\ UNCHANGED <<node, bytes, wires, brokers, rest>>

\* A read by shared memory: the word, the copy, the word again (in SecondLook).
Word(r) == <<reg[r].e, reg[r].gate = "open">>

\* While copies of the last epoch finish, the bytes are still theirs.
RunningEpoch(r) == IF reg[r].gate = "closing" THEN reg[r].e - 1 ELSE reg[r].e
RightBytes(h) ==
    IF h.k = "w" THEN reg[h.r].data \in {Zero, <<h.s, h.e>>} ELSE reg[h.r].data = reg[h.r].sealed

FirstLook(h) ==
    /\ Alive(h.s) /\ Cardinality(looks) < LookMax
    /\ h.f # 0 /\ h.i = node[Home(h.r)].inc
    /\ Word(h.r) = <<h.e, TRUE>>
    /\ looks' = looks \union {[s |-> h.s, r |-> h.r, e |-> h.e, k |-> h.k, f |-> h.f, ph |-> "looked"]}
    /\ UNCHANGED <<reg, node, copies, wires, brokers, rest>>

CopyMapped(l) ==
    /\ l.ph = "looked"
    /\ LET right == reg[l.r].file = l.f /\ RunningEpoch(l.r) = l.e /\ RightBytes(l) IN
       looks' = (looks \ {l}) \union {[l EXCEPT !.ph = IF right THEN "right" ELSE "wrong"]}
    /\ UNCHANGED <<reg, node, copies, wires, brokers, rest>>

\* Accepted or thrown away: I3 says that what is accepted now is right.
SecondLook(l) ==
    /\ l.ph \in {"right", "wrong"}
    /\ looks' = looks \ {l}
    /\ UNCHANGED <<reg, node, copies, wires, brokers, rest>>

------------------------------------------------------------------------------
(* The node's connection to a broker. What is on a connection keeps its order; connections overtake each
   other. So a ruling is of the present connection, but a broker may take late what an earlier one brought. *)

Lives(b) == b = store.term \/ (b < store.term /\ SplitBrain)

TakeOffer(l, n, i, heard) ==
    [l EXCEPT !.known[n] = i, !.ever = @ \union {<<n, i>>}, !.heard[n] = heard,
              !.sealed = {x \in @ : Home(x[1]) # n}, !.gone = {x \in @ : Home(x[1]) # n \/ x[2] = i}]

\* A new connection, an offer, and its answer.
Connect(n, b) ==
    /\ Lives(b) /\ ~Locked(n)
    /\ MayDie => node[n].link # b \/ ~IsHeard(b, n)
    /\ life' = [life EXCEPT ![b] = TakeOffer(@, n, node[n].inc, TRUE)]
    /\ node' = [node EXCEPT ![n] = [Seen(@, b) EXCEPT !.link = b]]
    /\ stale' = Outlasting(Overtaken(n), b, n)
    /\ report' = [r \in Regions |-> IF Home(r) = n THEN NONE ELSE report[r]]
    /\ ruling' = [r \in Regions |-> IF Home(r) = n THEN NONE ELSE ruling[r]]
    /\ <<life', node', wires'>> # <<life, node, wires>>
    /\ UNCHANGED <<reg, store, promised, bytes, rest>>

\* An offer whose answer does not arrive: its connection is over, and perhaps the life that made it.
OfferLate(n, b, i) ==
    /\ LateOffers /\ Lives(b) /\ i <= node[n].inc
    /\ life' = [life EXCEPT ![b] = TakeOffer(@, n, i, FALSE)] /\ life' # life
    /\ stale' = Outlasting(stale, b, n)
    /\ UNCHANGED <<reg, node, store, promised, report, ruling, bytes, rest>>

Report(r) ==
    LET n == Home(r)  x == reg[r]
        of == IF x.st \in {"leased", "sealed", "orphan", "named"} THEN x.st ELSE "none"
        line == [b |-> node[n].link, r |-> r, i |-> node[n].inc, e |-> IF of = "none" THEN 0 ELSE x.e,
                 of |-> of, file |-> IF of = "named" THEN x.own ELSE 0]
    IN
    /\ node[n].link # 0 /\ ~Locked(n) /\ report[r] = NONE
    /\ report' = [report EXCEPT ![r] = line]
    /\ UNCHANGED <<reg, node, stale, ruling, bytes, brokers, rest>>

\* Which file of these names has the region at the epoch; 0 if none.
FileOf(names, r, i, e) ==
    LET has == {m \in Names : names[m] # NONE /\ <<r, i, e>> \in names[m].x} IN
    IF has = {} THEN 0 ELSE names[CHOOSE m \in has : TRUE].f

GiveUp(gone, xs) == IF GivenUpForgotten THEN gone ELSE
    {x \in gone : \A y \in xs : ~(x[1] = y[1] /\ x[2] = y[2] /\ x[3] < y[3])} \union xs
IsGone(gone, r, i, e) == \E x \in gone : x[1] = r /\ x[2] = i /\ x[3] >= e

\* A life of the broker takes a line of a report; "answer": over the present connection.
TakeReport(line, answer) ==
    LET b == line.b  r == line.r  l == life[b]
        file == FileOf(l.names, r, line.i, line.e)
        adopt == line.of \in {"sealed", "orphan"} /\ file # 0
        drop == \/ line.of = "sealed" /\ file = 0 /\ IsGone(l.gone, r, line.i, line.e)
                \/ line.of = "orphan" /\ file = 0 /\ ~OrphanKept
                \/ line.of = "named" /\ file # line.file
                \/ line.of = "leased" /\ LeaseDropped
        others == {x \in l.sealed : x[1] # r}
        sealed == line.of = "sealed" /\ file = 0 /\ ~drop
    IN
    /\ Lives(b) /\ l.known[Home(r)] = line.i
    /\ answer => IsHeard(b, Home(r)) \* else the node connects anew
    /\ life' = [life EXCEPT
         ![b].sealed = IF sealed THEN others \union {<<r, line.i, line.e>>} ELSE others,
         ![b].gone = IF drop THEN GiveUp(@, {<<r, line.i, line.e>>}) ELSE @]
    /\ ruling' = IF answer /\ (adopt \/ drop)
                 THEN [ruling EXCEPT ![r] = [term |-> b, e |-> line.e, file |-> IF adopt THEN file ELSE 0]]
                 ELSE ruling
    /\ report' = IF answer THEN [report EXCEPT ![r] = NONE] ELSE report
    /\ answer \/ life' # life
    /\ UNCHANGED <<reg, node, store, stale, promised, bytes, rest>>

Rule(r) ==
    LET m == ruling[r]  n == Home(r)  x == reg[r]
        old == m.term < node[n].term
        adopt == m.file # 0 /\ x.st \in {"sealed", "orphan"}
        drop == m.file = 0 /\ (x.st \in {"sealed", "orphan", "named"} \/ (LeaseDropped /\ x.st = "leased"))
    IN
    /\ m # NONE /\ ~Locked(n)
    /\ ~old \/ OldRulingTaken
    /\ m.e = x.e \/ RulingWithoutEpoch
    /\ adopt \/ drop
    /\ reg' = [reg EXCEPT ![r] = IF adopt THEN [@ EXCEPT !.st = "named", !.own = m.file] ELSE TakenBack(@)]
    /\ node' = [node EXCEPT ![n] = Seen(@, m.term)]
    /\ fault' = fault \union (IF x.st = "leased" THEN {"lease ended by a broker"} ELSE {})
    /\ IF adopt \/ RulingWithoutEpoch THEN UNCHANGED ruling \* it may come again
       ELSE ruling' = [ruling EXCEPT ![r] = NONE]            \* it may too, and is refused by its epoch
    /\ UNCHANGED <<held, report, stale, dead, bytes, brokers>>

\* The broker drains the node, or takes it back into use. The node does not follow a deposed one.
Drain(n, drain) ==
    /\ Draining /\ ~Locked(n) /\ node[n].drain # drain
    /\ node[n].link # 0 /\ node[n].link >= node[n].term
    /\ node' = [node EXCEPT ![n].drain = drain]
    /\ UNCHANGED <<reg, bytes, wires, brokers, rest>>

------------------------------------------------------------------------------
(* Brokers. Whatever a client may ask it may ask any life, and again. *)

\* Another life begins over what the store has. From here on the store takes nothing of earlier lives.
StartBroker ==
    /\ store.term < TermMax
    /\ LET b == store.term + 1  key == IF KeyNotStored THEN b ELSE store.key IN
       /\ store' = [store EXCEPT !.term = b]
       /\ life' = [life EXCEPT ![b] = FreshLife(IF NamesForgotten THEN NoNames ELSE store.names, key)]
    /\ UNCHANGED <<reg, node, promised, bytes, wires, rest>>

MayCommit(b) == b = store.term \/ (DeposedCommits /\ Lives(b))
Extents(hs) == {<<h.r, h.i, h.e>> : h \in hs}
Holds(names, m) == IF names[m] = NONE THEN {} ELSE names[m].x

\* A session gives what it sealed to a name, which lets go what it had. The file is a new one, or the same one
\* and has moved; keep: what of it stays where it is.
Publish(b, m, hs, moved, keep) ==
    LET l == life[b]  fresh == Extents(hs)  x == fresh \union keep
        has == IF l.names[m] = NONE THEN 0 ELSE l.names[m].f
        f == IF moved THEN has ELSE store.next
        file == [f |-> f, x |-> x]
    IN
    /\ MayCommit(b)
    /\ IF moved THEN has # 0 /\ Cardinality(x) = Cardinality(Holds(l.names, m))
       ELSE keep = {} /\ store.next <= FileMax
    /\ Holds(l.names, m) # x \* else it was done already
    /\ \A p \in x : l.known[Home(p[1])] = p[2]
    /\ \A p \in fresh :
        /\ NameTwice \/ \A o \in Names : \A q \in Holds(l.names, o) : ~(q[1] = p[1] /\ q[2] = p[2])
        /\ ~IsGone(l.gone, p[1], p[2], p[3])
        /\ p \in l.sealed \/ PublishWithoutReport
    /\ life' = [life EXCEPT ![b].names[m] = file, ![b].gone = GiveUp(@, Holds(l.names, m) \ x)]
    /\ store' = IF AckBeforeCommit THEN store
                ELSE [store EXCEPT !.names[m] = file, !.next = IF moved THEN @ ELSE f + 1]
    /\ promised' = (promised \ {has}) \union {f}
    /\ UNCHANGED <<reg, node, bytes, wires, rest>>

DropName(b, m) ==
    LET l == life[b] IN
    /\ MayCommit(b) /\ l.names[m] # NONE
    /\ life' = [life EXCEPT ![b].names[m] = NONE, ![b].gone = GiveUp(@, l.names[m].x)]
    /\ store' = [store EXCEPT !.names[m] = NONE]
    /\ promised' = promised \ {l.names[m].f}
    /\ UNCHANGED <<reg, node, bytes, wires, rest>>

Die(s) ==
    /\ MayDie /\ dead' = dead \union {s} /\ Alive(s)
    /\ UNCHANGED <<reg, node, held, fault, bytes, wires, brokers>>

------------------------------------------------------------------------------
\* What a session can ask to be published together: one sealed region, or one of each.
Publishable ==
    {hs \in SUBSET {h \in held : h.k = "r" /\ Alive(h.s)} :
        /\ hs # {}
        /\ \A g, h \in hs : g.s = h.s /\ (g.r = h.r => g = h)}

Lines == {report[r] : r \in Regions} \ {NONE}
Stale == {stale[r] : r \in Regions} \ {NONE}

Next ==
    \/ \E t \in Tickets : SeeTerm(t) \/ \E r \in At(t.n), shared \in SharedKinds : Redeem(t, r, shared)
    \/ \E r \in Regions :
        OpenGranted(r) \/ Closed(r) \/ OpenSealed(r) \/ Scrub(r) \/ Orphan(r) \/ Report(r) \/ Rule(r)
    \/ \E n \in Nodes : Restart(n)
    \/ \E n \in Nodes, s \in Sessions : Suspend(n, s) \/ Renew(n, s) \/ Leave(n, s)
    \/ \E h \in held : \/ Release(h) \/ Seal(h) \/ WriteMapped(h) \/ FirstLook(h) \/ Arrive(h)
    \/ \E c \in copies : Look(c) \/ AnnounceLate(c) \/ Copy(c)
    \/ \E l \in looks : CopyMapped(l) \/ SecondLook(l)
    \/ \E n \in Nodes, b \in Terms : Connect(n, b) \/ \E i \in 1..IncMax : OfferLate(n, b, i)
    \/ \E n \in Nodes, drain \in BOOLEAN : Drain(n, drain)
    \/ \E line \in Lines : TakeReport(line, TRUE)
    \/ \E line \in Stale : TakeReport(line, FALSE)
    \/ StartBroker
    \/ \E b \in Terms, m \in Names : DropName(b, m)
    \/ \E hs \in Publishable, b \in Terms, m \in Names :
        \/ Publish(b, m, hs, FALSE, {})
        \/ \E keep \in SUBSET Holds(life[b].names, m) : Publish(b, m, hs, TRUE, keep)
    \/ \E s \in Sessions : Die(s)

Spec == Init /\ [][Next]_vars

------------------------------------------------------------------------------
(* The invariants. *)

InEpoch(c) == c.i = node[Home(c.r)].inc /\ c.e = RunningEpoch(c.r)

\* I1. At most one epoch can write a region at any instant.
Writers(r) ==
    {<<c.i, c.e>> : c \in {c \in copies : c.r = r /\ c.ph = "inside" /\ c.k = "w"}}
    \union {<<h.i, h.e>> : h \in {h \in held : h.r = r /\ IsMappedForWriting(h)}}
    \union (IF reg[r].st = "leased" /\ reg[r].gate = "open" THEN {<<node[Home(r)].inc, reg[r].e>>} ELSE {})
I1 == \A r \in Regions : Cardinality(Writers(r)) <= 1

\* I2. Once operations of epoch e + 1 can be accepted, no effect of an epoch up to e is seen: none is under
\* way, no old holder can reach the bytes, and sealed bytes are those that were there when they were sealed.
I2 ==
    /\ \A c \in copies : c.ph = "inside" => InEpoch(c)
    /\ \A r \in Regions :
        LET x == reg[r] IN
        /\ x.gate = "open" => \A w \in Writers(r) : w = <<node[Home(r)].inc, x.e>>
        /\ x.st \in {"sealed", "orphan", "named"} /\ x.gate = "open" => x.data = x.sealed /\ Writers(r) = {}

\* I3. A read returns the bytes written under the same incarnation and epoch, or an error.
I3 ==
    /\ \A c \in copies : c.ph = "inside" => InEpoch(c) /\ RightBytes(c)
    /\ \A l \in looks : l.ph = "wrong" => Word(l.r) # <<l.e, TRUE>> /\ ~NoSecondLook

\* I4. No session sees another's bytes: what it may lease is zero, and in its lease is what it wrote in it.
I4 ==
    \A r \in Regions :
        LET x == reg[r] IN
        /\ x.st = "free" => x.data = Zero
        /\ x.st = "leased" => x.data \in {Zero, <<x.own, x.e>>}

\* I5. A published name survives: acknowledged is durable, and while a name has a region, at the incarnation
\* it has it at, nobody frees or grants it ...
I5Names ==
    /\ \A f \in promised : \E m \in Names : store.names[m] # NONE /\ store.names[m].f = f
    /\ \A m \in Names : \A p \in Holds(store.names, m) :
        LET x == reg[p[1]] IN
        p[2] = node[Home(p[1])].inc => x.e = p[3] /\ x.st \in {"sealed", "orphan", "named"}
    /\ \A m, o \in Names : m # o => Holds(store.names, m) \intersect Holds(store.names, o) = {}
\* ... and so does a lease: no broker ends one, and each life knows every session's secret.
I5Leases == "lease ended by a broker" \notin fault
I5Secrets == life[store.term].key = store.key

\* A ticket is redeemed once, not of a broker below the term that the node has seen, not while it drains.
TicketsOnce     == "ticket spent twice" \notin fault
DeposedRefused  == "ticket of a deposed broker" \notin fault
DrainingRefuses  == "granted while draining" \notin fault

------------------------------------------------------------------------------
(* I6 without its times: what a session that ended had, and no name has, becomes free.

   For this the world must do its part in the end: a copy that is inside leaves, the node connects to the
   living broker, what is sent arrives. A close may meet new arrivals again and again, but not only such
   moments: hence strong fairness there. *)
Named(r) == \E m \in Names : \E p \in Holds(store.names, m) :
                p[1] = r /\ p[2] = node[Home(r)].inc /\ p[3] = reg[r].e
Ownerless(r) ==
    /\ \/ reg[r].st \in {"orphan", "named", "cleaning"}
       \/ reg[r].st \in {"leased", "sealed"} /\ reg[r].own \in dead
    /\ ~Named(r)

Fair ==
    /\ \A r \in Regions :
        /\ WF_vars(OpenGranted(r)) /\ WF_vars(OpenSealed(r)) /\ SF_vars(Closed(r))
        /\ WF_vars(Scrub(r)) /\ WF_vars(Orphan(r))
        /\ WF_vars(Report(r)) /\ WF_vars(Rule(r))
        /\ WF_vars(report[r] # NONE /\ TakeReport(report[r], TRUE))
    /\ \A n \in Nodes :
        /\ WF_vars(Connect(n, store.term))
        /\ \A s \in Sessions : WF_vars(~Alive(s) /\ Suspend(n, s)) /\ WF_vars(~Alive(s) /\ Leave(n, s))
    /\ WF_vars(\E c \in copies : Look(c) \/ Copy(c))

FairSpec == Spec /\ Fair

I6 == \A r \in Regions : Ownerless(r) ~> (reg[r].st = "free" \/ Named(r))
==============================================================================
