//! Deliberate mistakes, to show that the simulator finds them. They exist only with the feature `mutants`, which
//! nothing but the simulator asks for; without it [`is_on`] is a constant and the compiler leaves nothing of
//! them.
//!
//! A mistake is one short condition where it would be made: `if mutant!(SkipEpochCheck) || ...`.

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A deliberate mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant { $($(#[$doc])* $name),* }

        impl Mutant {
            /// All of them.
            pub const ALL: &'static [Mutant] = &[$(Mutant::$name),*];

            /// Its name.
            pub fn word(self) -> &'static str {
                match self { $(Mutant::$name => stringify!($name)),* }
            }
        }
    };
}

mutants! {
    /// Node: a region keeps its epoch when it is taken back.
    EpochKeptAtClose,
    /// Node: a region is neither wiped when it is given back nor looked at when it is granted.
    NoWiping,
    /// Node: a ticket may be redeemed again.
    SpentTicketTaken,
    /// Node: a ticket of a lower term is redeemed.
    OldTermTaken,
    /// Node: a session that is silent keeps what it holds.
    NeverExpires,
    /// Node: what is given back is not closed to those who had it.
    ReleasedStaysOpen,
    /// Node: a renewal out of the grace does not let the session in again.
    ResumeForgotten,
    /// Node: a granted region stays among the free ones.
    GrantsTwice,
    /// Node: a sealed region is freed as soon as its session is gone.
    OrphanFreed,
    /// Node: a ruling of a lower term is followed.
    OldTermRules,
    /// Node: an operation need name neither the region's epoch nor its handle.
    RightsNotChecked,
    /// Node: an operation need not show the region's handle.
    HandleNotChecked,
    /// Node: sealed bytes stay where their writer may have them mapped.
    SealedNotMoved,
    /// Node: a free region that the host got back may be granted.
    WithdrawnStaysFree,
    /// Node: a region that is taken back for the host is not closed to those who had it.
    WithdrawnStaysOpen,
    /// Client on the node's host: the fence word is looked at before a copy only.
    FenceNotLookedAtAgain,
    /// Client on the node's host: the fence word is not looked at.
    FenceNotLookedAt,
    /// Broker: an answer is given before its records are in the store.
    AnsweredBeforeStored,
    /// Broker: one that lost its lead goes on to write.
    LeadNotCompared,
    /// Broker: a restart keeps the term.
    TermKept,
    /// Broker: a publication may name what the broker has told a node to free.
    GivenUpPublished,
    /// Broker: a publication may name what no inventory has shown as sealed.
    UnreportedPublished,
    /// Broker: after a restart it does not know which regions the names have.
    OwnersForgotten,
    /// Broker: it tells nodes to drop what a name has.
    NamedDropped,
    /// Broker: quotas are not looked at.
    QuotaNotChecked,
    /// Client: what a failed write left may be read.
    NotPoisoned,
    /// Client: what was never written is read from its extent.
    UnwrittenRead,
    /// Client: what a file was cut off by comes back when it grows again.
    CutOffBytesBack,
    /// Client: an extent that a write may still reach is used again.
    LateWriteForgotten,
    /// Client: a copy that missed a write stays in its file.
    MissedCopyKept,
    /// Client: a copy made anew is taken in although its extent was written meanwhile.
    StaleCopyTaken,
    /// Client: writes that overlap run side by side.
    WritesOverlap,
    /// Client: the place of a dropped copy is used again while it may be read.
    PlaceReusedAtOnce,
    /// Client: both copies of a mirror may lie on one host.
    MirrorOnOneHost,
    /// Client: the local disk takes the last write first.
    DiskOutOfOrder,
}

/// Whether a mistake is to be made.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether a mistake is to be made, on this thread.
#[cfg(feature = "mutants")]
pub fn is_on(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}

/// Chooses the mistake to make from now on, on this thread.
#[cfg(feature = "mutants")]
pub fn choose(mutant: Option<Mutant>) {
    CHOSEN.set(mutant);
}

/// Whether a mistake of [`Mutant`] is to be made here.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_on($crate::mutants::Mutant::$name)
    };
}
