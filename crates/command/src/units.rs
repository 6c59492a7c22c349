//! Parsing of rates like `500MB/s`, of CPUs and of shares of memory like `60%`; the library parses sizes and times.

pub use farpool_files::units::{bytes, millis, show_bytes};
use farpool_host::waiting::Waiting;

/// Parses a rate in bytes a second: a whole number with B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB, then
/// `/s`.
pub fn rate(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "{text:?} is not a rate: a whole number of KB/s to TB/s or KiB/s to TiB/s is permitted, such as 500MB/s"
        )
    };
    let size = text.strip_suffix("/s").ok_or_else(wrong)?;
    let split = size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len());
    let (number, unit) = size.split_at(split);
    let factor: u64 = match unit.trim() {
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return bytes(size).map_err(|_| wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} is more than {} bytes a second", u64::MAX))
}

/// Amount of memory: a size, or a share of what a process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAmount {
    /// Bytes.
    Bytes(u64),
    /// Share in percent.
    Percent(u64),
}

/// Permitted range of a share, in percent: a process needs some memory for itself.
const SHARE: std::ops::RangeInclusive<u64> = 1..=95;

/// Parses a size, or a share such as `60%`.
pub fn memory(text: &str) -> Result<MemoryAmount, String> {
    let Some(share) = text.strip_suffix('%') else { return bytes(text).map(MemoryAmount::Bytes) };
    match share.parse() {
        Ok(share) if SHARE.contains(&share) => Ok(MemoryAmount::Percent(share)),
        _ => Err(format!("{text:?} is not permitted: {}% to {}% are", SHARE.start(), SHARE.end())),
    }
}

impl MemoryAmount {
    /// Returns the bytes, for a process that may use `total_bytes`.
    pub fn bytes(self, total_bytes: u64) -> u64 {
        match self {
            MemoryAmount::Bytes(bytes) => bytes,
            MemoryAmount::Percent(share) => total_bytes / 100 * share,
        }
    }
}

/// Parses a number of CPUs, with up to three decimals, into thousandths.
pub fn cpus(text: &str) -> Result<u32, String> {
    let wrong =
        || format!("{text:?} is not a number of CPUs; give one with up to three decimals, such as 0.5");
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(part) || part.len() > 3 {
        return Err(wrong());
    }
    let part: u32 = format!("{part:0<3}").parse().map_err(|_| wrong())?;
    let whole: u32 = whole.parse().map_err(|_| wrong())?;
    whole.checked_mul(1_000).and_then(|whole| whole.checked_add(part)).ok_or_else(wrong)
}

/// Parses a value of `--waiting`.
pub fn waiting(text: &str) -> Result<Waiting, String> {
    Waiting::of_word(text)
        .ok_or_else(|| format!("{text:?} is not a way to wait; adaptive, spin and park are permitted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_read_in_bytes_a_second() {
        assert_eq!(rate("500MB/s"), Ok(500_000_000));
        assert_eq!(rate("1GiB/s"), Ok(1 << 30));
        for text in ["500MB", "MB/s", "500M/s", "0.5GB/s", "-1MB/s", "99999999999TB/s"] {
            assert!(rate(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn memory_is_a_size_or_a_share() {
        assert_eq!(memory("4GiB"), Ok(MemoryAmount::Bytes(4 << 30)));
        assert_eq!(memory("60%"), Ok(MemoryAmount::Percent(60)));
        assert_eq!(
            [MemoryAmount::Bytes(7), MemoryAmount::Percent(60)].map(|memory| memory.bytes(1_000)),
            [7, 600]
        );
        for text in ["0%", "96%", "100%", "6.5%", "%", "-1%", "60 %", "4G"] {
            assert!(memory(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn cpus_are_read_in_thousandths() {
        assert_eq!(cpus("0.5"), Ok(500));
        assert_eq!(cpus("2"), Ok(2_000));
        assert_eq!(cpus("1.025"), Ok(1_025));
        for text in ["", ".5", "1.", "-1", "0.0001", "1e3", "50%", "5000000"] {
            assert!(cpus(text).is_err(), "{text:?}");
        }
    }
}
