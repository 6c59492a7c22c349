//! Files and standard input that a command reads whole. A device or a pipe may never end, so each caller gives a limit
//! in bytes.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Largest file of keys or certificates, in bytes.
pub const KEYS_BYTES_MAX: usize = 1 << 20;

/// Reads a file. A file of more than `bytes_max` bytes is an error.
pub fn file(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    whole(File::open(path)?, bytes_max)
}

/// Reads a file, or standard input if the path is `-`. More than `bytes_max` bytes are an error.
pub fn file_or_standard(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    if path.as_os_str() == "-" { whole(io::stdin().lock(), bytes_max) } else { file(path, bytes_max) }
}

/// Converts bytes to text. Invalid UTF-8 is an error.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

fn whole(from: impl Read, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        let message = format!("the input is larger than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_up_to_the_bound_and_one_more_is_refused() {
        assert_eq!(whole(&b"abc"[..], 3).unwrap(), b"abc");
        assert_eq!(whole(&b""[..], 0).unwrap(), b"");
        let error = whole(&b"abcd"[..], 3).unwrap_err();
        assert!(error.to_string().contains("larger than 3 bytes"), "{error}");
    }

    #[test]
    fn device_that_never_ends_is_refused() {
        assert_eq!(file("/dev/zero".as_ref(), 1 << 16).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
