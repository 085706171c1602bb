//! A consumer's voucher: text in a shadow pod by which the consumer recognises a pod that it sent.
//!
//! A consumer signs only what its own records say. Sometimes it no longer has the pod, for example
//! because somebody removed it by force while the manager was down. Then only the shadow pod is
//! left, which the provider may have written. So the consumer writes into each shadow pod what it
//! will need then, with an authentication code that nobody else can compute:
//!
//! ```text
//! voucher = sent " " namespace " " pool " " amounts *(";" amounts) " " code
//! code    = HMAC-SHA256 of provider, UID of the pod, and the text before it, in lower-case hexadecimal
//! ```
//! The HMAC key is derived from the key of the cluster, so nobody has to store it.

use std::fmt;

use data_encoding::HEXLOWER;
use liqo_api::Claimed;
use liqo_quantity::ResourceList;
use ring::hmac::{HMAC_SHA256, Key, sign, verify};

use crate::Seconds;
use crate::entry::{UsageEntry, amounts_text, is_name, normalized_amounts, read_amounts};
use crate::period::Period;

/// Maximum length in bytes. A provider allows 8 KiB for all annotations of a shadow pod.
pub const MAX_VOUCHER_LEN: usize = 4096;
/// Maximum number of different amounts, which a pod gets by resizes; the latest ones count.
const MAX_AMOUNTS: usize = 16;
/// Purpose of the key: no other key that is derived from that of the cluster is the same.
const CONTEXT: &[u8] = b"liqo.io: vouchers for pods that this cluster sent, version 1";

/// The key of the codes of one cluster.
#[derive(Clone)]
pub struct VoucherKey(Key);

/// Whether a pod that its consumer does not have any more may have run on after the last period
/// that is complete, which ended at `settled`: it was sent later, or the consumer's records of that
/// period say so, and no later record has it already. `records`: periods and entries.
///
/// A provider keeps every voucher that it saw. This is why it cannot use that of a pod which ended
/// long ago. Without the records, which go when a receipt is signed, nobody knows whether the pod
/// ran on, so it does not count.
pub fn may_have_run_on<'a>(
    uid: &str,
    sent: Seconds,
    settled: Seconds,
    records: impl IntoIterator<Item = (Period, &'a str)>,
) -> bool {
    let mut ran_on = sent >= settled;
    for (period, text) in records {
        let lines = text.lines().filter(|line| {
            line.strip_prefix(uid)
                .is_some_and(|rest| rest.starts_with(' '))
        });
        for entry in lines.filter_map(|line| line.parse::<UsageEntry>().ok()) {
            if period.start >= settled {
                return false;
            }
            ran_on |= period.end() == settled && entry.until.at >= settled;
        }
    }
    ran_on
}

/// Facts about a pod that a consumer knew when it sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct Voucher {
    /// Namespace of the local pod.
    pub namespace: String,
    /// The pool that it used.
    pub pool: String,
    /// Earliest time at which it was sent, by the consumer's clock.
    pub sent: Seconds,
    /// Amounts that may be charged for it, also from before it was resized.
    pub amounts: Vec<ResourceList>,
}

impl VoucherKey {
    /// Derives the key from the private key of the cluster.
    pub fn derive(private_key: &[u8]) -> Self {
        let derived = sign(&Key::new(HMAC_SHA256, private_key), CONTEXT);
        Self(Key::new(HMAC_SHA256, derived.as_ref()))
    }

    /// The text of a voucher for the pod with this UID at this provider. `None` if it would be too
    /// long.
    pub fn write_voucher(&self, provider: &str, uid: &str, voucher: &Voucher) -> Option<String> {
        let mut amounts: Vec<String> = Vec::new();
        for one in voucher
            .amounts
            .iter()
            .map(|one| amounts_text(&normalized_amounts(one)))
        {
            amounts.retain(|known| *known != one);
            amounts.push(one);
        }
        let amounts = amounts
            .split_off(amounts.len().saturating_sub(MAX_AMOUNTS))
            .join(";");
        let text = format!(
            "{} {} {} {amounts}",
            voucher.sent, voucher.namespace, voucher.pool
        );
        let code = HEXLOWER
            .encode(sign(&self.0, signed_message(provider, uid, &text).as_bytes()).as_ref());
        let voucher = format!("{text} {code}");
        (voucher.len() <= MAX_VOUCHER_LEN
            && self
                .read_voucher(provider, uid, Claimed::new(Some(&voucher)))
                .is_some())
        .then_some(voucher)
    }

    /// Reads a voucher that a provider shows. `None` if this cluster did not write it for this pod
    /// and this provider.
    pub fn read_voucher(
        &self,
        provider: &str,
        uid: &str,
        voucher: Claimed<Option<&str>>,
    ) -> Option<Voucher> {
        let voucher = (*voucher.unverified())?;
        if voucher.len() > MAX_VOUCHER_LEN || !is_name(uid) {
            return None;
        }
        let (text, code) = voucher.rsplit_once(' ')?;
        let code = HEXLOWER.decode(code.as_bytes()).ok()?;
        verify(
            &self.0,
            signed_message(provider, uid, text).as_bytes(),
            &code,
        )
        .ok()?;
        let [sent, namespace, pool, amounts] =
            text.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let amounts = amounts
            .split(';')
            .map(|one| read_amounts(one).ok())
            .collect::<Option<Vec<_>>>()?;
        let (namespace, pool, sent) = (name(namespace)?, name(pool)?, sent.parse().ok()?);
        Some(Voucher {
            namespace,
            pool,
            sent,
            amounts,
        })
    }
}

impl fmt::Debug for VoucherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VoucherKey")
    }
}

fn name(text: &str) -> Option<String> {
    is_name(text).then(|| text.to_owned())
}

/// Neither a provider nor a UID contains a line feed.
fn signed_message(provider: &str, uid: &str, text: &str) -> String {
    format!("{provider}\n{uid}\n{text}")
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::*;

    use super::*;
    use crate::entry::tests::list;

    fn key() -> VoucherKey {
        VoucherKey::derive(b"a private key")
    }

    fn voucher(amounts: &[&str]) -> Voucher {
        let amounts = amounts.iter().map(|one| list(one)).collect();
        Voucher {
            namespace: "demo".into(),
            pool: "default".into(),
            sent: 1_767_225_600,
            amounts,
        }
    }

    fn shown(text: &str) -> Claimed<Option<&str>> {
        Claimed::new(Some(text))
    }

    fn written() -> String {
        key()
            .write_voucher(
                "milan",
                "u",
                &voucher(&["cpu=1,memory=1073741824,pods=1", "cpu=2"]),
            )
            .unwrap()
    }

    #[test]
    fn a_voucher_is_read_as_it_was_written_by_the_same_cluster_only() {
        let text = written();
        assert!(
            text.starts_with("1767225600 demo default cpu=1,memory=1073741824,pods=1;cpu=2 "),
            "{text}"
        );
        let read = key().read_voucher("milan", "u", shown(&text)).unwrap();
        assert_eq!(
            (read.sent, read.amounts.len(), read.namespace.as_str()),
            (1_767_225_600, 2, "demo")
        );
        assert_eq!(
            VoucherKey::derive(b"another key").read_voucher("milan", "u", shown(&text)),
            None
        );
        assert_eq!(
            key().read_voucher("milan", "v", shown(&text)),
            None,
            "for another pod"
        );
        assert_eq!(
            key().read_voucher("genoa", "u", shown(&text)),
            None,
            "for another provider"
        );
        assert_eq!(format!("{:?}", key()), "VoucherKey");
    }

    #[test]
    fn only_the_latest_amounts_of_a_pod_that_is_resized_all_the_time_are_kept() {
        let amounts: Vec<String> = (0..100).map(|n| format!("cpu={}", 1 + n % 40)).collect();
        let all: Vec<&str> = amounts.iter().map(String::as_str).collect();
        let text = key().write_voucher("milan", "u", &voucher(&all)).unwrap();
        let read = key().read_voucher("milan", "u", shown(&text)).unwrap();
        assert_eq!(
            (read.amounts.len(), read.amounts.last()),
            (MAX_AMOUNTS, Some(&list("cpu=20")))
        );
        assert_eq!(
            key().write_voucher(
                "milan",
                "u",
                &Voucher {
                    pool: "a b".into(),
                    ..voucher(&["cpu=1"])
                }
            ),
            None
        );
    }

    #[test]
    fn the_voucher_of_a_pod_that_ended_is_worth_nothing() {
        let (last, now) = (Period::at(0, 600), Period::at(600, 600));
        let may = |sent, records: &[(Period, &str)]| {
            may_have_run_on("u", sent, 600, records.iter().copied())
        };
        assert!(
            may(700, &[]) && may(700, &[(now, "uu p 700 800 cpu=1\n")]),
            "sent since then"
        );
        assert!(!may(100, &[]), "nobody knows");
        assert!(may(100, &[(last, "u p 100 600 cpu=1\n")]), "it ran on");
        assert!(
            !may(100, &[(last, "u p 100 500 cpu=1\n")]),
            "it ended in the last period"
        );
        assert!(
            !may(
                100,
                &[(last, "u p 100 600 cpu=1\n"), (now, "u p 600 650 cpu=1\n")]
            ),
            "it ended in this one"
        );
        assert!(!may(700, &[(now, "u p 700 750 cpu=1\n")]));
    }

    proptest! {
        #[test]
        fn a_voucher_with_a_changed_byte_is_refused(text in mutated_text(Just(written()))) {
            prop_assert_eq!(key().read_voucher("milan", "u", shown(&text)).is_some(), text == written());
        }
    }
}
