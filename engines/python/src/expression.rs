//! `farpool.Expr`, `col`, `lit` and `len`.

use crate::{errors, literal};
use farpool::operators::{Agg, Expr, Literal};
use pyo3::basic::CompareOp;
use pyo3::prelude::*;

/// A value of each row, or an aggregate over rows. Its name is the name of its column in a result.
#[pyclass(name = "Expr", module = "farpool", frozen)]
#[derive(Clone)]
pub(crate) struct PyExpr {
    pub(crate) what: What,
    pub(crate) name: String,
    /// True if `alias` or a keyword argument gave the name.
    is_named: bool,
}

/// Kind of an expression.
#[derive(Clone)]
pub(crate) enum What {
    /// Value of each row.
    Value(Expr),
    /// Aggregate over rows.
    Aggregate(Agg),
}

/// Returns the column of this name.
#[pyfunction]
pub(crate) fn col(name: String) -> PyExpr {
    PyExpr { what: What::Value(farpool::operators::col(name.clone())), name, is_named: false }
}

/// Returns a value as an expression: None, bool, int, float, str, bytes, Decimal, date or datetime.
///
/// The value takes the type of the other side of a comparison or computation, if it is the same value in that type.
/// Raises InvalidError.
#[pyfunction]
pub(crate) fn lit(value: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
    Ok(of_literal(literal::literal(value)?))
}

/// Returns the number of rows, for `agg` and `select`.
#[pyfunction]
pub(crate) fn len() -> PyExpr {
    PyExpr { what: What::Aggregate(Agg::Rows), name: "len".to_owned(), is_named: false }
}

fn of_literal(literal: Literal) -> PyExpr {
    PyExpr { what: What::Value(Expr::Literal(literal)), name: "literal".to_owned(), is_named: false }
}

/// Returns an expression unchanged, or a value as a literal.
pub(crate) fn of(value: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
    match value.cast::<PyExpr>() {
        Ok(expr) => Ok(expr.get().clone()),
        Err(_) => Ok(of_literal(literal::literal(value)?)),
    }
}

/// Returns an expression unchanged, or the column of this name.
pub(crate) fn of_column(value: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
    match value.extract::<String>() {
        Ok(name) => Ok(col(name)),
        Err(_) => match value.cast::<PyExpr>() {
            Ok(expr) => Ok(expr.get().clone()),
            Err(_) => {
                let text = format!("{} is not a column; pass a name or an expression", value.repr()?);
                Err(errors::invalid(value.py(), text))
            }
        },
    }
}

impl PyExpr {
    /// Returns the expression if it is a value of each row. `what` names the operation in the error for aggregates.
    pub(crate) fn value(&self, py: Python<'_>, what: &str) -> PyResult<Expr> {
        match &self.what {
            What::Value(expr) => Ok(expr.clone()),
            What::Aggregate(_) => {
                let name = &self.name;
                let text = format!(
                    "{what} of the aggregate {name:?}: agg and select take aggregates only on their own; \
                     compute with them in a later with_columns"
                );
                Err(errors::invalid(py, text))
            }
        }
    }

    pub(crate) fn named(self, name: String) -> PyExpr {
        PyExpr { name, is_named: true, ..self }
    }

    fn with(&self, py: Python<'_>, what: &str, make: impl FnOnce(Expr) -> Expr) -> PyResult<PyExpr> {
        let expr = make(self.value(py, what)?);
        Ok(PyExpr { what: What::Value(expr), name: self.name.clone(), is_named: false })
    }

    /// Combines this expression with `other`. The result has the name of the left side, or of the right side if the
    /// left one is a literal without an alias.
    fn beside(
        &self,
        other: &Bound<'_, PyAny>,
        what: &str,
        is_right: bool,
        make: impl FnOnce(Expr, Expr) -> Expr,
    ) -> PyResult<PyExpr> {
        let py = other.py();
        let other = of(other)?;
        let (left, right) = if is_right { (&other, self) } else { (self, &other) };
        let is_literal = matches!(left.what, What::Value(Expr::Literal(_))) && !left.is_named;
        let name = if is_literal { right.name.clone() } else { left.name.clone() };
        let expr = make(left.value(py, what)?, right.value(py, what)?);
        Ok(PyExpr { what: What::Value(expr), name, is_named: false })
    }

    fn aggregate(&self, py: Python<'_>, make: impl FnOnce(Expr) -> Agg) -> PyResult<PyExpr> {
        let what = What::Aggregate(make(self.value(py, "an aggregate")?));
        Ok(PyExpr { what, name: self.name.clone(), is_named: false })
    }
}

#[pymethods]
impl PyExpr {
    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<PyExpr> {
        self.beside(other, "a comparison", false, |left, right| match op {
            CompareOp::Lt => left.lt(right),
            CompareOp::Le => left.lt_eq(right),
            CompareOp::Eq => left.eq(right),
            CompareOp::Ne => left.not_eq(right),
            CompareOp::Gt => left.gt(right),
            CompareOp::Ge => left.gt_eq(right),
        })
    }

    fn __bool__(&self) -> PyResult<bool> {
        let text = "an expression is neither true nor false: write & for and, | for or, ~ for not, and brackets round \
                    comparisons";
        Err(pyo3::exceptions::PyTypeError::new_err(text))
    }

    fn __and__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "&", false, Expr::and)
    }

    fn __rand__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "&", true, Expr::and)
    }

    fn __or__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "|", false, Expr::or)
    }

    fn __ror__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "|", true, Expr::or)
    }

    fn __invert__(&self, py: Python<'_>) -> PyResult<PyExpr> {
        self.with(py, "~", |expr| !expr)
    }

    fn __neg__(&self, py: Python<'_>) -> PyResult<PyExpr> {
        self.with(py, "-", |expr| -expr)
    }

    fn __add__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "+", false, |left, right| left + right)
    }

    fn __radd__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "+", true, |left, right| left + right)
    }

    fn __sub__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "-", false, |left, right| left - right)
    }

    fn __rsub__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "-", true, |left, right| left - right)
    }

    fn __mul__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "*", false, |left, right| left * right)
    }

    fn __rmul__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "*", true, |left, right| left * right)
    }

    fn __truediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "/", false, Expr::ratio)
    }

    fn __rtruediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "/", true, Expr::ratio)
    }

    fn __mod__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "%", false, |left, right| left % right)
    }

    fn __rmod__(&self, other: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        self.beside(other, "%", true, |left, right| left % right)
    }

    /// Reports whether the value is one of these. If None is among them: true or unknown, as in SQL.
    fn is_in(&self, values: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        let list = values.try_iter()?.map(|value| literal::literal(&value?)).collect::<PyResult<Vec<_>>>()?;
        self.with(values.py(), "is_in", |expr| expr.in_list(list))
    }

    /// Reports whether the value lies between two values, both included.
    fn between(&self, least: &Bound<'_, PyAny>, most: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        let py = least.py();
        let ends = (of(least)?.value(py, "between")?, of(most)?.value(py, "between")?);
        self.with(py, "between", |expr| expr.between(ends.0, ends.1))
    }

    /// Reports whether the value is null. The result is never null.
    fn is_null(&self, py: Python<'_>) -> PyResult<PyExpr> {
        self.with(py, "is_null", |expr| expr.is_null())
    }

    /// Reports whether the value is not null. The result is never null.
    fn is_not_null(&self, py: Python<'_>) -> PyResult<PyExpr> {
        self.with(py, "is_not_null", |expr| expr.is_not_null())
    }

    /// Reports whether the whole text matches SQL's pattern: `%` is any text, `_` any character, and `\` makes the next
    /// character literal.
    fn like(&self, py: Python<'_>, pattern: String) -> PyResult<PyExpr> {
        self.with(py, "like", |expr| expr.like(pattern))
    }

    /// Reports whether the whole text matches SQL's pattern as `like` does, without regard to case.
    fn ilike(&self, py: Python<'_>, pattern: String) -> PyResult<PyExpr> {
        self.with(py, "ilike", |expr| expr.ilike(pattern))
    }

    /// Reports whether a regular expression (of the Rust crate `regex`) matches anywhere in the text.
    fn matches(&self, py: Python<'_>, pattern: String) -> PyResult<PyExpr> {
        self.with(py, "matches", |expr| expr.matches(pattern))
    }

    /// Converts to another type: its name, such as "int32" or "decimal(12, 2)", or a type of pyarrow. A value that does
    /// not fit ends the query with InvalidError.
    fn cast(&self, to: &Bound<'_, PyAny>) -> PyResult<PyExpr> {
        let of = literal::type_of(to)?;
        self.with(to.py(), "cast", |expr| expr.cast(of))
    }

    /// Returns the same expression under another name.
    fn alias(&self, name: String) -> PyExpr {
        self.clone().named(name)
    }

    /// Sums the values. The sum of integers is a decimal(38, 0), that of decimals a decimal of 38 digits, that of
    /// floats a float64.
    fn sum(&self, py: Python<'_>) -> PyResult<PyExpr> {
        self.aggregate(py, Agg::Sum)
    }

    /// Returns the least value.
    fn min(&self, py: Python<'_>) -> PyResult<PyExpr> {
        self.aggregate(py, Agg::Min)
    }

    /// Returns the greatest value.
    fn max(&self, py: Python<'_>) -> PyResult<PyExpr> {
        self.aggregate(py, Agg::Max)
    }

    /// Returns the mean, as a float64.
    fn mean(&self, py: Python<'_>) -> PyResult<PyExpr> {
        self.aggregate(py, Agg::Avg)
    }

    /// Counts the rows in which the value is not null.
    fn count(&self, py: Python<'_>) -> PyResult<PyExpr> {
        self.aggregate(py, Agg::Count)
    }

    fn __repr__(&self) -> String {
        let kind = match self.what {
            What::Value(_) => "of each row",
            What::Aggregate(_) => "over rows",
        };
        format!("<farpool.Expr {:?}, {kind}>", self.name)
    }
}
