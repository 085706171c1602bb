//! Prints a quantity in Kubernetes' canonical form: no fraction, no loss of precision, the largest
//! suffix that allows both. Zero is `0` in every notation. For people there is a shorter form,
//! which rounds.

use std::fmt;

use crate::quantity::NANOS;
use crate::{Notation, Quantity, Unit, unit_of};

/// Suffixes in steps of 1000, beginning with nano.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Suffixes in steps of 1024, beginning with one.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The suffix after so many steps. There is none beyond the last.
fn suffix_after(all: &[&'static str], steps: usize) -> &'static str {
    all.get(steps).copied().unwrap_or_default()
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&canonical_text(*self))
    }
}

fn canonical_text(quantity: Quantity) -> String {
    let nanos = quantity.nanos();
    if nanos == 0 {
        return "0".to_owned();
    }
    match quantity.format() {
        // Small and fractional amounts would lose precision in powers of 1024.
        Notation::BinarySi if nanos.abs() >= 1024 * NANOS && nanos % NANOS == 0 => {
            let (number, times) = without_factors(nanos / NANOS, 1024, BINARY.len() - 1);
            format!("{number}{}", suffix_after(&BINARY, times))
        }
        Notation::BinarySi | Notation::DecimalSi => {
            let (number, times) = without_factors(nanos, 1000, DECIMAL.len() - 1);
            format!("{number}{}", suffix_after(&DECIMAL, times))
        }
        Notation::DecimalExponent => {
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

impl Quantity {
    /// A short text for people: bytes with one decimal and the largest suffix that fits, `21.0Gi`,
    /// and cpu in whole millicores. A value that is exact without a fraction has none: `4Gi`. Not
    /// for programs, because it rounds.
    pub fn rounded(self, resource: &str) -> String {
        match unit_of(resource) {
            Unit::Bytes | Unit::Pages(_) => rounded_bytes(self),
            Unit::Milli if self.nanos() % (NANOS / 1000) != 0 => {
                Self::from_millis(self.milli_value()).to_string()
            }
            Unit::Milli | Unit::Whole => self.to_string(),
        }
    }
}

fn rounded_bytes(quantity: Quantity) -> String {
    const KIBI: u128 = 1024;
    let nanos = quantity.nanos().unsigned_abs();
    let one = NANOS.unsigned_abs();
    let sign = if quantity.is_negative() { "-" } else { "" };
    let mut times = 0;
    // The rounded number counts: 1023.97Mi is 1.0Gi.
    while times + 1 < BINARY.len() && tenths(nanos, one * KIBI.pow(as_u32(times))) >= 10 * KIBI {
        times += 1;
    }
    let unit = one * KIBI.pow(as_u32(times));
    let (suffix, tenths) = (suffix_after(&BINARY, times), tenths(nanos, unit));
    if nanos.is_multiple_of(unit) {
        return format!("{sign}{}{suffix}", nanos / unit);
    }
    format!("{sign}{}.{}{suffix}", tenths / 10, tenths % 10)
}

/// `nanos / unit` in tenths, rounded to the nearest.
fn tenths(nanos: u128, unit: u128) -> u128 {
    // Splits the number, because ten times the largest one does not fit.
    nanos / unit * 10 + (nanos % unit * 10 + unit / 2) / unit
}

fn as_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Divides by `factor` as long as the remainder is zero, at most `limit` times. Returns the result
/// and the number of divisions.
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
            assert_eq!(
                text.parse::<Quantity>().unwrap().to_string(),
                printed,
                "{text}"
            );
        }
    }

    #[test]
    fn a_value_beyond_every_suffix_is_printed_with_the_largest() {
        let exbi = "4Ei".parse::<Quantity>().unwrap();
        let total: Quantity = (0..1024).map(|_| exbi).sum();
        assert_eq!(total.to_string(), "4096Ei");
    }

    #[test]
    fn people_get_short_amounts() {
        for (resource, text, rounded) in [
            ("memory", "22053474Ki", "21.0Gi"),
            ("ephemeral-storage", "243497856614", "226.8Gi"),
            ("memory", "4Gi", "4Gi"),
            ("memory", "1536Mi", "1.5Gi"),
            ("memory", "1048550Ki", "1.0Gi"),
            ("memory", "921", "921"),
            ("memory", "500m", "0.5"),
            ("memory", "0", "0"),
            ("memory", "-1536Mi", "-1.5Gi"),
            ("memory", "1e40", "147573952589.7Ei"),
            ("hugepages-2Mi", "8Mi", "8Mi"),
            ("cpu", "1500m", "1500m"),
            ("cpu", "1234567n", "2m"),
            ("pods", "110", "110"),
            ("nvidia.com/gpu", "1000", "1k"),
        ] {
            assert_eq!(
                text.parse::<Quantity>().unwrap().rounded(resource),
                rounded,
                "{text}"
            );
        }
    }

    #[test]
    fn a_quantity_can_be_aligned_in_a_table() {
        assert_eq!(format!("{:>6}", Quantity::from_bytes(4 << 30)), "   4Gi");
    }
}
