//! Host labels: the failure domains that nodes are in, from the widest to the host, such as `zone-1/rack-2/host-3`.
//!
//! The idea: what comes before each `/` is a domain in which everything may fail at once. Copies lie on different
//! hosts, and the wider the first domain that differs, the better. A label without `/` is a host alone.

use crate::limits::HOST_LABEL_LEVELS_MAX;

/// Returns the domains that a label lies in, the widest first. The last is the label itself.
pub fn domains_of(label: &str) -> impl Iterator<Item = &str> {
    let ends = label.match_indices('/').map(|(at, _)| at).take(HOST_LABEL_LEVELS_MAX - 1);
    ends.chain([label.len()]).map(|end| &label[..end])
}

/// Reports whether a label is a domain, or lies inside of it.
pub fn is_within(label: &str, domain: &str) -> bool {
    label.strip_prefix(domain).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Reports whether two labels may mean one host: they are equal, or one is a domain in which the other lies.
pub fn may_be_one_host(one: &str, other: &str) -> bool {
    is_within(one, other) || is_within(other, one)
}

/// Counts the domains that two labels share. Copies are farther apart the fewer their labels share.
pub fn shared_domains(one: &str, other: &str) -> usize {
    domains_of(one).zip(domains_of(other)).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_lies_in_each_domain_before_a_slash() {
        assert_eq!(domains_of("z/r/h").collect::<Vec<_>>(), ["z", "z/r", "z/r/h"]);
        assert_eq!(domains_of("h").collect::<Vec<_>>(), ["h"]);
        assert_eq!(domains_of("").collect::<Vec<_>>(), [""]);
        let long = "a/".repeat(100);
        assert_eq!(domains_of(&long).count(), HOST_LABEL_LEVELS_MAX);
        assert_eq!(domains_of(&long).last(), Some(&*long));
    }

    #[test]
    fn domain_is_not_mistaken_for_one_whose_name_begins_alike() {
        assert!(is_within("zone-1/rack-1", "zone-1") && is_within("zone-1", "zone-1"));
        assert!(!is_within("zone-10/rack-1", "zone-1") && !is_within("zone-1", "zone-1/rack-1"));
        assert!(may_be_one_host("zone-1", "zone-1/rack-1") && !may_be_one_host("z/a", "z/b"));
        assert_eq!(shared_domains("z/r/a", "z/r/b"), 2);
        assert_eq!(shared_domains("z/r/a", "z/r/a"), 3);
        assert_eq!(shared_domains("z/r/a", "y/r/a"), 0);
        assert_eq!(shared_domains("z", "z/r"), 1);
    }
}
