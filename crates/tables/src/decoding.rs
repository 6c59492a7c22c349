//! Decoding: the buffers of a row group that have arrived become columns of the table.

use crate::encryption::TableDecryption;
use crate::footer::{BufferAt, RowGroup};
use crate::schema_mapping::{FileColumns, InFile, widened};
use arrow_array::{ArrayRef, new_null_array};
use arrow_buffer::Buffer;
use arrow_schema::DataType;
use farpool_encryption::BufferPlace;
use farpool_operators::columns::{column_of, columns_of_rows};
use farpool_transport::recv_buffers::RecvBuffer;

/// Row group whose buffers have arrived.
pub(crate) struct ArrivedGroup<'a> {
    /// Row group, with the columns of the table.
    pub(crate) group: &'a RowGroup,
    /// Columns of its file.
    pub(crate) file: &'a FileColumns,
    /// Number in its file of its first row. Encryption counts rows and columns within files.
    pub(crate) position: u64,
    /// Key of its file if that is encrypted.
    pub(crate) decryption: Option<&'a TableDecryption>,
}

/// Reason why a row group cannot be decoded, and the place among the wanted columns of the one whose bytes are wrong. A
/// place is not known if the columns share their bytes.
pub(crate) type Damage = (Option<usize>, String);

impl ArrivedGroup<'_> {
    /// Decodes columns of the table, given by their numbers and types. `buffers` are those of [`RowGroup::buffers`] for
    /// these columns, with the tags of their encryption.
    pub(crate) fn columns(
        &self,
        wanted: &[(usize, &DataType)],
        buffers: Vec<RecvBuffer>,
    ) -> Result<Vec<ArrayRef>, Damage> {
        let rows = self.group.rows as usize;
        let mut buffers = buffers.into_iter();
        if self.group.rows_buffer().is_some() {
            // No buffer was fetched if no columns are wanted.
            let Some(bytes) = buffers.next() else { return Ok(Vec::new()) };
            return self.columns_of_rows(wanted, bytes).map_err(|why| (None, why));
        }
        let decode = |(number, (column, of)): (usize, &(usize, &DataType))| {
            let (InFile::Same(place) | InFile::Narrower(place)) = self.file.place(*column) else {
                return Ok(new_null_array(of, rows));
            };
            let chunk = &self.group.columns[*column];
            let of_chunk = (0u8..).zip(&chunk.buffers).zip(buffers.by_ref());
            let of_chunk =
                of_chunk.map(|((buffer, at), landed)| self.checked(landed, at, place as u16, buffer));
            let column = of_chunk.collect::<Result<Vec<_>, _>>().and_then(|of_chunk| {
                let (written, nulls) = (self.file.type_in_file(place), chunk.null_count as usize);
                column_of(written, chunk.encoding, rows, nulls, of_chunk, usize::MAX)
            });
            column.and_then(|column| widened(column, of)).map_err(|why| (Some(number), why))
        };
        wanted.iter().enumerate().map(decode).collect()
    }

    /// Decodes columns of a row group whose rows lie one behind the other.
    fn columns_of_rows(
        &self,
        wanted: &[(usize, &DataType)],
        bytes: RecvBuffer,
    ) -> Result<Vec<ArrayRef>, String> {
        let rows = self.group.rows as usize;
        let (at, places) =
            self.group.rows_buffer().zip(self.file.rows()).ok_or("its columns have no rows")?;
        let bytes = self.checked(bytes, &at, 0, 0)?;
        let place = |column| match self.file.place(column) {
            InFile::Same(place) | InFile::Narrower(place) => Some(place),
            InFile::Nowhere => None,
        };
        let stored: Vec<_> = wanted
            .iter()
            .filter_map(|(column, _)| place(*column))
            .map(|place| (self.file.type_in_file(place), places.starts[place]))
            .collect();
        let mut stored = columns_of_rows(&stored, places.row_bytes, rows, &bytes, usize::MAX)?.into_iter();
        let column = |(column, of): &(usize, &DataType)| match place(*column).and_then(|_| stored.next()) {
            Some(column) => widened(column, of),
            None => Ok(new_null_array(of, rows)),
        };
        wanted.iter().map(column).collect()
    }

    /// Decrypts a buffer that has arrived, or compares its checksum. Returns an error if it is not as it was written.
    fn checked(
        &self,
        mut landed: RecvBuffer,
        at: &BufferAt,
        column: u16,
        buffer: u8,
    ) -> Result<Buffer, String> {
        match self.decryption {
            Some(decryption) => {
                let place = BufferPlace { position: self.position, column, buffer };
                decryption.cipher.decrypt(place, landed.as_mut()).map_err(|error| error.to_string())?
            }
            None if crc32c::crc32c(landed.as_ref()) == at.crc => {}
            None => return Err("the checksum of its bytes does not match".to_owned()),
        }
        let landed = Buffer::from(bytes::Bytes::from_owner(landed));
        Ok(landed.slice_with_length(0, at.bytes as usize))
    }
}
