//! Recipes: how a published file can be made again after all of its copies were lost.
//!
//! The broker keeps the recipe of a file with its name and does not look into it. Any session that needs a lost file
//! and knows recipes of its kind makes the file again, with its own rights: a recipe holds no credentials. The broker
//! gives the work to one session at a time, and each publishes in place of the lost file alone, so two never both
//! succeed.

use crate::error::{Error, ErrorKind};
use farpool_wire::codec::{Cursor, Field};
use farpool_wire::limits::RECIPE_BYTES_MAX;
use farpool_wire::{Bytes, Name, WireError};

/// Version of the encoding. Other versions are not read.
const VERSION: u8 = 1;

/// How a published file can be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Kind, which says who can read the body.
    pub kind: String,
    /// Rows of the file, if it is a table; otherwise 0. What is made again must have as many.
    pub rows: u64,
    /// Checksum of the contents, which does not depend on the order of rows. What is made again must have the same.
    pub checksum: u128,
    /// Body, at most 60 KiB. It must hold no credentials: everybody who may open the file can read it.
    pub body: Vec<u8>,
}

impl Recipe {
    /// Returns the recipe as the broker keeps it.
    ///
    /// Errors: the kind is no name, or the body is too long.
    pub(crate) fn encode(&self) -> Result<Bytes<RECIPE_BYTES_MAX>, Error> {
        let invalid = |error: WireError| {
            Error::new(ErrorKind::Invalid, format!("recipe of kind {:?}: {error}", self.kind))
        };
        let mut bytes = Vec::new();
        VERSION.put(&mut bytes);
        Name::new(self.kind.clone()).map_err(invalid)?.put(&mut bytes);
        self.rows.put(&mut bytes);
        self.checksum.put(&mut bytes);
        Bytes::<RECIPE_BYTES_MAX>::new(self.body.clone()).map_err(invalid)?.put(&mut bytes);
        Bytes::new(bytes).map_err(invalid)
    }

    /// Reads a recipe that the broker has kept.
    ///
    /// Errors: it is of another version, or no recipe.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Recipe, Error> {
        let take = || -> Result<Recipe, WireError> {
            let mut from = Cursor::new(bytes);
            let version = u8::take(&mut from)?;
            if version != VERSION {
                return Err(WireError::Value { what: "the version of a recipe", found: version.into() });
            }
            let kind = Name::take(&mut from)?.to_string();
            let (rows, checksum) = (u64::take(&mut from)?, u128::take(&mut from)?);
            let body = Bytes::<RECIPE_BYTES_MAX>::take(&mut from)?.into_vec();
            from.finish()?;
            Ok(Recipe { kind, rows, checksum, body })
        };
        take().map_err(|error| Error::new(ErrorKind::Invalid, format!("the recipe of the file: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(bytes: usize) -> Recipe {
        Recipe { kind: "plan".to_owned(), rows: 7, checksum: 1 << 100, body: vec![3; bytes] }
    }

    #[test]
    fn recipes_are_read_as_they_were_and_others_are_refused() {
        let encoded = recipe(300).encode().expect("short");
        assert_eq!(Recipe::decode(&encoded).expect("read"), recipe(300));
        for end in 0..encoded.len() {
            assert!(Recipe::decode(&encoded[..end]).is_err(), "{end} bytes");
        }
        let mut other = encoded.to_vec();
        other[0] = 2;
        assert!(Recipe::decode(&other).is_err());
        assert!(recipe(RECIPE_BYTES_MAX).encode().is_err());
    }
}
