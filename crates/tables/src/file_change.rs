//! Change of a data file in the manifest: the file stays as it is, and the table has some of its row groups no more.

use crate::manifest::DataFile;

/// Row groups that a data file loses, and their rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileChange {
    /// Numbers of the row groups in the file.
    pub(crate) left_out: Vec<u32>,
    /// Number of their rows.
    pub(crate) rows: u64,
}

impl FileChange {
    /// Returns the loss of all row groups that a file has.
    pub(crate) fn of_all(file: &DataFile) -> FileChange {
        let count = file.groups + file.left_out.len() as u32;
        let has = |group: &u32| file.left_out.binary_search(group).is_err();
        FileChange { left_out: (0..count).filter(has).collect(), rows: file.rows }
    }

    /// Returns the file without these row groups. `None` if none is left.
    pub(crate) fn of(&self, file: &DataFile) -> Option<DataFile> {
        let mut left_out = [&file.left_out[..], &self.left_out].concat();
        left_out.sort_unstable();
        let rows = file.rows.saturating_sub(self.rows);
        let groups = file.groups.saturating_sub(self.left_out.len() as u32);
        (groups > 0).then(|| DataFile { rows, groups, left_out, ..file.clone() })
    }

    /// Reports whether a file still has all of these row groups.
    pub(crate) fn fits(&self, file: &DataFile) -> bool {
        let has = |group: &u32| file.left_out.binary_search(group).is_err();
        self.left_out.iter().all(has)
    }
}
