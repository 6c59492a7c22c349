//! Validation of Wasm modules: the rules of `spec/function.md`, "Wasm". Pure.

use farpool_wire::control::FunctionFault;
use farpool_wire::limits::FUNCTION_ITEMS_MAX;
use wasmparser::{ExternalKind, Parser, Payload, Validator, WasmFeatures};

/// Method by which a running function of a module is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interruption {
    /// Checks in the compiled code interrupt it. They look at a counter now and then.
    Inside,
    /// The end of its process interrupts it. Modules with vectors have no checks, which would make loops over vectors
    /// five times slower (ADR 0028).
    Outside,
}

/// Size of a page of linear memory, in bytes.
const PAGE_BYTES: u64 = 64 << 10;

/// Returns the WebAssembly features that modules may use: version 2.0 without references to host objects, which would
/// be useless because the host gives none.
pub fn features() -> WasmFeatures {
    WasmFeatures::WASM2 - WasmFeatures::GC_TYPES
}

/// Refuses a module with too many items of one kind before anything is allocated for them.
fn check_counts(bytes: &[u8]) -> Result<(), FunctionFault> {
    for payload in Parser::new(0).parse_all(bytes) {
        let count = match payload.map_err(|_| FunctionFault::Invalid)? {
            Payload::TypeSection(section) => section.count(),
            Payload::FunctionSection(section) => section.count(),
            Payload::TableSection(section) => section.count(),
            Payload::GlobalSection(section) => section.count(),
            Payload::ExportSection(section) => section.count(),
            Payload::ElementSection(section) => section.count(),
            Payload::DataSection(section) => section.count(),
            _ => 0,
        };
        if count > FUNCTION_ITEMS_MAX {
            return Err(FunctionFault::TooMany);
        }
    }
    Ok(())
}

/// Checks everything of a module but its entry (the function that the caller names). Returns how its functions are
/// interrupted.
pub fn check(bytes: &[u8], heap_bytes: u64) -> Result<Interruption, FunctionFault> {
    check_counts(bytes)?;
    Validator::new_with_features(features()).validate_all(bytes).map_err(|_| FunctionFault::Invalid)?;
    let mut memories = Vec::new();
    let mut exports_memory = false;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(|_| FunctionFault::Invalid)? {
            Payload::ImportSection(imports) if imports.count() > 0 => return Err(FunctionFault::Imports),
            Payload::StartSection { .. } => return Err(FunctionFault::Starts),
            Payload::MemorySection(section) => {
                memories =
                    section.into_iter().collect::<Result<_, _>>().map_err(|_| FunctionFault::Invalid)?;
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.map_err(|_| FunctionFault::Invalid)?;
                    exports_memory |= export.kind == ExternalKind::Memory && export.name == "memory";
                }
            }
            _ => {}
        }
    }
    let [memory] = memories[..] else { return Err(FunctionFault::Memory) };
    if !exports_memory || memory.memory64 {
        return Err(FunctionFault::Memory);
    }
    if memory.maximum.is_some() || memory.shared {
        return Err(FunctionFault::MemoryMaximum);
    }
    if memory.initial.saturating_mul(PAGE_BYTES) > heap_bytes {
        return Err(FunctionFault::MemoryMinimum);
    }
    let without_vectors = features() - WasmFeatures::SIMD;
    match Validator::new_with_features(without_vectors).validate_all(bytes) {
        Ok(_) => Ok(Interruption::Inside),
        Err(_) => Ok(Interruption::Outside),
    }
}
