//! Content negotiation: the text format that a scraper prefers, by its `Accept` header (RFC 9110, 12.5.1).

use crate::scrape::Format;

/// Returns the format for the values of the `Accept` headers. Without any, or if the scraper accepts neither format, it
/// is the text format of Prometheus, which every scraper reads.
pub(crate) fn preferred<'a>(accepts: impl Iterator<Item = &'a str> + Clone) -> Format {
    let quality = |format: Format| {
        let ranges = accepts.clone().flat_map(|accept| accept.split(','));
        // The most specific range that matches decides.
        ranges.filter_map(|range| matched(range, format)).max_by_key(|(specificity, _)| *specificity)
    };
    let milli = |format| quality(format).map_or(0, |(_, milli)| milli);
    if milli(Format::OpenMetrics) > milli(Format::Prometheus) {
        Format::OpenMetrics
    } else {
        Format::Prometheus
    }
}

/// Returns how specific a media range is and its quality in thousandths, if it has the format.
fn matched(range: &str, format: Format) -> Option<(u8, u16)> {
    let mut parts = range.split(';').map(str::trim);
    let (kind, subtype) = parts.next()?.split_once('/')?;
    let (own_kind, own_subtype, own_version) = match format {
        Format::Prometheus => ("text", "plain", "0.0.4"),
        Format::OpenMetrics => ("application", "openmetrics-text", "1.0.0"),
    };
    let mut specificity = match (kind, subtype) {
        ("*", "*") => 0,
        (kind, "*") if kind.eq_ignore_ascii_case(own_kind) => 1,
        (kind, subtype)
            if kind.eq_ignore_ascii_case(own_kind) && subtype.eq_ignore_ascii_case(own_subtype) =>
        {
            2
        }
        _ => return None,
    };
    let mut milli = 1_000;
    for part in parts {
        let (name, value) = part.split_once('=')?;
        let value = value.trim_matches('"');
        if name.eq_ignore_ascii_case("q") {
            milli = quality(value)?;
        } else if name.eq_ignore_ascii_case("version") {
            if value != own_version {
                return None;
            }
            specificity = 3;
        }
    }
    Some((specificity, milli))
}

/// Parses a quality: 0 to 1, with up to three decimals.
fn quality(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let milli = format!("{decimals:0<3}").parse::<u16>().ok()?;
    match whole {
        "0" => Some(milli),
        "1" if milli == 0 => Some(1_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(accepts: &[&str]) -> Format {
        preferred(accepts.iter().copied())
    }

    #[test]
    fn openmetrics_is_sent_only_to_those_who_prefer_it() {
        use Format::{OpenMetrics, Prometheus};
        for (accepts, format) in [
            (&[][..], Prometheus),
            (&["*/*"], Prometheus),
            (&["application/openmetrics-text"], OpenMetrics),
            (&["Application/OpenMetrics-Text; Version=1.0.0"], OpenMetrics),
            (&["application/openmetrics-text; version=2.0.0"], Prometheus),
            // The header of Prometheus 2.42.
            (
                &[
                    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75",
                    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                ],
                OpenMetrics,
            ),
            // The header of Prometheus 3, whose first choice is a format that is not offered here.
            (
                &[
                    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;q=0.7",
                    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6",
                    "text/plain;version=0.0.4;q=0.3",
                    "*/*;q=0.2",
                ],
                OpenMetrics,
            ),
            (&["text/plain;q=0.9", "application/openmetrics-text;q=0.8"], Prometheus),
            (&["text/plain;q=0.8", "application/openmetrics-text;q=0.9"], OpenMetrics),
            (&["application/openmetrics-text;q=0, */*"], Prometheus),
            (&["application/*;q=0.5, text/*;q=0.4"], OpenMetrics),
            (&["*/*, text/plain;q=0"], OpenMetrics),
            (&["image/png"], Prometheus),
        ] {
            assert_eq!(of(accepts), format, "{accepts:?}");
        }
    }

    #[test]
    fn quality_that_is_none_makes_its_range_void() {
        for wrong in ["2", "1.5", "-1", "0.1234", "x", "", "0.x", "1.001"] {
            assert_eq!(quality(wrong), None, "{wrong}");
            let accept = format!("application/openmetrics-text;q={wrong}, text/plain;q=0.1");
            assert_eq!(of(&[&accept]), Format::Prometheus, "{wrong}");
        }
        assert_eq!(
            [quality("1"), quality("1.000"), quality("0.5"), quality("0.25"), quality("0")],
            [Some(1_000), Some(1_000), Some(500), Some(250), Some(0)]
        );
    }
}
