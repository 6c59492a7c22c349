//! Queries by name become programs: literals take the type beside them, types meet where both fit, and whatever does
//! not fit is named.

use farpool_operators::Instruction::{Cast, Column, Compare};
use farpool_operators::*;

const PRICE: Type = Type::Decimal { precision: 12, scale: 2 };

fn columns() -> Vec<(String, Type)> {
    let named = [
        ("id", Type::Int32),
        ("big", Type::Int64),
        ("small", Type::UInt16),
        ("price", PRICE),
        ("rate", Type::Float64),
        ("name", Type::Text),
        ("ok", Type::Boolean),
        ("day", Type::Date),
    ];
    named.into_iter().map(|(name, of)| (name.to_owned(), of)).collect()
}

fn compiled(expr: Expr) -> (Vec<Instruction>, Type) {
    expr.compile(&columns()).unwrap()
}

fn integer(of: Type, value: i128) -> Instruction {
    Instruction::Literal(Scalar { of, value: Some(Value::Integer(value)) })
}

fn over(name: &str, expr: Expr) -> (String, Expr) {
    (name.to_owned(), expr)
}

#[test]
fn literal_takes_the_type_beside_it_where_it_is_the_same_value_there() {
    let less = Compare(Comparison::Less);
    assert_eq!(compiled(col("id").lt(7)).0, [Column(0), integer(Type::Int32, 7), less.clone()]);
    assert_eq!(compiled(lit(7).lt(col("small"))).0, [integer(Type::UInt16, 7), Column(2), less.clone()]);
    assert_eq!(compiled(col("price").lt(0.05)).0, [Column(3), integer(PRICE, 5), less.clone()]);
    assert_eq!(compiled(col("price").lt(-17.5)).0, [Column(3), integer(PRICE, -1_750), less.clone()]);
    assert_eq!(compiled(col("price").lt(3)).0, [Column(3), integer(PRICE, 300), less]);
}

#[test]
fn literal_that_does_not_fit_widens_the_other_side() {
    let (code, _) = compiled(col("id").gt(3_000_000_000i64));
    assert_eq!(code[..2], [Column(0), Cast(Type::Int64)]);
    let (code, _) = compiled(col("price").gt(0.005));
    assert_eq!(code[..2], [Column(3), Cast(Type::Float64)]);
    let (code, _) = compiled(col("small").eq(-1));
    assert_eq!(code[..2], [Column(2), Cast(Type::Int64)]);
}

#[test]
fn two_columns_meet_at_the_narrowest_type_that_holds_both() {
    let cases = [
        (col("id") + col("small"), Type::Int32),
        (col("small") + col("big"), Type::Int64),
        (col("id") + col("rate"), Type::Float64),
        (col("price") + col("id"), Type::Decimal { precision: 38, scale: 2 }),
        (col("price") * col("price"), Type::Decimal { precision: 38, scale: 4 }),
        (col("price") * (lit(1.00) - lit(0.25)), Type::Float64),
        (col("price") / col("price"), Type::Float64),
        (-col("rate"), Type::Float64),
    ];
    for (expr, of) in cases {
        assert_eq!(compiled(expr.clone()).1, of, "{expr:?}");
    }
}

#[test]
fn long_products_are_compiled_in_time_linear_in_their_length() {
    let product = (0..300).fold(col("rate"), |product, _| product * col("rate"));
    assert_eq!(compiled(product).0.len(), 601);
}

#[test]
fn whatever_does_not_fit_is_named() {
    let cases = [
        (col("nmae").eq(1), "no column \"nmae\"; there are id, big"),
        (col("name").eq(1), "text beside int64"),
        (col("name") + 1, "text beside int64"),
        (col("ok") + col("ok"), "arithmetic of boolean"),
        (col("id").and(col("ok")), "int32 where true or false is wanted"),
        (col("id").in_list([1.5]), "Float(1.5) in a list for int32"),
    ];
    for (expr, wanted) in cases {
        let found = expr.compile(&columns()).unwrap_err();
        assert!(found.contains(wanted), "{found:?} does not say {wanted:?}");
    }
    let steps = Query::over(columns()).filter(col("ok")).select([over("x", col("y"))]).limit(1);
    assert!(steps.plan().unwrap_err().to_string().starts_with("select: x: no column \"y\""));
    let twice = Query::over(columns()).distinct().distinct().plan().unwrap_err();
    assert!(twice.to_string().contains("one of them is what a query can have"));
    let not_true = Query::over(columns()).filter(col("id")).plan().unwrap_err();
    assert!(not_true.to_string().contains("filter: int32 where true or false is wanted"));
}

#[test]
fn grouping_computes_each_expression_once_and_finishes_means() {
    let double = || col("price") * 2;
    let query = Query::over(columns()).filter(col("ok")).group_by(
        [over("letter", col("name"))],
        [
            ("rows".to_owned(), Agg::Rows),
            ("total".to_owned(), Agg::Sum(double())),
            ("mean".to_owned(), Agg::Avg(double())),
            ("last".to_owned(), Agg::Max(col("day"))),
        ],
    );
    let plan = query.top([By::descending("mean")], 3).plan().unwrap();
    let [Operator::Filter(_), Operator::Project(inputs), Operator::Group { keys, aggregates, .. }] =
        plan.near.operators()
    else {
        panic!("{:?}", plan.near.operators())
    };
    assert_eq!((inputs.len(), keys.len()), (3, 1), "the name, the double price and the day");
    let functions: Vec<Function> = aggregates.iter().map(|aggregate| aggregate.function).collect();
    assert_eq!(functions, [Function::Count, Function::Sum, Function::Count, Function::Max]);
    assert!(matches!(plan.finish.operators(), [Operator::Project(_), Operator::Top { rows: 3, .. }]));
    let names: Vec<&str> = plan.columns.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["letter", "rows", "total", "mean", "last"]);
    let types: Vec<Type> = plan.columns.iter().map(|(_, of)| *of).collect();
    assert_eq!(types[3], Type::Float64);
    assert_eq!(plan.finish.output(), types);
}

#[test]
fn columns_that_a_query_does_not_name_are_not_read() {
    let query = Query::over(columns()).filter(col("price").gt(10)).select([over("n", col("name"))]);
    let reads = query.plan().unwrap().near.reads();
    assert_eq!(reads, [false, false, false, true, false, true, false, false]);
}

#[test]
fn distinct_of_all_columns_needs_no_projection() {
    let plan = Query::over(columns()).distinct().plan().unwrap();
    assert!(matches!(plan.near.operators(), [Operator::Group { keys, .. }] if keys.len() == columns().len()));
    assert!(plan.finish.operators().is_empty());
}
