//! Shares of an amount, in the unit of its resource.

use crate::quantity::percent_of;
use crate::{Quantity, Unit};

impl Quantity {
    /// Rounds towards zero to a multiple of `unit`.
    #[must_use]
    pub fn round_down(self, unit: Unit) -> Self {
        let step = unit.step();
        Self {
            nanos: self.nanos - self.nanos % step,
            ..self
        }
    }

    /// `percent` per cent of this amount, rounded **down** to a multiple of `unit`. More than 100
    /// is allowed.
    ///
    /// Indivisible resources ([`Unit::Whole`] and [`Unit::Pages`]) **never become zero by
    /// rounding**: if there is at least one and the percentage is not zero, at least one remains.
    /// So 90% of one GPU is one, 90% of two is one, and 0% of ten is zero. The share of a negative
    /// amount is zero.
    #[must_use]
    pub fn percentage(self, percent: u32, unit: Unit) -> Self {
        if self.is_negative() {
            return Self { nanos: 0, ..self };
        }
        let share = Self::from_nanos(percent_of(self.nanos, percent), self.format).round_down(unit);
        let one = unit.step();
        if unit.is_indivisible() && percent > 0 && share.is_zero() && self.nanos >= one {
            return Self { nanos: one, ..self };
        }
        share
    }
}
