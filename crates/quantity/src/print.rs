//! Prints a quantity in Kubernetes' canonical form: no fraction, no loss of precision, the largest suffix that allows
//! both. Zero is `0` in every notation.

use std::fmt;

use crate::quantity::NANOS;
use crate::{Format, Quantity};

/// Suffixes in steps of 1000, beginning with nano.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Suffixes in steps of 1024, beginning with one.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&canonical(*self))
    }
}

fn canonical(quantity: Quantity) -> String {
    let nanos = quantity.nanos();
    if nanos == 0 {
        return "0".to_owned();
    }
    match quantity.format() {
        // Small and fractional amounts would lose precision in powers of 1024.
        Format::BinarySi if nanos.abs() >= 1024 * NANOS && nanos % NANOS == 0 => {
            let (number, times) = without_factors(nanos / NANOS, 1024, BINARY.len() - 1);
            format!("{number}{}", BINARY[times])
        }
        Format::BinarySi | Format::DecimalSi => {
            let (number, times) = without_factors(nanos, 1000, DECIMAL.len() - 1);
            format!("{number}{}", DECIMAL[times])
        }
        Format::DecimalExponent => {
            let (number, times) = without_factors(nanos, 1000, usize::MAX);
            match times {
                3 => number.to_string(),
                // At most 38 digits, so the exponent is small.
                0..3 => format!("{number}e-{}", 9 - 3 * times),
                _ => format!("{number}e{}", 3 * times - 9),
            }
        }
    }
}

/// Divides by `factor` as long as the remainder is zero, at most `limit` times. Returns the result and the number of divisions.
fn without_factors(mut number: i128, factor: i128, limit: usize) -> (i128, usize) {
    let mut times = 0;
    while times < limit && number % factor == 0 {
        number /= factor;
        times += 1;
    }
    (number, times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_keeps_its_notation() {
        for (text, printed) in [
            ("1024Mi", "1Gi"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1E3", "1e3"),
            ("1000E", "1000E"),
            ("+1", "1"),
            ("0Mi", "0"),
        ] {
            assert_eq!(text.parse::<Quantity>().unwrap().to_string(), printed, "{text}");
        }
    }

    #[test]
    fn a_value_beyond_every_suffix_is_printed_with_the_largest() {
        let exbi = "4Ei".parse::<Quantity>().unwrap();
        let total: Quantity = (0..1024).map(|_| exbi).sum();
        assert_eq!(total.to_string(), "4096Ei");
    }

    #[test]
    fn a_quantity_can_be_aligned_in_a_table() {
        assert_eq!(format!("{:>6}", Quantity::from_bytes(4 << 30)), "   4Gi");
    }
}
