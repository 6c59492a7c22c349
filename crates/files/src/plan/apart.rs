//! Failure domains that a copy keeps away from, because other copies lie there.

use farpool_wire::Name;
use farpool_wire::host_label::{domains_of, is_within};
use farpool_wire::limits::HOST_LABEL_LEVELS_MAX;

/// Failure domains in which a copy should not lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Apart {
    domains: Vec<Name>,
    /// Levels between these domains and hosts. 0: other hosts are far enough.
    levels: usize,
}

impl Apart {
    /// Returns the domains to keep away from for a copy beside others, whose host labels are given: first those that
    /// put most between them, last the hosts alone. Which of these the pool has memory outside of, only the broker
    /// knows.
    pub fn farthest_first(labels: &[Name]) -> Vec<Apart> {
        let of = |level: usize| {
            let mut domains: Vec<Name> = labels
                .iter()
                .filter_map(|label| Name::new(domains_of(label).take(level).last()?).ok())
                .collect();
            domains.sort_unstable();
            domains.dedup();
            domains
        };
        let deepest = labels.iter().map(|label| domains_of(label).count()).max().unwrap_or(1);
        (1..=deepest).map(|level| Apart { domains: of(level), levels: deepest - level }).collect()
    }

    /// Returns the domains that a node must not lie in.
    pub fn domains(&self) -> &[Name] {
        &self.domains
    }

    /// Returns the number of levels between these domains and hosts, below [`HOST_LABEL_LEVELS_MAX`].
    pub fn levels(&self) -> usize {
        self.levels.min(HOST_LABEL_LEVELS_MAX - 1)
    }

    /// Reports whether a node with this host label may have the copy.
    pub fn allows(&self, label: &Name) -> bool {
        !self.domains.iter().any(|domain| is_within(label, domain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(labels: &[&str]) -> Vec<Name> {
        labels.iter().map(|label| Name::new(*label).expect("a name")).collect()
    }

    #[test]
    fn other_zones_are_wanted_before_other_racks_and_other_hosts() {
        let levels = Apart::farthest_first(&names(&["a/1/x", "a/2/y"]));
        let domains: Vec<&[Name]> = levels.iter().map(Apart::domains).collect();
        assert_eq!(domains, [&names(&["a"])[..], &names(&["a/1", "a/2"]), &names(&["a/1/x", "a/2/y"])]);
        assert_eq!(levels.iter().map(Apart::levels).collect::<Vec<_>>(), [2, 1, 0]);
        let allowed = |label| levels.iter().filter(|apart| apart.allows(&names(&[label])[0])).count();
        assert_eq!(["b/1/x", "a/3/x", "a/2/x", "a/2/y", "a/22/y"].map(allowed), [3, 2, 1, 0, 2]);
    }

    #[test]
    fn hosts_without_wider_domains_are_asked_for_once() {
        assert_eq!(Apart::farthest_first(&[]), [Apart::default()]);
        assert_eq!(Apart::farthest_first(&names(&["x"])).len(), 1);
    }
}
