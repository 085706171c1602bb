//! The decimal text of a whole number of billionths: `0.04`, `12`.

use std::fmt;

/// Billionths in one.
pub(crate) const NANOS: u128 = 1_000_000_000;
/// Billionths have nine decimals.
const MAX_DECIMALS: usize = 9;

/// Why a text is no decimal number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseDecimalError {
    /// There are other characters than digits, one point and, where it is allowed, a minus at the
    /// beginning.
    #[error(
        "it is not a decimal number as in 0.04: only digits and one point, neither a plus nor an exponent"
    )]
    Form,
    /// There are more than nine decimals. Nothing is rounded.
    #[error("it has more than nine decimals; nothing is rounded")]
    TooFine,
    /// There are too many digits before the point.
    #[error("it has more than {max} digits before the point")]
    TooLarge {
        /// Maximum number of digits before the point.
        max: usize,
    },
}

fn has_only_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The billionths that a text without a sign means. `max_digits` is the maximum number of digits
/// before the point; at most 29 fit into 128 bits.
pub(crate) fn parse(text: &str, max_digits: usize) -> Result<u128, ParseDecimalError> {
    let (whole, decimals) = text
        .split_once('.')
        .map_or((text, None), |(whole, decimals)| (whole, Some(decimals)));
    if !has_only_digits(whole) || !decimals.is_none_or(has_only_digits) {
        return Err(ParseDecimalError::Form);
    }
    let decimals = decimals.unwrap_or_default();
    if decimals.len() > MAX_DECIMALS {
        return Err(ParseDecimalError::TooFine);
    }
    if whole.len() > max_digits {
        return Err(ParseDecimalError::TooLarge { max: max_digits });
    }
    let digits = whole
        .bytes()
        .chain(decimals.bytes())
        .chain(std::iter::repeat_n(b'0', MAX_DECIMALS - decimals.len()));
    Ok(digits.fold(0, |number, digit| number * 10 + u128::from(digit - b'0')))
}

/// Prints without trailing zeros.
pub(crate) fn print(nanos: u128, negative: bool) -> String {
    let (whole, rest) = (nanos / NANOS, nanos % NANOS);
    let sign = if negative { "-" } else { "" };
    if rest == 0 {
        return format!("{sign}{whole}");
    }
    let decimals = format!("{rest:09}");
    format!("{sign}{whole}.{}", decimals.trim_end_matches('0'))
}

/// Reads a number from a string or an integer.
pub(crate) struct DecimalVisitor<T> {
    pub(crate) expecting: &'static str,
    pub(crate) read: fn(&str) -> Result<T, ParseDecimalError>,
}

impl<T> serde::de::Visitor<'_> for DecimalVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}
