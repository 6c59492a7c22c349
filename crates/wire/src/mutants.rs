//! Deliberate mistakes (mutants), which show that the simulator finds them. They exist only with the feature
//! `mutants`, which only the simulator enables. Without it [`is_on`] is a constant, and the compiler removes the
//! mistakes.
//!
//! A mistake is one short condition at the place of the mistake: `if mutant!(SkipEpochCheck) || ...`.

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Deliberate mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant { $($(#[$doc])* $name),* }

        impl Mutant {
            /// All mistakes.
            pub const ALL: &'static [Mutant] = &[$(Mutant::$name),*];

            /// Returns the name of the mistake.
            pub fn word(self) -> &'static str {
                match self { $(Mutant::$name => stringify!($name)),* }
            }
        }
    };
}

mutants! {
    /// Node: a region keeps its epoch (fencing counter) when it is taken back.
    EpochKeptAtClose,
    /// Node: a region is not wiped when it is given back, and not checked to be zero when it is granted.
    NoWiping,
    /// Node: a ticket may be redeemed twice.
    SpentTicketTaken,
    /// Node: a ticket of a lower term (earlier life of the broker) is redeemed.
    OldTermTaken,
    /// Node: a silent session keeps its regions.
    NeverExpires,
    /// Node: a region that is released stays open to its former holder.
    ReleasedStaysOpen,
    /// Node: a renewal during the grace does not admit the session again.
    ResumeForgotten,
    /// Node: a granted region stays among the free ones.
    GrantsTwice,
    /// Node: a sealed (immutable) region is freed as soon as its session is gone, although a published file may own it.
    OrphanFreed,
    /// Node: a ruling (answer to a report) of a broker of a lower term is followed.
    OldTermRules,
    /// Node: an operation is admitted without a check of its epoch and handle.
    RightsNotChecked,
    /// Node: an operation is admitted without a check of its handle.
    HandleNotChecked,
    /// Node: sealed bytes stay in a memory file that their writer may have mapped.
    SealedNotMoved,
    /// Node: a region whose memory went back to the host may be granted.
    WithdrawnStaysFree,
    /// Node: a region that is taken back for the host stays open to its former holder.
    WithdrawnStaysOpen,
    /// Node: runs of a published file that it could not copy are reported as copied.
    HalfCopyReported,
    /// Node: a run is computed as if it were another of its stripe, and the result is not compared with its checksum.
    ShardMistaken,
    /// Client: a part of a stripe that cannot be read counts as zeros when others are computed from it.
    LostShardIsZero,
    /// Client on the node's host: the fence word (a region's epoch in shared memory) is checked before a copy, but not
    /// after it.
    FenceNotLookedAtAgain,
    /// Client on the node's host: the fence word (a region's epoch in shared memory) is not checked.
    FenceNotLookedAt,
    /// Broker: several runs of a stripe may lie on one host.
    StripeOnOneHost,
    /// Broker: an answer leaves before its records are in the store.
    AnsweredBeforeStored,
    /// Broker: a broker that has lost the leadership goes on writing.
    LeadNotCompared,
    /// Broker: a restart keeps the term (number of the broker's life) instead of taking a higher one.
    TermKept,
    /// Broker: a publication may name regions that the broker has ordered a node to free.
    GivenUpPublished,
    /// Broker: a publication may name regions that no report of a node has shown as sealed (immutable).
    UnreportedPublished,
    /// Broker: after a restart it does not know which regions the published files own.
    OwnersForgotten,
    /// Broker: it tells nodes to drop regions that a published file owns.
    NamedDropped,
    /// Broker: a copy on a node that is being drained is freed as soon as its successor is ordered.
    DrainedCopyFreed,
    /// Broker: two nodes copy the same run, and both copies are listed.
    RunRepairedTwice,
    /// Broker: a segment is freed although published files have ranges in it.
    LiveSegmentFreed,
    /// Node: a segment is freed although something was added to it since the report.
    SegmentFreedLate,
    /// Broker: quotas are not checked.
    QuotaNotChecked,
    /// Client: a range may be read after a write to it failed.
    NotPoisoned,
    /// Client: a range that was never written is read from its extent.
    UnwrittenRead,
    /// Client: bytes that were cut off a file come back when it grows again.
    TruncatedBytesBack,
    /// Client: an extent is used again while a late write may still reach it.
    LateWriteForgotten,
    /// Client: a copy that missed a write stays in its file.
    MissedCopyKept,
    /// Client: a node that did not hear that regions were given back is not told again.
    ReleaseForgotten,
    /// Broker: a commit of tables that comes again is applied again.
    CommitAppliedTwice,
    /// Broker: a commit replaces whatever root a table has.
    RootNotCompared,
    /// Broker: a new leader ends snapshots before its sessions have said which they hold.
    HoldsNotAwaited,
    /// Broker: a request that names the snapshots a session holds counts although it came after a later one.
    LateHoldsTaken,
    /// Broker: a new leader does not wait for one that was deposed and does not know it.
    OlderNotAwaited,
    /// Broker: parts that were published ahead are dropped with their session although the commit was made and a
    /// manifest names them.
    OpenCommitKept,
    /// Client: an open file takes the places of another file that was published under its name.
    OtherGenerationTaken,
    /// Client: row groups that it has claimed from a scan run a second time.
    GroupCountedTwice,
    /// Client: a repaired copy is accepted although its extent was written meanwhile.
    StaleCopyTaken,
    /// Client: writes that overlap run at the same time.
    WritesOverlap,
    /// Client: the extent of a dropped copy is used again while it may still be read.
    PlaceReusedAtOnce,
    /// Client: all files of an encrypted table have the same salt.
    SaltReused,
    /// Client: both copies of a mirror may lie on one host.
    MirrorOnOneHost,
    /// Client: the local disk takes the last write first.
    DiskOutOfOrder,
}

/// Reports whether to make a mistake.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Reports whether to make a mistake, on this thread.
#[cfg(feature = "mutants")]
pub fn is_on(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}

/// Chooses the mistake to make from now on, on this thread; `None` for no mistake.
#[cfg(feature = "mutants")]
pub fn choose(mutant: Option<Mutant>) {
    CHOSEN.set(mutant);
}

/// Evaluates to true if the named mistake of [`Mutant`] must be made here.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_on($crate::mutants::Mutant::$name)
    };
}
