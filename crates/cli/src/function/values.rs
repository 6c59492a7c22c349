//! Arguments of functions as given on the command line, and formats of outputs.

use crate::input;
use farpool::function::abi::hex;
use farpool_wire::limits::FUNCTION_ARGS_BYTES_MAX;
use serde_json::{Value, json};

/// Bytes of one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument(pub(crate) Vec<u8>);

/// Parses an argument: `TYPE:VALUE`, or `@FILE` for the bytes of a file.
pub(crate) fn argument(text: &str) -> Result<Argument, String> {
    if let Some(file) = text.strip_prefix('@') {
        let read = input::file(file.as_ref(), FUNCTION_ARGS_BYTES_MAX);
        return read.map(Argument).map_err(|error| format!("{file}: {error}"));
    }
    let wrong = |what: &str| format!("{text:?}: {what}");
    let Some((kind, value)) = text.split_once(':') else {
        return Err(wrong("TYPE:VALUE or @FILE is needed, such as u64:4096"));
    };
    let no_number = |_| wrong("the value is not a number of this type");
    macro_rules! number {
        ($type:ty) => {
            value.parse::<$type>().map(|number| number.to_le_bytes().to_vec()).map_err(|_| no_number(()))
        };
    }
    let bytes = match kind {
        "u64" => number!(u64),
        "i64" => number!(i64),
        "u32" => number!(u32),
        "i32" => number!(i32),
        "f64" => number!(f64),
        "f32" => number!(f32),
        "text" => Ok(value.as_bytes().to_vec()),
        "hex" => digits(value).ok_or_else(|| wrong("an even number of hexadecimal digits is needed")),
        _ => Err(wrong("one of u64, i64, u32, i32, f64, f32, text and hex is permitted")),
    };
    bytes.map(Argument)
}

/// Parses hexadecimal digits into bytes. `None` if a digit is missing or invalid.
pub(crate) fn digits(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            (pair.len() == 2).then(|| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())?
        })
        .collect()
}

/// Format of a function's output, as `--show` selects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Hex,
    Text,
    U64,
    I64,
    U32,
    I32,
    F64,
    F32,
    Raw,
}

/// Parses a value of `--show`.
pub(crate) fn shown(text: &str) -> Result<Shown, String> {
    Ok(match text {
        "hex" => Shown::Hex,
        "text" => Shown::Text,
        "u64" => Shown::U64,
        "i64" => Shown::I64,
        "u32" => Shown::U32,
        "i32" => Shown::I32,
        "f64" => Shown::F64,
        "f32" => Shown::F32,
        "raw" => Shown::Raw,
        _ => return Err("one of hex, text, u64, i64, u32, i32, f64, f32 and raw is permitted".to_owned()),
    })
}

impl Shown {
    /// Returns the output as numbers of this type. Bytes at the end that are too few for a number are left out. `None`
    /// for formats without numbers.
    fn numbers(self, output: &[u8]) -> Option<Vec<Value>> {
        macro_rules! numbers {
            ($type:ty) => {
                Some(output.as_chunks().0.iter().map(|bytes| json!(<$type>::from_le_bytes(*bytes))).collect())
            };
        }
        match self {
            Shown::U64 => numbers!(u64),
            Shown::I64 => numbers!(i64),
            Shown::U32 => numbers!(u32),
            Shown::I32 => numbers!(i32),
            Shown::F64 => numbers!(f64),
            Shown::F32 => numbers!(f32),
            Shown::Hex | Shown::Text | Shown::Raw => None,
        }
    }

    /// Formats an output as JSON.
    pub(crate) fn json(self, output: &[u8]) -> Value {
        match self {
            Shown::Text => json!(String::from_utf8_lossy(output)),
            Shown::Hex | Shown::Raw => json!(hex(output)),
            _ => json!(self.numbers(output)),
        }
    }

    /// Formats an output as lines for a terminal. Control characters are escaped.
    pub(crate) fn lines(self, output: &[u8]) -> Vec<String> {
        match self {
            Shown::Text => {
                let text = String::from_utf8_lossy(output);
                text.lines().map(|line| farpool::shown(line).to_string()).collect()
            }
            Shown::Hex | Shown::Raw => output
                .chunks(16)
                .map(|line| line.iter().map(|byte| format!("{byte:02x} ")).collect())
                .collect(),
            _ => self.numbers(output).unwrap_or_default().iter().map(Value::to_string).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_bytes_and_what_is_wrong_is_said() {
        assert_eq!(argument("u64:258"), Ok(Argument(vec![2, 1, 0, 0, 0, 0, 0, 0])));
        assert_eq!(argument("i32:-1"), Ok(Argument(vec![255; 4])));
        assert_eq!(argument("text:a:b"), Ok(Argument(b"a:b".to_vec())));
        assert_eq!(argument("hex:00ff"), Ok(Argument(vec![0, 255])));
        for wrong in ["5", "u64:-1", "hex:0", "hex:zz", "i128:1", "@/nowhere", "@/dev/zero"] {
            assert!(argument(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn outputs_are_shown_as_asked() {
        let output = [1u64, 2].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(Shown::U64.lines(&output), ["1", "2"]);
        assert_eq!(Shown::U64.json(&output), json!([1, 2]));
        assert_eq!(Shown::Text.lines(b"a\x1b[2Jb\nc"), ["a\\u{1b}[2Jb", "c"]);
        assert_eq!(Shown::Hex.lines(&output).len(), 1);
    }
}
