//! `cargo xtask licenses`: checks the rules of deny.toml on licences, sources and versions, without a network. The
//! file has the format of cargo-deny; this check reads `graph.targets`, `licenses.allow` and `bans.skip`. Advisories
//! are not checked, because their database changes daily.

use crate::metadata::{self, Package};
use crate::{Findings, read};
use spdx::{Expression, Licensee, ParseMode};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FILE: &str = "deny.toml";
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Debug)]
struct Rules {
    targets: Vec<String>,
    allow: Vec<Licensee>,
    /// Versions, as `name@version`, that may be used beside another one.
    skip: BTreeSet<String>,
}

pub(crate) fn run(root: &Path) -> Findings {
    let rules = parse(&read(root, FILE)?)?;
    let packages = metadata::resolved(root, &rules.targets)?;
    let mut findings = Vec::new();
    for package in &packages {
        findings.extend(check_license(&rules, package));
        findings.extend(check_source(package));
    }
    findings.extend(check_versions(&rules, &packages));
    Ok(findings)
}

fn parse(text: &str) -> Result<Rules, String> {
    let table: toml::Table = text.parse().map_err(|error| format!("{FILE}: {error}"))?;
    let list = |section: &str, key: &str| -> Result<Vec<toml::Value>, String> {
        let found = table.get(section).and_then(|section| section.get(key)).and_then(toml::Value::as_array);
        found.cloned().ok_or_else(|| format!("{FILE}: {section}.{key} is not a list"))
    };
    let texts = |section: &str, key: &str| -> Result<Vec<String>, String> {
        let as_text = |value: toml::Value| value.as_str().map(str::to_owned);
        let all: Option<Vec<String>> = list(section, key)?.into_iter().map(as_text).collect();
        all.ok_or_else(|| format!("{FILE}: {section}.{key} is not a list of strings"))
    };
    let mut allow = Vec::new();
    for name in texts("licenses", "allow")? {
        allow.push(Licensee::parse(&name).map_err(|error| format!("{FILE}: licence {name:?}: {error}"))?);
    }
    let mut skip = BTreeSet::new();
    for entry in list("bans", "skip")? {
        let field = |key: &str| entry.get(key).and_then(toml::Value::as_str).filter(|text| !text.is_empty());
        let (Some(name), Some(_reason)) = (field("crate"), field("reason")) else {
            return Err(format!("{FILE}: an entry of bans.skip has no crate or no reason: {entry:?}"));
        };
        skip.insert(name.to_owned());
    }
    Ok(Rules { targets: texts("graph", "targets")?, allow, skip })
}

/// Checks the licence of a package. OR: one of its licences must be permitted; AND: all of them must be.
fn check_license(rules: &Rules, package: &Package) -> Option<String> {
    let Package { name, version, .. } = package;
    let Some(license) = &package.license else {
        return Some(format!("{name} {version} states no licence expression"));
    };
    // `MIT/Apache-2.0` is an old form of OR.
    let mode = ParseMode { allow_slash_as_or_operator: true, ..ParseMode::STRICT };
    let expression = match Expression::parse_mode(license, mode) {
        Ok(expression) => expression,
        Err(error) => {
            return Some(format!("{name} {version}: {license:?} is not a valid licence expression: {error}"));
        }
    };
    let is_permitted = expression.evaluate(|asked| rules.allow.iter().any(|held| held.satisfies(asked)));
    (!is_permitted)
        .then(|| format!("{name} {version}: {license:?} is not covered by licenses.allow of {FILE}"))
}

fn check_source(package: &Package) -> Option<String> {
    let source = package.source.as_deref()?;
    let Package { name, version, .. } = package;
    (source != REGISTRY).then(|| format!("{name} {version} comes from {source}; only crates.io is permitted"))
}

/// Checks that each package is used in one version, except for those in `skip`, and that every entry of `skip` is still
/// needed.
fn check_versions(rules: &Rules, packages: &[Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    let mut findings = Vec::new();
    let mut needed = BTreeSet::new();
    for (name, all) in versions.iter().filter(|(_, all)| all.len() > 1) {
        let (skipped, kept): (Vec<&str>, Vec<&str>) =
            all.iter().copied().partition(|version| rules.skip.contains(&format!("{name}@{version}")));
        needed.extend(skipped.iter().map(|version| format!("{name}@{version}")));
        if kept.len() > 1 {
            findings.push(format!(
                "{name} has versions {}: align them, or list all but one in bans.skip of {FILE} with a reason",
                kept.join(", ")
            ));
        }
    }
    for stale in rules.skip.difference(&needed) {
        findings.push(format!("{stale} in bans.skip of {FILE} is not needed any more: remove it"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [graph]
        targets = ["x86_64-unknown-linux-gnu"]
        [licenses]
        allow = ["Apache-2.0", "MIT", "Unicode-3.0"]
        [bans]
        skip = [{ crate = "old@1.0.0", reason = "until new is everywhere" }]
    "#;

    fn package(name: &str, version: &str, license: Option<&str>, source: Option<&str>) -> Package {
        Package {
            id: format!("{name} {version}"),
            name: name.into(),
            version: version.into(),
            license: license.map(str::to_owned),
            source: source.map(str::to_owned),
            normal_dependencies: Vec::new(),
        }
    }

    fn is_permitted(license: &str) -> bool {
        check_license(&parse(TEXT).unwrap(), &package("a", "1.0.0", Some(license), None)).is_none()
    }

    #[test]
    fn either_licence_of_an_or_is_enough() {
        for license in ["MIT", "GPL-3.0-only OR MIT", "MIT/GPL-3.0-only", "Unlicense OR (MIT AND Apache-2.0)"]
        {
            assert!(is_permitted(license), "{license}");
        }
    }

    #[test]
    fn every_licence_of_an_and_is_needed() {
        assert!(is_permitted("(MIT OR GPL-3.0-only) AND Unicode-3.0"));
        assert!(!is_permitted("MIT AND GPL-3.0-only"));
        assert!(!is_permitted("(MIT OR Apache-2.0) AND OpenSSL"));
    }

    #[test]
    fn exception_is_a_licence_of_its_own() {
        assert!(!is_permitted("Apache-2.0 WITH LLVM-exception"));
        assert!(is_permitted("Apache-2.0 WITH LLVM-exception OR MIT"));
    }

    #[test]
    fn licence_that_is_missing_or_unreadable_is_a_finding() {
        let rules = parse(TEXT).unwrap();
        let missing = check_license(&rules, &package("a", "1.0.0", None, None));
        assert_eq!(missing.as_deref(), Some("a 1.0.0 states no licence expression"));
        assert!(!is_permitted("MIT OR"));
        assert!(!is_permitted("Whatever-1.0"));
    }

    #[test]
    fn source_other_than_the_registry_is_a_finding() {
        let from = |source| check_source(&package("a", "1.0.0", None, source));
        assert_eq!((from(None), from(Some(REGISTRY))), (None, None));
        assert!(from(Some("git+https://example.org/a")).is_some());
    }

    #[test]
    fn second_version_is_a_finding_unless_skipped() {
        let rules = parse(TEXT).unwrap();
        let two = |name| [package(name, "1.0.0", None, None), package(name, "2.0.0", None, None)];
        assert!(check_versions(&rules, &two("old")).is_empty());
        let found = check_versions(&rules, &two("other"));
        assert!(found[0].starts_with("other has versions 1.0.0, 2.0.0"), "{found:?}");
        assert!(found[1].starts_with("old@1.0.0 in bans.skip"), "{found:?}");
    }

    #[test]
    fn skip_without_reason_is_an_error() {
        let text = TEXT.replace(r#", reason = "until new is everywhere""#, "");
        assert!(parse(&text).is_err_and(|error| error.contains("no reason")));
    }
}
