//! The formats of texts that kube-apiserver checks.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

/// All that kube-apiserver 1.34 checks, without hyphens. It ignores every other one, those of 1.34 (`k8s-short-name`) too.
const KNOWN: &str = "bsonobjectid uri email hostname ipv4 ipv6 cidr mac uuid uuid3 uuid4 uuid5 isbn isbn10 isbn13 creditcard \
                     ssn hexcolor rgbcolor byte password date duration datetime";

static TIME: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new("^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})$").ok());

/// A number with a unit anywhere, as in Go or in Scala.
static DURATION: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let exact = "(ns|us|µs|ms|s|m|h|hr|d|w|wk)([^a-zµ]|$)";
    Regex::new(&format!("[0-9][\\t\\n\\f\\r ]*({exact}|nano|micro|milli|sec|min|hour|day|week)")).ok()
});

pub fn is_known(format: &str) -> bool {
    let name = format.replace('-', "");
    KNOWN.split_whitespace().any(|known| known == name)
}

/// Formats that the kinds of Kubernetes and of Liqo do not use are not checked.
pub fn fits(format: &str, value: &str) -> bool {
    match format.replace('-', "").as_str() {
        "datetime" => is_time(value),
        "date" => is_date(value),
        "byte" => !value.is_empty() && data_encoding::BASE64.decode(value.as_bytes()).is_ok(),
        "ipv4" => value.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => value.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_prefix(value),
        "uuid" => is_uuid(value),
        "duration" => ["0", "+0", "-0"].contains(&value) || finds(DURATION.as_ref(), &value.to_lowercase()),
        _ => true,
    }
}

fn finds(regex: Option<&Regex>, value: &str) -> bool {
    regex.is_some_and(|regex| regex.is_match(value))
}

fn is_date(value: &str) -> bool {
    let is_plain = value.len() == 10 && value.is_ascii() && !value.starts_with(['+', '-']);
    is_plain && jiff::civil::Date::strptime("%Y-%m-%d", value).is_ok()
}

fn is_time(value: &str) -> bool {
    let value = value.to_lowercase();
    let mut parts = value.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else {
        return false;
    };
    let fits = |time: regex::Captures| &time[1] <= "23" && &time[2] <= "59" && &time[3] <= "59";
    is_date(date) && TIME.as_ref().and_then(|regex| regex.captures(time)).is_some_and(fits)
}

fn is_prefix(value: &str) -> bool {
    let Some((address, length)) = value.split_once('/') else {
        return false;
    };
    let longest = match (address.parse::<Ipv4Addr>(), address.parse::<Ipv6Addr>()) {
        (Ok(_), _) => 32,
        (_, Ok(_)) => 128,
        _ => return false,
    };
    length.bytes().all(|digit| digit.is_ascii_digit()) && length.parse::<u8>().is_ok_and(|length| length <= longest)
}

fn is_uuid(value: &str) -> bool {
    let mut rest = value;
    for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((digits, after)) = rest.split_at_checked(length) else {
            return false;
        };
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        for time in ["2026-01-02T03:04:05Z", "2026-01-02t03:04:05.123456z", "2026-01-02T03:04:05+01:00"] {
            assert!(fits("date-time", time), "{time}");
        }
        for time in
            ["", "2026-01-02", "2026-02-30T03:04:05Z", "2026-01-02T24:00:00Z", "2026-01-02T03:04Z", "2026-01-02 03:04:05Z"]
        {
            assert!(!fits("date-time", time), "{time}");
        }
    }

    #[test]
    fn other_formats() {
        let good =
            [("cidr", "10.0.0.0/8"), ("cidr", "fd00::/64"), ("byte", "YQ=="), ("uuid", "01234567-89ab-CDEF-0123-456789abcdef")];
        assert!(good.iter().all(|(format, value)| fits(format, value)));
        let bad = [("cidr", "10.0.0.0"), ("cidr", "10.0.0.0/+8"), ("uuid", "0123"), ("byte", "a"), ("ipv4", "::1")];
        assert!(bad.iter().all(|(format, value)| !fits(format, value)));
        assert!(
            !fits("duration", "5")
                && is_known("date-time")
                && !is_known("uint32")
                && fits("duration", "1h5m")
                && fits("duration", "2 Hours")
        );
    }
}
