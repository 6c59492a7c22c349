//! Wraps DataFusion's Substrait writer so that its plans are shallow and deterministic.
//!
//! DataFusion represents a WHERE with a hundred conditions as a chain of ANDs, a hundred deep. Substrait's `and` and
//! `or` take any number of arguments, so such a chain is written as one call. Readers refuse messages that are nested
//! too deep.

use datafusion::common::{DFSchemaRef, Result, plan_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};
use datafusion_substrait::extensions::Extensions;
use datafusion_substrait::logical_plan::producer::{
    DefaultSubstraitProducer, SubstraitProducer, from_binary_expr, operator_to_name,
};
use datafusion_substrait::substrait::proto::expression::{RexType, ScalarFunction};
use datafusion_substrait::substrait::proto::function_argument::ArgType;
use datafusion_substrait::substrait::proto::r#type::{Boolean, Kind, Nullability};
use datafusion_substrait::substrait::proto::{
    Expression, FunctionArgument, Plan, PlanRel, RelRoot, Type, plan_rel,
};
use datafusion_substrait::substrait::version;
use prost::Message;

/// Returns the plan as a Substrait message.
pub(super) fn plan(state: &SessionState, plan: &LogicalPlan) -> Result<Plan> {
    let mut producer = Shallow { inner: DefaultSubstraitProducer::new(state) };
    let input = *producer.handle_plan(plan)?;
    // Substrait would require the names of the fields of structs too.
    if let Some(nested) = plan.schema().fields().iter().find(|field| field.data_type().is_nested()) {
        return plan_err!(
            "column {:?} is of type {}: nested types are not supported in Substrait plans",
            nested.name(),
            nested.data_type()
        );
    }
    let names = plan.schema().fields().iter().map(|field| field.name().clone()).collect();
    let root = RelRoot { input: Some(input), names };
    let extensions = producer.get_extensions();
    let mut message = Plan {
        version: Some(version::version_with_producer("farpool")),
        extensions: extensions.into(),
        relations: vec![PlanRel { rel_type: Some(plan_rel::RelType::Root(root)) }],
        ..Plan::default()
    };
    // The extensions come from a hash map; sorting them makes their order deterministic.
    message.extensions.sort_by_cached_key(Message::encode_to_vec);
    Ok(message)
}

struct Shallow<'a> {
    inner: DefaultSubstraitProducer<'a>,
}

impl SubstraitProducer for Shallow<'_> {
    fn register_function(&mut self, signature: String) -> u32 {
        self.inner.register_function(signature)
    }

    fn register_type(&mut self, name: String) -> u32 {
        self.inner.register_type(name)
    }

    fn get_extensions(self) -> Extensions {
        self.inner.get_extensions()
    }

    fn handle_binary_expr(&mut self, expr: &BinaryExpr, schema: &DFSchemaRef) -> Result<Expression> {
        if !matches!(expr.op, Operator::And | Operator::Or) {
            return from_binary_expr(self, expr, schema);
        }
        let (mut open, mut arguments) = (vec![&*expr.right, &*expr.left], Vec::new());
        while let Some(part) = open.pop() {
            match part {
                Expr::BinaryExpr(of) if of.op == expr.op => open.extend([&*of.right, &*of.left]),
                whole => {
                    let value = self.handle_expr(whole, schema)?;
                    arguments.push(FunctionArgument { arg_type: Some(ArgType::Value(value)) });
                }
            }
        }
        let boolean = Boolean { type_variation_reference: 0, nullability: Nullability::Nullable as i32 };
        let function_reference = self.register_function(operator_to_name(expr.op).to_owned());
        let function = ScalarFunction {
            function_reference,
            arguments,
            output_type: Some(Type { kind: Some(Kind::Bool(boolean)) }),
            ..ScalarFunction::default()
        };
        Ok(Expression { rex_type: Some(RexType::ScalarFunction(function)) })
    }
}
