//! Functions that a pool stores by name: published files whose names begin with `functions/`.
//!
//! The bytes of such a file are a head and the function: `spec/function.md`, "Stored functions".

use crate::Function;
use farpool_files::beneath::delete_private;
use farpool_files::{CreateOptions, Error, ErrorKind, FileClass, FileInfo, IfTaken, Pool, Protection};
use farpool_wire::codec::{Cursor, Field};
use farpool_wire::control::{FunctionForm, FunctionSignature};
use farpool_wire::limits::FUNCTION_BYTES_MAX;
use farpool_wire::{List, Name, WireError};

/// Prefix of the names of stored functions.
const PREFIX: &str = "functions/";
const MAGIC: [u8; 8] = *b"FPFUNC01";
/// Largest size in bytes of a head, which precedes the function in its file: an entry name and a signature.
const HEAD_BYTES_MAX: u64 = 1024;

/// Entry of a list of stored functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Name of the function.
    pub name: String,
    /// Size of its file in bytes.
    pub bytes: u64,
    /// True if some of its bytes are lost with a node.
    pub is_lost: bool,
}

fn file_name(name: &str) -> Result<String, Error> {
    let file = format!("{PREFIX}{name}");
    match Name::new(file.clone()) {
        Ok(_) if !name.is_empty() => Ok(file),
        _ => Err(Error::new(ErrorKind::Invalid, format!("{name:?} cannot be the name of a function"))),
    }
}

fn encode(function: &Function) -> Result<Vec<u8>, WireError> {
    let mut bytes = MAGIC.to_vec();
    function.form.put(&mut bytes);
    function.entry.put(&mut bytes);
    List::<FunctionSignature, 1>::new(function.signature.iter().cloned().collect())?.put(&mut bytes);
    bytes.extend_from_slice(&function.bytes);
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Result<Function, WireError> {
    let mut cursor = Cursor::new(bytes);
    let magic = <[u8; 8]>::take(&mut cursor)?;
    if magic != MAGIC {
        return Err(WireError::Text { what: "the beginning of a stored function" });
    }
    let form = FunctionForm::take(&mut cursor)?;
    let entry = Name::take(&mut cursor)?;
    let signature = List::<FunctionSignature, 1>::take(&mut cursor)?.into_vec().pop();
    let bytes = cursor.rest().to_vec();
    Function::new(form, bytes, &entry, signature).map_err(|_| WireError::Text { what: "a stored function" })
}

/// Stores a function in the pool under a name, for all clients. Returns its protection: a mirror if the pool has room
/// on two hosts, otherwise none.
///
/// Errors: [`ErrorKind::Invalid`] if the function is resident, so that nodes have it already, or if the name is not
/// permitted; [`ErrorKind::Exists`] if the name is in use and should not be replaced; [`ErrorKind::Exhausted`] if the
/// pool has no room.
pub fn put_function(
    pool: &Pool,
    name: &str,
    function: &Function,
    if_taken: IfTaken,
) -> Result<Protection, Error> {
    let during = |error: Error| error.during(format_args!("putting function {name:?}"));
    if function.form == FunctionForm::Resident {
        let message = "a resident function is built into nodes and cannot be stored";
        return Err(during(Error::new(ErrorKind::Invalid, message)));
    }
    let file_name = file_name(name).map_err(during)?;
    let bytes =
        encode(function).map_err(|error| during(Error::new(ErrorKind::Invalid, error.to_string())))?;
    let put = |protection| {
        let size_hint = bytes.len() as u64;
        let options = CreateOptions { size_hint, protection: Some(protection), ..CreateOptions::default() };
        let file = pool.create(&file_name, FileClass::Pinned, options)?;
        let put = file.write_at(0, &bytes).and_then(|()| pool.publish(&file_name, if_taken));
        if put.is_err() {
            // Deletes the file, which is private to this session because it was not published.
            let _was_there = delete_private(pool, &file_name);
        }
        put.map(|()| file.copies())
    };
    // A pool with one host refuses a mirror, and so does a broker of an earlier version.
    let copies = put(Protection::Mirror).or_else(|error| match error.kind() {
        ErrorKind::Invalid => put(Protection::None),
        _ => Err(error),
    });
    copies.map(|copies| if copies > 1 { Protection::Mirror } else { Protection::None }).map_err(during)
}

/// Reads a stored function.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such name; [`ErrorKind::Lost`] if its bytes are lost;
/// [`ErrorKind::Invalid`] if the file of this name is not a function.
pub fn stored_function(pool: &Pool, name: &str) -> Result<Function, Error> {
    let get = || {
        let file = pool.open(&file_name(name)?)?;
        let length = file.length();
        let no_function =
            |why: String| Error::new(ErrorKind::Invalid, format!("the file is not a function: {why}"));
        if length > FUNCTION_BYTES_MAX as u64 + HEAD_BYTES_MAX {
            return Err(no_function(format!("it has {length} bytes, more than a function can have")));
        }
        let mut bytes = vec![0; length as usize];
        file.read_at(0, &mut bytes)?;
        decode(&bytes).map_err(|error| no_function(error.to_string()))
    };
    get().map_err(|error: Error| error.during(format_args!("function {name:?}")))
}

/// Returns the stored functions, ordered by name.
pub fn stored_functions(pool: &Pool) -> Result<Vec<FunctionInfo>, Error> {
    let describe = |info: FileInfo| {
        let name = info.name.strip_prefix(PREFIX)?.to_owned();
        info.is_published.then_some(FunctionInfo { name, bytes: info.bytes, is_lost: info.is_lost })
    };
    Ok(pool.list(PREFIX)?.into_iter().filter_map(describe).collect())
}

/// Deletes a stored function.
pub fn drop_function(pool: &Pool, name: &str) -> Result<(), Error> {
    pool.delete(&file_name(name)?).map_err(|error| error.during(format_args!("dropping function {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_function_is_read_back_and_anything_else_is_refused() {
        let native = Function::native(vec![1, 2, 3], "entry", [7; 32], [9; 64]).unwrap();
        for function in [native, Function::wasm(b"\0asm".to_vec(), "walk").unwrap()] {
            let bytes = encode(&function).unwrap();
            let back = decode(&bytes).unwrap();
            assert_eq!(
                (back.form, &back.entry, &back.bytes),
                (function.form, &function.entry, &function.bytes)
            );
            assert_eq!((back.digest, back.signature), (function.digest, function.signature));
            for cut in 0..bytes.len() - function.bytes.len() {
                assert!(decode(&bytes[..cut]).is_err(), "{cut}");
            }
        }
        assert!(decode(b"FPTABLE1 and more").is_err());
    }
}
