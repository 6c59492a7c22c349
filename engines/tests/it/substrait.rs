//! Plans as Substrait. Plans of other producers return the values of their own engines. Plans made from SQL have the
//! same steps pushed down as the SQL itself. Bytes that are no plan give an error that names the fault.
//!
//! `substrait/make.py` wrote the plans of other producers, and the answers to them.

use crate::PLACEMENTS;
use crate::answers::{Answer, Exactness, Queries, answer_of};
use crate::plans::{Bench, bench, lines, place, texts};
use crate::pools::{Cluster, FARPOOL_SQL, Process, command, embedded, files, put, session_in, soon, stem};
use arrow::ipc::reader::StreamReader;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::collect;
use datafusion_substrait::substrait::proto::expression::field_reference::{
    ReferenceType, RootReference, RootType,
};
use datafusion_substrait::substrait::proto::expression::reference_segment::{self, StructField};
use datafusion_substrait::substrait::proto::expression::{
    FieldReference, ReferenceSegment, RexType, ScalarFunction,
};
use datafusion_substrait::substrait::proto::extensions::SimpleExtensionDeclaration;
use datafusion_substrait::substrait::proto::extensions::simple_extension_declaration::{
    ExtensionFunction, MappingType,
};
use datafusion_substrait::substrait::proto::function_argument::ArgType;
use datafusion_substrait::substrait::proto::rel::RelType;
use datafusion_substrait::substrait::proto::rel_common::{Emit, EmitKind};
use datafusion_substrait::substrait::proto::set_rel::SetOp;
use datafusion_substrait::substrait::proto::{
    CrossRel, Expression, FilterRel, FunctionArgument, JoinRel, Plan, PlanRel, ProjectRel, Rel, RelCommon,
    RelRoot, SetRel, SortRel, plan_rel,
};
use farpool_datafusion::{FarSession, PLAN_BYTES_MAX, scans};
use farpool_tests::programs;
use prost::Message;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Plans whose result differs from that of their producer's engine, with the reason. All other plans must agree.
const KNOWN: [(&str, &str, Known); 7] = [
    // ibis writes no arguments for a variadic function.
    ("ibis", "coalesce", Known::Error("coalesce must have at least one argument")),
    // Substrait calls it `std_dev` and DataFusion `stddev`, and DataFusion looks for no other name.
    ("ibis", "deviation", Known::Error("std_dev")),
    // ibis omits columns that are selected right after a join, and lists fewer names than there are columns.
    ("ibis", "join_then_select", Known::Error("names for all fields")),
    // DuckDB truncates the product to the scale that ibis expects; the plan keeps all digits.
    ("ibis", "decimal_product", Known::Values),
    // A backslash is an escape in DataFusion's LIKE, and an ordinary character in DuckDB's.
    ("ibis", "like_backslash", Known::Values),
    // ibis asks for NULLs first in plans, and for NULLs last in SQL.
    ("ibis", "order_with_nulls", Known::Values),
    // ibis counts from zero, but the function in its plan counts from one.
    ("ibis", "substring", Known::Values),
];

#[derive(Clone, Copy)]
enum Known {
    Error(&'static str),
    Values,
}

fn folder(part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("substrait").join(part)
}

fn answer_in(path: &Path) -> (Answer, bool) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let told: Value = serde_json::from_str(&text).expect("an answer");
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let kind = |kind: &Value| match kind.as_str() {
        Some("float") => Exactness::Float,
        // The scale has no effect here: it matters only if a decimal is compared with a float.
        Some("decimal") => Exactness::Decimal { scale: 0 },
        _ => Exactness::Text,
    };
    let rows = list(&told["rows"]).iter().map(|row| list(row).iter().map(text).collect()).collect();
    let columns = list(&told["columns"]).iter().map(kind).collect();
    (Answer { rows, columns }, told["is_ordered"] == true)
}

async fn ask(session: &FarSession, plan: Vec<u8>) -> Result<Answer, String> {
    let said = |error: datafusion::error::DataFusionError| error.strip_backtrace();
    let plan = session.substrait(plan).await.map_err(said)?;
    answer_of(session.execute(plan).await.map_err(said)?).await
}

#[test]
fn plans_of_other_producers_have_the_values_of_their_own_engines() {
    let tables = files(&folder("tables"), "arrow");
    let pool = embedded(&tables);
    put(&pool, &tables);
    let runtime = Runtime::new().expect("a runtime");
    let mut faults = Vec::new();
    for (producer, plans_min) in [("ibis", 48), ("datafusion", 41)] {
        let plans = files(&folder(producer), "bin");
        assert!(plans.len() >= plans_min, "{} plans of {producer}", plans.len());
        for placement in PLACEMENTS {
            let session = session_in(&pool, placement, &runtime);
            for path in &plans {
                let name = stem(path);
                let (wanted, is_ordered) = answer_in(&path.with_extension("json"));
                let found = runtime.block_on(soon(ask(&session, std::fs::read(path).expect("a plan"))));
                let fault = found.map(|mut found| {
                    if !is_ordered {
                        found.rows.sort();
                    }
                    found.difference(&wanted)
                });
                let known = KNOWN.iter().find(|known| (known.0, known.1) == (producer, name.as_str()));
                let fault = match (fault, known.map(|known| known.2)) {
                    (Ok(None), None) | (Ok(Some(_)), Some(Known::Values)) => continue,
                    (Err(error), Some(Known::Error(said))) if error.contains(said) => continue,
                    (Ok(None), Some(_)) => "is right by now".to_owned(),
                    (Ok(Some(fault)) | Err(fault), _) => fault,
                };
                faults.push(format!("{producer} {name}, {placement}: {fault}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn tpch_by_its_plans_has_the_answers_of_duckdb() {
    let queries = Queries::of("tpch", 22);
    let tables = queries.tables();
    let pool = embedded(&tables);
    put(&pool, &tables);
    let runtime = Runtime::new().expect("a runtime");
    let session = session_in(&pool, "auto", &runtime);
    let by_plan = async |_: &str, sql: &str| {
        let plan = session.to_substrait(sql).await.map_err(|error| error.strip_backtrace())?;
        ask(&session, plan).await
    };
    let faults = runtime.block_on(queries.compare_each("by its plan", by_plan));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Runs a plan. Returns, for each scan, the steps that were pushed down and those that were not; and the rows.
async fn shipped(session: &FarSession, plan: LogicalPlan) -> (Vec<[Vec<String>; 2]>, Vec<String>) {
    let frame = session.execute(plan).await.expect("a plan");
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.expect("a plan");
    let rows = lines(&collect(Arc::clone(&plan), task).await.expect("rows"));
    let found = scans(&plan);
    // The nesting of ANDs and ORs may differ, and has no meaning.
    let flat =
        |steps: Vec<String>| steps.into_iter().map(|step| step.replace(['(', ')'], "")).collect::<Vec<_>>();
    let steps = |scan| [flat(texts(scan, "beside_the_data")), flat(texts(scan, "not_shipped"))];
    let steps = found.iter().map(steps);
    (steps.collect(), rows)
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_a_plan_are_shipped_as_those_of_its_sql() {
    let Bench { far, .. } = bench();
    place(&far, "ship").await;
    // Each query comes with a word that must occur in the pushed-down steps.
    for (sql, step) in [
        ("SELECT id, price FROM sales WHERE item < 9 AND price > 2.5", "filter"),
        ("SELECT id FROM sales WHERE shop LIKE 'shop 1%' AND day >= DATE '1971-01-01'", "filter"),
        ("SELECT id FROM sales WHERE shop IN ('shop 3', 'shop 4') OR item = 7", "filter"),
        ("SELECT id, exact * 2 AS twice FROM sales WHERE exact > 10.5", "filter"),
        (
            "SELECT shop, count(*), sum(exact), min(id), max(day), avg(price) FROM sales GROUP BY shop",
            "group by",
        ),
        ("SELECT shop, sum(id) FROM sales WHERE item < 500 GROUP BY shop HAVING sum(id) > 9", "group by"),
        ("SELECT count(*), sum(id) FROM sales WHERE item = 7", "aggregate"),
        ("SELECT DISTINCT shop FROM sales", "group by"),
        ("SELECT id, item FROM sales ORDER BY item DESC, id LIMIT 10", "top 10 rows"),
        ("SELECT shop, count(*) AS n FROM sales GROUP BY shop ORDER BY n DESC, shop LIMIT 3", "group by"),
        (
            "SELECT name, count(*), sum(id) FROM sales JOIN few USING (item) WHERE id < 90000 GROUP BY name",
            "filter",
        ),
        ("SELECT item FROM sales WHERE id < 50 UNION ALL SELECT item FROM sales WHERE id > 469000", "filter"),
        ("SELECT id FROM sales WHERE id < 900 AND CASE WHEN item = 7 THEN id ELSE 1 END = 1", "filter"),
    ] {
        let state = far.context().state();
        let (by_sql, wanted) = shipped(&far, state.create_logical_plan(sql).await.expect("a query")).await;
        let bytes = far.to_substrait(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(far.to_substrait(sql).await.expect("a plan"), bytes, "{sql}: the same bytes each time");
        let plan = far.substrait(bytes).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let (by_plan, found) = shipped(&far, plan).await;
        assert_eq!(by_plan, by_sql, "{sql}");
        assert_eq!(found, wanted, "{sql}");
        assert!(
            by_plan.iter().flat_map(|scan| &scan[0]).any(|known| known.contains(step)),
            "{sql}: {by_plan:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_plans_of_ibis_become_programs_at_the_nodes() {
    let tables = files(&folder("tables"), "arrow");
    let pool = embedded(&tables);
    put(&pool, &tables);
    let session = FarSession::new(&pool, Default::default()).expect("a session");
    place(&session, "ship").await;
    for (name, wanted) in [
        ("filter_project", &["filter"][..]),
        ("in_texts", &["filter"]),
        ("dates", &["filter"]),
        ("group_by", &["group by"]),
        ("having", &["group by"]),
        ("scalar_aggregates", &["aggregate"]),
        ("group_by_nothing_else", &["group by"]),
        ("order_limit", &["filter", "top 7 rows"]),
    ] {
        let bytes = std::fs::read(folder("ibis").join(name).with_extension("bin")).expect("a plan");
        let plan = session.substrait(bytes).await.expect("a plan");
        let (steps, _) = shipped(&session, plan).await;
        assert_eq!(steps.len(), 1, "{name}");
        let [beside, stays] = &steps[0];
        let has = |step: &&str| beside.iter().any(|known| known.contains(*step));
        assert!(wanted.iter().all(has), "{name}: {beside:?}");
        assert_eq!(stays[..], [""; 0], "{name}");
    }
}

fn rel(of: RelType) -> Rel {
    Rel { rel_type: Some(of) }
}

fn root(input: Option<Rel>, names: &[&str]) -> Plan {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let root = plan_rel::RelType::Root(RelRoot { input, names });
    Plan { relations: vec![PlanRel { rel_type: Some(root) }], ..Plan::default() }
}

fn column(index: i32) -> Expression {
    let field = StructField { field: index, child: None };
    let segment = ReferenceSegment {
        reference_type: Some(reference_segment::ReferenceType::StructField(Box::new(field))),
    };
    let field = FieldReference {
        reference_type: Some(ReferenceType::DirectReference(segment)),
        root_type: Some(RootType::RootReference(RootReference {})),
    };
    Expression { rex_type: Some(RexType::Selection(Box::new(field))) }
}

fn call(function_reference: u32, arguments: Vec<Expression>) -> Expression {
    let argument = |value| FunctionArgument { arg_type: Some(ArgType::Value(value)) };
    let arguments = arguments.into_iter().map(argument).collect();
    let function = ScalarFunction { function_reference, arguments, ..ScalarFunction::default() };
    Expression { rex_type: Some(RexType::ScalarFunction(function)) }
}

fn with_function(mut plan: Plan, name: &str) -> Plan {
    let function =
        ExtensionFunction { function_anchor: 1, name: name.to_owned(), ..ExtensionFunction::default() };
    plan.extensions =
        vec![SimpleExtensionDeclaration { mapping_type: Some(MappingType::ExtensionFunction(function)) }];
    plan
}

fn project(input: Rel, expressions: Vec<Expression>, leaves: Vec<i32>) -> Rel {
    let emit = RelCommon {
        emit_kind: Some(EmitKind::Emit(Emit { output_mapping: leaves })),
        ..RelCommon::default()
    };
    rel(RelType::Project(Box::new(ProjectRel {
        common: Some(emit),
        input: Some(Box::new(input)),
        expressions,
        ..ProjectRel::default()
    })))
}

/// Returns a read of two columns of the table `few`.
async fn few(session: &FarSession) -> Rel {
    let bytes = session.to_substrait("SELECT item, name FROM few").await.expect("a plan");
    let plan = Plan::decode(&bytes[..]).expect("a plan");
    match plan.relations.into_iter().next().and_then(|relation| relation.rel_type) {
        Some(plan_rel::RelType::Root(RelRoot { input: Some(input), .. })) => input,
        other => panic!("{other:?}"),
    }
}

async fn refusal(session: &FarSession, plan: Vec<u8>) -> String {
    let read = soon(session.substrait(plan)).await;
    let said = read.map(|plan| plan.display_indent().to_string()).expect_err("refused").strip_backtrace();
    assert!(said.len() < 2_000, "{} bytes of an error: {}", said.len(), &said[..500]);
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_plan_for_here_are_an_error_by_name() {
    let Bench { far, .. } = bench();
    let few = few(&far).await;
    let boxed = || Some(Box::new(few.clone()));
    let filters = |depth: usize| {
        (0..depth).fold(few.clone(), |input, _| {
            let filter = FilterRel { input: Some(Box::new(input)), ..FilterRel::default() };
            rel(RelType::Filter(Box::new(filter)))
        })
    };
    let sql = "SELECT id FROM sales WHERE item = 7";
    let truncated = { far.to_substrait(sql).await.expect("a plan").split_off(40) };
    let missing_table = {
        let elsewhere = bench().far;
        let few = "CREATE TABLE nowhere AS SELECT item FROM few";
        let state = elsewhere.context().state();
        elsewhere.execute(state.create_logical_plan(few).await.expect("a plan")).await.expect("put");
        elsewhere.to_substrait("SELECT * FROM nowhere").await.expect("a plan")
    };
    let upper = with_function(
        root(Some(project(few.clone(), vec![call(1, vec![column(1)])], vec![2])), &["a"]),
        "no_such_function:str",
    );
    let except = |inputs: usize| {
        let set =
            SetRel { inputs: vec![few.clone(); inputs], op: SetOp::MinusPrimary as i32, ..SetRel::default() };
        root(Some(rel(RelType::Set(set))), &["item", "name"])
    };
    // Each projection adds its only column to itself, so the last expression has 2^40 nodes when it is expanded.
    let doubling = (0..40).fold(project(few.clone(), vec![column(0)], vec![2]), |input, _| {
        project(input, vec![call(1, vec![column(0), column(0)])], vec![1])
    });
    let xors = (0..20).fold(call(1, vec![column(0), column(0)]), |inner, _| call(1, vec![inner, column(0)]));
    for (plan, said) in [
        (b"SELECT 1".to_vec(), "not a plan in protobuf"),
        (truncated, "not a plan in protobuf"),
        (vec![0; PLAN_BYTES_MAX + 1], "4194304 are permitted"),
        (Vec::new(), "0 relations at the root"),
        (missing_table, "nowhere"),
        (upper.encode_to_vec(), "no_such_function"),
        (root(Some(filters(60)), &["item", "name"]).encode_to_vec(), "more than 100 levels deep"),
        (root(None, &[]).encode_to_vec(), "the root lacks its input"),
        (root(Some(few.clone()), &["item"]).encode_to_vec(), "names"),
        (root(Some(Rel { rel_type: None }), &[]).encode_to_vec(), "rel_type"),
        (
            root(Some(project(few.clone(), vec![], vec![0, 2])), &["a", "b"]).encode_to_vec(),
            "its column 2: it has 2",
        ),
        (root(Some(project(few.clone(), vec![], vec![-1])), &["a"]).encode_to_vec(), "its column -1"),
        (root(Some(project(few.clone(), vec![], vec![0; 20_000])), &["a"]).encode_to_vec(), "20000 columns"),
        (
            root(Some(project(few.clone(), vec![column(9)], vec![2])), &["a"]).encode_to_vec(),
            "refers to column 9: there are 2",
        ),
        (
            root(Some(rel(RelType::Join(Box::new(JoinRel { left: boxed(), ..JoinRel::default() })))), &[])
                .encode_to_vec(),
            "a join lacks one of its sides",
        ),
        (
            root(
                Some(rel(RelType::Cross(Box::new(CrossRel { right: boxed(), ..CrossRel::default() })))),
                &[],
            )
            .encode_to_vec(),
            "a cross product lacks one of its sides",
        ),
        (
            root(
                Some(rel(RelType::Sort(Box::new(SortRel {
                    input: boxed(),
                    sorts: vec![Default::default()],
                    ..SortRel::default()
                })))),
                &[],
            )
            .encode_to_vec(),
            "a sort lacks its sort expression",
        ),
        (except(1_500).encode_to_vec(), "more than 1000 relations"),
        (
            with_function(root(Some(doubling), &["a"]), "add:i64_i64").encode_to_vec(),
            "expand to an expression of",
        ),
        (
            with_function(root(Some(project(few.clone(), vec![xors], vec![2])), &["a"]), "xor:bool_bool")
                .encode_to_vec(),
            "xor within xor",
        ),
    ] {
        let error = refusal(&far, plan).await;
        assert!(error.starts_with("Error during planning: Substrait plan: "), "{error}");
        assert!(error.contains(said), "{said}: {error}");
    }
    for (sql, said) in [
        ("CREATE TABLE x AS SELECT 1 AS one", "CreateMemoryTable"),
        ("SELECT nothing FROM sales", "nothing"),
        ("SELECT 1; SELECT 2", "single SQL statement"),
    ] {
        let error = far.to_substrait(sql).await.expect_err(sql).to_string();
        assert!(error.to_lowercase().contains(&said.to_lowercase()), "{sql}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deepest_and_widest_plans_that_are_permitted_run() {
    let Bench { far, .. } = bench();
    let few = few(&far).await;
    let run = async |plan: Plan| {
        let plan = far.substrait(plan.encode_to_vec()).await.expect("a plan");
        lines(&far.execute(plan).await.expect("a plan").collect().await.expect("rows"))
    };
    let deep = (0..45).fold(few.clone(), |input, at| {
        project(input, vec![call(1, vec![column(0)])], vec![2 - at % 2 * 2, 1])
    });
    assert_eq!(run(with_function(root(Some(deep), &["item", "name"]), "abs:i64")).await.len(), 4);
    let nested = (0..28).fold(column(0), |inner, _| call(1, vec![inner, column(0)]));
    let nested =
        with_function(root(Some(project(few.clone(), vec![nested], vec![2])), &["a"]), "add:i64_i64");
    assert_eq!(run(nested).await, ["14500", "203", "551", "58000"]);
    let mut inputs = vec![few.clone(); 900];
    inputs[0] = few.clone();
    let set = SetRel { inputs, op: SetOp::UnionAll as i32, ..SetRel::default() };
    assert_eq!(run(root(Some(rel(RelType::Set(set))), &["item", "name"])).await.len(), 3_600);
    let set = SetRel { inputs: vec![few; 400], op: SetOp::MinusPrimary as i32, ..SetRel::default() };
    assert_eq!(run(root(Some(rel(RelType::Set(set))), &["item", "name"])).await.len(), 0);
    // ANDs and ORs must be written as flat calls; nested ones would exceed the limit of nesting.
    let conditions: Vec<String> = (0..300).map(|at| format!("item + id <> {at}")).collect();
    let sql = format!("SELECT count(*) FROM sales WHERE id < 1000 AND {}", conditions.join(" AND "));
    let wanted = lines(&far.context().sql(&sql).await.expect("a query").collect().await.expect("rows"));
    let plan = far.substrait(far.to_substrait(&sql).await.expect("a plan")).await.expect("a plan");
    assert_eq!(lines(&far.execute(plan).await.expect("a plan").collect().await.expect("rows")), wanted);
}

/// Plans with some bytes changed, cut off or repeated must be read or refused, without a panic. A plan that is read
/// must be planned or refused.
#[test]
fn bytes_that_were_changed_are_read_or_refused() {
    let tables = files(&folder("tables"), "arrow");
    let pool = embedded(&tables);
    put(&pool, &tables);
    let session = FarSession::new(&pool, Default::default()).expect("a session");
    let runtime = Runtime::new().expect("a runtime");
    let mut state = 7_u64;
    let mut random = |end: usize| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    };
    let (mut read, mut refused) = (0, 0);
    for producer in ["ibis", "datafusion"] {
        for path in files(&folder(producer), "bin") {
            let plan = std::fs::read(&path).expect("a plan");
            for _ in 0..30 {
                let mut changed = plan.clone();
                for _ in 0..=random(2) {
                    let at = random(changed.len());
                    match random(4) {
                        0 => changed.truncate(at.max(1)),
                        1 => changed.insert(at, random(256) as u8),
                        2 => changed[at] = changed[at].wrapping_add([1, 255, 128][random(3)]),
                        _ => changed[at] = random(256) as u8,
                    }
                }
                let planned = runtime.block_on(soon(async {
                    let plan = session.substrait(changed).await?;
                    session.execute(plan).await?.create_physical_plan().await
                }));
                match planned {
                    Ok(_) => read += 1,
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(read > 100 && refused > 1_000, "{read} plans were read, {refused} were refused");
}

#[test]
fn the_command_writes_a_plan_and_runs_one() {
    let cluster = Cluster::start("256MiB");
    let batch = crate::plans::sales();
    cluster.pool.put_table("sales", batch.schema(), [batch.clone()]).expect("put");
    let run = |args: &[&str], input: &[u8]| {
        let mut child = command(FARPOOL_SQL)
            .args(["--pool", cluster.pool.url(), "--quiet"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        // The write fails if the command refuses its arguments, because it then ends before it reads its input.
        let _ = child.stdin.take().expect("piped").write_all(input);
        let output = programs::output_of(child, &format!("farpool sql {args:?}"));
        (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.bin");
    let file = file.to_str().expect("UTF-8");
    let sql = "SELECT shop, count(*) AS n, sum(exact) AS total FROM sales WHERE item < 500 GROUP BY shop ORDER BY shop";
    let (code, said, told) = run(&["-c", sql, "--to-substrait", file], b"");
    assert_eq!((code, said.len()), (Some(0), 0), "{told}");
    let plan = std::fs::read(file).expect("a plan");
    assert_eq!(run(&["-c", sql, "--to-substrait", "-"], b"").1, plan);
    for format in ["csv", "json", "table"] {
        let (code, wanted, told) = run(&["-c", sql, "--format", format], b"");
        assert_eq!(code, Some(0), "{told}");
        let (code, found, told) = run(&["--substrait", file, "--format", format], b"");
        assert_eq!(
            (code, String::from_utf8_lossy(&found)),
            (Some(0), String::from_utf8_lossy(&wanted)),
            "{told}"
        );
    }
    let args = [
        "--substrait",
        "-",
        "--format",
        "arrow",
        "--placement",
        "ship",
        "--memory",
        "64MiB",
        "--explain",
        "--json",
    ];
    let (code, found, told) = run(&args, &plan);
    assert_eq!(code, Some(0), "{told}");
    let stream = StreamReader::try_new(&found[..], None).expect("an Arrow stream");
    let batches = stream.collect::<Result<Vec<_>, _>>().expect("rows");
    assert_eq!(
        batches[0].schema().fields().iter().map(|field| field.name()).collect::<Vec<_>>(),
        ["shop", "n", "total"]
    );
    assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 24);
    let told: Value = serde_json::from_str(&told).expect("one object");
    let beside = texts(&told["scans"][0], "beside_the_data");
    assert!(beside.iter().any(|step| step.contains("group by")), "{told}");
    assert_eq!(told["scans"][0]["actual"]["placement"], "ship", "{told}");
    let worker =
        || Process::start(FARPOOL_SQL, &["worker", "--listen", "127.0.0.1:0", "--pool", cluster.pool.url()]);
    let workers = [worker(), worker()];
    let divided = ["--workers", &workers[0].ready, "--workers", &workers[1].ready, "--explain", "--json"];
    let plan = run(&["-c", "SELECT count(*) AS n FROM sales WHERE item >= 0", "--to-substrait", "-"], b"").1;
    let (code, found, told) = run(&[&["--substrait", "-", "--format", "csv"], &divided[..]].concat(), &plan);
    assert_eq!((code, &found[..]), (Some(0), &b"n\n470000\n"[..]), "{told}");
    let told: Value = serde_json::from_str(&told).expect("one object");
    assert_eq!(told["tasks"].as_array().expect("a list").len(), 2, "{told}");
    for (args, input, said) in [
        (&["--substrait", "-"][..], &b"no plan"[..], "not a plan in protobuf"),
        (&["--substrait", "nowhere.bin"], b"", "--substrait nowhere.bin"),
        (&["--substrait", "/dev/zero"], b"", "larger than 4194304 bytes"),
        (&["--file", "/dev/zero"], b"", "larger than 67108864 bytes"),
        (&["--to-substrait", "-", "--file", "/dev/zero"], b"", "larger than 67108864 bytes"),
        (&["--substrait", "-", "-c", "SELECT 1"], b"", "--command"),
        (
            &["--to-substrait", "-", "-c", "SELECT 1", "-c", "SELECT 2"],
            b"",
            "exactly one query is needed, not 2",
        ),
        (&["--to-substrait", "-", "-c", "DROP TABLE sales"], b"", "Substrait plan"),
    ] {
        let (code, out, told) = run(args, input);
        assert_eq!((code, out.len()), (Some(2), 0), "{args:?}: {told}");
        assert!(told.contains(said), "{args:?}: {told}");
    }
}
