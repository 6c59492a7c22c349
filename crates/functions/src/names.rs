//! Names of the functions of a Wasm module, from its name section.

use farpool_wire::shown;
use std::collections::BTreeMap;
use wasmparser::{KnownCustom, Name, Parser, Payload};

/// Largest number of names of a module that are read.
const NAMES_MAX: usize = 65_536;

/// Names of a module's functions, by the index of the function.
#[derive(Clone, Debug, Default)]
pub struct Names(BTreeMap<u32, String>);

impl Names {
    /// Reads the names from the bytes of a module. Names that cannot be decoded are left out.
    pub fn of_module(bytes: &[u8]) -> Names {
        let mut names = BTreeMap::new();
        for payload in Parser::new(0).parse_all(bytes) {
            let Ok(payload) = payload else { break };
            let Payload::CustomSection(section) = payload else { continue };
            let KnownCustom::Name(reader) = section.as_known() else { continue };
            for part in reader.into_iter().flatten() {
                let Name::Function(functions) = part else { continue };
                let named = functions.into_iter().flatten().take(NAMES_MAX);
                names.extend(named.map(|naming| (naming.index, naming.name.to_owned())));
            }
        }
        Names(names)
    }

    /// Returns the name of a function for printing, or "function" and its index if it has none.
    pub fn name(&self, function: u32) -> String {
        match self.0.get(&function) {
            // The author of the module chose the name, so it is escaped for terminals and truncated.
            Some(name) => shown(name).to_string().chars().take(200).collect(),
            None => format!("function {function}"),
        }
    }
}
