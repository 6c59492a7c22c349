//! Cycles of modules in a crate: modules that import each other, directly or through others.
//!
//! A module is a file. It imports another module if one of its paths leads to that module or to an item in it:
//! `crate::a::B`, `super::a`, or `a::B` where `use` has brought `a` in. A re-export (`pub use a::B`) counts as an
//! import of the module that defines the item. Child modules are parts of their parent: the parent does not import
//! them, but they may import the parent.

use super::tokens::Tokens;
use std::collections::{BTreeMap, BTreeSet};

/// Number of re-exports through which the path to an item is followed.
const FOLLOWED_MAX: usize = 8;

/// Names on the way to an item or module, from the crate's root or from the module that contains the path.
type Path<'a> = Vec<&'a str>;

/// Paths in one file.
#[derive(Default)]
struct Named<'a> {
    paths: Vec<Path<'a>>,
    /// Names that `use` declares in this file, with the paths that they stand for.
    names: BTreeMap<&'a str, Path<'a>>,
}

struct Modules<'a>(BTreeMap<Path<'a>, Named<'a>>);

/// Returns the cycles among these files of a crate's `src`, largest first. Each is a list of modules, with the imports
/// of each from the same cycle.
pub(super) fn circles(files: &[(&str, Tokens<'_>)]) -> Vec<Vec<(String, Vec<String>)>> {
    let modules = Modules::of(files);
    let imports: BTreeMap<_, _> = modules.0.keys().map(|module| (module, modules.imports(module))).collect();
    let reached: BTreeMap<_, _> = imports.keys().map(|module| (*module, reached(&imports, module))).collect();
    let mut found: Vec<Vec<_>> = Vec::new();
    let mut placed = BTreeSet::new();
    for (module, others) in &reached {
        if !others.contains(*module) || placed.contains(module) {
            continue;
        }
        let circle: BTreeSet<_> = others.iter().filter(|other| reached[other].contains(*module)).collect();
        placed.extend(circle.iter().copied());
        let shown = circle.iter().map(|module| {
            let within = imports[*module].iter().filter(|other| circle.contains(other));
            (module.join("::"), within.map(|other| other.join("::")).collect())
        });
        found.push(shown.collect());
    }
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

/// Returns the modules that a module imports, directly or indirectly.
fn reached<'a>(imports: &BTreeMap<&Path<'a>, BTreeSet<Path<'a>>>, from: &Path<'a>) -> BTreeSet<Path<'a>> {
    let mut reached = BTreeSet::new();
    let mut ahead = vec![from.clone()];
    while let Some(module) = ahead.pop() {
        let new = imports[&module].iter().filter(|to| reached.insert((*to).clone()));
        ahead.extend(new.cloned());
    }
    reached
}

/// Returns the module that a file defines. `None` for a program in `bin`.
fn module(path: &str) -> Option<Path<'_>> {
    let mut module: Path<'_> = path.strip_suffix(".rs")?.split('/').collect();
    match module[..] {
        ["lib" | "main"] | [.., "mod"] => drop(module.pop()),
        ["bin", ..] => return None,
        _ => {}
    }
    Some(module)
}

impl<'a> Modules<'a> {
    fn of(files: &[(&'a str, Tokens<'a>)]) -> Self {
        let mut modules = BTreeMap::new();
        let mut tests = Vec::new();
        for (path, tokens) in files {
            let Some(module) = module(path) else { continue };
            tests.extend(tokens.test_modules.iter().map(|name| [&module[..], &[*name]].concat()));
            // `lib.rs` comes before `main.rs`. If a crate has both, `main.rs` is a crate of its own and is ignored.
            modules.entry(module).or_insert_with(|| Named::of(&tokens.all));
        }
        modules.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        Self(modules)
    }

    fn imports(&self, module: &Path<'a>) -> BTreeSet<Path<'a>> {
        let paths = self.0[module].paths.iter().map(|path| self.resolve(module, path, FOLLOWED_MAX));
        paths.filter(|to| !to.starts_with(module) && self.0.contains_key(to)).collect()
    }

    /// Returns the module of the item that a path in `module` leads to. A path to another crate counts as leading to
    /// `module` itself.
    fn resolve(&self, module: &[&'a str], path: &[&'a str], follow: usize) -> Path<'a> {
        let Some((first, rest)) = path.split_first() else { return module.to_vec() };
        match *first {
            "crate" => return self.resolve(&[], rest, follow),
            "self" => return self.resolve(module, rest, follow),
            "super" => return self.resolve(&module[..module.len().saturating_sub(1)], rest, follow),
            _ => {}
        }
        let beneath = [module, &[*first]].concat();
        if self.0.contains_key(&beneath) {
            return self.resolve(&beneath, rest, follow);
        }
        match self.0.get(module).and_then(|named| named.names.get(first)) {
            Some(used) if follow > 0 => self.resolve(module, &[&used[..], rest].concat(), follow - 1),
            _ => module.to_vec(),
        }
    }
}

impl<'a> Named<'a> {
    fn of(tokens: &[&'a str]) -> Self {
        let mut named = Self::default();
        let mut rest = tokens;
        while let Some((first, behind)) = rest.split_first() {
            rest = behind;
            // `use<` is a list of captured types, not a path.
            if *first == "use" && rest.first() != Some(&"<") {
                named.read_use(&mut rest, &[]);
            } else if rest.first() == Some(&"::") {
                let mut path = vec![*first];
                while let ["::", next, others @ ..] = rest {
                    path.push(*next);
                    rest = others;
                }
                named.paths.push(path);
            }
        }
        named
    }

    /// Reads one path after `use`, or a list of paths in braces.
    fn read_use(&mut self, rest: &mut &[&'a str], front: &[&'a str]) {
        let mut path = front.to_vec();
        while let Some((first, behind)) = rest.split_first() {
            *rest = behind;
            match *first {
                "::" => {}
                "{" => {
                    while !matches!(rest.first(), None | Some(&"}")) {
                        self.read_use(rest, &path);
                        if let [",", others @ ..] = rest {
                            *rest = others;
                        }
                    }
                    *rest = rest.get(1..).unwrap_or_default();
                    return;
                }
                name => path.push(name),
            }
            if matches!(rest.first(), Some(&("," | ";" | "}" | "as"))) {
                break;
            }
        }
        // `a::{self}` stands for `a`, and `a::*` for everything in `a`.
        let last = path.pop_if(|last| matches!(*last, "self" | "*"));
        let mut name = path.last().copied().filter(|_| last != Some("*"));
        if let ["as", other, others @ ..] = rest {
            name = Some(*other);
            *rest = others;
        }
        if let Some(name) = name {
            self.names.insert(name, path.clone());
        }
        self.paths.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    /// Returns the modules in cycles, one string per cycle.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (*path, tokens(text))).collect();
        let names = |circle: &Vec<(String, Vec<String>)>| {
            circle.iter().map(|(module, _)| module.as_str()).collect::<Vec<_>>().join(" ")
        };
        circles(&files).iter().map(names).collect()
    }

    #[test]
    fn two_modules_that_use_each_other_are_a_circle() {
        let back = "fn f() { crate::a::g(); }";
        assert_eq!(
            found(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", back)]),
            ["a b"]
        );
        assert_eq!(found(&[("a.rs", "use crate::b::B;"), ("b.rs", "fn f() { g(); }")]), [""; 0]);
    }

    #[test]
    fn circle_by_way_of_others_is_one_and_says_what_each_imports() {
        let files = [
            ("a/mod.rs", "use crate::{b::{self, B}, d};"),
            ("b.rs", "use super::c::*;"),
            ("c.rs", "use crate::a::A as Other; use std::fmt;"),
            ("d.rs", ""),
        ]
        .map(|(path, text)| (path, tokens(text)));
        let expected = [("a", "b"), ("b", "c"), ("c", "a")].map(|(a, b)| (a.to_owned(), vec![b.to_owned()]));
        assert_eq!(circles(&files), [expected]);
    }

    #[test]
    fn circles_apart_are_counted_apart_and_the_largest_is_first() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::a::A;"),
            ("c.rs", "use crate::d::D;"),
            ("d.rs", "use crate::e::E;"),
            ("e.rs", "use crate::c::C;"),
        ];
        assert_eq!(found(&files), ["c d e", "a b"]);
    }

    #[test]
    fn re_export_is_imported_from_where_it_is_defined() {
        let files = [
            ("lib.rs", "pub use a::A; pub mod a; mod b;"),
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::A;"),
        ];
        assert_eq!(found(&files), ["a b"]);
        assert_eq!(found(&[("lib.rs", "pub use b::B;"), ("b.rs", "use crate::B;")]), [""; 0]);
    }

    #[test]
    fn modules_beneath_are_parts_of_a_module() {
        let files = [("a/mod.rs", "mod b; use b::B; pub struct A;"), ("a/b.rs", "use super::A;")];
        assert_eq!(found(&files), [""; 0]);
        let files = [
            ("a/mod.rs", "use crate::c::C;"),
            ("a/b.rs", ""),
            ("c.rs", "use crate::a; fn f() { a::b::g() }"),
        ];
        assert_eq!(found(&files), ["a c"]);
        let files =
            [("a.rs", ""), ("a/b.rs", "use crate::c::C;"), ("c.rs", "use crate::a; fn f() { a::b::g() }")];
        assert_eq!(found(&files), ["a::b c"]);
    }

    #[test]
    fn what_is_for_tests_only_is_left_out() {
        let files = [
            ("a.rs", "#[cfg(test)] mod tests; #[cfg(test)] mod more { use crate::b::B; }"),
            ("b.rs", "use crate::a;"),
        ];
        assert_eq!(found(&files), [""; 0]);
        let files = [
            ("a.rs", "#[cfg(test)] mod b; use crate::c;"),
            ("a/b.rs", "use crate::c;"),
            ("c.rs", "use crate::a::b;"),
        ];
        assert_eq!(found(&files), ["a c"]);
    }

    #[test]
    fn programs_beside_the_library_are_left_out() {
        let files = [
            ("lib.rs", ""),
            ("main.rs", "use a::A;"),
            ("a.rs", "use crate::bin::b::B;"),
            ("bin/b.rs", "use a::A;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }
}
