//! Recipes of tables that `CREATE TABLE .. AS` has made: the query as a Substrait plan, and its sources.
//!
//! The idea: a table that a query made can be made again by the same query, by anybody who may read its sources. These
//! are far tables and Parquet files. A recipe has the address, the size and the time of change of each file, so that
//! one which has changed since is named instead of read. Whatever the query gives then must be the rows of the lost
//! table, by their number and checksum: queries that do not always give the same rows are found out.
//!
//! A query over anything else (tables of this process, other formats), or that Substrait cannot express, has no recipe.

use crate::{FarTableProvider, Options, substrait};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::datasource::source_as_provider;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{CreateMemoryTable, LogicalPlan};
use farpool::table::{MadeBy, PutOptions, TABLE_PREFIX};
use farpool::{FileId, Pool, Recipe, shown};
use futures::TryStreamExt;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// Kind of these recipes.
pub(crate) const KIND: &str = "query";
/// Version of the body of a recipe. Others are not read.
const VERSION: u32 = 1;
/// Most bytes of a body. A query with more sources or a larger plan has no recipe.
const BODY_BYTES_MAX: usize = 60 << 10;

#[derive(Clone, PartialEq, Message)]
struct Body {
    #[prost(uint32, tag = "1")]
    version: u32,
    /// Substrait plan.
    #[prost(bytes = "vec", tag = "2")]
    plan: Vec<u8>,
    #[prost(message, repeated, tag = "3")]
    parquet: Vec<ParquetSource>,
    /// Protection that was asked for; empty if none was.
    #[prost(string, tag = "4")]
    protection: String,
    /// Names of the far tables that the plan reads.
    #[prost(string, repeated, tag = "5")]
    far: Vec<String>,
    /// Columns that divide the rows into partitions. None in recipes of earlier versions.
    #[prost(string, repeated, tag = "6")]
    partition_by: Vec<String>,
    /// Columns that sort the rows of each file.
    #[prost(string, repeated, tag = "7")]
    sort_by: Vec<String>,
}

/// Table of Parquet files that the plan reads.
#[derive(Clone, PartialEq, Message)]
struct ParquetSource {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    url: String,
    #[prost(message, repeated, tag = "3")]
    files: Vec<SourceFile>,
}

/// File as it was when the table was made.
#[derive(Clone, PartialEq, Message)]
struct SourceFile {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(uint64, tag = "2")]
    bytes: u64,
    /// Time of the last change, in ms since 1970.
    #[prost(int64, tag = "3")]
    changed_ms: i64,
    /// Tag that the store gives to the content; empty if it gives none.
    #[prost(string, tag = "4")]
    tag: String,
}

/// Returns how the table that a statement creates with these options is made. `None` if it cannot be told, or if the
/// table would have to be there to make it again.
pub(crate) async fn made_by(
    pool: &Pool,
    state: &SessionState,
    create: &CreateMemoryTable,
    set: &Options,
) -> Option<MadeBy> {
    let (parquet, far) = sources(state, &create.input).await.ok()??;
    let (pool, name, first) = (pool.clone(), create.name.table().to_owned(), far.clone());
    let is_needed = tokio::task::spawn_blocking(move || is_needed(&pool, &name, first));
    if is_needed.await.ok()? {
        return None;
    }
    let plan = substrait::write(state.clone(), state.optimize(&create.input).ok()?).await.ok()?;
    let protection = set.table_protection.map_or(String::new(), |protection| protection.to_string());
    let (partition_by, sort_by) = (set.partition_by.clone(), set.sort_by.clone());
    let body = Body { version: VERSION, plan, parquet, protection, far, partition_by, sort_by };
    let body = body.encode_to_vec();
    (body.len() <= BODY_BYTES_MAX).then(|| MadeBy { kind: KIND.to_owned(), body, lost: None })
}

/// Reports whether a table is among these sources, or among those that they are made from by their recipes.
fn is_needed(pool: &Pool, name: &str, sources: Vec<String>) -> bool {
    let mut seen = BTreeSet::new();
    let mut left = sources;
    while let Some(source) = left.pop() {
        if source == name {
            return true;
        }
        if let Ok(Some(recipe)) = pool.recipe(&format!("{TABLE_PREFIX}{source}"))
            && recipe.kind == KIND
            && let Ok(body) = Body::decode(&recipe.body[..])
            && seen.insert(source)
        {
            left.extend(body.far);
        }
    }
    false
}

/// Tables of Parquet files that a plan reads, and the names of the far tables that it reads.
type Sources = (Vec<ParquetSource>, Vec<String>);

/// Returns the tables that a plan reads. `None` if it reads anything else but Parquet files and far tables.
async fn sources(state: &SessionState, plan: &LogicalPlan) -> Result<Option<Sources>> {
    let mut far = BTreeSet::new();
    let mut tables: BTreeMap<String, ListingTableUrl> = BTreeMap::new();
    let mut is_known = true;
    plan.apply_with_subqueries(|plan| {
        let LogicalPlan::TableScan(scan) = plan else { return Ok(TreeNodeRecursion::Continue) };
        let provider = source_as_provider(&scan.source)?;
        if let Some(table) = provider.downcast_ref::<FarTableProvider>() {
            far.insert(table.table().name().to_owned());
            return Ok(TreeNodeRecursion::Continue);
        }
        match provider.downcast_ref::<ListingTable>() {
            Some(listing) if listing.options().format.is::<ParquetFormat>() => {
                match &listing.table_paths()[..] {
                    [url] if !may_hold_credentials(url.as_str()) => {
                        tables.insert(scan.table_name.table().to_owned(), url.clone());
                    }
                    _ => is_known = false,
                }
            }
            _ => is_known = false,
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    if !is_known {
        return Ok(None);
    }
    let mut sources = Vec::new();
    for (name, url) in tables {
        let files = files_of(state, &url).await?;
        sources.push(ParquetSource { name, url: url.as_str().to_owned(), files });
    }
    Ok(Some((sources, far.into_iter().collect())))
}

/// Reports whether an address has a user, or a query, in which signatures come.
fn may_hold_credentials(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().is_some_and(|authority| authority.contains('@')) || rest.contains('?')
}

/// Lists the files of a table of Parquet files, as they are now.
async fn files_of(state: &SessionState, url: &ListingTableUrl) -> Result<Vec<SourceFile>> {
    let store = state.runtime_env().object_store(url)?;
    let listed = url.list_all_files(state, store.as_ref(), "").await?;
    let files = listed.map_ok(|file| SourceFile {
        path: file.location.to_string(),
        bytes: file.size,
        changed_ms: file.last_modified.timestamp_millis(),
        tag: file.e_tag.unwrap_or_default(),
    });
    let mut files: Vec<SourceFile> = files.try_collect().await?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

/// Query of a recipe whose sources are as they were.
pub(crate) struct Query {
    /// Substrait plan.
    pub(crate) plan: Vec<u8>,
    /// Names and addresses of the tables of Parquet files that the plan reads.
    pub(crate) parquet: Vec<(String, String)>,
    /// How the table is put, in place of the lost one.
    pub(crate) options: PutOptions,
}

/// Reads the recipe of a lost file. `state` gives access to the files of its sources.
///
/// Errors: a source has changed, or cannot be looked at; the recipe is of another version.
pub(crate) async fn query_of(state: &SessionState, file: FileId, recipe: &Recipe) -> Result<Query> {
    let mut body =
        Body::decode(&recipe.body[..]).map_err(|error| exec_datafusion_err!("the recipe: {error}"))?;
    if body.version != VERSION {
        return exec_err!("the recipe has version {}; this program reads version {VERSION}", body.version);
    }
    let mut parquet = Vec::new();
    for source in std::mem::take(&mut body.parquet) {
        let now = files_of(state, &ListingTableUrl::parse(&source.url)?).await?;
        if let Some(what) = change(&source.files, &now) {
            return exec_err!("its source {} has changed: {what}", shown(&source.url));
        }
        parquet.push((source.name, source.url));
    }
    let protection = match body.protection.as_str() {
        "" => None,
        text => {
            Some(text.parse().map_err(|_| exec_datafusion_err!("the recipe asks for protection {text:?}"))?)
        }
    };
    let lost = Some((file, recipe.clone()));
    let made_by = Some(MadeBy { kind: KIND.to_owned(), body: recipe.body.clone(), lost });
    let Body { plan, partition_by, sort_by, .. } = body;
    let options = PutOptions { protection, made_by, partition_by, sort_by, ..PutOptions::default() };
    Ok(Query { plan, parquet, options })
}

/// Returns what has changed about the files of a source. `None` if nothing has.
fn change(then: &[SourceFile], now: &[SourceFile]) -> Option<String> {
    let of = |files: &[SourceFile]| -> BTreeMap<String, SourceFile> {
        files.iter().map(|file| (file.path.clone(), file.clone())).collect()
    };
    let (then, now) = (of(then), of(now));
    for (path, file) in &then {
        let path = shown(path);
        match now.get(&file.path) {
            None => return Some(format!("file {path} is gone")),
            Some(found) if found.bytes != file.bytes => {
                return Some(format!("file {path} had {} bytes, and has {} now", file.bytes, found.bytes));
            }
            Some(found) if found != file => {
                return Some(format!("file {path} was written again since the table was made"));
            }
            Some(_) => {}
        }
    }
    let added = now.keys().find(|path| !then.contains_key(*path));
    added.map(|path| format!("file {} was added", shown(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_users_and_queries_are_kept_out_of_recipes() {
        for url in ["file:///data/a.parquet", "s3://bucket/a@b.parquet", "https://host/a"] {
            assert!(!may_hold_credentials(url), "{url}");
        }
        for url in ["https://me:secret@host/a", "https://me@host", "s3://bucket/a?X-Amz-Signature=1"] {
            assert!(may_hold_credentials(url), "{url}");
        }
    }

    #[test]
    fn first_change_of_a_source_is_named() {
        let file = |path: &str, bytes, changed_ms| SourceFile {
            path: path.to_owned(),
            bytes,
            changed_ms,
            tag: String::new(),
        };
        let then = [file("a", 1, 5), file("b", 2, 6)];
        assert_eq!(change(&then, &then), None);
        let told = |now: &[SourceFile]| change(&then, now).expect("a change");
        assert_eq!(told(&then[..1]), "file b is gone");
        assert_eq!(told(&[file("a", 1, 5), file("b", 3, 6)]), "file b had 2 bytes, and has 3 now");
        assert_eq!(
            told(&[file("a", 1, 5), file("b", 2, 7)]),
            "file b was written again since the table was made"
        );
        assert_eq!(told(&[file("a", 1, 5), file("b", 2, 6), file("c", 1, 1)]), "file c was added");
    }
}
