//! Reads and writes plans as Substrait.

use farpool_command::exit::Failure;
use farpool_command::input;
use farpool_datafusion::PLAN_BYTES_MAX;
use std::io::Write;
use std::path::Path;

/// Reads a plan from a file or the standard input.
pub(crate) fn read(from: &Path) -> Result<Vec<u8>, Failure> {
    input::file_or_standard(from, PLAN_BYTES_MAX)
        .map_err(|error| Failure::Usage(format!("--substrait {}: {error}", from.display())))
}

/// Writes a plan to a file or the standard output.
pub(crate) fn write(to: &Path, plan: &[u8]) -> Result<(), Failure> {
    if to.as_os_str() == "-" {
        let mut out = std::io::stdout().lock();
        out.write_all(plan)?;
        out.flush()?;
        return Ok(());
    }
    std::fs::write(to, plan)
        .map_err(|error| Failure::Usage(format!("--to-substrait {}: {error}", to.display())))
}
