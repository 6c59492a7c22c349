//! Plans as Substrait: files that they come from and go to.

use farpool_command::exit::Failure;
use farpool_datafusion::PLAN_BYTES_MAX;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// The bytes of a plan, and of what is too large to be one no more than shows it.
pub(crate) fn read(from: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let most = PLAN_BYTES_MAX as u64 + 1;
    let read = match from.as_os_str() == "-" {
        true => std::io::stdin().take(most).read_to_end(&mut bytes),
        false => File::open(from).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    let failed = |said: String| Failure::Usage(format!("--substrait {}: {said}", from.display()));
    match read {
        Ok(_) if bytes.len() > PLAN_BYTES_MAX => {
            Err(failed(format!("up to {PLAN_BYTES_MAX} bytes are permitted, and there are more")))
        }
        Ok(_) => Ok(bytes),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Writes the bytes of a plan.
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
