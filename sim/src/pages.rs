//! Bytes of simulated memory, which are real but sparse.

const PAGE_BYTES: usize = 4096;

/// Sparse bytes: a page takes memory only once it has been written.
#[derive(Debug, Default)]
pub(crate) struct Pages(Vec<Option<Box<[u8; PAGE_BYTES]>>>);

impl Pages {
    /// Makes this many bytes, which are zero.
    pub(crate) fn new(bytes: u64) -> Pages {
        Pages((0..bytes as usize / PAGE_BYTES).map(|_| None).collect())
    }

    fn each(offset: u64, length: usize, mut with: impl FnMut(usize, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < length {
            let at = offset as usize + done;
            let (page, start) = (at / PAGE_BYTES, at % PAGE_BYTES);
            let count = (PAGE_BYTES - start).min(length - done);
            with(page, start, done..done + count);
            done += count;
        }
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        Pages::each(offset, into.len(), |page, start, part| {
            let count = part.len();
            match &self.0[page] {
                Some(bytes) => into[part].copy_from_slice(&bytes[start..start + count]),
                None => into[part].fill(0),
            }
        });
    }

    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) {
        Pages::each(offset, from.len(), |page, start, part| {
            let from = &from[part];
            if self.0[page].is_none() && from.iter().all(|byte| *byte == 0) {
                return;
            }
            let bytes = self.0[page].get_or_insert_with(|| Box::new([0; PAGE_BYTES]));
            bytes[start..start + from.len()].copy_from_slice(from);
        });
    }

    pub(crate) fn clear(&mut self) {
        self.0.fill_with(|| None);
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().flatten().all(|page| page.iter().all(|byte| *byte == 0))
    }

    /// Returns a copy, in which the pages behind the first `bytes` bytes are zero.
    pub(crate) fn copied(&self, bytes: usize) -> Pages {
        let pages = self.0.iter().enumerate();
        Pages(pages.map(|(index, page)| page.clone().filter(|_| index * PAGE_BYTES < bytes)).collect())
    }
}
