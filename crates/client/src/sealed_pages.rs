//! Reading and writing sealed files: whole pages, sealed before they leave this process and opened when they
//! come back. Why and how: docs/decisions/0008-sealed-scratch.md.

use crate::by_node::{ByNode, failure, span};
use crate::error::{Error, ErrorKind};
use crate::file::{FileInner, ReadRange, WriteRange};
use crate::node_links::LeasedRegion;
use crate::plan::{
    Cut, ExtentCopy, PageError, PageKey, PagePlace, PageSealed, PageSeals, Piece, SEAL_PAGE_BYTES, Snapshot,
    pages_around,
};
use crate::read::Missed;
use crate::session::Session;
use farpool_transport::{ReadOp, WriteOp};
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = SEAL_PAGE_BYTES as u64;

/// What goes to one copy in a write.
pub(crate) struct SealedPiece<'p> {
    pub(crate) piece: &'p Piece<Arc<LeasedRegion>>,
    /// The ciphertext.
    pub(crate) bytes: Vec<u8>,
    /// What will open it.
    pub(crate) seals: Vec<Option<PageSealed>>,
}

/// Where a piece lies, for the seal of its first page.
fn place(region: &LeasedRegion, offset: u64) -> PagePlace {
    PagePlace {
        incarnation: region.node.info.incarnation,
        region: region.region,
        epoch: region.epoch,
        // A region has fewer than 2^32 pages.
        page: (offset / PAGE) as u32,
    }
}

fn of_page_error(error: PageError, region: &LeasedRegion) -> Error {
    match error {
        PageError::Tampered { .. } | PageError::NeverSealed { .. } => {
            let name = &region.node.info.name;
            Error::new(
                ErrorKind::Tampered,
                format!("node {name} answered with other bytes than were written: {error}"),
            )
            .at_node(name)
        }
        other => Error::new(ErrorKind::Refused, other.to_string()),
    }
}

impl FileInner {
    /// The pages around a write as they will be, sealed for each copy that gets them.
    pub(crate) fn seal_pages<'p>(
        &self,
        key: &PageKey,
        range: &WriteRange<'_>,
        pages: &Range<u64>,
        pieces: &[&'p Piece<Arc<LeasedRegion>>],
    ) -> Result<Vec<SealedPiece<'p>>, Error> {
        let mut plain = vec![0; (pages.end - pages.start) as usize];
        let end = range.offset + range.from.len() as u64;
        // Of pages that are written in part, what they hold already is sealed with it.
        let (head, tail) = (pages.start..range.offset, end..pages.end);
        for part in [head, tail].into_iter().filter(|part| !part.is_empty()) {
            let into = &mut plain[(part.start - pages.start) as usize..(part.end - pages.start) as usize];
            self.fetch(&mut [&mut ReadRange { offset: part.start, into }])?;
        }
        plain[(range.offset - pages.start) as usize..][..range.from.len()].copy_from_slice(range.from);
        let seal = |piece: &&'p Piece<Arc<LeasedRegion>>| {
            let file = (piece.file.start - pages.start) as usize..(piece.file.end - pages.start) as usize;
            let mut bytes = vec![0; file.len()];
            let mut seals = vec![None; file.len() / SEAL_PAGE_BYTES];
            key.seal(place(&piece.region, piece.offset), &plain[file], &mut bytes, &mut seals)
                .map_err(|error| of_page_error(error, &piece.region))?;
            Ok(SealedPiece { piece, bytes, seals })
        };
        pieces.iter().map(seal).collect()
    }

    /// Reads pieces, each from the whole pages around it; which of them did not come, and why.
    pub(crate) fn fetch_sealed(
        &self,
        key: &PageKey,
        pieces: Vec<(&Piece<Arc<LeasedRegion>>, &mut [u8])>,
    ) -> Result<Vec<Missed>, Error> {
        let whole: Vec<Piece<Arc<LeasedRegion>>> = pieces.iter().map(|(piece, _)| around(piece)).collect();
        let mut buffers: Vec<Vec<u8>> =
            whole.iter().map(|piece| vec![0; (piece.file.end - piece.file.start) as usize]).collect();
        let mut by_node = ByNode::default();
        for (piece, into) in whole.iter().zip(&mut buffers) {
            by_node.add(&piece.region, ReadOp { span: span(piece), into });
        }
        let outcomes = by_node.read(&self.session);
        let mut missed = Vec::new();
        for ((whole, buffer), (piece, into)) in whole.iter().zip(&mut buffers).zip(pieces) {
            let opened = match failure(&outcomes, &piece.region) {
                Some(error) => Err(error.clone()),
                None => self.open_pages(key, whole, buffer),
            };
            match opened {
                Ok(()) => {
                    let from = (piece.file.start - whole.file.start) as usize;
                    into.copy_from_slice(&buffer[from..from + into.len()]);
                }
                Err(error) => missed.push((Arc::clone(&piece.region), error)),
            }
        }
        Ok(missed)
    }

    fn open_pages(
        &self,
        key: &PageKey,
        piece: &Piece<Arc<LeasedRegion>>,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let Some(seals) = self.state().map.load_seals(piece) else {
            // A write elsewhere in the extent missed this copy, which left the file a moment ago.
            return Err(Error::lost(&piece.region.node.info.name, "its copy has left the file"));
        };
        self.session.open_sealed(key, piece, &seals, bytes)
    }

    /// Copies what is written of an extent to another place, sealed anew for it.
    pub(crate) fn copy_sealed(
        &self,
        key: &PageKey,
        snapshot: &Snapshot<Arc<LeasedRegion>>,
        source: Option<&ExtentCopy<Arc<LeasedRegion>>>,
        cut: &Cut<Arc<LeasedRegion>>,
    ) -> Result<PageSeals, Error> {
        let session = &*self.session;
        let mut seals = PageSeals::new(cut.bytes);
        for (file, runs) in by_pages(&snapshot.written) {
            let within = file.start - snapshot.range.start;
            let mut plain = vec![0; (file.end - file.start) as usize];
            let first = (within / PAGE) as u32;
            match (source, &self.disk) {
                (Some(copy), _) => {
                    let from = Piece {
                        copy: copy.id,
                        region: Arc::clone(&copy.cut.region),
                        offset: copy.cut.offset + within,
                        file: file.clone(),
                    };
                    let mut read = ByNode::default();
                    read.add(&from.region, ReadOp { span: span(&from), into: &mut plain });
                    if let Some(error) = failure(&read.read(session), &from.region) {
                        return Err(error.clone());
                    }
                    let mut sealed = vec![None; plain.len() / SEAL_PAGE_BYTES];
                    copy.seals.load(first, &mut sealed);
                    session.open_sealed(key, &from, &sealed, &mut plain)?;
                }
                (None, Some(disk)) => {
                    for run in runs {
                        let into = (run.start - file.start) as usize..(run.end - file.start) as usize;
                        let (host, counters) = (&*session.host, &session.counters);
                        session.behind.read(host, counters, disk, run.start, &mut plain[into])?;
                    }
                }
                (None, None) => return Err(Error::new(ErrorKind::Lost, "no copy is left to copy from")),
            }
            let mut bytes = vec![0; plain.len()];
            let mut sealed = vec![None; plain.len() / SEAL_PAGE_BYTES];
            key.seal(place(&cut.region, cut.offset + within), &plain, &mut bytes, &mut sealed)
                .map_err(|error| of_page_error(error, &cut.region))?;
            let to = Piece {
                copy: Default::default(),
                region: Arc::clone(&cut.region),
                offset: cut.offset + within,
                file,
            };
            let mut write = ByNode::default();
            write.add(&to.region, WriteOp { span: span(&to), from: &bytes });
            if let Some(error) = failure(&write.write(session), &to.region) {
                return Err(error.clone());
            }
            seals.store(first, &sealed);
        }
        Ok(seals)
    }
}

impl Session {
    /// Opens pages of a piece. A node that answers with others than were written is not used any more.
    fn open_sealed(
        &self,
        key: &PageKey,
        piece: &Piece<Arc<LeasedRegion>>,
        seals: &[Option<PageSealed>],
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let first = place(&piece.region, piece.offset);
        key.open(first, seals, bytes).map_err(|error| {
            if matches!(error, PageError::Tampered { .. }) {
                piece.region.node.bar("it answered with other bytes than were written");
                self.lose_regions(&piece.region.node);
            }
            of_page_error(error, &piece.region)
        })
    }
}

/// Runs of bytes, in order, with the whole pages around them. Runs that share a page are together, for a page is
/// sealed whole.
fn by_pages(runs: &[Range<u64>]) -> Vec<(Range<u64>, Vec<Range<u64>>)> {
    let mut pages: Vec<(Range<u64>, Vec<Range<u64>>)> = Vec::new();
    for run in runs {
        let around = pages_around(run.clone());
        match pages.last_mut() {
            Some((pages, together)) if around.start < pages.end => {
                pages.end = around.end;
                together.push(run.clone());
            }
            _ => pages.push((around, vec![run.clone()])),
        }
    }
    pages
}

/// A piece with the whole of its first and last page. Extents begin and end with pages.
fn around(piece: &Piece<Arc<LeasedRegion>>) -> Piece<Arc<LeasedRegion>> {
    let file = pages_around(piece.file.clone());
    Piece { offset: piece.offset - (piece.file.start - file.start), file, ..piece.clone() }
}
