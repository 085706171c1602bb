//! Random histories of an honest consumer and a provider that lies: it invents pods, copies and
//! keeps vouchers, makes pods longer, moves them, hides their charges, and counts larger amounts.
//! The consumer restarts, pods are removed by force while it is down, and the clocks differ. It
//! signs for no pod that was not sent, and for no larger amount.
//!
//! The other direction is a provider that counts what an honest third model saw of pods whose
//! consumer removes their shadow pods by force, and creates others under the same name.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::Claimed;
use proptest::prelude::*;

use crate::entry::UsageEntry;
use crate::entry::tests::list;
use crate::observation::parts_with_witnesses;
use crate::voucher::may_have_run_on;
use crate::{
    Charges, ConsumerObservation, Period, Seconds, SeenPod, Tolerance, UsageEntries, Voucher,
    VoucherKey, compare_usage,
};

const PERIOD: u32 = 600;
const CLOCKS: Seconds = 300;
/// The consumer completes a period so much later.
const GRACE: Seconds = 60 + CLOCKS;
const END: Seconds = 4200;
/// Time at which a consumer that removes its pods stops to do so.
const LAST_ACT: Seconds = 1500;

/// False statement of the provider about one pod, if any.
#[derive(Clone, Copy, Debug)]
enum Lie {
    None,
    /// It began and ended so much earlier or later.
    Longer(Seconds, Seconds),
    /// The status says nothing, and the entries are longer.
    Hidden(Seconds, Seconds),
    /// This long after the pod was sent, its status becomes empty. Until then, and in the entries,
    /// it ends later than in truth.
    HiddenLater(Seconds),
    /// More cpu.
    Larger,
    /// The same pod again, when it is gone.
    Again(Seconds),
    /// The status says another begin than in the period before.
    Moves(Seconds),
}

/// One pod, in true seconds.
#[derive(Clone, Debug)]
struct Sent {
    at: Seconds,
    lives: Seconds,
    /// Somebody removes the local pod by force, while the consumer's manager is down.
    by_force: bool,
    lie: Lie,
}

#[derive(Clone, Debug)]
struct History {
    pods: Vec<Sent>,
    /// Pods that the provider invents, with a copied voucher or without.
    invented: Vec<(Seconds, bool)>,
    /// Times at which the consumer looks, and whether it restarted before.
    looks: Vec<(Seconds, bool)>,
    /// Seconds by which the provider's clock is ahead.
    skew: Seconds,
}

fn lies() -> impl Strategy<Value = Lie> {
    let more = || -400..400_i64;
    prop_oneof![
        Just(Lie::None),
        (more(), more()).prop_map(|(from, until)| Lie::Longer(from, until)),
        (more(), more()).prop_map(|(from, until)| Lie::Hidden(from, until)),
        (0..900_i64).prop_map(Lie::HiddenLater),
        Just(Lie::Larger),
        (1..1500_i64).prop_map(Lie::Again),
        more().prop_map(Lie::Moves),
    ]
}

fn histories() -> impl Strategy<Value = History> {
    let sent = (600..2100_i64, 1..900_i64, any::<bool>(), lies()).prop_map(
        |(at, lives, by_force, lie)| Sent {
            at,
            lives,
            by_force,
            lie,
        },
    );
    let looks = prop::collection::vec((30..400_i64, any::<bool>()), 6..14).prop_map(|gaps| {
        let mut at = 600;
        let looks = gaps.into_iter().map(|(gap, restarts)| {
            at += gap;
            (at, restarts)
        });
        looks
            .filter(|(at, _)| *at < END)
            .chain((END..END + 1200).step_by(200).map(|at| (at, false)))
            .collect()
    });
    let invented = prop::collection::vec((600..2600_i64, any::<bool>()), 0..2);
    (
        prop::collection::vec(sent, 1..4),
        invented,
        looks,
        -200..200_i64,
    )
        .prop_map(|(pods, invented, looks, skew)| History {
            pods,
            invented,
            looks,
            skew,
        })
}

impl Sent {
    fn gone(&self) -> Seconds {
        self.at + self.lives
    }

    /// Begin and end that the provider states, by its clock.
    fn said(&self, skew: Seconds) -> (Seconds, Seconds) {
        let (from, until) = (self.at + 1 + skew, self.gone() + skew);
        match self.lie {
            Lie::Longer(earlier, later) | Lie::Hidden(earlier, later) => {
                ((from - earlier).max(0), until + later)
            }
            Lie::HiddenLater(_) => (from, until + 400),
            _ => (from, until),
        }
    }

    /// The status of its shadow pod at a time.
    fn charges(&self, now: Seconds, skew: Seconds) -> Charges {
        let (mut from, until) = self.said(skew);
        match self.lie {
            Lie::Hidden(..) => return Charges::default(),
            Lie::HiddenLater(after) if now >= self.at + after => return Charges::default(),
            Lie::Moves(later) if now >= self.at + i64::from(PERIOD) => from += later,
            Lie::HiddenLater(_)
            | Lie::Longer(..)
            | Lie::None
            | Lie::Larger
            | Lie::Again(_)
            | Lie::Moves(_) => {}
        }
        let amounts = if matches!(self.lie, Lie::Larger) {
            "cpu=9"
        } else {
            "cpu=1"
        };
        let end = if now >= self.gone() {
            until.max(from).to_string()
        } else {
            String::new()
        };
        format!("{from}-{end} {amounts}")
            .parse()
            .unwrap_or_default()
    }
}

fn uid(n: usize) -> String {
    format!("u{n}")
}

fn key() -> VoucherKey {
    VoucherKey::derive(b"consumer")
}

fn voucher(n: usize, sent: Seconds) -> Option<String> {
    let voucher = Voucher {
        namespace: "demo".into(),
        pool: "p".into(),
        sent,
        amounts: vec![list("cpu=1")],
    };
    key().write_voucher("provider", &uid(n), &voucher)
}

/// The consumer's process and records.
#[derive(Default)]
struct Consumer {
    records: BTreeMap<Period, UsageEntries>,
    complete: BTreeSet<Period>,
    /// Charges of each pod that this process saw: lost at a restart.
    seen: BTreeMap<usize, Charges>,
    done: BTreeSet<String>,
}

impl Consumer {
    fn settled(&self) -> Seconds {
        self.complete
            .last()
            .map(|period| period.end())
            .unwrap_or_default()
    }

    fn store(&mut self, entries: &[UsageEntry]) {
        for (period, part) in entries
            .iter()
            .flat_map(|entry| parts_with_witnesses(entry, PERIOD, CLOCKS))
        {
            if !self.complete.contains(&period) {
                self.records.entry(period).or_default().add(part);
            }
        }
    }

    fn of_own_pod(
        &mut self,
        n: usize,
        pod: &Sent,
        gone: Option<Seconds>,
        now: Seconds,
        skew: Seconds,
    ) -> Vec<UsageEntry> {
        let shown = pod.charges(now, skew);
        let seen = self.seen.entry(n).or_default();
        if shown.continues(seen) {
            *seen = shown;
        }
        let asked = [list("cpu=1")];
        let (uid, sent, charges) = (uid(n), pod.at, &*seen);
        ConsumerObservation {
            uid: &uid,
            namespace: "demo",
            pool: "p",
            sent,
            gone,
            charged_until: Claimed::default(),
            asked: &asked,
            charges: Claimed::new(charges),
        }
        .entries(now, CLOCKS)
    }

    /// A shadow pod without local pod.
    fn of_orphan(
        &self,
        uid: &str,
        voucher: Option<&str>,
        charges: &Charges,
        gone: Option<Seconds>,
        now: Seconds,
    ) -> Vec<UsageEntry> {
        let texts: Vec<(Period, String)> = self
            .records
            .iter()
            .map(|(period, usage)| (*period, usage.canonical_text()))
            .collect();
        let Some(Voucher {
            namespace,
            pool,
            sent,
            amounts,
        }) = key().read_voucher("provider", uid, Claimed::new(voucher))
        else {
            return Vec::new();
        };
        if !may_have_run_on(
            uid,
            sent,
            self.settled(),
            texts.iter().map(|(period, text)| (*period, text.as_str())),
        ) {
            return Vec::new();
        }
        let (namespace, pool, asked) = (&namespace, &pool, &amounts);
        ConsumerObservation {
            uid,
            namespace,
            pool,
            sent,
            gone,
            charged_until: Claimed::default(),
            asked,
            charges: Claimed::new(charges),
        }
        .entries(now, CLOCKS)
    }

    fn looks(&mut self, history: &History, now: Seconds, restarts: bool) {
        if restarts {
            self.seen.clear();
            // Only the records say that a pod is done: its objects are gone.
        }
        let mut open = Vec::new();
        for (n, pod) in history
            .pods
            .iter()
            .enumerate()
            .filter(|(_, pod)| pod.at <= now)
        {
            let (uid, voucher, is_gone) = (uid(n), voucher(n, pod.at), now >= pod.gone());
            if self.done.contains(&uid) {
                // The provider shows it again after a while.
                if let Lie::Again(later) = pod.lie
                    && now >= pod.gone() + later
                    && restarts
                {
                    let charges = format!("{}- cpu=1", pod.at + history.skew)
                        .parse()
                        .unwrap_or_default();
                    open.extend(self.of_orphan(&uid, voucher.as_deref(), &charges, None, now));
                }
            } else if is_gone && pod.by_force && restarts {
                let entries = self.of_orphan(
                    &uid,
                    voucher.as_deref(),
                    &pod.charges(now, history.skew),
                    Some(now),
                    now,
                );
                self.store(&entries);
                self.done.insert(uid);
            } else if is_gone {
                let entries = self.of_own_pod(n, pod, Some(now), now, history.skew);
                self.store(&entries);
                self.done.insert(uid);
            } else {
                open.extend(self.of_own_pod(n, pod, None, now, history.skew));
            }
        }
        for (n, (from, has_copy)) in history.invented.iter().enumerate() {
            let copied = voucher(0, history.pods[0].at).filter(|_| *has_copy);
            let charges = format!("{from}- cpu=1").parse().unwrap_or_default();
            open.extend(self.of_orphan(
                &format!("invented{n}"),
                copied.as_deref(),
                &charges,
                None,
                now,
            ));
        }
        let mut period = Period::at(0, PERIOD);
        while period.end() + GRACE <= now {
            if !self.complete.contains(&period) {
                for part in open.iter().filter_map(|entry| period.part_of(entry)) {
                    self.records.entry(period).or_default().add(part);
                }
                self.complete.insert(period);
            }
            period = period.next();
        }
    }
}

/// Usage that the provider puts into its records.
fn claimed(history: &History) -> BTreeMap<Period, UsageEntries> {
    let mut entries = Vec::new();
    for (n, pod) in history.pods.iter().enumerate() {
        let (mut from, until) = pod.said(history.skew);
        let amounts = list(if matches!(pod.lie, Lie::Larger) {
            "cpu=9"
        } else {
            "cpu=1"
        });
        if let Lie::Moves(later) = pod.lie {
            // It counts the earlier begin in the first period, and the later end in the others.
            entries.extend(UsageEntry::exact(
                &uid(n),
                "p",
                from.max(0),
                until + later.max(0),
                &amounts,
            ));
            from = until;
        }
        if let Lie::Again(later) = pod.lie {
            entries.extend(UsageEntry::exact(
                &uid(n),
                "p",
                (until + later).max(0),
                END,
                &amounts,
            ));
        }
        entries.extend(UsageEntry::exact(
            &uid(n),
            "p",
            from.max(0),
            until,
            &amounts,
        ));
    }
    for (n, (from, _)) in history.invented.iter().enumerate() {
        entries.extend(UsageEntry::exact(
            &format!("invented{n}"),
            "p",
            *from,
            from + 500,
            &list("cpu=1"),
        ));
    }
    let mut usage: BTreeMap<Period, UsageEntries> = BTreeMap::new();
    for (period, part) in entries
        .iter()
        .flat_map(|entry| Period::parts(entry, PERIOD))
    {
        usage.entry(period).or_default().add(part);
    }
    usage
}

/// Usage that the consumer signs, by pod: seconds, and the largest amount. The provider may leave
/// out the pods that are disputed.
fn signed(history: &History) -> BTreeMap<String, (Seconds, UsageEntries)> {
    let mut consumer = Consumer::default();
    for (now, restarts) in &history.looks {
        consumer.looks(history, *now, *restarts);
    }
    let mut signed: BTreeMap<String, (Seconds, UsageEntries)> = BTreeMap::new();
    for (period, theirs) in claimed(history) {
        let none = UsageEntries::default();
        let ours = consumer.records.get(&period).unwrap_or(&none);
        for entry in compare_usage(
            &theirs,
            ours,
            Tolerance {
                exact: 0,
                clocks: CLOCKS,
            },
        )
        .agreed
        .entries()
        {
            let (seconds, usage) = signed.entry(entry.uid.clone()).or_default();
            *seconds += entry.seconds();
            usage.add(entry.clone());
        }
    }
    signed
}

/// Action of a consumer on the shadow pod of one name.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Creates it, if there is none.
    Create,
    /// Deletes it, and leaves its finalizer.
    Delete,
    /// Removes its finalizer, and deletes it.
    Remove,
    /// The same, and creates another one at once.
    Replace,
}

/// A shadow pod.
#[derive(Clone, Debug, Default)]
struct ShadowPod {
    uid: usize,
    charges: Charges,
    is_deleted: bool,
}

/// The remote pod: all shadow pods of a name have a pod of the same name.
#[derive(Clone, Debug)]
struct RemotePod {
    created: Seconds,
    goes: Option<Seconds>,
}

/// An honest provider: its objects, its records, and what its process remembers.
#[derive(Default)]
struct Provider {
    shadow: Option<ShadowPod>,
    pod: Option<RemotePod>,
    records: BTreeMap<Period, UsageEntries>,
    complete: BTreeSet<Period>,
    /// shadow pods that are gone, until their entries are stored.
    left: Vec<ShadowPod>,
    /// By the UID of the shadow pod.
    pending: BTreeMap<usize, Vec<UsageEntry>>,
    ends: BTreeMap<usize, Seconds>,
    stored: BTreeSet<usize>,
    created: usize,
    /// The third model: how long pods existed with a shadow pod that wants them, and how long at
    /// all.
    wanted: Seconds,
    existed: Seconds,
}

impl Provider {
    /// A second passes.
    fn pass(&mut self, now: Seconds) {
        if self
            .pod
            .as_ref()
            .is_some_and(|pod| pod.goes.is_some_and(|goes| goes <= now))
        {
            self.pod = None;
        }
        self.existed += i64::from(self.pod.is_some());
        let is_wanted = self
            .shadow
            .as_ref()
            .is_some_and(|shadow| !shadow.is_deleted);
        self.wanted +=
            i64::from(is_wanted && self.pod.as_ref().is_some_and(|pod| pod.goes.is_none()));
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Create => {}
            Act::Delete => self
                .shadow
                .iter_mut()
                .for_each(|shadow| shadow.is_deleted = true),
            // The watch tells each shadow pod that is gone.
            Act::Remove | Act::Replace => self.left.extend(self.shadow.take()),
        }
        if matches!(act, Act::Create | Act::Replace) && self.shadow.is_none() {
            self.created += 1;
            self.shadow = Some(ShadowPod {
                uid: self.created,
                ..ShadowPod::default()
            });
        }
    }

    /// Present charges of a shadow pod.
    fn charges(&self, shadow: &ShadowPod, now: Seconds) -> Charges {
        let since = self
            .ends
            .iter()
            .filter(|(uid, _)| **uid != shadow.uid)
            .map(|(_, end)| *end)
            .max()
            .unwrap_or_default();
        match &self.pod {
            Some(pod) => {
                let amounts = list("cpu=1");
                shadow.charges.after_seen(
                    &SeenPod {
                        created: pod.created.max(since),
                        ended: None,
                        amounts: &amounts,
                        settled: 0,
                    },
                    now,
                )
            }
            None => shadow.charges.after_gone(now, None),
        }
    }

    fn store(&mut self, shadow: &ShadowPod, now: Seconds) -> bool {
        let entries = self.charges(shadow, now).entries("u", "p", now);
        if self.stored.contains(&shadow.uid) || entries.is_empty() {
            return true;
        }
        self.ends.entry(shadow.uid).or_insert(now);
        self.pending.entry(shadow.uid).or_insert(entries);
        false
    }

    fn write(&mut self, entries: &[UsageEntry]) {
        for (period, part) in entries
            .iter()
            .flat_map(|entry| Period::parts(entry, PERIOD))
        {
            if !self.complete.contains(&period) {
                self.records.entry(period).or_default().add(part);
            }
        }
    }

    fn looks(&mut self, now: Seconds) {
        let (pending, mut period) = (std::mem::take(&mut self.pending), Period::at(0, PERIOD));
        for (uid, entries) in pending {
            self.write(&entries);
            self.stored.insert(uid);
        }
        let all: Vec<ShadowPod> = self.left.iter().chain(&self.shadow).cloned().collect();
        while period.end() + 60 <= now {
            if !self.complete.contains(&period) {
                for shadow in &all {
                    if self.stored.contains(&shadow.uid) {
                        continue;
                    }
                    let entries = self.charges(shadow, now).entries("u", "p", now);
                    let parts: Vec<UsageEntry> = entries
                        .iter()
                        .filter_map(|entry| period.part_of(entry))
                        .collect();
                    self.write(&parts);
                }
                self.complete.insert(period);
            }
            period = period.next();
        }
        for shadow in std::mem::take(&mut self.left) {
            if !self.store(&shadow, now) {
                self.left.push(shadow);
            }
        }
        self.reconcile(now);
    }

    fn reconcile(&mut self, now: Seconds) {
        let is_left = !self.left.is_empty();
        let Some(mut shadow) = self.shadow.take() else {
            self.pod
                .iter_mut()
                .filter(|_| !is_left)
                .for_each(|pod| _ = pod.goes.get_or_insert(now + 20));
            return;
        };
        if shadow.is_deleted && self.pod.is_none() {
            if !self.store(&shadow, now) {
                self.shadow = Some(shadow);
            }
            return;
        }
        if shadow.is_deleted {
            self.pod
                .iter_mut()
                .for_each(|pod| _ = pod.goes.get_or_insert(now + 20));
        } else if self.pod.is_none() {
            shadow.charges = self.charges(&shadow, now);
            self.pod = Some(RemotePod {
                created: now,
                goes: None,
            });
        }
        shadow.charges = self.charges(&shadow, now);
        self.shadow = Some(shadow);
    }
}

fn acts() -> impl Strategy<Value = Vec<(Seconds, Act)>> {
    let act = prop_oneof![
        Just(Act::Create),
        Just(Act::Delete),
        Just(Act::Remove),
        Just(Act::Replace)
    ];
    prop::collection::vec((1..300_i64, act), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_consumer_pays_for_every_second_however_it_removes_and_creates_its_pods(
        acts in acts(), gaps in prop::collection::vec(5..40_i64, 1..12)
    ) {
        let (mut provider, mut gaps, mut looks_at) = (Provider::default(), gaps.into_iter().cycle(), 1);
        let mut acts = acts.into_iter().scan(0, |at, (gap, act)| { *at += gap; Some((*at, act)) }).peekable();
        provider.act(Act::Create);
        for now in 1..LAST_ACT + 900 {
            provider.pass(now);
            while let Some((_, act)) = acts.next_if(|(at, _)| *at <= now && now < LAST_ACT) {
                provider.act(act);
            }
            if now == LAST_ACT {
                provider.act(Act::Remove);
            }
            if now >= looks_at {
                provider.looks(now);
                looks_at = now + gaps.next().unwrap_or(1);
            }
        }
        let counted: Seconds = provider.records.values().flat_map(UsageEntries::entries).map(UsageEntry::seconds).sum();
        let overlap: Seconds = provider.records.values().map(UsageEntries::overlap_seconds).sum();
        let longest = 41 * i64::try_from(provider.created + 1).unwrap();
        prop_assert_eq!(overlap, 0);
        prop_assert!(counted >= provider.wanted, "{} of {}", counted, provider.wanted);
        prop_assert!(counted <= provider.existed + longest, "{} of {}", counted, provider.existed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_consumer_signs_for_no_invented_pod_and_for_no_larger_amount(history in histories()) {
        for (uid, (_, usage)) in &signed(&history) {
            prop_assert!(!uid.starts_with("invented"), "{} {}", uid, usage.canonical_text());
            prop_assert!(usage.entries().all(|entry| entry.amounts == list("cpu=1")), "{}", usage.canonical_text());
        }
    }

    #[test]
    fn an_honest_provider_gets_every_second_signed_whatever_the_clocks_say(history in histories()) {
        let pods = history.pods.iter().map(|pod| Sent { lie: Lie::None, by_force: false, ..pod.clone() }).collect();
        let history = History { pods, invented: Vec::new(), ..history };
        let signed = signed(&history);
        for (n, pod) in history.pods.iter().enumerate() {
            let (from, until) = pod.said(history.skew);
            let counted = signed.get(&uid(n)).map_or(0, |(seconds, _)| *seconds);
            prop_assert_eq!(counted, (until - from.max(0)).max(0), "u{}", n);
        }
    }
}
