//! Sizes like `4GiB` and times like `250ms`, as people write them to commands, to the Python module and to extensions.
//! One grammar and one error for all of them.

/// Parses a size in bytes: a whole number with B, KiB, MiB, GiB or TiB, or without a unit. K, M, G and T are refused,
/// because programs disagree whether they are powers of 1000 or 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "{text:?} is not a size: a whole number of bytes, KiB, MiB, GiB or TiB is permitted, such as 4GiB"
        )
    };
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more than {} bytes", u64::MAX))
}

/// Parses a time in ms: a whole number with ms, s, m or h.
pub fn millis(text: &str) -> Result<u32, String> {
    let wrong = || {
        format!("{text:?} is not a time: a whole number with ms, s, m or h is permitted, such as 250ms or 5s")
    };
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} is more than {} ms", u32::MAX))
}

/// Formats a size with up to three digits and a unit.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_with_unit_is_read_in_bytes() {
        assert_eq!(bytes("4GiB"), Ok(4 << 30));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("17"), Ok(17));
    }

    #[test]
    fn size_without_meaning_is_refused_with_an_example() {
        for text in ["", "GiB", "4GB", "4G", "4K", "4M", "4T", "4g", "-1", "1.5GiB", "99999999999TiB"] {
            assert!(bytes(text).is_err(), "{text:?}");
        }
        for text in ["4GB", "4G"] {
            assert!(bytes(text).is_err_and(|message| message.contains(text) && message.contains("4GiB")));
        }
    }

    #[test]
    fn time_without_unit_is_refused() {
        assert_eq!(millis("250ms"), Ok(250));
        assert_eq!(millis("2s"), Ok(2_000));
        assert_eq!(millis("24h"), Ok(86_400_000));
        assert!(millis("250").is_err_and(|message| message.contains("\"250\"") && message.contains("5s")));
    }

    #[test]
    fn size_is_shown_with_three_digits_at_most() {
        assert_eq!(show_bytes(64 << 20), "64 MiB");
        assert_eq!(show_bytes(1_600_000_000), "1.5 GiB");
        assert_eq!(show_bytes(512), "512 B");
    }
}
