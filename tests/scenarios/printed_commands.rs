//! The commands of the pages about contracts and prices work as the pages print them, from the
//! first contract to a guarantee that its provider ends early.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_tests::{
    Cluster, World,
    docs::{Page, with_names},
    eventually,
};
use serde_json::{Value, json};

use crate::contracts::{contract_in_force, copies, offers_need_no_contract, tenant};

/// Timeout until a change gets from one cluster to the other, with time to spare on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);
/// The namespace in the commands of the pages.
const DEMO: &str = "demo";
/// Short, so that ends do not take long.
const NOTICE_SECONDS: u32 = 5;
const DAY_SECONDS: u32 = 86_400;

/// What people do with contracts, in this order.
const CONTRACTS: &str = concat!(
    include_str!("../../docs/how-to/offer-a-contract.md"),
    include_str!("../../docs/how-to/sign-a-contract.md"),
    include_str!("../../docs/how-to/end-a-contract.md"),
    include_str!("../../docs/how-to/verify-a-contract.md"),
);
/// What people do with prices.
const PRICES: &str = concat!(
    include_str!("../../docs/how-to/set-prices.md"),
    include_str!("../../docs/how-to/limit-what-you-pay.md"),
    include_str!("../../docs/how-to/give-a-namespace-a-budget.md"),
);

/// The pages, and where their commands write files.
struct Reader<'a> {
    world: &'a World,
    contracts: Page,
    prices: Page,
    directory: PathBuf,
}

impl Reader<'_> {
    /// Runs a command as printed, with the IDs of rome and milan.
    async fn run(&self, cluster: &Cluster, command: &str) -> Result<String> {
        let (rome, milan) = (
            self.world.rome.cluster_id().await?,
            self.world.milan.cluster_id().await?,
        );
        cluster
            .printed(
                &with_names(command, &[("ROME", &rome), ("MILAN", &milan)]),
                &self.directory,
            )
            .await
    }

    /// Runs the command of the pages about contracts with these words.
    async fn contracts(&mut self, cluster: &Cluster, words: &str) -> Result<String> {
        let command = self.contracts.take(words)?;
        self.run(cluster, &command).await
    }

    /// The same, where the command asks: as the page says, `-y` answers.
    async fn contracts_yes(&mut self, cluster: &Cluster, words: &str) -> Result<String> {
        let command = self.contracts.take(words)?;
        self.run(cluster, &format!("{command} -y")).await
    }

    /// Runs the command of the pages about prices with these words.
    async fn prices(&mut self, cluster: &Cluster, words: &str) -> Result<String> {
        let command = self.prices.take(words)?;
        self.run(cluster, &command).await
    }
}

async fn policy(cluster: &Cluster) -> Result<Value> {
    let policy = cluster
        .object(&["peeringpolicy", "default"])
        .await?
        .context("there is no policy `default`")?;
    Ok(policy["spec"].clone())
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
async fn patch_policy(cluster: &Cluster, kind: &str, patch: Value) -> Result<()> {
    let patch = patch.to_string();
    cluster
        .kubectl(&[
            "patch",
            "peeringpolicy",
            "default",
            "--type",
            kind,
            "-p",
            &patch,
        ])
        .await
        .map(drop)
}

fn name_of(contract: &Value) -> &str {
    contract["metadata"]["name"].as_str().unwrap_or_default()
}

pub async fn the_commands_of_contracts_and_prices_work_and_a_guarantee_that_ends_early_is_a_breach(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let before = [(rome, policy(rome).await?), (milan, policy(milan).await?)];
    let directory = world.scratch("printed");
    std::fs::create_dir_all(&directory)?;
    let mut reader = Reader {
        world: &world,
        contracts: Page::new("the pages about contracts", CONTRACTS),
        prices: Page::new("the pages about prices", PRICES),
        directory,
    };
    patch_policy(
        milan,
        "merge",
        json!({ "spec": { "provide": { "noticeSeconds": NOTICE_SECONDS } } }),
    )
    .await?;

    let first = a_contract_with_prices(&mut reader).await?;
    prices_are_seen(&mut reader).await?;
    budgets_are_set_seen_and_taken_away(&mut reader).await?;
    stored_copies_are_compared(&mut reader, &first).await?;
    let second = the_consumer_ends_it_and_begins_again(&mut reader, &first).await?;
    a_person_accepts_a_guarantee(&mut reader, &second).await?;
    an_early_end_is_a_breach(&world, &second).await?;

    reader.prices(milan, r#""prices":null"#).await?;
    ensure!(
        policy(milan).await?["provide"]["prices"].is_null(),
        "there are prices left"
    );
    reader.contracts.all_were_taken()?;
    reader.prices.all_were_taken()?;
    for (cluster, spec) in before {
        patch_policy(
            cluster,
            "json",
            json!([{ "op": "replace", "path": "/spec", "value": spec }]),
        )
        .await?;
    }
    milan.liqoctl(&["contract", "forget", "rome"]).await?;
    offers_need_no_contract(&world).await?;
    // The breach would last as long as the contract that ended.
    for (cluster, namespace) in [
        (milan, tenant(&world).await?),
        (rome, copies(&world).await?),
    ] {
        cluster
            .kubectl(&[
                "-n",
                &namespace,
                "delete",
                "contracts.sharing.liqo.io",
                name_of(&second),
                "--ignore-not-found",
            ])
            .await?;
    }
    Ok(())
}

/// Milan offers contracts, then wants prices. Rome signs both.
async fn a_contract_with_prices(reader: &mut Reader<'_>) -> Result<Value> {
    let (rome, milan) = (&reader.world.rome, &reader.world.milan);
    reader
        .contracts(milan, r#"{"commitment":"BestEffort"}"#)
        .await?;
    let first = contract_in_force(reader.world, "without prices", |contract| {
        let terms = &contract["spec"]["terms"];
        terms["commitment"] == "BestEffort" && terms["noticeSeconds"] == NOTICE_SECONDS
    })
    .await?;
    let listed = reader.contracts(milan, "liqoctl contract list").await?;
    let row = listed
        .lines()
        .find(|line| line.contains(name_of(&first)))
        .with_context(|| listed.clone())?;
    ensure!(
        ["rome", "InForce", "BestEffort", "yes"]
            .iter()
            .all(|word| row.contains(word)),
        "{listed}"
    );
    let shown = reader
        .contracts(milan, "liqoctl contract show rome")
        .await?;
    ensure!(
        shown.contains(name_of(&first)) && shown.contains("in force since"),
        "{shown}"
    );

    reader.prices(rome, "maxPrices").await?;
    reader.prices(milan, r#""nvidia.com/gpu":"1.2""#).await?;
    contract_in_force(reader.world, "with prices", |contract| {
        let rates = &contract["spec"]["terms"]["prices"]["default"]["rates"];
        name_of(contract) == name_of(&first) && rates["cpu"] == "0.04" && rates["memory"] == "0.005"
    })
    .await
}

/// Each command of the table shows the currency, at the side that the table names.
async fn prices_are_seen(reader: &mut Reader<'_>) -> Result<()> {
    let rows = reader.prices.take_rows();
    ensure!(
        !rows.is_empty(),
        "docs/how-to/set-prices.md has no table of commands"
    );
    for (side, command) in rows {
        let cluster = match side.as_str() {
            "provider" => &reader.world.milan,
            "consumer" => &reader.world.rome,
            other => {
                anyhow::bail!("docs/how-to/set-prices.md says that {other:?} runs {command:?}")
            }
        };
        eventually(&format!("`{command}` shows prices"), TIMEOUT, || async {
            let shown = reader.run(cluster, &command).await?;
            ensure!(shown.contains("EUR"), "{shown}");
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
}

/// Rome sets a budget for a namespace and one for its peers, sees both, and takes the first one
/// away.
async fn budgets_are_set_seen_and_taken_away(reader: &mut Reader<'_>) -> Result<()> {
    let rome = &reader.world.rome;
    rome.offloaded_namespace(DEMO, "Remote").await?;
    reader.prices(rome, r#""amount":"10""#).await?;
    reader.prices(rome, r#""whenSpent":"MoveHome""#).await?;
    let command = reader.prices.take("WithinBudget")?;
    eventually("the namespace says what may be spent", TIMEOUT, || async {
        let says = reader.run(rome, &command).await?;
        ensure!(says.contains("10 EUR for each day may be spent"), "{says}");
        Ok(Some(()))
    })
    .await?;
    let shown = reader.prices(rome, "liqoctl cost").await?;
    ensure!(
        ["namespace demo", "PeeringPolicy default"]
            .iter()
            .all(|words| shown.contains(words)),
        "{shown}"
    );
    reader.prices(rome, r#""budget":null"#).await?;
    let offloading = rome
        .object(&["-n", DEMO, "namespaceoffloading", "offloading"])
        .await?
        .unwrap_or_default();
    ensure!(
        offloading["spec"]["budget"].is_null(),
        "{:#}",
        offloading["spec"]
    );
    rome.end_namespace(DEMO).await
}

/// The stored copies of both sides say the same.
async fn stored_copies_are_compared(reader: &mut Reader<'_>, contract: &Value) -> Result<()> {
    let (rome, milan) = (&reader.world.rome, &reader.world.milan);
    for (cluster, words) in [(milan, "liqo-tenant-ROME"), (rome, "liqo-provider-MILAN")] {
        let command = reader.contracts.take(words)?;
        reader
            .run(
                cluster,
                &with_names(&command, &[("contract-3f2a9c01", name_of(contract))]),
            )
            .await?;
    }
    let verified = reader.contracts(rome, "liqoctl contract verify").await?;
    ensure!(
        verified.starts_with("Both copies contain the same contract"),
        "{verified}"
    );
    Ok(())
}

/// Rome ends the contract; when it forgets that, the policies make another one.
async fn the_consumer_ends_it_and_begins_again(
    reader: &mut Reader<'_>,
    first: &Value,
) -> Result<Value> {
    let (rome, milan) = (&reader.world.rome, &reader.world.milan);
    let ended = reader
        .contracts_yes(rome, "liqoctl contract end milan")
        .await?;
    ensure!(ended.contains("ends at"), "{ended}");
    let tenant = tenant(reader.world).await?;
    eventually("the contract is over", TIMEOUT, || async {
        let over = milan
            .object(&["-n", &tenant, "contracts", name_of(first)])
            .await?;
        Ok(over
            .filter(|over| {
                over["status"]["phase"] == "Ended" && over["spec"]["ended"]["by"] == "Consumer"
            })
            .map(drop))
    })
    .await?;
    reader
        .contracts(rome, "liqoctl contract forget milan")
        .await?;
    contract_in_force(reader.world, "another one", |contract| {
        name_of(contract) != name_of(first)
    })
    .await
}

/// Rome's person decides on a contract for a day with guaranteed amounts, within the limits of
/// rome's policy.
async fn a_person_accepts_a_guarantee(reader: &mut Reader<'_>, contract: &Value) -> Result<()> {
    let (rome, milan) = (&reader.world.rome, &reader.world.milan);
    reader.contracts(rome, r#""require":true"#).await?;
    reader.contracts(rome, r#""accept":"Manual""#).await?;
    reader.contracts(milan, r#""periodSeconds":86400"#).await?;
    let copies = copies(reader.world).await?;
    eventually("the guarantee waits for rome's person", TIMEOUT, || async {
        let copy = rome
            .object(&["-n", &copies, "contracts", name_of(contract)])
            .await?
            .context("rome has no copy")?;
        let says = copy["status"]["message"].as_str().unwrap_or_default();
        let waits = copy["spec"]["pending"]["terms"]["commitment"] == "Guaranteed"
            && says.contains("liqoctl offer accept milan");
        Ok(waits.then_some(()))
    })
    .await?;
    let accepted = reader
        .contracts_yes(rome, "liqoctl offer accept milan")
        .await?;
    ensure!(accepted.contains("accepted"), "{accepted}");
    contract_in_force(reader.world, "with guaranteed amounts", |found| {
        let terms = &found["spec"]["terms"];
        name_of(found) == name_of(contract)
            && terms["commitment"] == "Guaranteed"
            && terms["end"].is_string()
    })
    .await
    .map(drop)
}

/// Milan's person ends the guarantee after seconds instead of a day. Both sides say who broke what.
async fn an_early_end_is_a_breach(world: &World, contract: &Value) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    ensure!(
        NOTICE_SECONDS + 600 < DAY_SECONDS,
        "the end must be earlier by more than clocks may differ"
    );
    milan
        .liqoctl(&[
            "contract",
            "end",
            "rome",
            "--reason",
            "sold to others",
            "--yes",
        ])
        .await?;
    let (tenant, copies) = (tenant(world).await?, copies(world).await?);
    eventually("rome finds the breach", TIMEOUT, || async {
        let copy = rome
            .object(&["-n", &copies, "contracts", name_of(contract)])
            .await?
            .context("rome has no copy")?;
        let breaches = copy["status"]["breaches"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let is_named = |breach: &Value| {
            let says = breach["message"].as_str().unwrap_or_default();
            breach["kind"] == "EndedEarly"
                && breach["by"] == "Provider"
                && says.contains("the amounts are guaranteed until")
        };
        ensure!(breaches.iter().any(is_named), "{breaches:#?}");
        let conditions = copy["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let honoured = conditions
            .iter()
            .find(|condition| condition["type"] == "Honoured")
            .context("no condition")?;
        ensure!(
            honoured["status"] == "False" && honoured["reason"] == "EndedEarly",
            "{honoured:#}"
        );
        Ok(Some(()))
    })
    .await?;
    for (cluster, peer, namespace) in [(rome, "milan", &copies), (milan, "rome", &tenant)] {
        let listed = cluster.liqoctl(&["contract", "list", peer]).await?;
        let row = listed
            .lines()
            .find(|line| line.contains(name_of(contract)))
            .unwrap_or_default();
        ensure!(row.contains("no: EndedEarly"), "{listed}");
        eventually(
            &format!("{} has an event", cluster.name),
            TIMEOUT,
            || async {
                let events = cluster.items(&["-n", namespace, "events"]).await?;
                Ok(events
                    .iter()
                    .any(|event| event["reason"] == "EndedEarly")
                    .then_some(()))
            },
        )
        .await?;
    }
    eventually("the contract is over", TIMEOUT, || async {
        let over = milan
            .object(&["-n", &tenant, "contracts", name_of(contract)])
            .await?;
        Ok(over
            .filter(|over| {
                over["status"]["phase"] == "Ended" && over["spec"]["ended"]["by"] == "Provider"
            })
            .map(drop))
    })
    .await
}
