------------------------------- MODULE tables -------------------------------
(* A table whose rows change: its snapshots, the parts that they share, and who may drop what. The part of lease.md
   called "Tables" as a state machine, for the model checker TLC; check.sh runs it.

   The idea: one table. A snapshot is a set of parts, and each commit makes the next one. Sessions read and commit, the
   broker keeps the log of commits and the names of parts durably and all else in memory. There is no clock: a session
   may be silent for too long at any moment, and a snapshot may be old enough to end at any moment. What a session could
   once have sent may arrive at any later time, any number of times, or never. So requests to add parts and to commit
   are no messages: that they arrive is enabled for ever by what their session wanted once ("com"). Of renewals, which
   say what a session holds, one that is late is kept for each session.

   A deposed broker answers beside its successor until it notices. It changes nothing that is durable, but what it tells
   sessions about snapshots they believe.

   A part has the name <<commit, number>> and always the same bytes, as ids of commits are drawn once: a reader sees its
   rows, or that a part is not there. What is modelled is therefore which names there are.

   Assumed: a session that has no answer does not ask again for as long as commits are known (what it sent may still
   arrive). A part that was dropped may be published again by a late request to the next leader, which does not know of
   it: the worst that segments.tla permits.

   Left out: several tables in one commit, tables that begin or are dropped, that an old snapshot ends although it is
   held (--snapshot-hold), what is in a manifest, bytes and nodes. *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Sessions,      \* model values
    CommitMax,     \* so many commits are begun
    TryMax,        \* each is tried with so many roots
    Kinds,         \* of "append", "replace" and "back", which goes back to an earlier snapshot
    AheadKinds,    \* {FALSE}, {TRUE} or both: whether parts are published ahead of a commit
    HoldMax,       \* a session holds so many snapshots at once
    TermMax,       \* the broker has so many lives: 1 or 2
    Mistake,       \* "none", or which of the mistakes below is made
    NONE           \* a model value

ASSUME TermMax \in {1, 2} /\ AheadKinds \subseteq BOOLEAN /\ Kinds \subseteq {"append", "replace", "back"}

(* Deliberate mistakes, each of which must break an invariant. *)
CommitTwice       == Mistake = "CommitTwice"       \* a commit that comes again is made again
RootNotCompared   == Mistake = "RootNotCompared"   \* a commit replaces whatever root the table has
AckBeforeStored   == Mistake = "AckBeforeStored"   \* a broker answers a commit before it is durable
HoldsNotAwaited   == Mistake = "HoldsNotAwaited"   \* a new leader ends snapshots at once
DeposedNotAwaited == Mistake = "DeposedNotAwaited" \* a new leader does not wait until the former one has noticed
OldHoldTaken      == Mistake = "OldHoldTaken"      \* a renewal counts that later requests have overtaken
PartDroppedEarly  == Mistake = "PartDroppedEarly"  \* a part is dropped while an older snapshot has it
RestoreForgotten  == Mistake = "RestoreForgotten"  \* a part is dropped that a later snapshot has again
ForgottenEarly    == Mistake = "ForgottenEarly"    \* a commit is forgotten before what it removed was dropped
OpenCommitDropped == Mistake = "OpenCommitDropped" \* a commit that was made stays open, and is dropped as such
TombstoneLater    == Mistake = "TombstoneLater"    \* parts are dropped before it is noted that nobody may commit
PartsNotCounted   == Mistake = "PartsNotCounted"   \* a commit may lack parts that were published ahead, and dropped
MadeOpenedAgain   == Mistake = "MadeOpenedAgain"   \* a part that comes late opens a commit which was made and forgotten
LeftoverForgotten == Mistake = "LeftoverForgotten" \* nobody drops pages of a try that conflicted

Commits == 1..CommitMax
Terms   == 1..TermMax

VARIABLES
    log,       \* commits that were made, by snapshot: [c, base, parts, removed, restored]. Parts here are
               \* <<commit, number, snapshot that had it first>>. Durable, and not changed
    forgot,    \* the broker does not know the first so many of them any more
    kept,      \* snapshots that have not ended. Durable
    named,     \* parts that have names: <<commit, number>>. Durable
    open,      \* commit -> [s: session that may make it, "nobody", or NONE if it is not open; n: parts published for it
               \* since it was opened]. Durable
    term,      \* life of the broker that leads
    awaits,    \* whether that one still waits for sessions of the life before
    deposed,   \* snapshots that the life before believes to be kept; NONE if it answers nothing
    holds,     \* session -> snapshots that it holds, as far as the life that leads knows
    said,      \* sessions that have renewed at the life that leads since no other answers
    letGo,     \* parts that this life has dropped
    sess,      \* session -> [lives: whether it was heard of lately; held: what it holds; late: what a late renewal
               \* says, or NONE; past: whether the life that leads has taken later requests]
    com,       \* commit -> [s: its session, or NONE; kind; ahead; back: snapshot it goes back to;
               \* bases: snapshot on which each try is based; added: parts that it knows to be published ahead;
               \* over: whether the broker was told that it is given up]
    answers    \* what sessions were told of commits: <<commit, snapshot>>

durable == <<log, forgot, kept, named, open>>
broker  == <<term, awaits, deposed, holds, said, letGo>>
vars    == <<durable, broker, sess, com, answers>>

Latest == Len(log)
Known  == (forgot + 1)..Latest
Made(c) == \E n \in Known : log[n].c = c
WasMade(c) == \E n \in 1..Latest : log[n].c = c

Name(x) == <<x[1], x[2]>>
NamesOf(xs) == {Name(x) : x \in xs}
IsPage(x) == x[2] > 0
PartsOf(c) == {p \in named : p[1] = c}
Closed == [s |-> NONE, n |-> 0]

\* The rows of a commit are its part 0, pages of its manifest one part for each try.
Ahead(c, t) == IF com[c].ahead THEN {<<c, i>> : i \in 0..t} ELSE {}
Tries(c) == Len(com[c].bases)

Init ==
    /\ log = <<[c |-> 0, base |-> 0, parts |-> {<<0, 0, 1>>, <<0, 1, 1>>}, removed |-> {}, restored |-> {}]>>
    /\ forgot = 0
    /\ kept = {1}
    /\ named = {<<0, 0>>, <<0, 1>>}
    /\ open = [c \in Commits |-> Closed]
    /\ term = 1 /\ awaits = FALSE /\ deposed = NONE
    /\ holds = [s \in Sessions |-> {}]
    /\ said = {} /\ letGo = {}
    /\ sess = [s \in Sessions |-> [lives |-> TRUE, held |-> {}, late |-> NONE, past |-> FALSE]]
    /\ com = [c \in Commits |->
            [s |-> NONE, kind |-> "append", ahead |-> FALSE, back |-> 0, bases |-> <<>>, added |-> {}, over |-> FALSE]]
    /\ answers = {}

------------------------------------------------------------------------------
(* Sessions commit. *)

Begin(c, s, kind, ahead, back) ==
    /\ com[c].s = NONE /\ (c > 1 => com[c - 1].s # NONE)
    /\ IF kind = "back" THEN back \in kept \ {Latest} /\ ~ahead ELSE back = 0
    /\ com' = [com EXCEPT ![c] = [s |-> s, kind |-> kind, ahead |-> ahead, back |-> back,
                                  bases |-> <<Latest>>, added |-> {}, over |-> FALSE]]
    /\ UNCHANGED <<durable, broker, sess, answers>>

\* It was answered that another commit came first, and goes on with another root.
TryAgain(c) ==
    /\ com[c].s # NONE /\ ~com[c].over /\ Tries(c) < TryMax /\ com[c].kind # "back"
    /\ com[c].bases[Tries(c)] # Latest
    /\ ~WasMade(c) \/ (CommitTwice /\ Made(c))
    /\ com' = [com EXCEPT ![c].bases = Append(@, Latest)]
    /\ UNCHANGED <<durable, broker, sess, answers>>

\* It does not, and says so. What it sent before may still arrive.
GiveUp(c) ==
    /\ open[c].s \in Sessions /\ ~com[c].over
    /\ com' = [com EXCEPT ![c].over = TRUE]
    /\ open' = [open EXCEPT ![c].s = "nobody"]
    /\ UNCHANGED <<log, forgot, kept, named, broker, sess, answers>>

\* A request to publish a part ahead arrives.
AddPart(c, p) ==
    /\ p \in Ahead(c, Tries(c)) /\ ~Made(c)
    /\ \/ open[c].s = com[c].s
       \* Something has a name: the commit was made.
       \/ open[c].s = NONE /\ (PartsOf(c) = {} \/ MadeOpenedAgain)
    /\ p \in named \/ p \notin letGo
    /\ named' = named \union {p}
    /\ open' = [open EXCEPT ![c] = [s |-> com[c].s, n |-> IF p \in named THEN @.n ELSE @.n + 1]]
    /\ com' = IF com[c].over THEN com ELSE [com EXCEPT ![c].added = @ \union {p}]
    /\ UNCHANGED <<log, forgot, kept, broker, sess, answers>>

\* What try t of a commit makes of the snapshot on which it is based.
Change(c, t) ==
    LET n == com[c].bases[t]
        has == log[n].parts
        own == {<<c, 0, n + 1>>, <<c, t, n + 1>>}
        gets == CASE com[c].kind = "append"  -> {x \in has : ~IsPage(x)} \union own
                  [] com[c].kind = "replace" -> own
                  [] com[c].kind = "back"    -> log[com[c].back].parts
        \* Pages of earlier tries that were published ahead. No snapshot has them.
        left == IF com[c].ahead /\ ~LeftoverForgotten THEN {<<c, i, n + 1>> : i \in 1..(t - 1)} ELSE {}
    IN [c |-> c, base |-> n, parts |-> gets, removed |-> (has \ gets) \union left,
        restored |-> IF com[c].kind = "back" THEN NamesOf(gets \ has) ELSE {}]

\* A request to commit arrives.
Commit(c, t) ==
    LET change == Change(c, t)
        fresh == IF com[c].kind = "back" THEN {} ELSE {<<c, 0>>, <<c, t>>} \ Ahead(c, t)
    IN
    /\ t \in 1..Tries(c) /\ Ahead(c, t) \subseteq com[c].added
    /\ ~Made(c) \/ CommitTwice
    /\ com[c].bases[t] = Latest \/ RootNotCompared
    /\ com[c].kind = "back" => com[c].back \in kept
    /\ com[c].ahead /\ ~(CommitTwice /\ Made(c)) =>
        open[c].s = com[c].s /\ (open[c].n = Cardinality(Ahead(c, t)) \/ PartsNotCounted)
    /\ (fresh \intersect named = {} \/ CommitTwice) /\ fresh \intersect letGo = {}
    /\ log' = Append(log, change)
    /\ kept' = kept \union {Latest + 1}
    /\ named' = named \union fresh
    /\ open' = IF OpenCommitDropped THEN open ELSE [open EXCEPT ![c] = Closed]
    /\ answers' = answers \union {<<c, Latest + 1>>}
    /\ UNCHANGED <<forgot, broker, sess, com>>

\* It was made before: the broker answers so. Nothing changes, as the answer was noted when it was made.

\* The request arrives at the deposed broker, whose store takes nothing any more.
CommitAtDeposed(c, t) ==
    /\ AckBeforeStored /\ deposed # NONE
    /\ t \in 1..Tries(c) /\ Ahead(c, t) \subseteq com[c].added
    /\ answers' = answers \union {<<c, com[c].bases[t] + 1>>}
    /\ UNCHANGED <<durable, broker, sess, com>>

------------------------------------------------------------------------------
(* Sessions read. *)

Answers(b) == b = term \/ (b = term - 1 /\ deposed # NONE)
KeptAt(b) == IF b = term THEN kept ELSE deposed

\* A request of the session arrives that is later than its renewal which is late.
Later(b, s) == IF b = term /\ sess[s].late # NONE THEN TRUE ELSE sess[s].past

\* A broker opens a snapshot, which the session holds from then on.
Open(b, s, n) ==
    /\ Answers(b) /\ sess[s].lives /\ n \in KeptAt(b)
    /\ Cardinality(sess[s].held \union {n}) <= HoldMax
    /\ sess' = [sess EXCEPT ![s].held = @ \union {n}, ![s].past = Later(b, s)]
    /\ holds' = IF b = term THEN [holds EXCEPT ![s] = @ \union {n}] ELSE holds
    /\ UNCHANGED <<durable, term, awaits, deposed, said, letGo, com, answers>>

LetGo(s, n) ==
    /\ sess' = [sess EXCEPT ![s].held = @ \ {n}]
    /\ UNCHANGED <<durable, broker, com, answers>>

\* A session says again what it holds, and hears what of it has ended, if it was silent for too long.
Renew(b, s) ==
    /\ Answers(b)
    /\ LET held == sess[s].held \intersect KeptAt(b) IN
       /\ holds' = IF b = term THEN [holds EXCEPT ![s] = held] ELSE holds
       /\ sess' = [sess EXCEPT ![s].past = Later(b, s), ![s].lives = TRUE,
                               ![s].held = IF sess[s].lives THEN @ ELSE held]
    /\ said' = IF b = term THEN said \union {s} ELSE said
    /\ UNCHANGED <<durable, term, awaits, deposed, letGo, com, answers>>

\* It says so, and hears no answer.
RenewLater(s) ==
    /\ HoldMax > 0 /\ sess[s].lives
    /\ sess' = [sess EXCEPT ![s].late = sess[s].held, ![s].past = FALSE]
    /\ UNCHANGED <<durable, broker, com, answers>>

\* What it said then arrives: once, or again.
RenewLate(s) ==
    /\ sess[s].late # NONE
    /\ ~sess[s].past \/ OldHoldTaken
    /\ holds' = [holds EXCEPT ![s] = sess[s].late \intersect kept]
    /\ UNCHANGED <<durable, term, awaits, deposed, said, letGo, sess, com, answers>>

\* A session was silent for longer than its leases can live, and brokers forget what it holds.
Lapse(s) ==
    /\ sess[s].lives
    /\ sess' = [sess EXCEPT ![s].lives = FALSE, ![s].late = NONE, ![s].past = FALSE]
    /\ holds' = [holds EXCEPT ![s] = {}]
    /\ said' = said \ {s}
    /\ UNCHANGED <<durable, term, awaits, deposed, letGo, com, answers>>

------------------------------------------------------------------------------
(* The broker. *)

\* Another life begins over what is durable.
NewBroker ==
    /\ term < TermMax
    /\ term' = term + 1 /\ awaits' = TRUE /\ deposed' = kept
    /\ said' = {} /\ letGo' = {}
    /\ holds' = [s \in Sessions |-> {}]
    /\ sess' = [s \in Sessions |-> [sess[s] EXCEPT !.past = FALSE]]
    /\ UNCHANGED <<durable, com, answers>>

\* The former one notices, or has ended.
Notices ==
    /\ deposed # NONE
    /\ deposed' = NONE
    /\ said' = {}
    /\ UNCHANGED <<durable, term, awaits, holds, letGo, sess, com, answers>>

\* So much time has passed since nobody else answered that every session that lives has renewed here.
Settle ==
    /\ awaits
    /\ deposed = NONE \/ DeposedNotAwaited
    /\ \A s \in Sessions : sess[s].lives => s \in said
    /\ awaits' = FALSE
    /\ UNCHANGED <<durable, term, deposed, holds, said, letGo, sess, com, answers>>

\* A snapshot ends: it is old, or many have followed.
End(n) ==
    /\ n \in kept \ {Latest} /\ (~awaits \/ HoldsNotAwaited)
    /\ \A s \in Sessions : n \notin holds[s]
    /\ kept' = kept \ {n}
    /\ UNCHANGED <<log, forgot, named, open, broker, sess, com, answers>>

\* A part came with snapshot a, was removed by m, and no snapshot in between is left; none has it again.
MayDrop(m, x) ==
    /\ kept \intersect ((IF PartDroppedEarly THEN m - 1 ELSE x[3])..(m - 1)) = {}
    /\ RestoreForgotten \/ \A k \in (m + 1)..Latest : Name(x) \notin log[k].restored

DropPart(p) ==
    /\ p \in named
    /\ \E m \in Known : \E x \in log[m].removed : Name(x) = p /\ MayDrop(m, x)
    /\ named' = named \ {p} /\ letGo' = IF p[1] = 0 THEN letGo ELSE letGo \union {p}
    /\ UNCHANGED <<log, forgot, kept, open, term, awaits, deposed, holds, said, sess, com, answers>>

\* The first commit that is still known is forgotten: its snapshot has ended long ago.
Forget ==
    LET m == forgot + 1 IN
    /\ m < Latest /\ kept \intersect (1..m) = {}
    /\ ForgottenEarly \/ \A x \in log[m].removed : Name(x) \in named => ~MayDrop(m, x)
    /\ forgot' = m
    /\ UNCHANGED <<log, kept, named, open, broker, sess, com, answers>>

\* It is noted that nobody can make the commit.
Tombstone(c) ==
    /\ open[c].s \in Sessions
    /\ ~awaits /\ ~sess[open[c].s].lives
    /\ open' = [open EXCEPT ![c].s = "nobody"]
    /\ UNCHANGED <<log, forgot, kept, named, broker, sess, com, answers>>

DropAhead(c, p) ==
    /\ \/ open[c].s = "nobody"
       \/ TombstoneLater /\ open[c].s \in Sessions /\ ~awaits /\ ~sess[open[c].s].lives
    /\ p \in PartsOf(c)
    /\ named' = named \ {p} /\ letGo' = letGo \union {p}
    /\ UNCHANGED <<log, forgot, kept, open, term, awaits, deposed, holds, said, sess, com, answers>>

Close(c) ==
    /\ open[c].s = "nobody" /\ PartsOf(c) = {}
    /\ open' = [open EXCEPT ![c] = Closed]
    /\ UNCHANGED <<log, forgot, kept, named, broker, sess, com, answers>>

Next ==
    \/ \E c \in Commits :
        \/ \E s \in Sessions, kind \in Kinds, ahead \in AheadKinds, back \in 0..Latest : Begin(c, s, kind, ahead, back)
        \/ TryAgain(c) \/ GiveUp(c) \/ Tombstone(c) \/ Close(c)
        \/ \E i \in 0..TryMax : AddPart(c, <<c, i>>) \/ DropAhead(c, <<c, i>>)
        \/ \E t \in 1..TryMax : Commit(c, t) \/ CommitAtDeposed(c, t)
    \/ \E s \in Sessions :
        \/ \E n \in 1..Latest : (\E b \in Terms : Open(b, s, n)) \/ (n \in sess[s].held /\ LetGo(s, n))
        \/ \E b \in Terms : Renew(b, s)
        \/ RenewLater(s) \/ RenewLate(s) \/ Lapse(s)
    \/ NewBroker \/ Notices \/ Settle \/ Forget
    \/ \E n \in kept : End(n)
    \/ \E p \in named : DropPart(p)

Spec == Init /\ [][Next]_vars

\* What can still have an effect. TLC takes states that differ in nothing else for the same. A commit that was made is
\* not made again, as the root that it replaced is gone; a session that is heard of again holds what has not ended.
View ==
    LET matters(c) == ~WasMade(c) \/ CommitTwice \/ RootNotCompared IN
    <<durable, term, awaits, deposed, holds, said, answers,
      {p \in letGo : com[p[1]].ahead \/ matters(p[1])},
      [s \in Sessions |-> IF sess[s].lives \/ deposed # NONE THEN sess[s]
                          ELSE [sess[s] EXCEPT !.held = @ \intersect kept]],
      [c \in Commits |-> IF matters(c) THEN com[c] ELSE <<com[c].s, com[c].ahead, Tries(c)>>]>>

------------------------------------------------------------------------------
\* A snapshot that has not ended has all of its parts.
NothingMissing == \A n \in kept : NamesOf(log[n].parts) \subseteq named

\* What a session was told that it holds does not end while it is heard of.
HeldKept == \A s \in Sessions : sess[s].lives => sess[s].held \subseteq kept

\* A commit is made once at most.
OnceOnly == \A m, n \in 1..Latest : m # n => log[m].c # log[n].c

\* Each commit replaces the root of the snapshot just before its own, so no two replace the same.
Serial == \A n \in 2..Latest : log[n].base = n - 1

\* What was answered is so, and stays so: a commit is the snapshot that its session was told, whoever leads.
Acked == \A a \in answers : a[2] <= Latest /\ log[a[2]].c = a[1]

\* A part that has a name is of a snapshot that has not ended, or of an open commit, or will be dropped: what removed it
\* is known, and no later snapshot has it again.
Accounted ==
    \A p \in named :
        \/ \E n \in kept : p \in NamesOf(log[n].parts)
        \/ p[1] # 0 /\ open[p[1]].s # NONE
        \/ \E m \in Known : p \in NamesOf(log[m].removed) /\ \A k \in (m + 1)..Latest : p \notin log[k].restored
==============================================================================
