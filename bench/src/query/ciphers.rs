//! Encrypted tables in `farpool bench operators`: decryption of their buffers, and selection after decryption.
//!
//! The tables are decrypted by [`TableCipher`], as on a node and at a client. The time is compared with that of the
//! ciphers of aws-lc-rs over one long buffer. The selection is compared with the same program over columns that are not
//! encrypted.

use super::cryptopp::CryptoPp;
use super::operands::{SHARES, Tables, program_over, values};
use crate::exit::Failure;
use crate::harness::statistics::{gb_per_s, median};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_buffer::{Buffer, MutableBuffer, ScalarBuffer};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_128, DecryptingKey, DecryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use farpool_encryption::{BufferPlace, KEY_BYTES, SALT_BYTES, TAG_BYTES, TableCipher, TableKey};
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];
const SALT: [u8; SALT_BYTES] = [9; SALT_BYTES];

/// Names of the measured decryptions, each with the index of the entry to which its ratio is shown.
const ALONE: [(&str, Option<usize>); 4] = [
    ("AES-128-GCM of aws-lc-rs, one buffer, in place", None),
    ("buffers of a table, into memory used again (a node)", Some(0)),
    ("buffers of a table, in place (a client)", Some(0)),
    ("AES-128-CTR of aws-lc-rs, one buffer, in place, no tag", Some(0)),
];

/// Encrypted column of a row group. `bytes` ends with the authentication tag.
struct EncryptedColumn {
    place: BufferPlace,
    bytes: Vec<u8>,
}

/// Encrypted table and the throughputs measured over it, in GB/s by round. `alone` are the decryptions of [`ALONE`].
/// `decrypting` is decryption and selection together, and `plain` the selection over plain columns, both for each entry
/// of [`SHARES`] (percentages of selected rows).
pub(crate) struct Ciphers {
    cipher: TableCipher,
    groups: Vec<Vec<EncryptedColumn>>,
    /// Buffer as long as the table, for the bare ciphers.
    one: Vec<u8>,
    alone: [Vec<f64>; ALONE.len()],
    crypto_pp: Option<(CryptoPp, Vec<f64>)>,
    decrypting: [Vec<f64>; SHARES.len()],
    plain: [Vec<f64>; SHARES.len()],
}

impl Ciphers {
    /// Encrypts the table and checks that it decrypts to the same values. `crypto_pp_mib` is the buffer size for
    /// Crypto++ in MiB; `None` leaves it out.
    pub(crate) fn new(tables: &Tables, crypto_pp_mib: Option<usize>) -> Result<Ciphers, Failure> {
        let cipher = TableCipher::new(&TableKey::new(KEY).of_table(&SALT).0, SALT);
        let mut position = 0;
        let mut groups = Vec::new();
        for group in tables.groups() {
            let encrypt = |column: usize| {
                let place = BufferPlace { position, column: column as u16, buffer: 0 };
                let mut bytes = bytes_of(group, column);
                let tag = cipher.encrypt(place, &mut bytes);
                bytes.extend_from_slice(&tag);
                EncryptedColumn { place, bytes }
            };
            groups.push((0..group.num_columns()).map(encrypt).collect());
            position += group.num_rows() as u64;
        }
        let one = vec![1; size_of_val(tables.rows())];
        let ciphers = Ciphers {
            cipher,
            groups,
            one,
            alone: Default::default(),
            crypto_pp: crypto_pp_mib.map(CryptoPp::start).transpose()?.map(|program| (program, Vec::new())),
            decrypting: Default::default(),
            plain: Default::default(),
        };
        for (group, expected) in ciphers.decrypted().zip(tables.groups()) {
            if group? != *expected {
                return Err(Failure::Failed("WRONG VALUES decrypted".to_owned()));
            }
        }
        Ok(ciphers)
    }

    /// Decrypts the row groups one after another. Like a node, it reuses the memory of the row group before.
    fn decrypted(&self) -> impl Iterator<Item = Result<RecordBatch, Failure>> {
        let mut spare: Vec<Buffer> = Vec::new();
        self.groups.iter().map(move |group| {
            let mut unused = std::mem::take(&mut spare).into_iter();
            let mut column = |encrypted: &EncryptedColumn| -> Result<(String, ArrayRef), Failure> {
                let bytes = encrypted.bytes.len() - TAG_BYTES;
                let mut room = match unused.next().map(Buffer::into_mutable) {
                    Some(Ok(mut room)) => {
                        room.resize(bytes, 0);
                        room
                    }
                    _ => MutableBuffer::from_len_zeroed(bytes),
                };
                let decrypted =
                    self.cipher.decrypt_into(encrypted.place, &encrypted.bytes, room.as_slice_mut());
                decrypted.map_err(Failure::failed)?;
                let decrypted = Buffer::from(room);
                spare.push(decrypted.clone());
                let values = Int64Array::new(ScalarBuffer::from(decrypted), None);
                Ok((encrypted.place.column.to_string(), Arc::new(values)))
            };
            let columns: Vec<_> = group.iter().map(&mut column).collect::<Result<_, _>>()?;
            RecordBatch::try_from_iter(columns).map_err(Failure::failed)
        })
    }

    /// Measures each decryption and selection once more.
    pub(crate) fn measure(&mut self, tables: &Tables) -> Result<(), Failure> {
        let bytes = self.one.len();
        let gcm = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &KEY).map_err(Failure::failed)?);
        let nonce = || Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let tag = gcm.seal_in_place_separate_tag(nonce(), Aad::empty(), &mut self.one);
        let tag = tag.map_err(Failure::failed)?;
        let begun = Instant::now();
        let decrypted = gcm.open_in_place_separate_tag(nonce(), Aad::empty(), tag.as_ref(), &mut self.one);
        decrypted.map_err(Failure::failed)?;
        self.alone[0].push(gb_per_s(bytes, begun));

        let begun = Instant::now();
        for group in self.decrypted() {
            black_box(group?);
        }
        self.alone[1].push(gb_per_s(bytes, begun));

        let begun = Instant::now();
        for encrypted in self.groups.iter_mut().flatten() {
            self.cipher.decrypt(encrypted.place, &mut encrypted.bytes).map_err(Failure::failed)?;
        }
        self.alone[2].push(gb_per_s(bytes, begun));
        for encrypted in self.groups.iter_mut().flatten() {
            // Restores the ciphertext for the next round. The plain bytes are as before, so the same nonce produces the
            // same ciphertext.
            let end = encrypted.bytes.len() - TAG_BYTES;
            let tag = self.cipher.encrypt(encrypted.place, &mut encrypted.bytes[..end]);
            encrypted.bytes[end..].copy_from_slice(&tag);
        }

        let key = UnboundCipherKey::new(&AES_128, &KEY).map_err(Failure::failed)?;
        let ctr = DecryptingKey::ctr(key).map_err(Failure::failed)?;
        let begun = Instant::now();
        let context = DecryptionContext::Iv128(FixedLength::from([0; 16]));
        ctr.decrypt(&mut self.one, context).map_err(Failure::failed)?;
        self.alone[3].push(gb_per_s(bytes, begun));

        if let Some((program, found)) = &mut self.crypto_pp {
            found.push(program.measure()?);
        }

        let mut send = |values: &[i64]| {
            black_box(values);
        };
        for (share, (_, limit)) in SHARES.iter().enumerate() {
            let begun = Instant::now();
            program_over(tables.groups().iter().cloned().map(Ok), *limit, &mut send)?;
            self.plain[share].push(gb_per_s(bytes, begun));
            let begun = Instant::now();
            program_over(self.decrypted(), *limit, &mut send)?;
            self.decrypting[share].push(gb_per_s(bytes, begun));
        }
        Ok(())
    }

    /// Returns a row for each cipher, as text and as JSON.
    pub(crate) fn alone(&self) -> Vec<(Vec<String>, Value)> {
        let line = |(at, (name, beside)): (usize, &(&str, Option<usize>))| {
            let speed = median(self.alone[at].iter().copied());
            let ratio = beside.map(|beside| ratio(&self.alone[at], &self.alone[beside]));
            let told = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            let value = json!({ "operator": "open", "by": name, "gb_per_s": speed, "of_plain": ratio });
            (vec![(*name).to_owned(), format!("{speed:.1}"), told], value)
        };
        let mut lines: Vec<_> = ALONE.iter().enumerate().map(line).collect();
        if let Some((_, found)) = &self.crypto_pp {
            let speed = median(found.iter().copied());
            let (ratio, own) = (ratio(found, &self.alone[0]), ratio(&self.alone[3], found));
            let name = "AES-128-CTR of Crypto++, one buffer, in place, no tag";
            let value = json!({
                "operator": "open", "by": name, "gb_per_s": speed, "of_plain": ratio, "ctr_of_aws_lc_rs": own,
            });
            lines.push((vec![name.to_owned(), format!("{speed:.1}"), format!("{ratio:.2}")], value));
        }
        lines
    }

    /// Returns a row for each share of selected rows, as text and as JSON.
    pub(crate) fn selecting(&self) -> Vec<(Vec<String>, Value)> {
        let line = |(at, (percent, _)): (usize, &(u32, i64))| {
            let [plain, decrypting] = [&self.plain[at], &self.decrypting[at]];
            let [alone, behind] = [plain, decrypting].map(|found| median(found.iter().copied()));
            let ratio = ratio(decrypting, plain);
            let row = vec![
                format!("{percent} %"),
                format!("{alone:.1}"),
                format!("{behind:.1}"),
                format!("{ratio:.2}"),
            ];
            let value = json!({
                "operator": "open and select", "kept_percent": percent, "select_gb_per_s": alone,
                "gb_per_s": behind, "of_select": ratio,
            });
            (row, value)
        };
        SHARES.iter().enumerate().map(line).collect()
    }
}

/// Returns the bytes of a column's values.
fn bytes_of(group: &RecordBatch, column: usize) -> Vec<u8> {
    values(group, column).iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Returns the median of the ratios within each round.
fn ratio(found: &[f64], beside: &[f64]) -> f64 {
    median(found.iter().zip(beside).map(|(found, beside)| found / beside))
}
