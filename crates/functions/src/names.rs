//! What the functions of a module are called, as its name section says.

use farpool_wire::shown;
use std::collections::BTreeMap;
use wasmparser::{KnownCustom, Name, Parser, Payload};

/// Names that are read; a module has the functions it has, but nobody reads so many.
const NAMES_MAX: usize = 65_536;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Names(BTreeMap<u32, String>);

impl Names {
    /// Of a module's bytes. What cannot be read has no names.
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

    /// What a function is called: its name, or its number.
    pub fn name(&self, function: u32) -> String {
        match self.0.get(&function) {
            // Written by whoever wrote the module: not for a terminal to obey.
            Some(name) => shown(name).to_string().chars().take(200).collect(),
            None => format!("function {function}"),
        }
    }
}
