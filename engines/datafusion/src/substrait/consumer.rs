//! Wraps DataFusion's Substrait reader with checks of what it assumes.
//!
//! DataFusion's reader is correct for plans of well-behaved producers. It panics if a message lacks a field or has an
//! index out of range, and a few bytes can encode an enormous plan. Each relation is therefore checked as it is read:
//! its inputs exist, its output columns exist, and the number of relations and columns is within limits. Long column
//! names are replaced, because DataFusion names a column by its whole expression: ten stacked projections of `x + x`
//! would double the name ten times.

use super::{PLAN_COLUMNS_MAX, PLAN_EXPANSION_MAX, PLAN_RELATIONS_MAX};
use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result, TableReference, plan_err};
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, cast, expr, lit,
};
use datafusion_substrait::extensions::Extensions;
use datafusion_substrait::logical_plan::consumer::{
    DefaultSubstraitConsumer, SubstraitConsumer, from_aggregate_rel, from_cast, from_cross_rel,
    from_exchange_rel, from_fetch_rel, from_field_reference, from_filter_rel, from_if_then, from_join_rel,
    from_project_rel, from_read_rel, from_scalar_function, from_set_rel, from_singular_or_list,
    from_sort_rel, from_substrait_rel,
};
use datafusion_substrait::substrait::proto::expression::field_reference::{ReferenceType, RootType};
use datafusion_substrait::substrait::proto::expression::{
    Cast, FieldReference, IfThen, ReferenceSegment, ScalarFunction, SingularOrList, reference_segment,
};
use datafusion_substrait::substrait::proto::function_argument::ArgType;
use datafusion_substrait::substrait::proto::read_rel::ReadType;
use datafusion_substrait::substrait::proto::rel_common::EmitKind;
use datafusion_substrait::substrait::proto::r#type::Kind;
use datafusion_substrait::substrait::proto::{
    AggregateRel, CrossRel, ExchangeRel, FetchRel, FilterRel, JoinRel, Plan, ProjectRel, ReadRel, Rel,
    RelCommon, SetRel, SortField, SortRel, Type, plan_rel,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Longest name of a column in bytes that is kept. A longer name is replaced by a short one.
const NAME_BYTES_MAX: usize = 256;
/// Nesting depth of exclusive ors, at most: DataFusion reads each as an expression with two copies of both its sides.
const XOR_NESTING_MAX: usize = 4;
/// Fields of dates and times that Substrait and `date_part` both define as whole numbers.
const PARTS: [&str; 7] = ["YEAR", "QUARTER", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"];

pub(super) struct Checked<'a> {
    inner: DefaultSubstraitConsumer<'a>,
    extensions: &'a Extensions,
    state: &'a SessionState,
    relations: AtomicUsize,
    /// Number of exclusive ors around the expression that is being read.
    xors: AtomicUsize,
}

impl<'a> Checked<'a> {
    pub(super) fn new(extensions: &'a Extensions, state: &'a SessionState) -> Checked<'a> {
        let inner = DefaultSubstraitConsumer::new(extensions, state);
        Checked { inner, extensions, state, relations: AtomicUsize::new(0), xors: AtomicUsize::new(0) }
    }
}

impl Checked<'_> {
    /// Reads `extract` as a call of `date_part`. DataFusion cannot read it, because the field is an enumeration
    /// argument in Substrait and not a value.
    async fn part_of_a_date(&self, function: &ScalarFunction, input: &DFSchema) -> Result<Expr> {
        let (mut words, mut values) = (Vec::new(), Vec::new());
        for argument in &function.arguments {
            match &argument.arg_type {
                Some(ArgType::Enum(word)) => words.push(word.as_str()),
                Some(ArgType::Value(value)) => values.push(value),
                _ => {
                    return plan_err!("extract has an argument that is neither a part of a date nor a value");
                }
            }
        }
        let ([part, rest @ ..], [value]) = (&words[..], &values[..]) else {
            return plan_err!(
                "extract has {} parts and {} values: exactly one of each is needed",
                words.len(),
                values.len()
            );
        };
        if !PARTS.contains(part) || !matches!(rest, [] | ["ONE"]) {
            return plan_err!(
                "extract of {} is not supported: {}, counted from one, are",
                words.join(" "),
                PARTS.join(", ")
            );
        }
        let value = self.consume_expression(value, input).await?;
        let arguments = vec![lit(part.to_ascii_lowercase()), value];
        let part =
            Expr::ScalarFunction(expr::ScalarFunction::new_udf(self.state.udf("date_part")?, arguments));
        // Substrait's `extract` always returns an int64.
        Ok(cast(part, DataType::Int64))
    }
}

/// Makes a division one of floats if both sides are whole numbers and the producer declares a float result. The
/// producer ibis writes its `/` like that, without a cast.
fn as_declared(read: Expr, function: &ScalarFunction, input: &DFSchema) -> Result<Expr> {
    let declared = function.output_type.as_ref().and_then(|declared| declared.kind.as_ref());
    let is_whole = |side: &Expr| side.get_type(input).map(|of| of.is_integer());
    match (read, declared) {
        (
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide, right }),
            Some(Kind::Fp64(_) | Kind::Fp32(_)),
        ) if is_whole(&left)? && is_whole(&right)? => {
            Ok(cast(*left, DataType::Float64) / cast(*right, DataType::Float64))
        }
        (read, _) => Ok(read),
    }
}

/// Checks that a plan has exactly one root, with an input.
pub(super) fn check_roots(plan: &Plan) -> Result<()> {
    match &plan.relations[..] {
        [one] => match &one.rel_type {
            Some(plan_rel::RelType::Root(root)) if root.input.is_none() => missing("the root", "its input"),
            Some(_) => Ok(()),
            None => missing("the plan", "its relation"),
        },
        many => plan_err!("{} relations at the root: 1 is permitted", many.len()),
    }
}

fn missing<T>(of: &str, what: &str) -> Result<T> {
    plan_err!("{of} lacks {what}")
}

fn check_sorts<'s>(of: &str, sorts: impl IntoIterator<Item = &'s SortField>) -> Result<()> {
    match sorts.into_iter().any(|sort| sort.expr.is_none()) {
        true => missing(of, "its sort expression"),
        false => Ok(()),
    }
}

/// Returns the relation, if the output columns that its message selects exist in it.
fn left(of: &str, common: Option<&RelCommon>, plan: LogicalPlan) -> Result<LogicalPlan> {
    let columns = plan.schema().fields().len();
    let emit = match common.and_then(|common| common.emit_kind.as_ref()) {
        Some(EmitKind::Emit(emit)) => &emit.output_mapping[..],
        _ => &[],
    };
    check_columns(of, columns.max(emit.len()))?;
    if let Some(wrong) =
        emit.iter().find(|index| usize::try_from(**index).map_or(true, |index| index >= columns))
    {
        return plan_err!("{of} leaves its column {wrong}: it has {columns}");
    }
    Ok(plan)
}

fn check_columns(of: &str, columns: usize) -> Result<()> {
    match columns > PLAN_COLUMNS_MAX {
        true => plan_err!("{of} has {columns} columns: up to {PLAN_COLUMNS_MAX} are permitted"),
        false => Ok(()),
    }
}

/// Renames columns with long names.
fn with_short_names(plan: LogicalPlan) -> Result<LogicalPlan> {
    let is_long = |name: &str| name.len() > NAME_BYTES_MAX;
    if !plan.schema().fields().iter().any(|field| is_long(field.name())) {
        return Ok(plan);
    }
    let short = |(at, (qualifier, field)): (usize, (Option<&TableReference>, &Arc<Field>))| {
        let column = Expr::Column(Column::new(qualifier.cloned(), field.name()));
        if is_long(field.name()) { column.alias(format!("column {at}")) } else { column }
    };
    let columns: Vec<Expr> = plan.schema().iter().enumerate().map(short).collect();
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}

/// Checks that no expression becomes larger than [`PLAN_EXPANSION_MAX`] when filters are pushed below projections.
pub(super) fn check_expansion(plan: &LogicalPlan) -> Result<()> {
    parts_of(plan).map(|_| ())
}

/// Returns for each output column the number of nodes of its expression, after columns of projections are replaced by
/// their expressions.
fn parts_of(plan: &LogicalPlan) -> Result<Vec<u64>> {
    let below: Vec<Vec<u64>> = plan.inputs().into_iter().map(parts_of).collect::<Result<_>>()?;
    let columns = plan.schema().fields().len();
    let parts: Vec<u64> = match (plan, &below[..]) {
        (LogicalPlan::Projection(projection), [below]) => {
            let names = columns_by_name(projection.input.schema());
            let count = |expr: &Expr| {
                let mut parts = 0_u64;
                expr.apply(|part| {
                    let of = match part {
                        Expr::Column(column) => names.get(column).and_then(|at| below.get(*at)).copied(),
                        _ => None,
                    };
                    parts = parts.saturating_add(of.unwrap_or(1));
                    Ok(TreeNodeRecursion::Continue)
                })?;
                Ok(parts)
            };
            projection.expr.iter().map(count).collect::<Result<_>>()?
        }
        // Other relations pass their input's columns on, or compute new ones that are not replaced by expressions.
        (_, below) => {
            let through: Vec<u64> = below.iter().flatten().copied().collect();
            if through.len() == columns { through } else { vec![1; columns] }
        }
    };
    match parts.iter().max() {
        Some(most) if *most > PLAN_EXPANSION_MAX => {
            plan_err!(
                "stacked projections expand to an expression of {most} parts: up to {PLAN_EXPANSION_MAX} are permitted"
            )
        }
        _ => Ok(parts),
    }
}

fn columns_by_name(schema: &DFSchema) -> HashMap<Column, usize> {
    schema.columns().into_iter().enumerate().map(|(at, column)| (column, at)).collect()
}

#[async_trait]
impl SubstraitConsumer for Checked<'_> {
    async fn resolve_table_ref(&self, table_ref: &TableReference) -> Result<Option<Arc<dyn TableProvider>>> {
        self.inner.resolve_table_ref(table_ref).await
    }

    fn get_extensions(&self) -> &Extensions {
        self.extensions
    }

    fn get_function_registry(&self) -> &impl FunctionRegistry {
        self.state
    }

    async fn consume_rel(&self, rel: &Rel) -> Result<LogicalPlan> {
        if self.relations.fetch_add(1, Ordering::Relaxed) >= PLAN_RELATIONS_MAX {
            return plan_err!("more than {PLAN_RELATIONS_MAX} relations, which is the limit");
        }
        from_substrait_rel(self, rel).await
    }

    async fn consume_read(&self, rel: &ReadRel) -> Result<LogicalPlan> {
        if let Some(ReadType::LocalFiles(_)) = rel.read_type {
            return plan_err!("reads local files: only named tables are permitted");
        }
        let columns = rel.base_schema.as_ref().and_then(|schema| schema.r#struct.as_ref());
        let columns = columns.map_or(0, |columns| columns.types.len());
        let chosen = rel.projection.as_ref().and_then(|mask| mask.select.as_ref());
        let chosen = chosen.map_or(&[][..], |select| &select.struct_items[..]);
        check_columns("a read", columns.max(chosen.len()))?;
        let is_there = |field: i32| usize::try_from(field).is_ok_and(|field| field < columns);
        if let Some(wrong) = chosen.iter().find(|item| !is_there(item.field)) {
            return plan_err!("a read chooses its column {}: it has {columns}", wrong.field);
        }
        left("a read", rel.common.as_ref(), from_read_rel(self, rel).await?)
    }

    async fn consume_filter(&self, rel: &FilterRel) -> Result<LogicalPlan> {
        left("a filter", rel.common.as_ref(), from_filter_rel(self, rel).await?)
    }

    async fn consume_fetch(&self, rel: &FetchRel) -> Result<LogicalPlan> {
        left("a limit", rel.common.as_ref(), from_fetch_rel(self, rel).await?)
    }

    async fn consume_aggregate(&self, rel: &AggregateRel) -> Result<LogicalPlan> {
        let functions = rel.measures.iter().filter_map(|measure| measure.measure.as_ref());
        check_sorts("an aggregate", functions.flat_map(|function| &function.sorts))?;
        let groupings = rel.groupings.iter().flat_map(|grouping| &grouping.expression_references);
        let keys = rel.grouping_expressions.len();
        if let Some(wrong) = groupings.copied().find(|key| *key as usize >= keys) {
            return plan_err!("an aggregate groups by its expression {wrong}: it has {keys}");
        }
        let plan = from_aggregate_rel(self, rel).await?;
        left("an aggregate", rel.common.as_ref(), with_short_names(plan)?)
    }

    async fn consume_sort(&self, rel: &SortRel) -> Result<LogicalPlan> {
        check_sorts("a sort", &rel.sorts)?;
        left("a sort", rel.common.as_ref(), from_sort_rel(self, rel).await?)
    }

    async fn consume_join(&self, rel: &JoinRel) -> Result<LogicalPlan> {
        if rel.left.is_none() || rel.right.is_none() {
            return missing("a join", "one of its sides");
        }
        left("a join", rel.common.as_ref(), from_join_rel(self, rel).await?)
    }

    async fn consume_project(&self, rel: &ProjectRel) -> Result<LogicalPlan> {
        check_columns("a projection", rel.expressions.len())?;
        let plan = from_project_rel(self, rel).await?;
        left("a projection", rel.common.as_ref(), with_short_names(plan)?)
    }

    async fn consume_set(&self, rel: &SetRel) -> Result<LogicalPlan> {
        left("a set operation", rel.common.as_ref(), from_set_rel(self, rel).await?)
    }

    async fn consume_cross(&self, rel: &CrossRel) -> Result<LogicalPlan> {
        if rel.left.is_none() || rel.right.is_none() {
            return missing("a cross product", "one of its sides");
        }
        left("a cross product", rel.common.as_ref(), from_cross_rel(self, rel).await?)
    }

    async fn consume_exchange(&self, rel: &ExchangeRel) -> Result<LogicalPlan> {
        left("an exchange", rel.common.as_ref(), from_exchange_rel(self, rel).await?)
    }

    async fn consume_field_reference(&self, field: &FieldReference, input: &DFSchema) -> Result<Expr> {
        let outer = match field.root_type {
            Some(RootType::OuterReference(outer)) => self.get_outer_schema(outer.steps_out as usize),
            _ => None,
        };
        let columns = outer.as_deref().unwrap_or(input).fields().len();
        if let Some(ReferenceType::DirectReference(ReferenceSegment {
            reference_type: Some(reference_segment::ReferenceType::StructField(part)),
        })) = &field.reference_type
            && !matches!(
                field.root_type,
                Some(RootType::LambdaParameterReference(_) | RootType::Expression(_))
            )
            && usize::try_from(part.field).map_or(true, |field| field >= columns)
        {
            return plan_err!("an expression refers to column {}: there are {columns}", part.field);
        }
        from_field_reference(self, field, input).await
    }

    async fn consume_scalar_function(&self, function: &ScalarFunction, input: &DFSchema) -> Result<Expr> {
        let name = self.extensions.functions.get(&function.function_reference);
        match name.and_then(|name| name.split(':').next()) {
            Some("xor") => {}
            Some("extract") => return self.part_of_a_date(function, input).await,
            Some("divide") => {
                let read = from_scalar_function(self, function, input).await?;
                return as_declared(read, function, input);
            }
            _ => return from_scalar_function(self, function, input).await,
        }
        if self.xors.fetch_add(1, Ordering::Relaxed) >= XOR_NESTING_MAX {
            return plan_err!("xor within xor: up to {XOR_NESTING_MAX} levels are permitted");
        }
        let read = from_scalar_function(self, function, input).await;
        self.xors.fetch_sub(1, Ordering::Relaxed);
        read
    }

    async fn consume_if_then(&self, case: &IfThen, input: &DFSchema) -> Result<Expr> {
        // The first clause may lack a result: then it holds the value with which the conditions of the others are
        // compared.
        let clauses = case.ifs.iter().enumerate();
        if clauses.into_iter().any(|(at, clause)| clause.r#if.is_none() || (at > 0 && clause.then.is_none()))
        {
            return missing("a conditional expression", "a condition or its value");
        }
        from_if_then(self, case, input).await
    }

    async fn consume_singular_or_list(&self, list: &SingularOrList, input: &DFSchema) -> Result<Expr> {
        if list.value.is_none() {
            return missing("a list of options", "the value");
        }
        from_singular_or_list(self, list, input).await
    }

    async fn consume_cast(&self, cast: &Cast, input: &DFSchema) -> Result<Expr> {
        if cast.input.is_none() {
            return missing("a cast", "its input");
        }
        from_cast(self, cast, input).await
    }

    fn push_outer_schema(&self, schema: Arc<DFSchema>) {
        self.inner.push_outer_schema(schema);
    }

    fn pop_outer_schema(&self) {
        self.inner.pop_outer_schema();
    }

    fn get_outer_schema(&self, steps_out: usize) -> Option<Arc<DFSchema>> {
        self.inner.get_outer_schema(steps_out)
    }

    fn push_lambda_parameters(&self, parameters: &[Type], input: &DFSchema) -> Result<Vec<String>> {
        self.inner.push_lambda_parameters(parameters, input)
    }

    fn pop_lambda_parameters(&self) {
        self.inner.pop_lambda_parameters();
    }

    fn lambda_variable(&self, steps_out: usize, field: usize) -> Result<Expr> {
        self.inner.lambda_variable(steps_out, field)
    }
}
