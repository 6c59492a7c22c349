//! `ALTER TABLE` of far tables: what a statement changes of their columns.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, TableReference, exec_err, plan_err};
use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::planner::{IdentNormalizer, object_name_to_table_reference};
use datafusion::sql::sqlparser::ast::{
    AlterColumnOperation, AlterTable, AlterTableOperation, ColumnDef, ColumnOption, DataType as SqlType,
    Ident, Statement as SqlStatement,
};
use farpool::table::ColumnChange;

/// Forms of the statement that are permitted.
const PERMITTED: &str = "permitted are ADD COLUMN c TYPE, DROP COLUMN c, RENAME COLUMN a TO b, ALTER COLUMN c TYPE \
                         type and ALTER COLUMN c DROP NOT NULL";

/// Changes of the columns of a table.
pub(crate) struct Alteration {
    /// Name of the table.
    pub(crate) table: TableReference,
    /// True if there is nothing to do without such a table.
    pub(crate) if_exists: bool,
    /// Changes, in the order of the statement.
    pub(crate) changes: Vec<ColumnChange>,
}

impl Alteration {
    /// Reads a statement. `None` if it is another one than `ALTER TABLE`.
    ///
    /// Errors: it has a form that is not permitted for far tables.
    pub(crate) async fn of(state: &SessionState, statement: &Statement) -> Result<Option<Alteration>> {
        let Statement::Statement(statement) = statement else { return Ok(None) };
        let SqlStatement::AlterTable(alter) = statement.as_ref() else { return Ok(None) };
        let AlterTable { name, if_exists, operations, location, on_cluster, .. } = alter;
        if location.is_some() || on_cluster.is_some() {
            return plan_err!("{alter}: {PERMITTED}");
        }
        let is_normalized = state.config_options().sql_parser.enable_ident_normalization;
        let table = object_name_to_table_reference(name.clone(), is_normalized)?;
        let names = IdentNormalizer::new(is_normalized);
        let mut changes = Vec::with_capacity(operations.len());
        for operation in operations {
            match operation {
                AlterTableOperation::AddColumn {
                    column_def: ColumnDef { name, data_type, options },
                    if_not_exists: false,
                    column_position: None,
                    ..
                } => {
                    if let Some(other) = options.iter().find(|option| option.option != ColumnOption::Null) {
                        return plan_err!(
                            "{operation}: {other} is not permitted, as the rows that the table has already have \
                             NULL in a column that is added"
                        );
                    }
                    let of = arrow_type(state, data_type).await?;
                    changes.push(ColumnChange::Add { name: names.normalize(name.clone()), of });
                }
                AlterTableOperation::DropColumn { column_names, if_exists: false, .. } => {
                    let drop = |name: &Ident| ColumnChange::Drop { name: names.normalize(name.clone()) };
                    changes.extend(column_names.iter().map(drop));
                }
                AlterTableOperation::RenameColumn { old_column_name, new_column_name } => {
                    let name = names.normalize(old_column_name.clone());
                    changes.push(ColumnChange::Rename { name, to: names.normalize(new_column_name.clone()) });
                }
                AlterTableOperation::AlterColumn { column_name, op } => {
                    let name = names.normalize(column_name.clone());
                    changes.push(match op {
                        AlterColumnOperation::SetDataType { data_type, using: None, .. } => {
                            ColumnChange::Widen { name, to: arrow_type(state, data_type).await? }
                        }
                        AlterColumnOperation::DropNotNull => ColumnChange::AllowNulls { name },
                        _ => return plan_err!("{operation}: {PERMITTED}"),
                    });
                }
                _ => return plan_err!("{operation}: {PERMITTED}"),
            }
        }
        Ok(Some(Alteration { table, if_exists: *if_exists, changes }))
    }

    /// Refuses the statement: the table is none of the pool.
    pub(crate) fn refuse<T>(&self) -> Result<T> {
        exec_err!("there is no far table {}, and ALTER TABLE changes far tables only", self.table)
    }
}

/// Returns the type that DataFusion gives a column of an SQL type.
async fn arrow_type(state: &SessionState, of: &SqlType) -> Result<DataType> {
    let plan = state.create_logical_plan(&format!("SELECT CAST(NULL AS {of})")).await?;
    Ok(plan.schema().field(0).data_type().clone())
}
