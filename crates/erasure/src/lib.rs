//! The code of stripes: parity of several shards, and shards that are computed from others.
//!
//! A stripe has shards with data and shards with parity. As many of them as there are data give all others. All shards
//! count as equally long: a shorter one is followed by zeros. The code works on each byte by itself. So any range of a
//! shard is computed from the same range of others.
//!
//! The code is Reed-Solomon over GF(2^8), of the polynomial 0x11d and a Vandermonde matrix that leaves the data as it
//! is, as in many libraries.
//!
//! Never in this crate: where shards are, or how they are read.
#![forbid(unsafe_code)]

use farpool_wire::limits::{STRIPE_DATA_MAX, STRIPE_PARITY_MAX};
use rustfs_erasure_codec::galois_8::ReedSolomon;
use rustfs_erasure_codec::{CodecOptions, Error};
use std::fmt;
use std::sync::OnceLock;

/// Reason why a shard cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeError(String);

impl fmt::Display for CodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CodeError {}

impl From<Error> for CodeError {
    fn from(error: Error) -> CodeError {
        CodeError(error.to_string())
    }
}

/// Codes by their numbers of shards, made when they are first needed: that takes longer than computing a few bytes.
static CODES: [[OnceLock<Option<ReedSolomon>>; STRIPE_PARITY_MAX]; STRIPE_DATA_MAX] =
    [const { [const { OnceLock::new() }; STRIPE_PARITY_MAX] }; STRIPE_DATA_MAX];

/// Code of stripes of one shape.
#[derive(Clone, Copy)]
pub struct StripeCode {
    code: &'static ReedSolomon,
    data: usize,
    parity: usize,
}

impl StripeCode {
    /// Returns the code of stripes with this many shards of each kind.
    ///
    /// Errors: there is no such code, as for 0 shards.
    pub fn new(data: usize, parity: usize) -> Result<StripeCode, CodeError> {
        let of_data = data.checked_sub(1).and_then(|index| CODES.get(index));
        let code = of_data.and_then(|codes| codes.get(parity.checked_sub(1)?)).and_then(|code| {
            // The caller's thread computes: nodes and clients have their own idea of how many threads work.
            let options = CodecOptions::builder().max_parallel_jobs(1).build();
            code.get_or_init(|| ReedSolomon::with_options(data, parity, options).ok()).as_ref()
        });
        code.map(|code| StripeCode { code, data, parity })
            .ok_or_else(|| CodeError(format!("no code has {data} shards of data and {parity} of parity")))
    }

    /// Computes the parity of a range of all data shards, in order, in place of what `parity` has. All shards have
    /// equally many bytes.
    ///
    /// Errors: the number of shards or their lengths are wrong.
    pub fn encode(&self, data: &[impl AsRef<[u8]>], parity: &mut [Vec<u8>]) -> Result<(), CodeError> {
        Ok(self.code.encode_sep(data, parity)?)
    }

    /// Computes a range of shard `wanted` from the same range of as many others as there are data, in place of what
    /// `into` has. Shards are numbered from 0, those with data first.
    ///
    /// Errors: there are too few shards, one has a wrong number, or their lengths are wrong.
    pub fn compute<'b>(
        &self,
        have: impl IntoIterator<Item = (usize, &'b mut [u8])>,
        wanted: usize,
        into: &'b mut [u8],
    ) -> Result<(), CodeError> {
        // Shards, and whether they are there.
        let mut shards: Vec<(&mut [u8], bool)> = Vec::new();
        shards.resize_with(self.data + self.parity, Default::default);
        let wrong = |number: usize| CodeError(format!("there is no shard {number}, or it was given twice"));
        for (number, shard) in have {
            let place = shards.get_mut(number).filter(|place| !place.1).ok_or_else(|| wrong(number))?;
            *place = (shard, true);
        }
        let mut required = vec![false; shards.len()];
        *required.get_mut(wanted).ok_or_else(|| wrong(wanted))? = true;
        let place = &mut shards[wanted];
        if place.1 {
            if place.0.len() != into.len() {
                return Err(Error::IncorrectShardSize.into());
            }
            into.copy_from_slice(place.0);
            return Ok(());
        }
        place.0 = into;
        Ok(self.code.reconstruct_some(&mut shards, &required)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shards(data: usize, bytes: usize, seed: u8) -> Vec<Vec<u8>> {
        let byte = |shard: usize, at: usize| (at * 31 + shard * 7 + (at >> 8)) as u8 ^ seed;
        (0..data).map(|shard| (0..bytes).map(|at| byte(shard, at)).collect()).collect()
    }

    /// Returns the parity of shards that have as many bytes as the first.
    fn encoded(code: &StripeCode, data: &[impl AsRef<[u8]>]) -> Result<Vec<Vec<u8>>, CodeError> {
        let bytes = data.first().map_or(0, |first| first.as_ref().len());
        // The former bytes do not matter.
        let mut parity = vec![vec![7; bytes]; code.parity];
        code.encode(data, &mut parity)?;
        Ok(parity)
    }

    fn computed(
        code: &StripeCode,
        mut have: Vec<(usize, Vec<u8>)>,
        wanted: usize,
    ) -> Result<Vec<u8>, CodeError> {
        // The former bytes do not matter.
        let mut into = vec![7; have.first().map_or(0, |(_, shard)| shard.len())];
        code.compute(have.iter_mut().map(|(number, shard)| (*number, &mut shard[..])), wanted, &mut into)?;
        Ok(into)
    }

    fn some(all: &[Vec<u8>], numbers: &[usize]) -> Vec<(usize, Vec<u8>)> {
        numbers.iter().map(|number| (*number, all[*number].clone())).collect()
    }

    proptest! {
        #[test]
        fn any_shards_as_many_as_there_are_data_give_every_other(
            (data, parity) in (1..=STRIPE_DATA_MAX, 1..=STRIPE_PARITY_MAX), bytes in 1..300usize, seed: u8, order: u64,
        ) {
            let code = StripeCode::new(data, parity).expect("supported");
            let mut all = shards(data, bytes, seed);
            let parity_shards = encoded(&code, &all).expect("encoded");
            all.extend(parity_shards);
            let mut numbers: Vec<usize> = (0..data + parity).collect();
            numbers.sort_by_key(|number| (*number as u64 + 1).wrapping_mul(order | 1) >> 7);
            for (wanted, shard) in all.iter().enumerate() {
                prop_assert_eq!(&computed(&code, some(&all, &numbers[..data]), wanted).expect("computed"), shard);
            }
        }

        #[test]
        fn range_of_a_shard_is_computed_from_that_range_of_others(
            (data, parity) in (1..=6usize, 1..=3usize), (first, second, third) in (0..50usize, 1..50usize, 0..50usize),
        ) {
            let code = StripeCode::new(data, parity).expect("supported");
            let mut all = shards(data, first + second + third, 3);
            let whole = encoded(&code, &all).expect("encoded");
            let part: Vec<&[u8]> = all.iter().map(|shard| &shard[first..first + second]).collect();
            for (part, whole) in encoded(&code, &part).expect("encoded").iter().zip(&whole) {
                prop_assert_eq!(&part[..], &whole[first..first + second]);
            }
            all.extend(whole);
            let parts: Vec<Vec<u8>> = all.iter().map(|shard| shard[first..first + second].to_vec()).collect();
            let numbers: Vec<usize> = (parity..data + parity).collect();
            prop_assert_eq!(&computed(&code, some(&parts, &numbers), 0).expect("computed"), &parts[0]);
        }
    }

    /// Pools are upgraded node by node, so parity must stay the same. This one was computed by hand, as `spec/wire.md`
    /// says.
    #[test]
    fn parity_stays_what_it_is() {
        let code = StripeCode::new(4, 2).expect("supported");
        let data = [[0, 1, 2], [4, 5, 6], [250, 251, 252], [17, 0, 255]];
        assert_eq!(encoded(&code, &data).expect("encoded"), [[203, 151, 112], [151, 171, 102]]);
    }

    #[test]
    fn wrong_shapes_and_lengths_are_errors() {
        for (data, parity) in [(0, 1), (1, 0), (STRIPE_DATA_MAX + 1, 1), (1, STRIPE_PARITY_MAX + 1)] {
            assert!(StripeCode::new(data, parity).is_err(), "{data} and {parity}");
        }
        let code = StripeCode::new(2, 1).expect("supported");
        let (short, long) = ([1; 8], [1; 9]);
        let few: [&[u8]; 0] = [];
        assert!(encoded(&code, &few).is_err());
        assert!(encoded(&code, &[&short]).is_err());
        assert!(encoded(&code, &[&short[..], &long]).is_err());
        let shard = |number: usize| (number, short.to_vec());
        assert!(computed(&code, vec![shard(0)], 1).is_err());
        assert!(computed(&code, vec![shard(0), shard(0)], 1).is_err());
        assert!(computed(&code, vec![shard(0), shard(3)], 1).is_err());
        assert!(computed(&code, vec![shard(0), shard(2)], 3).is_err());
        assert!(computed(&code, vec![shard(0), (2, long.to_vec())], 1).is_err());
        assert!(computed(&code, vec![(0, long.to_vec()), shard(2)], 0).is_ok());
        let mut given = [shard(0), shard(2)];
        for wanted in [0, 1] {
            let have = given.iter_mut().map(|(number, shard)| (*number, &mut shard[..]));
            assert!(
                code.compute(have, wanted, &mut [0; 9]).is_err(),
                "the place of shard {wanted} is too long"
            );
        }
    }
}
