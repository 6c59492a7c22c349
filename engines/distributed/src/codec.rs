//! Encodes scans of far tables, and outputs of stages that are kept, in DataFusion's protobuf of plans.

use crate::message::{Identity, Opened, Scan};
use crate::stage_output::StageOutputExec;
use crate::tables::Tables;
use datafusion::common::{Result, plan_err};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use farpool::Pool;
use farpool_datafusion::FarSource;
use farpool_host::{Event, Host, Machine};
use std::sync::Arc;
use tokio::runtime::Handle;

/// Encoding of an operator that keeps the output of a stage.
const STAGE_OUTPUT: &[u8] = b"stage output";

/// Encodes scans, and decodes them over the tables of a pool. Dynamic filters are not sent: they save work, and never
/// change the answer.
#[derive(Clone, Debug)]
pub struct ScanCodec {
    tables: Tables,
    /// Threads that run the tasks of a worker. `None` if they are those that decode.
    threads: Option<Handle>,
}

impl ScanCodec {
    /// Makes a codec over the tables of this pool.
    pub fn new(pool: &Pool) -> ScanCodec {
        ScanCodec { tables: Tables::new(pool.clone()), threads: None }
    }

    /// Returns a codec whose tasks run on these threads.
    pub(crate) fn running_on(self, threads: Handle) -> ScanCodec {
        ScanCodec { threads: Some(threads), ..self }
    }
}

/// Returns `plan` as a scan of a far table. `None` if it is another operator.
pub(crate) fn source_of(plan: &dyn ExecutionPlan) -> Option<&FarSource> {
    plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FarSource>()
}

impl PhysicalExtensionCodec for ScanCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        _context: &TaskContext,
        _converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if let (STAGE_OUTPUT, [input]) = (bytes, inputs) {
            return Ok(Arc::new(StageOutputExec::new(Arc::clone(input), self.threads.clone())));
        }
        if !inputs.is_empty() {
            return plan_err!("a scan of a far table with {} inputs: it has none", inputs.len());
        }
        let scan = Scan::take(bytes)?;
        let table = self.tables.table(&scan.table, scan.identity, &scan.opened)?.traced(scan.trace);
        let message = format!("scans {} row groups of {}", scan.groups.len(), farpool::shown(&scan.table));
        Machine.log(&Event::debug("scan_received", message).trace(scan.trace));
        let source = FarSource::of_program(table, &scan.program, scan.schema, scan.groups, scan.partitions)?;
        Ok(DataSourceExec::from_data_source(match scan.placement {
            Some(placement) => source.placed(placement),
            None => source,
        }))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        out: &mut Vec<u8>,
        _converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        if node.is::<StageOutputExec>() {
            out.extend(STAGE_OUTPUT);
            return Ok(());
        }
        let Some(source) = source_of(node.as_ref()) else {
            return plan_err!("{} is not a scan of a far table", node.name());
        };
        let (program, schema) = source.program()?;
        let scan = Scan {
            table: source.table().name().to_owned(),
            identity: Identity::of(source.table()),
            opened: Opened::of(source.table()),
            program,
            schema,
            groups: source.groups().to_vec(),
            partitions: source.partitions(),
            placement: source.placement(),
            trace: source.table().trace(),
        };
        scan.put(out)
    }
}
