//! Output of `cargo metadata`, as far as the checks need it. Cargo is always run offline, so a check downloads
//! nothing.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Package of the dependency graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    /// Licence expression of its manifest.
    pub(crate) license: Option<String>,
    /// Source of the package. `None` for a package of this repository.
    pub(crate) source: Option<String>,
    /// Names of the packages in its `[dependencies]`, without development and build dependencies.
    pub(crate) normal_dependencies: Vec<String>,
}

/// Packages that each package needs to run, by name.
pub(crate) type Graph = BTreeMap<String, BTreeSet<String>>;

/// Runs a subcommand of cargo. Returns its output.
fn cargo(root: &Path, subcommand: &str, args: &[&str]) -> Result<Vec<u8>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args([subcommand, "--offline", "--locked"])
        .args(args)
        .output()
        .map_err(|error| format!("starting cargo {subcommand}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo {subcommand}: {} (try `cargo fetch --locked` first)", said.trim()));
    }
    Ok(output.stdout)
}

/// Runs `cargo metadata` with these arguments. Returns its JSON.
fn cargo_metadata(root: &Path, args: &[&str]) -> Result<Value, String> {
    let printed = cargo(root, "metadata", &[&["--format-version", "1"][..], args].concat())?;
    serde_json::from_slice(&printed).map_err(|error| format!("cargo metadata printed no JSON: {error}"))
}

/// Returns the packages of this workspace.
pub(crate) fn members(root: &Path) -> Result<Vec<Package>, String> {
    packages(&cargo_metadata(root, &["--no-deps"])?)
}

/// Returns every package that is built for one of the targets, including development and build dependencies.
pub(crate) fn resolved(root: &Path, targets: &[String]) -> Result<Vec<Package>, String> {
    let mut args = Vec::new();
    for target in targets {
        args.extend(["--filter-platform", target.as_str()]);
    }
    in_graph(&cargo_metadata(root, &args)?)
}

/// Returns the graph of all packages, for any platform, with the features that the crates of the workspace turn on
/// together.
pub(crate) fn graph(root: &Path) -> Result<Graph, String> {
    needs(&cargo_metadata(root, &[])?)
}

/// Returns the packages that one crate of the workspace needs, directly or not, on this platform and with its own
/// features only.
pub(crate) fn needs_of(root: &Path, name: &str) -> Result<BTreeSet<String>, String> {
    let args = ["--package", name, "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let printed = String::from_utf8_lossy(&cargo(root, "tree", &args)?).into_owned();
    Ok(printed.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

fn text(value: &Value, key: &str) -> Result<String, String> {
    value[key].as_str().map(str::to_owned).ok_or_else(|| format!("cargo metadata: a package without {key}"))
}

fn packages(metadata: &Value) -> Result<Vec<Package>, String> {
    let all = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    all.iter().map(package).collect()
}

fn package(value: &Value) -> Result<Package, String> {
    let mut normal_dependencies = Vec::new();
    for dependency in value["dependencies"].as_array().map_or(&[][..], Vec::as_slice) {
        if dependency["kind"].is_null() {
            normal_dependencies.push(text(dependency, "name")?);
        }
    }
    Ok(Package {
        id: text(value, "id")?,
        name: text(value, "name")?,
        version: text(value, "version")?,
        license: value["license"].as_str().map(str::to_owned),
        source: value["source"].as_str().map(str::to_owned),
        normal_dependencies,
    })
}

/// Returns the packages that the chosen targets need. `packages` lists those of all platforms; only `resolve` is
/// limited to the targets.
fn in_graph(metadata: &Value) -> Result<Vec<Package>, String> {
    let nodes = metadata["resolve"]["nodes"].as_array().ok_or("cargo metadata: no resolved graph")?;
    let ids: Vec<String> = nodes.iter().map(|node| text(node, "id")).collect::<Result<_, _>>()?;
    let mut found = packages(metadata)?;
    found.retain(|package| ids.contains(&package.id));
    Ok(found)
}

/// Returns the graph by name. Different versions of a package become one.
fn needs(metadata: &Value) -> Result<Graph, String> {
    let names: BTreeMap<String, String> =
        packages(metadata)?.into_iter().map(|package| (package.id, package.name)).collect();
    let name = |id: &str| names.get(id).cloned().ok_or_else(|| format!("cargo metadata: no package {id}"));
    let mut graph = Graph::new();
    for node in metadata["resolve"]["nodes"].as_array().ok_or("cargo metadata: no resolved graph")? {
        let needs = graph.entry(name(&text(node, "id")?)?).or_default();
        for dependency in node["deps"].as_array().map_or(&[][..], Vec::as_slice) {
            let kinds = dependency["dep_kinds"].as_array().map_or(&[][..], Vec::as_slice);
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                needs.insert(name(&text(dependency, "pkg")?)?);
            }
        }
    }
    Ok(graph)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Value {
        json!({
            "packages": [
                { "id": "a 1", "name": "a", "version": "1.0.0", "license": "MIT", "source": null,
                  "dependencies": [
                      { "name": "b", "kind": null }, { "name": "c", "kind": "dev" }, { "name": "d", "kind": "build" },
                  ] },
                { "id": "b 2", "name": "b", "version": "2.0.0", "license": null,
                  "source": "git+https://example.org/b", "dependencies": [] },
            ],
            "resolve": { "nodes": [ { "id": "a 1", "deps": [
                { "pkg": "b 2", "dep_kinds": [ { "kind": "dev" }, { "kind": null } ] },
                { "pkg": "a 1", "dep_kinds": [ { "kind": "dev" }, { "kind": "build" } ] },
            ] } ] },
        })
    }

    #[test]
    fn development_and_build_dependencies_are_not_normal_ones() {
        let found = packages(&sample()).unwrap();
        assert_eq!(found[0].normal_dependencies, ["b"]);
        assert_eq!((found[1].license.as_deref(), found[1].source.is_some()), (None, true));
    }

    #[test]
    fn package_outside_the_resolved_graph_is_left_out() {
        let names: Vec<String> =
            in_graph(&sample()).unwrap().into_iter().map(|package| package.name).collect();
        assert_eq!(names, ["a"]);
    }

    #[test]
    fn graph_has_what_packages_need_to_run() {
        assert_eq!(needs(&sample()).unwrap(), [("a".to_owned(), ["b".to_owned()].into())].into());
    }

    #[test]
    fn package_without_name_is_an_error_that_says_so() {
        let error = packages(&json!({ "packages": [ { "id": "x" } ] })).unwrap_err();
        assert_eq!(error, "cargo metadata: a package without name");
    }
}
