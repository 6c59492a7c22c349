//! Encoding of programs: each has one encoding, errors name what is wrong, and no bytes do harm.

use farpool_operators::Binary as Calculation;
use farpool_operators::limits::*;
use farpool_operators::*;
use proptest::prelude::*;

const DECIMAL: Type = Type::Decimal { precision: 10, scale: 2 };
const TIME: Type = Type::Timestamp { unit: TimeUnit::Microsecond, is_zoned: true };

fn integer(of: Type, value: i128) -> Scalar {
    Scalar { of, value: Some(Value::Integer(value)) }
}

fn text(value: &str) -> Scalar {
    Scalar { of: Type::Text, value: Some(Value::Bytes(value.into())) }
}

/// Returns columns of every type.
fn columns() -> Vec<Type> {
    vec![
        Type::Boolean,
        Type::Int8,
        Type::Int16,
        Type::Int32,
        Type::Int64,
        Type::UInt8,
        Type::UInt16,
        Type::UInt32,
        Type::UInt64,
        Type::Float32,
        Type::Float64,
        DECIMAL,
        Type::Date,
        TIME,
        Type::Text,
        Type::Bytes,
        Type::FixedBytes(3),
    ]
}

/// Returns programs that together use every kind of operator and instruction.
fn programs() -> Vec<Program> {
    use Instruction::*;
    let comparisons = [
        Comparison::Equal,
        Comparison::NotEqual,
        Comparison::Less,
        Comparison::LessOrEqual,
        Comparison::Greater,
        Comparison::GreaterOrEqual,
    ];
    let values = [
        Scalar { of: Type::Boolean, value: Some(Value::Boolean(true)) },
        integer(Type::Int8, -128),
        integer(Type::Int16, -2),
        integer(Type::Int32, i32::MIN.into()),
        integer(Type::Int64, i64::MIN.into()),
        integer(Type::UInt8, 255),
        integer(Type::UInt16, 65_535),
        integer(Type::UInt32, u32::MAX.into()),
        integer(Type::UInt64, u64::MAX.into()),
        Scalar { of: Type::Float32, value: Some(Value::Float(f32::NAN.to_bits().into())) },
        Scalar { of: Type::Float64, value: Some(Value::Float((-0.0f64).to_bits())) },
        integer(DECIMAL, -9_999_999_999),
        integer(Type::Date, -1),
        integer(TIME, 1 << 40),
        text("Straße"),
        Scalar { of: Type::Bytes, value: Some(Value::Bytes(vec![0, 255])) },
        Scalar { of: Type::FixedBytes(3), value: Some(Value::Bytes(vec![1, 2, 3])) },
    ];
    let mut condition = Vec::new();
    for (column, value) in values.iter().enumerate() {
        let compare = Compare(comparisons[column % comparisons.len()]);
        condition.extend([Column(column as u16), Literal(value.clone()), compare]);
        condition.extend([
            Column(column as u16),
            InList(vec![value.clone(), Scalar::null(value.of)]),
            Or,
            Not,
        ]);
        condition.extend([Column(column as u16), IsNull, Or]);
        if column > 0 {
            condition.push(And);
        }
    }
    let like = Like { pattern: "100\\%_".into(), escape: Some('\\'), ignores_case: true };
    condition.extend([Column(14), like, And, Column(14), Matches { pattern: "(a|b)+$".into() }, Or]);
    let arithmetic = [
        Calculation::Add,
        Calculation::Subtract,
        Calculation::Multiply,
        Calculation::Divide,
        Calculation::Remainder,
    ];
    let mut computed: Vec<Vec<Instruction>> = arithmetic
        .into_iter()
        .map(|binary| vec![Column(4), Column(3), Cast(Type::Int64), Instruction::Binary(binary), Negate])
        .collect();
    computed.push(vec![Column(14)]);
    let semi_join = |lookup, is_anti| Operator::SemiJoin { keys: vec![4, 14], lookup, number: 3, is_anti };
    let aggregate = |function, column| Aggregate { function, column };
    let group = Operator::Group {
        keys: vec![5, 0],
        aggregates: vec![
            aggregate(AggregateFunction::Count, None),
            aggregate(AggregateFunction::Count, Some(1)),
            aggregate(AggregateFunction::Sum, Some(1)),
            aggregate(AggregateFunction::Min, Some(5)),
            aggregate(AggregateFunction::Max, Some(5)),
        ],
        groups: 64_000,
    };
    let key = |column, is_descending, nulls_first| SortKey { column, is_descending, nulls_first };
    let top = Operator::Top { keys: vec![key(0, true, false), key(5, false, true)], rows: 10 };
    let front = [
        Operator::Filter(condition),
        semi_join(JoinLookup::Bloom, false),
        semi_join(JoinLookup::Keys, true),
        Operator::Project(computed),
    ];
    let ends = [vec![], vec![group], vec![top], vec![Operator::Limit(u64::MAX)]];
    let all = ends.into_iter().map(|end| [&front[..], &end].concat());
    all.map(|operators| Program::check(columns(), operators).unwrap()).collect()
}

#[test]
fn every_program_is_read_as_it_was_written() {
    for program in programs() {
        let bytes = program.encode().unwrap();
        assert_eq!(Program::decode(&bytes).unwrap(), program);
    }
}

#[test]
fn truncated_or_lengthened_programs_are_malformed() {
    for program in programs() {
        let bytes = program.encode().unwrap();
        for length in 0..bytes.len() {
            assert!(matches!(Program::decode(&bytes[..length]), Err(ProgramError::Malformed(_))), "{length}");
        }
        assert!(matches!(Program::decode(&[&bytes[..], &[0]].concat()), Err(ProgramError::Malformed(_))));
    }
}

proptest! {
    #[test]
    fn any_change_is_refused_or_is_another_program_in_its_only_form(
        which in 0..4usize, changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = programs()[which].encode().unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(program) = Program::decode(&bytes) {
            prop_assert_eq!(program.encode().unwrap(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_a_program(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(program) = Program::decode(&bytes) {
            prop_assert_eq!(program.encode().unwrap(), bytes);
        }
    }
}

/// Returns the reason why a program with this operator is refused.
fn flaw_of(input: Vec<Type>, operator: Operator) -> String {
    Program::check(input, vec![operator]).unwrap_err().what
}

#[test]
fn whatever_cannot_be_done_is_named_with_what_could() {
    use Instruction::*;
    let one = |of| vec![of];
    let filter = Operator::Filter;
    let not_null = |column| vec![Column(column), IsNull, Not];
    let yes = || Literal(Scalar { of: Type::Boolean, value: Some(Value::Boolean(true)) });
    let deep: Vec<_> = (0..=STACK_MAX).map(|_| yes()).chain((0..STACK_MAX).map(|_| And)).collect();
    let long: Vec<_> = std::iter::once(yes()).chain((0..INSTRUCTIONS_MAX).map(|_| Not)).collect();
    let pattern = "x".repeat(PATTERN_BYTES_MAX + 1);
    let list = vec![integer(Type::Int64, 1); LIST_VALUES_MAX + 1];
    let cases = [
        (one(Type::Int64), filter(not_null(1)), "column 1 does not exist: there are 1 columns"),
        (
            one(Type::Int64),
            filter(vec![Column(0)]),
            "the filter condition is of type int64: boolean is needed",
        ),
        (one(Type::Int64), filter(vec![]), "exactly 1 value, not 0"),
        (one(Type::Boolean), filter(vec![Column(0), Column(0)]), "exactly 1 value, not 2"),
        (one(Type::Boolean), filter(vec![Column(0), And]), "lacks an operand"),
        (
            vec![Type::Int64, Type::Int32],
            filter(vec![Column(0), Column(1), Compare(Comparison::Less)]),
            "int64 and int32",
        ),
        (one(Type::Int64), filter(vec![Column(0), Matches { pattern: "a".into() }]), "a pattern of int64"),
        (
            one(Type::Text),
            filter(vec![Column(0), Matches { pattern }]),
            "1025 bytes of a pattern: at most 1024",
        ),
        (one(Type::Int64), filter(vec![Column(0), InList(list)]), "1025 values of a list: at most 1024"),
        (
            one(Type::Int64),
            filter(vec![Column(0), InList(vec![text("a")])]),
            "a list of text is searched for a value of int64",
        ),
        (
            one(Type::Int64),
            filter(vec![Literal(integer(Type::Int8, 128)), IsNull]),
            "the literal is not a valid int8",
        ),
        (one(Type::UInt8), Operator::Project(vec![vec![Column(0), Negate]]), "a signed type"),
        (
            one(DECIMAL),
            Operator::Project(vec![vec![Column(0), Column(0), Instruction::Binary(Calculation::Divide)]]),
            "cast to float64",
        ),
        (
            one(Type::Bytes),
            Operator::Project(vec![vec![Column(0), Cast(Type::Int64)]]),
            "no cast from bytes to int64",
        ),
        (one(Type::Boolean), filter(deep), "values on the stack: at most 64"),
        (one(Type::Boolean), filter(long), "1025 instructions: at most 1024"),
        (one(Type::FixedBytes(0)), Operator::Limit(1), "bytes(0) is not permitted"),
        (
            one(Type::Decimal { precision: 39, scale: 0 }),
            Operator::Limit(1),
            "decimal(39, 0) is not permitted",
        ),
        (vec![Type::Int8; COLUMNS_MAX + 1], Operator::Limit(1), "1025 columns: at most 1024"),
        (
            one(Type::Text),
            Operator::Group {
                keys: vec![],
                aggregates: vec![Aggregate { function: AggregateFunction::Sum, column: Some(0) }],
                groups: 1,
            },
            "cannot sum a column of type text",
        ),
        (
            one(Type::Text),
            Operator::Group { keys: vec![0], aggregates: vec![], groups: 0 },
            "0 groups at a time: 1 to",
        ),
        (one(Type::Text), Operator::Top { keys: vec![], rows: 1 }, "a top of 1 rows by 0 keys"),
        (
            one(Type::Text),
            Operator::Top {
                keys: vec![SortKey { column: 0, is_descending: false, nulls_first: false }; 2],
                rows: 1,
            },
            "column 0 is named twice",
        ),
        (
            one(Type::Text),
            Operator::Group { keys: vec![0, 0], aggregates: vec![], groups: 1 },
            "column 0 is named twice",
        ),
        (
            one(Type::Text),
            Operator::SemiJoin { keys: vec![0], lookup: JoinLookup::Bloom, number: 0, is_anti: true },
            "would lose rows",
        ),
    ];
    for (input, operator, wanted) in cases {
        let found = flaw_of(input, operator);
        assert!(found.contains(wanted), "{found:?} does not say {wanted:?}");
    }
    let operators = vec![Operator::Limit(1); OPERATORS_MAX + 1];
    assert!(
        Program::check(one(Type::Int8), operators).unwrap_err().what.contains("17 operators: at most 16")
    );
    let behind = vec![Operator::Limit(1), Operator::Limit(1)];
    let flaw = Program::check(one(Type::Int8), behind).unwrap_err();
    assert_eq!(flaw.operator, 0);
    assert!(flaw.what.contains("not the last operator"));
}

#[test]
fn columns_that_a_program_does_not_read_are_known() {
    use Instruction::*;
    let filter = Operator::Filter(vec![Column(1), IsNull]);
    let reads = |operators| Program::check(vec![Type::Int64; 4], operators).unwrap().reads();
    let project = Operator::Project(vec![vec![Column(3)]]);
    let group = Operator::Group {
        keys: vec![0],
        aggregates: vec![Aggregate { function: AggregateFunction::Count, column: None }],
        groups: 1,
    };
    assert_eq!(reads(vec![filter.clone()]), [true; 4], "whole rows leave");
    assert_eq!(reads(vec![filter.clone(), project]), [false, true, false, true]);
    assert_eq!(reads(vec![filter, group]), [true, true, false, false]);
}

#[test]
fn narrowed_program_reads_the_same_columns_at_their_new_places() {
    use Instruction::*;
    let group = Operator::Group {
        keys: vec![3],
        aggregates: vec![Aggregate { function: AggregateFunction::Sum, column: Some(1) }],
        groups: 1,
    };
    let filter = |column| Operator::Filter(vec![Column(column), IsNull]);
    let program = Program::check(columns(), vec![filter(10), group]).unwrap();
    let (narrowed, places) = program.narrowed();
    assert_eq!(places, [1, 3, 10]);
    assert_eq!(narrowed.input(), [Type::Int8, Type::Int32, Type::Float64]);
    assert_eq!(narrowed.operators()[0], filter(2));
    assert!(matches!(&narrowed.operators()[1], Operator::Group { keys, .. } if *keys == [1]));
    assert_eq!(narrowed.output(), program.output());
    for program in programs() {
        let (narrowed, places) = program.narrowed();
        assert_eq!(narrowed.output(), program.output());
        assert_eq!(places.len(), narrowed.input().len());
    }
}
