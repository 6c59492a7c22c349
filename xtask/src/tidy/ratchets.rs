//! Ratchets: bounds on the number of violations of a rule, which may only decrease. `xtask/ratchets.toml` has a section
//! for each rule that some places do not keep yet, with the number of violations of each crate or file. A number above
//! its bound is a finding. A bound that could be lowered is a finding too, so that progress is kept.

use std::collections::{BTreeMap, BTreeSet};

pub(super) const FILE: &str = "xtask/ratchets.toml";
/// Largest number of places that a finding names.
const PLACES_MAX: usize = 20;

/// Rule with a section in `xtask/ratchets.toml`.
pub(super) struct Rule {
    pub(super) section: &'static str,
    /// Noun for the things that are counted, as a finding prints it.
    pub(super) unit: &'static str,
    /// Number of violations that a file or crate may have without an entry in `xtask/ratchets.toml`.
    pub(super) free: usize,
    /// Difference by which a bound may be too high before it must be lowered.
    pub(super) slack: usize,
    pub(super) cure: &'static str,
}

/// Violations of a rule in one file or crate.
#[derive(Debug, Default)]
pub(super) struct Number {
    /// Number of violations; or several numbers in descending order, such as the sizes of cycles of modules.
    pub(super) parts: Vec<usize>,
    /// Places of the violations, for whoever removes them.
    pub(super) places: Vec<String>,
}

impl Number {
    /// Adds one violation.
    pub(super) fn add(&mut self, place: String) {
        self.places.push(place);
        self.parts = vec![self.places.len()];
    }
}

type Bounds = BTreeMap<String, Vec<usize>>;

#[derive(Debug)]
pub(super) struct Ratchets {
    pub(super) without_never: BTreeSet<String>,
    sections: BTreeMap<String, Bounds>,
}

/// Reads `xtask/ratchets.toml`. Fails if the file has a section that belongs to no rule.
pub(super) fn parse(text: &str, rules: &[&Rule]) -> Result<Ratchets, String> {
    let table: toml::Table = text.parse().map_err(|error| format!("{FILE}: {error}"))?;
    let mut ratchets = Ratchets { without_never: BTreeSet::new(), sections: BTreeMap::new() };
    for (section, value) in &table {
        let wrong = || format!("{FILE}: [{section}] is unknown or malformed: {value:?}");
        match value {
            toml::Value::Array(names) if section == "without_never" => {
                let names: Option<_> = names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
                ratchets.without_never = names.ok_or_else(wrong)?;
            }
            toml::Value::Table(entries) if rules.iter().any(|rule| rule.section == section) => {
                let bounds: Option<_> =
                    entries.iter().map(|(key, bound)| Some((key.clone(), parts(bound)?))).collect();
                ratchets.sections.insert(section.clone(), bounds.ok_or_else(wrong)?);
            }
            _ => return Err(wrong()),
        }
    }
    Ok(ratchets)
}

/// Reads a number, or a list of numbers.
fn parts(value: &toml::Value) -> Option<Vec<usize>> {
    let number = |value: &toml::Value| usize::try_from(value.as_integer()?).ok();
    match value {
        toml::Value::Array(numbers) => numbers.iter().map(number).collect(),
        one => Some(vec![number(one)?]),
    }
}

/// Returns the sum of the squares of the numbers. So it increases if two cycles are joined into one.
fn weight(parts: &[usize]) -> usize {
    parts.iter().map(|part| part * part).sum()
}

/// Formats the parts for a sentence.
fn spoken(parts: &[usize]) -> String {
    parts.iter().map(usize::to_string).collect::<Vec<_>>().join(" + ")
}

/// Formats a line of `xtask/ratchets.toml`.
fn written(key: &str, parts: &[usize]) -> String {
    let is_bare = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let key = if is_bare { key.to_owned() } else { format!("{key:?}") };
    match parts {
        [one] => format!("{key} = {one}"),
        several => format!("{key} = {several:?}"),
    }
}

impl Ratchets {
    /// Compares the numbers of violations with their bounds. `now` has a number for each file or crate that has more
    /// violations than [`Rule::free`].
    pub(super) fn check(&self, rule: &Rule, now: &BTreeMap<String, Number>) -> Vec<String> {
        let none = Bounds::new();
        let bounds = self.sections.get(rule.section).unwrap_or(&none);
        let Rule { section, unit, .. } = rule;
        let mut findings = Vec::new();
        for (key, number) in now {
            let free = vec![rule.free];
            let bound = bounds.get(key).unwrap_or(&free);
            let parts = &number.parts;
            if weight(parts) > weight(bound) {
                let bound = spoken(bound);
                let mut finding =
                    format!("{key}: {} {unit}, at most {bound} are permitted: {}", spoken(parts), rule.cure);
                let shown = number.places.iter().take(PLACES_MAX);
                finding.extend(shown.map(|place| format!("\n    {place}")));
                if number.places.len() > PLACES_MAX {
                    finding += &format!("\n    and {} more", number.places.len() - PLACES_MAX);
                }
                findings.push(finding);
            } else if parts != bound && spare(parts, bound) > rule.slack {
                let (bound, line) = (spoken(bound), written(key, parts));
                findings.push(format!(
                    "{key}: {} {unit}, where {FILE} permits {bound}: write `{line}` there, under [{section}]",
                    spoken(parts)
                ));
            }
        }
        for key in bounds.keys().filter(|key| !now.contains_key(*key)) {
            findings.push(format!(
                "{key}: no longer too many {unit}: delete its line under [{section}] of {FILE}"
            ));
        }
        findings
    }
}

/// Returns the difference by which a bound is too high. If the violations have several numbers that have changed, the
/// bound must be rewritten in any case, so the difference is infinite.
fn spare(parts: &[usize], bound: &[usize]) -> usize {
    match (parts, bound) {
        ([one], [most]) => most - one,
        _ => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule { section: "lines", unit: "lines", free: 700, slack: 20, cure: "split it" };
    const CIRCLES: Rule = Rule { section: "circles", unit: "modules", free: 0, slack: 0, cure: "cut it" };

    fn ratchets(text: &str) -> Ratchets {
        parse(text, &[&RULE, &CIRCLES]).unwrap()
    }

    fn now(key: &str, parts: &[usize]) -> BTreeMap<String, Number> {
        [(key.to_owned(), Number { parts: parts.to_vec(), places: vec!["there".to_owned()] })].into()
    }

    #[test]
    fn number_within_its_bound_and_the_slack_is_no_finding() {
        let ratchets = ratchets("[lines]\n\"a/b.rs\" = 800\n[circles]\na = [3, 2]\n");
        for lines in [780, 800] {
            assert_eq!(ratchets.check(&RULE, &now("a/b.rs", &[lines])), [""; 0]);
        }
        assert_eq!(ratchets.check(&CIRCLES, &now("a", &[3, 2])), [""; 0]);
    }

    #[test]
    fn number_above_its_bound_is_named_with_the_cure_and_the_places() {
        let ratchets = ratchets("[lines]\n\"a/b.rs\" = 800\n");
        assert_eq!(
            ratchets.check(&RULE, &now("a/b.rs", &[801])),
            ["a/b.rs: 801 lines, at most 800 are permitted: split it\n    there"]
        );
        let found = ratchets.check(&CIRCLES, &now("a", &[2]));
        assert_eq!(found, ["a: 2 modules, at most 0 are permitted: cut it\n    there"]);
    }

    #[test]
    fn file_without_a_bound_has_what_is_free() {
        let found = ratchets("").check(&RULE, &now("a.rs", &[701]));
        assert!(found[0].starts_with("a.rs: 701 lines, at most 700 are permitted"), "{found:?}");
    }

    #[test]
    fn bound_that_can_be_lowered_is_named_with_the_line_to_write() {
        let ratchets = ratchets("[lines]\n\"a/b.rs\" = 800\n[circles]\na = [3, 2]\n");
        let found = ratchets.check(&RULE, &now("a/b.rs", &[779]));
        assert!(found[0].contains("write `\"a/b.rs\" = 779` there, under [lines]"), "{found:?}");
        let found = ratchets.check(&CIRCLES, &now("a", &[2, 2]));
        assert!(found[0].contains("write `a = [2, 2]` there, under [circles]"), "{found:?}");
    }

    #[test]
    fn bound_of_what_is_not_there_any_more_is_to_be_deleted() {
        let found = ratchets("[lines]\n\"a/b.rs\" = 800\n").check(&RULE, &BTreeMap::new());
        assert!(found[0].starts_with("a/b.rs: no longer too many lines: delete its line"), "{found:?}");
    }

    #[test]
    fn circle_cut_in_two_is_less_and_two_that_become_one_are_more() {
        let ratchets = ratchets("[circles]\na = [11]\nb = [2, 2]\n");
        let bounds = |key, parts: &[usize]| ratchets.check(&CIRCLES, &now(key, parts))[0].clone();
        assert!(bounds("a", &[6, 5]).contains("write `a = [6, 5]`"));
        assert!(bounds("b", &[4]).contains("4 modules, at most 2 + 2 are permitted"));
    }

    #[test]
    fn places_beyond_those_that_are_named_are_counted() {
        let mut now = now("a", &[22]);
        now.get_mut("a").unwrap().places = vec!["there".to_owned(); PLACES_MAX + 2];
        assert!(ratchets("").check(&CIRCLES, &now)[0].ends_with("there\n    and 2 more"));
    }

    #[test]
    fn file_with_what_no_rule_looks_for_is_refused() {
        for text in
            ["[line]\n", "lines = 3\n", "[lines]\na = \"b\"\n", "[lines]\na = -1\n", "without_never = [1]\n"]
        {
            let error = parse(text, &[&RULE]).unwrap_err();
            assert!(error.contains("is unknown or malformed"), "{error}");
        }
    }
}
