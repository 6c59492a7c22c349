//! Queries by name become programs: literals take the type of the other side, types meet in a common type, and errors
//! name what does not fit.

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
        (col("name").eq(1), "= 1): text and int64"),
        (col("name") + 1, "(name + 1): text and int64"),
        (col("ok") + col("ok"), "arithmetic of boolean"),
        (col("id").and(col("ok")), "id is of type int32: a condition (true or false) is needed"),
        (col("id").in_list([1.5]), "1.5 in a list for int32"),
    ];
    for (expr, wanted) in cases {
        let found = expr.compile(&columns()).unwrap_err();
        assert!(found.contains(wanted), "{found:?} does not say {wanted:?}");
    }
    let steps = Query::over(columns()).filter(col("ok")).select([over("x", col("y"))]).limit(1);
    assert!(steps.plan().unwrap_err().to_string().starts_with("select: x: no column \"y\""));
    let twice = Query::over(columns()).distinct().distinct().plan().unwrap_err();
    assert!(twice.to_string().contains("a grouping cannot follow another grouping"));
    let not_true = Query::over(columns()).filter(col("id")).plan().unwrap_err();
    assert!(
        not_true.to_string().contains("filter: id is of type int32: a condition (true or false) is needed")
    );
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
    let functions: Vec<AggregateFunction> = aggregates.iter().map(|aggregate| aggregate.function).collect();
    assert_eq!(
        functions,
        [AggregateFunction::Count, AggregateFunction::Sum, AggregateFunction::Count, AggregateFunction::Max]
    );
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

#[test]
fn settled_literal_takes_the_type_of_its_kind_where_it_is_the_same_value_there() {
    let equal = Compare(Comparison::Equal);
    let settled = |of, value| lit(Scalar { of, value: Some(Value::Integer(value)) });
    let decimal = |precision, scale| Type::Decimal { precision, scale };
    assert_eq!(
        compiled(col("price").eq(settled(decimal(3, 1), 15))).0,
        [Column(3), integer(PRICE, 150), equal]
    );
    let (code, _) = compiled(col("price").eq(settled(decimal(4, 3), 1_505)));
    assert_eq!(code[1], Cast(decimal(13, 3)), "a digit more than the column has");
    let list = [Literal::Scalar(Scalar { of: decimal(1, 0), value: Some(Value::Integer(2)) })];
    assert!(col("price").in_list(list).compile(&columns()).is_ok());
    let columns = vec![
        ("at".to_owned(), Type::Timestamp { unit: TimeUnit::Second, is_zoned: false }),
        ("key".to_owned(), Type::FixedBytes(2)),
    ];
    let moment = |unit, is_zoned, value| settled(Type::Timestamp { unit, is_zoned }, value);
    let at = |literal| col("at").eq(literal).compile(&columns).map(|(code, _)| code[1].clone());
    let second = Scalar { of: columns[0].1, value: Some(Value::Integer(7)) };
    assert_eq!(at(moment(TimeUnit::Microsecond, false, 7_000_000)), Ok(Instruction::Literal(second)));
    assert!(
        at(moment(TimeUnit::Microsecond, true, 7_000_000)).is_err(),
        "an instant is no reading of a clock"
    );
    let bytes = |text: &str| lit(Scalar { of: Type::Bytes, value: Some(Value::Bytes(text.into())) });
    assert!(col("key").eq(bytes("ab")).compile(&columns).is_ok());
    assert!(col("key").eq(bytes("abc")).compile(&columns).is_err());
}

#[test]
fn quotients_are_floats_whatever_is_divided() {
    for (left, right) in [("id", "small"), ("price", "id"), ("rate", "price")] {
        assert_eq!(compiled(col(left).ratio(col(right))).1, Type::Float64);
    }
    assert!(col("name").ratio(1).compile(&columns()).unwrap_err().contains("a division of text"));
}

#[test]
fn programs_are_told_in_words() {
    let names: Vec<String> = columns().into_iter().map(|(name, _)| name).collect();
    let condition = (col("price") * (lit(1) - col("rate").cast(PRICE))).gt_eq(0.5).and(
        col("name").like("a%").or(!col("ok")).or(col("day").is_not_null()).or(col("id").in_list([1, 2])),
    );
    let query = Query::over(columns())
        .filter(condition)
        .group_by([over("name", col("name"))], [("mean".to_owned(), Agg::Avg(col("price") + 1))])
        .top([By::descending("mean")], 3);
    let plan = query.plan().unwrap();
    let (near, left) = display::lines(&plan.near, &names);
    let expected = [
        "filter price * (1.00 - cast(rate as decimal(12, 2))) >= 0.5000 \
         and (name like 'a%' or not ok or day is not null or id in (1, 2))",
        "select name, price + 1.00",
        "group by name: sum(price + 1.00), count(price + 1.00)",
    ];
    assert_eq!(near, expected);
    let mean = "cast(sum(price + 1.00) as float64) / cast(count(price + 1.00) as float64)";
    let finish = display::lines(&plan.finish, &left).0;
    assert_eq!(finish, [format!("select name, {mean}"), format!("top 3 rows by {mean} descending")]);
    let scalar = |of, value| Scalar { of, value: Some(value) }.to_string();
    assert_eq!(scalar(Type::Date, Value::Integer(20_778)), "2026-11-21");
    let moment = Type::Timestamp { unit: TimeUnit::Millisecond, is_zoned: true };
    assert_eq!(scalar(moment, Value::Integer(-1)), "1969-12-31 23:59:59.999Z");
    assert_eq!(scalar(PRICE, Value::Integer(-5)), "-0.05");
    assert_eq!(scalar(Type::Text, Value::Bytes("it's".into())), "'it''s'");
    assert_eq!(scalar(Type::Bytes, Value::Bytes(vec![0, 255])), "x'00ff'");
}
