//! Converts Python's values and types to those of queries.

use crate::errors;
use farpool::operators::limits::DECIMAL_DIGITS_MAX;
use farpool::operators::{Literal, Scalar, TimeUnit, Type, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple};

const PERMITTED: &str = "None, bool, int, float, str, bytes, Decimal, date and datetime are permitted";

/// Python's ordinal of 1970-01-01: the number of days since 0001-01-01, which is day 1.
const EPOCH_ORDINAL: i128 = 719_163;

/// Converts a Python value to a literal.
pub(crate) fn literal(value: &Bound<'_, PyAny>) -> PyResult<Literal> {
    let py = value.py();
    let wrong = |why: &str| {
        let kind = value.get_type().name().map(|name| name.to_string()).unwrap_or_default();
        errors::invalid(py, format!("{} ({kind}) cannot be used in a query: {why}", shown(value)))
    };
    if value.is_none() {
        return Ok(Literal::Null);
    }
    // The order matters: bool is a subclass of int, and datetime of date.
    if value.is_instance_of::<PyBool>() {
        return Ok(Literal::Boolean(value.extract()?));
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Literal::Float(value.extract()?));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(Literal::Text(value.extract().map_err(|_| wrong("it is not valid UTF-8"))?));
    }
    if value.is_instance_of::<PyBytes>() {
        return Ok(settled(Type::Bytes, Value::Bytes(value.extract()?)));
    }
    let datetime = py.import("datetime")?;
    if value.is_instance(&datetime.getattr("datetime")?)? {
        return moment(value, &datetime);
    }
    if value.is_instance(&datetime.getattr("date")?)? {
        let ordinal: i128 = value.call_method0("toordinal")?.extract()?;
        return Ok(settled(Type::Date, Value::Integer(ordinal - EPOCH_ORDINAL)));
    }
    if value.is_instance(&py.import("decimal")?.getattr("Decimal")?)? {
        return decimal(value).ok_or_else(|| {
            wrong(&format!(
                "decimals of at most {DECIMAL_DIGITS_MAX} digits are permitted, and no NaN or infinity"
            ))
        });
    }
    // Integers of NumPy are not `int`, but have `__index__`.
    if value.is_instance_of::<PyInt>() || value.hasattr("__index__")? {
        let number = value.extract::<i128>().map(Literal::Integer);
        return number.map_err(|_| wrong("whole numbers of 128 bits are permitted"));
    }
    Err(wrong(PERMITTED))
}

fn settled(of: Type, value: Value) -> Literal {
    Literal::Scalar(Scalar { of, value: Some(value) })
}

/// Returns the `repr` of a value for a message, at most 80 characters of it.
fn shown(value: &Bound<'_, PyAny>) -> String {
    let text = value.repr().map(|text| text.to_string()).unwrap_or_default();
    let is_long = text.chars().count() > 80;
    if is_long { text.chars().take(80).chain("...".chars()).collect() } else { text }
}

/// Converts a datetime to microseconds since 1970-01-01. With a time zone it becomes an instant, without one a local
/// time.
fn moment(value: &Bound<'_, PyAny>, datetime: &Bound<'_, PyModule>) -> PyResult<Literal> {
    let is_zoned = !value.call_method0("utcoffset")?.is_none();
    let zone = match is_zoned {
        true => datetime.getattr("timezone")?.getattr("utc")?,
        false => value.py().None().into_bound(value.py()),
    };
    let epoch = datetime.getattr("datetime")?.call1((1970, 1, 1, 0, 0, 0, 0, zone))?;
    // A `tzinfo` without an offset counts as no time zone, and must be removed for the subtraction.
    let value = match is_zoned {
        true => value.clone(),
        false => {
            let without = pyo3::types::PyDict::new(value.py());
            without.set_item("tzinfo", value.py().None())?;
            value.call_method("replace", (), Some(&without))?
        }
    };
    let since = value.sub(epoch)?;
    let part = |name: &str| since.getattr(name)?.extract::<i128>();
    let micros = (part("days")? * 86_400 + part("seconds")?) * 1_000_000 + part("microseconds")?;
    Ok(settled(Type::Timestamp { unit: TimeUnit::Microsecond, is_zoned }, Value::Integer(micros)))
}

/// Converts a `Decimal`, with as many digits after the point as it was written with. `None` if it is not finite or has
/// too many digits.
fn decimal(value: &Bound<'_, PyAny>) -> Option<Literal> {
    let parts = value.call_method0("as_tuple").ok()?;
    let sign: u8 = parts.getattr("sign").ok()?.extract().ok()?;
    // The exponent of NaN and of infinity is a text in Python, so this returns `None` for them.
    let exponent: i32 = parts.getattr("exponent").ok()?.extract().ok()?;
    let digits = parts.getattr("digits").ok()?.cast_into::<PyTuple>().ok()?;
    let mut number: i128 = 0;
    for digit in digits.iter() {
        number = number.checked_mul(10)?.checked_add(digit.extract::<i128>().ok()?)?;
    }
    if exponent > 0 && number != 0 {
        number = number.checked_mul(10i128.checked_pow(exponent.try_into().ok()?)?)?;
    }
    let number = if sign == 1 { -number } else { number };
    let scale = u8::try_from((-exponent).max(0)).ok()?;
    let written = number.unsigned_abs().to_string().len().max(scale.into());
    let precision = u8::try_from(written).ok()?;
    let scalar = Scalar { of: Type::Decimal { precision, scale }, value: Some(Value::Integer(number)) };
    scalar.is_valid().then_some(Literal::Scalar(scalar))
}

/// Parses the name of a type, either farpool's or Arrow's. The value may be any object whose `str` is such a name.
pub(crate) fn type_of(value: &Bound<'_, PyAny>) -> PyResult<Type> {
    let text = value.str()?.to_string();
    named(text.trim()).filter(|of| of.is_valid()).ok_or_else(|| {
        let permitted = "boolean, int8 to int64, uint8 to uint64, float32, float64, decimal(precision, scale), date, \
                         timestamp(s, ms, us or ns), timestamp(unit, zoned), text, bytes and bytes(width)";
        errors::invalid(value.py(), format!("{} is not a type of a query; permitted are {permitted}", shown(value)))
    })
}

fn named(text: &str) -> Option<Type> {
    let simple = match text {
        "boolean" | "bool" => Some(Type::Boolean),
        "int8" => Some(Type::Int8),
        "int16" => Some(Type::Int16),
        "int32" => Some(Type::Int32),
        "int64" => Some(Type::Int64),
        "uint8" => Some(Type::UInt8),
        "uint16" => Some(Type::UInt16),
        "uint32" => Some(Type::UInt32),
        "uint64" => Some(Type::UInt64),
        "float32" | "float" => Some(Type::Float32),
        "float64" | "double" => Some(Type::Float64),
        "date" | "date32" | "date32[day]" => Some(Type::Date),
        "text" | "string" => Some(Type::Text),
        "bytes" | "binary" => Some(Type::Bytes),
        _ => None,
    };
    if simple.is_some() {
        return simple;
    }
    let (name, rest) = text.split_once(['(', '['])?;
    let inside = rest.strip_suffix([')', ']'])?;
    let (first, second) = match inside.split_once(',') {
        Some((first, second)) => (first.trim(), Some(second.trim())),
        None => (inside.trim(), None),
    };
    Some(match (name, second) {
        ("decimal" | "decimal128", Some(scale)) => {
            Type::Decimal { precision: first.parse().ok()?, scale: scale.parse().ok()? }
        }
        ("bytes" | "fixed_size_binary", None) => Type::FixedBytes(first.parse().ok()?),
        ("timestamp", zone) => {
            let unit = match first {
                "s" => TimeUnit::Second,
                "ms" => TimeUnit::Millisecond,
                "us" => TimeUnit::Microsecond,
                "ns" => TimeUnit::Nanosecond,
                _ => return None,
            };
            let is_zoned = match zone {
                None => false,
                Some(zone) if zone == "zoned" || zone.starts_with("tz=") => true,
                Some(_) => return None,
            };
            Type::Timestamp { unit, is_zoned }
        }
        _ => return None,
    })
}
