use liqo_metering::receipt::{ContractVersion, ReceiptContract};
use liqo_metering::spending::SettledCosts;
use liqo_metering::{Period, UsageEntries};
use proptest::prelude::*;

use super::*;

fn money(text: &str) -> Money {
    text.parse().unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn noon() -> Timestamp {
    at("2026-01-31T12:00:00Z")
}

fn id(byte: u8) -> ClusterId {
    ClusterId::of_public_key(&[byte; 32])
}

fn held(holder: BudgetHolder, amount: &str) -> HeldBudget {
    let (currency, period, when_spent) = ("EUR".to_owned(), BudgetPeriod::Day, WhenSpent::Keep);
    HeldBudget {
        holder,
        budget: Budget {
            currency,
            amount: money(amount),
            period,
            when_spent,
        },
    }
}

fn of_demo(amount: &str) -> HeldBudget {
    held(BudgetHolder::Namespace("demo".to_owned()), amount)
}

fn costs(all: &[(&str, &str)]) -> CostsByNamespace {
    let mut costs = CostsByNamespace::default();
    for (namespace, cost) in all {
        costs.add("EUR", namespace, money(cost));
    }
    costs
}

fn provider(byte: u8, spent: &[(&str, &str)], per_hour: &[(&str, &str)]) -> ProviderCosts {
    let currencies = BTreeSet::from(["EUR".to_owned()]);
    ProviderCosts {
        id: id(byte),
        name: format!("p{byte}"),
        policy: Some("default".to_owned()),
        asks: currencies.clone(),
        unmetered: BTreeSet::new(),
        contract: Some(currencies),
        day: costs(spent),
        month: costs(spent),
        per_hour: costs(per_hour),
    }
}

fn judged(held: &HeldBudget, providers: &[ProviderCosts]) -> BudgetState {
    evaluate_budget(held, providers, None, ROUND, noon())
}

#[test]
fn a_budget_is_spent_when_the_rest_does_not_cover_the_next_round() {
    // 0.36 for an hour are 0.001 for ten seconds.
    let spent = |spent: &str, per_hour: &str| {
        judged(
            &of_demo("1"),
            &[provider(
                1,
                &[("demo", spent), ("shop", "5")],
                &[("demo", per_hour), ("shop", "50")],
            )],
        )
        .is_spent
    };
    assert!(
        !spent("0.998", "0.36")
            && spent("0.999", "0.36")
            && spent("1", "0")
            && !spent("0.999999999", "0")
    );
    assert!(judged(&of_demo("0"), &[]).is_spent, "nothing may be spent");
}

#[test]
fn a_policy_counts_all_namespaces_at_its_providers_and_a_namespace_all_providers() {
    let mut other = provider(2, &[("demo", "3"), ("", "1")], &[("demo", "1")]);
    other.policy = Some("other".to_owned());
    let providers = [
        provider(1, &[("demo", "2"), ("shop", "4")], &[("shop", "8")]),
        other,
    ];
    let spent = |holder| judged(&held(holder, "100"), &providers).spent;
    assert_eq!(spent(BudgetHolder::Policy("default".into())), money("6"));
    assert_eq!(spent(BudgetHolder::Policy("other".into())), money("4"));
    assert_eq!(
        spent(BudgetHolder::Namespace("demo".into())),
        money("5"),
        "pods that nobody knows count for policies only"
    );
    assert_eq!(spent(BudgetHolder::Namespace("shop".into())), money("4"));
}

#[test]
fn a_spent_budget_closes_the_providers_that_cost_something() {
    let free = ProviderCosts {
        asks: BTreeSet::new(),
        contract: None,
        ..provider(2, &[], &[])
    };
    let verdict = judged(&of_demo("1"), &[provider(1, &[("demo", "1")], &[]), free]);
    assert_eq!(verdict.closed.keys().collect::<Vec<_>>(), [&id(1)]);
    let reason = verdict.closed[&id(1)].reason;
    assert_eq!(reason, OffloadedReason::BudgetSpent);
    let condition = verdict.condition();
    assert_eq!(
        (condition.status, condition.reason.as_str()),
        (Some(false), "BudgetSpent")
    );
    assert!(
        condition
            .message
            .contains("namespace demo, 1 EUR for each day")
            && condition.message.contains("2026-02-01T00:00:00Z")
    );
}

#[test]
fn what_cannot_be_counted_closes_a_provider_before_anything_is_spent() {
    let without_contract = ProviderCosts {
        contract: None,
        unmetered: BTreeSet::from(["gold".to_owned()]),
        ..provider(1, &[], &[])
    };
    let dollars = ProviderCosts {
        asks: BTreeSet::from(["USD".to_owned()]),
        ..provider(2, &[], &[])
    };
    let verdict = judged(
        &of_demo("1"),
        &[without_contract, dollars, provider(3, &[], &[])],
    );
    assert!(!verdict.is_spent && verdict.closed.len() == 2);
    for (closed, words) in [
        (
            &verdict.closed[&id(1)],
            ["p1 asks for EUR without a contract", "`provide.contract`"],
        ),
        (
            &verdict.closed[&id(2)],
            ["p2 asks for USD", "set the budget in USD"],
        ),
    ] {
        assert_eq!(closed.reason, OffloadedReason::CostsNotCounted);
        for words in words {
            assert!(closed.message.contains(words), "{}", closed.message);
        }
    }
    assert_eq!(verdict.condition().reason, "CostsNotCounted");
    assert_eq!(
        judged(&of_demo("1"), &[provider(3, &[], &[])])
            .condition()
            .status,
        Some(true)
    );
}

fn eur(cpu: &str) -> PriceList {
    PriceList {
        currency: "EUR".to_owned(),
        rates: [("cpu", money(cpu))].into_iter().collect(),
    }
}

/// A contract for pool `default` from noon on.
fn account(end: Option<i64>) -> ContractAccount {
    let contract = contract(1, noon().as_second(), end);
    ContractAccount::new(contract, 3600, SettledCosts::default())
}

/// A contract for pool `default`, beginning with this version.
fn contract(version: u32, from: i64, end: Option<i64>) -> ReceiptContract {
    let prices = BTreeMap::from([("default".to_owned(), eur("0.04"))]);
    let versions = vec![ContractVersion {
        version,
        digest: String::new(),
        from,
        prices,
    }];
    ReceiptContract {
        id: "c".to_owned(),
        provider: id(1),
        consumer: id(2),
        versions,
        end,
    }
}

/// Milan, one hour after noon, with pools that ask for so much for a core, and with pods that run.
fn milan(
    asks: &[(&str, &str)],
    accounts: &[ContractAccount],
    running: &[UsageEntry],
) -> ProviderCosts {
    let asks = asks
        .iter()
        .map(|(pool, cpu)| ((*pool).to_owned(), eur(cpu)))
        .collect();
    ProviderCosts::from_accounts(
        id(1),
        "milan".to_owned(),
        None,
        &asks,
        accounts,
        running,
        at("2026-01-31T13:00:00Z"),
    )
}

#[test]
fn a_pool_that_asks_for_money_beside_the_contract_is_not_taken_for_nothing() {
    let closed = |asks: &[(&str, &str)]| {
        judged(&of_demo("1"), &[milan(asks, &[account(None)], &[])])
            .closed
            .into_values()
            .next()
    };
    assert_eq!(
        (closed(&[("default", "0.04")]), closed(&[])),
        (None, None),
        "a pool without prices is free"
    );
    let why = closed(&[("default", "0.04"), ("gold", "0.04")])
        .unwrap()
        .message;
    assert!(
        why.contains("milan asks for EUR without a contract for pool gold"),
        "{why}"
    );
}

#[test]
fn what_runs_in_a_pool_without_a_contract_counts_at_the_prices_that_it_asks_for_since_it_started() {
    // Since the 30th: 37 hours, of which 13 are today.
    let gold: UsageEntry = format!(
        "u gold {} {} cpu=2 demo",
        noon().as_second() - 36 * 3600,
        noon().as_second() + 3600
    )
    .parse()
    .unwrap();
    let with = |asks: &[(&str, &str)]| milan(asks, &[account(None)], std::slice::from_ref(&gold));
    let one = with(&[("gold", "0.5"), ("default", "0.04")]);
    assert_eq!(
        (
            one.day.of_namespace("EUR", "demo"),
            one.month.of_namespace("EUR", "demo")
        ),
        (money("13"), money("37"))
    );
    assert_eq!(one.per_hour.of_namespace("EUR", "demo"), money("1"));
    let verdict = judged(&of_demo("13"), std::slice::from_ref(&one));
    assert!(
        verdict.is_spent && verdict.closed.contains_key(&id(1)),
        "{verdict:?}"
    );
    assert_eq!(
        with(&[("default", "0.04")]).month,
        CostsByNamespace::default(),
        "it asks for nothing any more"
    );
    assert_eq!(
        milan(&[("gold", "0.5")], &[], &[]).day,
        CostsByNamespace::default(),
        "it has ended"
    );
}

#[test]
fn a_pod_that_outlives_its_contract_counts_once() {
    let (noon, half_past) = (noon().as_second(), noon().as_second() + 1800);
    let pod: UsageEntry = format!("u default {noon} {} cpu=1 demo", noon + 3600)
        .parse()
        .unwrap();
    let spent = |end: Option<i64>, asks: &str| {
        let mut account = account(end);
        account.add_running(std::slice::from_ref(&pod));
        milan(&[("default", asks)], &[account], std::slice::from_ref(&pod))
            .day
            .of_namespace("EUR", "demo")
    };
    assert_eq!(spent(None, "0.04"), money("0.04"), "the contract counts it");
    assert_eq!(
        spent(Some(half_past), "1"),
        money("0.52"),
        "half an hour under the contract, half an hour at the price that is asked"
    );
}

/// Today's cost of a pod that runs since ten o'clock, with a core that costs 0.04 an hour.
fn spent_since_ten(mut accounts: Vec<ContractAccount>, now: i64) -> Money {
    let ten = noon().as_second() - 7200;
    let pod: UsageEntry = format!("u default {ten} {now} cpu=1 demo").parse().unwrap();
    for account in &mut accounts {
        account.add_running(std::slice::from_ref(&pod));
    }
    let asks = BTreeMap::from([("default".to_owned(), eur("0.04"))]);
    let now = Timestamp::from_second(now).unwrap();
    let name = "milan".to_owned();
    ProviderCosts::from_accounts(id(1), name, None, &asks, &accounts, &[pod], now)
        .day
        .of_namespace("EUR", "demo")
}

#[test]
fn the_costs_of_a_running_pod_never_fall_when_contracts_come_and_go() {
    let noon = noon().as_second();
    let (first_end, second) = (noon + 5400, noon + 9000);
    for minutes in 1..6 * 60 {
        let now = noon - 7200 + 60 * minutes;
        let known_end = (first_end <= now).then_some(first_end);
        let all = [(noon, known_end), (second, None)];
        let accounts = all
            .into_iter()
            .filter(|(from, _)| *from <= now)
            .map(|(from, end)| {
                ContractAccount::new(contract(1, from, end), 3600, SettledCosts::default())
            })
            .collect();
        let exact = Money::from_nanos(i128::from(minutes) * 40_000_000 / 60);
        let spent = spent_since_ten(accounts, now);
        // Each part is rounded.
        let difference = (spent - exact).nanos().abs();
        assert!(difference <= 10, "{spent} after {minutes} minutes");
    }
}

/// The costs of a pod that runs since noon, an hour later, if this contract is stored.
fn spent_in_an_hour(contract: ReceiptContract) -> ProviderCosts {
    let from = noon().as_second();
    let pod: UsageEntry = format!("u default {from} {} cpu=1 demo", from + 3600)
        .parse()
        .unwrap();
    let account = ContractAccount::new(contract, 3600, SettledCosts::default());
    milan(&[("default", "0.04")], &[account], &[pod])
}

#[test]
fn a_contract_that_ends_before_its_last_terms_count_is_followed_by_one_estimate() {
    let noon = noon().as_second();
    let mut two = contract(1, noon - 3600, Some(noon));
    two.versions.extend(contract(2, noon + 1800, None).versions);
    let spent = spent_in_an_hour(two);
    assert_eq!(spent.day.of_namespace("EUR", "demo"), money("0.04"));
}

#[test]
fn a_pool_is_not_metered_before_the_terms_that_are_signed_count() {
    let later = contract(2, noon().as_second() + 7200, None);
    let costs = spent_in_an_hour(later);
    let verdict = judged(&of_demo("13"), &[costs]);
    let closed = &verdict.closed[&id(1)];
    assert_eq!(closed.reason, OffloadedReason::CostsNotCounted);
}

#[test]
fn time_whose_contracts_may_be_gone_is_not_estimated() {
    let noon = noon().as_second();
    let one_o_clock = noon + 3600;
    let with = |version, settled| {
        let account = ContractAccount::new(contract(version, noon, None), 3600, settled);
        spent_since_ten(vec![account], one_o_clock)
    };
    assert_eq!(with(1, SettledCosts::default()), money("0.12"));
    assert_eq!(
        with(2, SettledCosts::default()),
        money("0.04"),
        "its version 1 may have counted the pod"
    );
    // A contract that is gone counted the hour from ten to eleven.
    let ten = noon - 7200;
    let period = Period::at(ten, 3600);
    let usage = UsageEntries::parse(&format!("u default {ten} {} cpu=1 demo\n", ten + 3600));
    let gone = SettledCosts::default().with_period(
        &contract(1, ten, Some(ten + 3600)),
        period,
        &usage.unwrap(),
    );
    let taken_over = SettledCosts::default().taking_over("gone", &gone);
    assert_eq!(with(1, taken_over), money("0.12"), "that hour counts once");
}

#[test]
fn a_spent_budget_stays_so_until_the_next_day_or_until_it_is_raised() {
    let running = [provider(1, &[("demo", "0.9995")], &[("demo", "0.36")])];
    let ended = [provider(1, &[("demo", "0.9995")], &[])];
    let first = evaluate_budget(&of_demo("1"), &running, None, ROUND, noon());
    let later =
        |held: &HeldBudget, now| evaluate_budget(held, &ended, Some(&first), ROUND, now).is_spent;
    assert!(first.is_spent && later(&of_demo("1"), noon()));
    assert!(!later(&of_demo("2"), noon()) && !later(&of_demo("1"), at("2026-02-01T00:00:00Z")));
    assert!(
        !evaluate_budget(&of_demo("1"), &ended, None, ROUND, noon()).is_spent,
        "a process that starts again may let a little more be spent"
    );
}

#[test]
fn what_all_budgets_do_is_known_by_namespace_and_provider() {
    let move_home = |mut held: HeldBudget| {
        held.budget.when_spent = WhenSpent::MoveHome;
        held
    };
    let policy = |amount| move_home(held(BudgetHolder::Policy("default".to_owned()), amount));
    let providers = [provider(1, &[("demo", "1"), ("shop", "1")], &[])];
    let standing = |budgets: &[HeldBudget]| {
        BudgetEvaluation::evaluate_all(
            budgets,
            &providers,
            &BudgetEvaluation::default(),
            ROUND,
            noon(),
        )
    };
    let none = standing(&[of_demo("9"), policy("9")]);
    assert_eq!(
        (
            none.closed_for_all(&id(1)),
            none.closed_for("demo", &id(1)),
            none.moves_any_home()
        ),
        (None, None, false)
    );
    let namespace = standing(&[of_demo("1"), policy("9")]);
    assert!(
        namespace.closed_for("demo", &id(1)).is_some()
            && namespace.closed_for("shop", &id(1)).is_none()
    );
    assert!(!namespace.moves_home("demo", &id(1)), "its pods are kept");
    assert_eq!(
        namespace.changed_since(&none),
        Some(BTreeSet::from(["demo"]))
    );
    let all = standing(&[of_demo("9"), policy("2")]);
    assert!(
        all.closed_for("shop", &id(1)).is_some()
            && all.moves_home("shop", &id(1))
            && all.moves_any_home()
    );
    assert_eq!(
        (all.changed_since(&none), all.changed_since(&all)),
        (None, Some(BTreeSet::new()))
    );
    assert!(all.has_evaluated(&id(1)) && !all.has_evaluated(&id(2)));
}

/// A pod that is created at some second, and costs so many billionths for each second.
#[derive(Debug, Clone, Copy)]
struct Story {
    created: i64,
    seconds: i64,
    rate: i128,
}

proptest! {
    /// Every second, pods that are placed are charged; every round, the budget is judged. With
    /// `MoveHome`, the pods go home when it is spent. The process restarts at any round, and knows
    /// only what is spent.
    #[test]
    fn a_budget_is_never_exceeded_by_more_than_one_scheduling_round(
        pods in prop::collection::vec((0..300_i64, 1..200_i64, 0..5000_i128), 0..40),
        amount in 0..800_000_i128,
        moves_home in any::<bool>(),
        restarts in prop::collection::vec(any::<bool>(), 40),
    ) {
        let pods = pods.into_iter().map(|(created, seconds, rate)| Story { created, seconds, rate });
        let mut waiting: Vec<Story> = pods.collect();
        let (mut running, mut spent): (Vec<Story>, i128) = (Vec::new(), 0);
        let mut budget = of_demo("0");
        budget.budget.amount = Money::from_nanos(amount);
        if moves_home {
            budget.budget.when_spent = WhenSpent::MoveHome;
        }
        // What the pods cost in ten seconds that were placed in the last round in which some could
        // be.
        let (mut former, mut over) = (None, 0_i128);
        for second in 0..400_i64 {
            if second % 10 == 0 {
                let rate: i128 = running.iter().map(|pod| pod.rate).sum();
                let mut one = provider(1, &[], &[]);
                one.day.add("EUR", "demo", Money::from_nanos(spent));
                one.per_hour.add("EUR", "demo", Money::from_nanos(rate * 3600));
                let known: Option<BudgetState> = former.take();
                let known = known.filter(|_| !restarts[usize::try_from(second / 10).unwrap() % restarts.len()]);
                let verdict = evaluate_budget(&budget, &[one], known.as_ref(), ROUND, noon() + jiff::SignedDuration::from_secs(second));
                if !verdict.is_spent {
                    prop_assert!(spent + rate * 10 < amount, "what runs is paid until the next round");
                }
                if verdict.moves_home() {
                    running.clear();
                }
                if !verdict.is_spent {
                    over = 0;
                }
                former = Some(verdict);
            }
            if former.as_ref().is_some_and(|verdict| !verdict.is_spent) {
                let (due, rest): (Vec<Story>, _) = waiting.into_iter().partition(|pod| pod.created <= second);
                waiting = rest;
                over += due.iter().map(|pod| pod.rate * 10).sum::<i128>();
                running.extend(due.into_iter().map(|pod| Story { created: second, ..pod }));
                prop_assert!(spent <= amount + over, "no pod is placed after that");
            }
            spent += running.iter().map(|pod| pod.rate).sum::<i128>();
            running.retain(|pod| second + 1 < pod.created + pod.seconds);
            if moves_home {
                prop_assert!(spent <= amount + over, "{spent} of {amount}, and {over} in a round");
            }
        }
    }
}
