//! The refresh functions of TPC-H beside its queries: new orders come with their lines, and old ones go. Each query has
//! DuckDB's answer over the same rows, whatever changes meanwhile.

use crate::PLACEMENTS;
use crate::answers::{Queries, answer_of};
use crate::pools::{embedded, put, reference, soon};
use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider, MemorySchemaProvider, SchemaProvider};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use farpool::{FarTable, Pool};
use farpool_datafusion::{FarSession, FarTableProvider, Options, builder, extremes};
use std::sync::Arc;
use tokio::sync::mpsc::unbounded_channel;

/// Tables that the refresh functions change.
const CHANGED: [&str; 2] = ["orders", "lineitem"];

/// Makes a session that reads these tables, whatever becomes of their names.
fn session_over(tables: Vec<FarTable>) -> SessionContext {
    let state = builder(SessionConfig::new(), Options::default()).with_default_features().build();
    let context = SessionContext::new_with_state(state);
    extremes().into_iter().for_each(|function| context.register_udaf(Arc::unwrap_or_clone(function)));
    let schema = Arc::new(MemorySchemaProvider::new());
    for table in tables {
        let name = table.name().to_owned();
        schema.register_table(name, Arc::new(FarTableProvider::new(table))).expect("registered");
    }
    let catalog = Arc::new(MemoryCatalogProvider::new());
    catalog.register_schema("public", schema).expect("registered");
    context.register_catalog("farpool", catalog);
    context
}

/// Opens all tables as they are now.
fn open_all(pool: &Pool) -> Vec<FarTable> {
    let tables = pool.tables().expect("listed");
    tables.into_iter().map(|table| pool.table(&table.name).expect("opened")).collect()
}

/// Runs all queries over tables in all placements. Returns a line for each wrong answer.
async fn faults(queries: &Queries, tables: Vec<FarTable>) -> Vec<String> {
    let context = session_over(tables);
    let mut faults = Vec::new();
    for placement in PLACEMENTS {
        let set = format!("SET farpool.placement = '{placement}'");
        context.sql(&set).await.expect("a setting").collect().await.expect("set");
        let ask = async |_: &str, sql: &str| {
            soon(async { answer_of(context.sql(sql).await.map_err(|error| error.to_string())?).await }).await
        };
        faults.extend(queries.compare_each(placement, ask).await);
    }
    faults
}

async fn run(session: &FarSession, sql: &str) {
    let changed = soon(async { session.sql(sql).await?.collect().await }).await;
    changed.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tpch_has_the_answers_of_duckdb_before_beside_and_after_its_refresh_functions() {
    let before = Queries::of("tpch", 22);
    let files = before.tables();
    let pool = embedded(&files);
    put(&pool, &files);
    let (send, mut receive) = unbounded_channel();
    send.send((before, open_all(&pool))).expect("somebody compares");
    let session = FarSession::new(&pool, Options::default()).expect("a session");
    let refresh = async {
        for name in ["new_orders", "new_lineitem", "old_keys"] {
            let path = reference("refreshes").join(format!("{name}.parquet"));
            let path = path.to_str().expect("a name in UTF-8");
            let registered = session.context().register_parquet(name, path, ParquetReadOptions::default());
            registered.await.expect("registered");
        }
        for table in CHANGED {
            run(&session, &format!("INSERT INTO {table} SELECT * FROM new_{table}")).await;
        }
        send.send((Queries::of("refreshes/inserted", 22), open_all(&pool))).expect("somebody compares");
        for (table, key) in CHANGED.iter().zip(["o_orderkey", "l_orderkey"]) {
            run(&session, &format!("DELETE FROM {table} WHERE {key} IN (SELECT o_orderkey FROM old_keys)"))
                .await;
        }
        send.send((Queries::of("refreshes/deleted", 22), open_all(&pool))).expect("somebody compares");
        drop(send);
    };
    let compare = async {
        let mut faults_of_all = Vec::new();
        while let Some((queries, tables)) = receive.recv().await {
            faults_of_all.extend(faults(&queries, tables).await);
        }
        faults_of_all
    };
    let ((), found) = tokio::join!(refresh, compare);
    assert!(found.is_empty(), "{} faults:\n{}", found.len(), found.join("\n"));
    // Rows from before the deletion can still be read, by the number of their snapshot.
    let inserted = Queries::of("refreshes/inserted", 22);
    let tables = open_all(&pool).into_iter().map(|table| match CHANGED.contains(&table.name()) {
        true => pool.table_snapshot(table.name(), 1, None).expect("kept").open_all().expect("opened"),
        false => table,
    });
    let found = faults(&inserted, tables.collect()).await;
    assert!(found.is_empty(), "{} faults:\n{}", found.len(), found.join("\n"));
}
