//! Parses the text of a quantity.

use std::str::FromStr;

use crate::quantity::NANOS;
use crate::{Notation, Quantity};

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// The text is empty.
    #[error("a quantity can't be empty; write 0 for nothing")]
    Empty,
    /// The text does not begin with a number.
    #[error(
        "{text:?} is not a quantity: it must begin with a decimal number, as in 2, 1500m or 4Gi"
    )]
    Number {
        /// The text, shortened.
        text: String,
    },
    /// The number is followed by something that is no suffix.
    #[error(
        "{text:?} is not a quantity: {suffix:?} is not one of the suffixes n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei, or an exponent as in e3"
    )]
    Suffix {
        /// The text, shortened.
        text: String,
        /// The rest after the number, shortened.
        suffix: String,
    },
}

/// The beginning of a text, because it may come from a peer and be of any length.
fn shortened_text(text: &str) -> String {
    text.chars().take(40).collect()
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(ParseQuantityError::Empty);
        }
        let negative = text.starts_with('-');
        let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (whole, rest) = split_digits(rest);
        let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), split_digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err(ParseQuantityError::Number {
                text: shortened_text(text),
            });
        }
        let Some(scale) = Scale::of_suffix(suffix) else {
            return Err(ParseQuantityError::Suffix {
                text: shortened_text(text),
                suffix: shortened_text(suffix),
            });
        };

        let mut nanos = magnitude(whole.as_bytes(), fraction.as_bytes(), &scale);
        let mut format = scale.format;
        if format == Notation::BinarySi {
            nanos = nanos.min(i128::from(i64::MAX) * NANOS);
            // A value below one has no binary suffix to print.
            if nanos > 0 && nanos < NANOS {
                format = Notation::DecimalSi;
            }
        }
        Ok(Self::from_nanos(
            if negative { -nanos } else { nanos },
            format,
        ))
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// The factor of a suffix: 10^`tens` * 2^`twos`.
struct Scale {
    tens: i64,
    twos: u32,
    format: Notation,
}

impl Scale {
    fn of_suffix(suffix: &str) -> Option<Self> {
        let (tens, twos, format) = match suffix {
            "n" => (-9, 0, Notation::DecimalSi),
            "u" => (-6, 0, Notation::DecimalSi),
            "m" => (-3, 0, Notation::DecimalSi),
            "" => (0, 0, Notation::DecimalSi),
            "k" => (3, 0, Notation::DecimalSi),
            "M" => (6, 0, Notation::DecimalSi),
            "G" => (9, 0, Notation::DecimalSi),
            "T" => (12, 0, Notation::DecimalSi),
            "P" => (15, 0, Notation::DecimalSi),
            "E" => (18, 0, Notation::DecimalSi),
            "Ki" => (0, 10, Notation::BinarySi),
            "Mi" => (0, 20, Notation::BinarySi),
            "Gi" => (0, 30, Notation::BinarySi),
            "Ti" => (0, 40, Notation::BinarySi),
            "Pi" => (0, 50, Notation::BinarySi),
            "Ei" => (0, 60, Notation::BinarySi),
            _ => {
                let tens = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
                (tens, 0, Notation::DecimalExponent)
            }
        };
        Some(Self { tens, twos, format })
    }
}

/// `whole.fraction` times the scale, in nano-units, rounded up. Saturates. Exact for any number of
/// digits.
fn magnitude(whole: &[u8], fraction: &[u8], scale: &Scale) -> i128 {
    let factor = 1_i128 << scale.twos;
    let digits = whole
        .iter()
        .chain(fraction)
        .map(|digit| i128::from(digit - b'0'));
    // The number of digits before the point, after it has moved by the powers of ten and by nine
    // places for nano.
    let length = i64::try_from(whole.len()).unwrap_or(i64::MAX);
    let point = length.saturating_add(scale.tens).saturating_add(9);
    let before = usize::try_from(point).unwrap_or(0);

    let mut integer = 0_i128;
    for digit in digits.clone().take(before) {
        integer = integer.saturating_mul(10).saturating_add(digit);
    }
    let mut missing = before.saturating_sub(whole.len() + fraction.len());
    while missing > 0 && integer > 0 && integer < i128::MAX {
        integer = integer.saturating_mul(10);
        missing -= 1;
    }

    // The digits behind the point, beginning with the last: each step adds a digit and divides by
    // ten. Rounding down at every step gives the same result as rounding down once at the end.
    let mut behind = 0_i128;
    let mut rest = false;
    for &digit in whole
        .iter()
        .chain(fraction)
        .skip(before)
        .collect::<Vec<_>>()
        .iter()
        .rev()
    {
        let sum = i128::from(digit - b'0') * factor + behind;
        rest |= sum % 10 != 0;
        behind = sum / 10;
    }
    // A point to the left of all digits makes them smaller still. Then it only matters whether any
    // digit is not zero: this happens only with exponents, where the factor is one.
    rest |= point < 0 && digits.clone().any(|digit| digit != 0);

    integer
        .saturating_mul(factor)
        .saturating_add(behind)
        .saturating_add(i128::from(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Quantity, ParseQuantityError> {
        text.parse()
    }

    #[test]
    fn texts_that_are_no_quantity_are_refused() {
        let refused = [
            "",
            "-",
            "+",
            ".",
            "-.",
            "Ki",
            "m",
            "--1",
            "++1",
            "+-1",
            "1.1.1",
            "1.1.M",
            "1+1.0M",
            "0.1mi",
            "0.1am",
            "aoeu",
            ".5i",
            "1i",
            "-3.01i",
            "-3.01e-",
            " 1",
            "1 ",
            "1 Gi",
            "1e",
            "1e+",
            "1ee3",
            "1e3.5",
            "1ki",
            "1K",
            "1KI",
            "1gi",
            "1B",
            "1GiB",
            "0x10",
            "1,5",
            "1_000",
            "Infinity",
            "NaN",
            "١",
            "1m3",
            "1Ki1",
            "1e99999999999999999999",
            "1\0",
        ];
        for text in refused {
            assert!(
                parse(text).is_err(),
                "{text:?} was read as {:?}",
                parse(text)
            );
        }
    }

    #[test]
    fn an_error_contains_only_the_beginning_of_a_long_text() {
        let error = parse(&"x".repeat(100_000)).unwrap_err().to_string();
        assert!(error.len() < 200, "{error}");
    }

    #[test]
    fn amounts_finer_than_nano_are_rounded_away_from_zero() {
        for text in [
            "0.1n",
            "1e-10",
            "1e-9223372036854775808",
            "0.0000000000000000001",
            "0.00000000000000000000000000001Ki",
        ] {
            assert_eq!(parse(text).unwrap().nanos(), 1, "{text}");
            assert_eq!(parse(&format!("-{text}")).unwrap().nanos(), -1, "-{text}");
        }
        assert_eq!(parse("0e-100").unwrap(), Quantity::ZERO);
        assert_eq!(parse("1.0000000001").unwrap().nanos(), 1_000_000_001);
        assert_eq!(parse("1.000000000000").unwrap().nanos(), 1_000_000_000);
    }

    #[test]
    fn any_number_of_digits_is_read_exactly() {
        let zeros = "0".repeat(5000);
        assert_eq!(
            parse(&format!("{zeros}1.{zeros}")).unwrap(),
            Quantity::from_units(1)
        );
        assert_eq!(
            parse(&format!("0.5{zeros}1Ki")).unwrap().nanos(),
            512_000_000_001
        );
        assert_eq!(
            parse(&format!("1{zeros}e-5000")).unwrap(),
            Quantity::from_units(1)
        );
        assert_eq!(
            parse(&format!("0.{zeros}1e5001")).unwrap(),
            Quantity::from_units(1)
        );
    }

    #[test]
    fn amounts_that_are_too_large_saturate() {
        let most = parse("1e30").unwrap();
        assert!(most > parse("1e29").unwrap());
        for text in [
            "1e9223372036854775807",
            "1000000000000E",
            "999999999999999999999999999999999999999999999999",
        ] {
            assert_eq!(parse(text).unwrap(), most, "{text}");
        }
        assert_eq!(parse("0e9223372036854775807").unwrap(), Quantity::ZERO);
        assert_eq!(parse("8Ei").unwrap().value(), i64::MAX);
        assert_eq!(parse("8Ei").unwrap(), parse("9223372036854775807").unwrap());
        assert_eq!(
            parse("-999999999999999999999999999999999999999999Ki").unwrap(),
            parse("-9223372036854775807").unwrap()
        );
    }
}
