//! nftables, through the program `nft`: nothing else reads its language, and it replaces a table in
//! one transaction.

use std::{collections::BTreeMap, future::Future, process::Stdio, sync::Arc, time::Duration};

use ipnet::IpNet;
use liqo_network_model::{
    ruleset::{GUARD, LIMITS, NftTable, TABLE},
    spread::Buckets,
};
use parking_lot::Mutex;
use tokio::{io::AsyncWriteExt as _, process::Command};

use super::connections;

/// Timeout of one run of `nft`.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Attempts to make the kernel forget connections.
const ATTEMPTS: u32 = 3;

/// The families of our tables.
const FAMILIES: [&str; 2] = ["ip", "ip6"];

/// Family and name of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableName {
    /// `ip` or `ip6`.
    pub family: &'static str,
    pub name: &'static str,
}

impl TableName {
    pub fn of_table(table: &NftTable) -> Self {
        Self {
            family: table.family,
            name: table.name,
        }
    }
}

/// Failure of a call of `nft`.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    #[error("running nft: {0}; is nftables installed?")]
    Run(std::io::Error),
    #[error("nft {arguments} did not end within {} s", TIMEOUT.as_secs())]
    Hangs { arguments: String },
    #[error(
        "nft {arguments}: {output}; does this process have NET_ADMIN, and the kernel nf_tables?"
    )]
    Refused { arguments: String, output: String },
}

/// Our nftables on a node.
pub trait Firewall: Send + Sync {
    /// Our tables with the fingerprints of their contents. The fingerprint is empty where somebody
    /// else changed the contents.
    fn tables(
        &self,
    ) -> impl Future<Output = Result<BTreeMap<TableName, String>, FirewallError>> + Send;
    /// Replaces a table as a whole, or creates it.
    fn replace_table(
        &self,
        table: &NftTable,
    ) -> impl Future<Output = Result<(), FirewallError>> + Send;
    /// Makes the kernel forget the connections with these prefixes that belong to these buckets.
    /// Best effort: connections that it keeps break, and must be opened again.
    fn forget_connections(
        &self,
        prefixes: &[IpNet],
        buckets: Buckets,
    ) -> impl Future<Output = ()> + Send;
    /// Removes a table. No error if it does not exist.
    fn remove(&self, table: &TableName) -> impl Future<Output = Result<(), FirewallError>> + Send;
}

/// The nftables of the network namespace that this process is in.
#[derive(Clone, Debug, Default)]
pub struct Nft {
    /// The listing of each table right after it was written. A different listing later means that
    /// somebody else changed the table. For tables that an earlier process wrote, only the comment
    /// tells.
    written: Arc<Mutex<BTreeMap<TableName, String>>>,
}

/// Runs `nft` with these arguments and this input, and returns what it prints.
async fn run_nft(arguments: &[&str], input: &str) -> Result<String, FirewallError> {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(FirewallError::Run)?;
    let stdin = child.stdin.take();
    let running = async {
        if let Some(mut stdin) = stdin {
            stdin.write_all(input.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(TIMEOUT, running)
        .await
        .map_err(|_| FirewallError::Hangs {
            arguments: arguments.join(" "),
        })?
        .map_err(FirewallError::Run)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(FirewallError::Refused {
        arguments: arguments.join(" "),
        output: said,
    })
}

impl Firewall for Nft {
    async fn tables(&self) -> Result<BTreeMap<TableName, String>, FirewallError> {
        let list = run_nft(&["list", "tables"], "").await?;
        let mut tables = BTreeMap::new();
        for family in FAMILIES {
            for name in [TABLE, GUARD, LIMITS] {
                let line = format!("table {family} {name}");
                if list.lines().any(|listed| listed.trim() == line) {
                    let table = TableName { family, name };
                    let text = list_table(&table).await?;
                    let written = self.written.lock();
                    let is_as_written = written.get(&table).is_none_or(|written| *written == text);
                    let fingerprint = if is_as_written {
                        table_fingerprint(&text)
                    } else {
                        String::new()
                    };
                    tables.insert(table, fingerprint);
                }
            }
        }
        Ok(tables)
    }

    async fn replace_table(&self, table: &NftTable) -> Result<(), FirewallError> {
        run_nft(&["--file", "-"], &table.script).await?;
        let name = TableName::of_table(table);
        let text = list_table(&name).await?;
        self.written.lock().insert(name, text);
        Ok(())
    }

    async fn forget_connections(&self, prefixes: &[IpNet], buckets: Buckets) {
        for left in (0..ATTEMPTS).rev() {
            match forget_blocking(prefixes.to_vec(), buckets).await {
                Ok(forgotten) => {
                    return tracing::info!(
                        forgotten,
                        "the kernel forgot connections with peers; their next packets are translated again"
                    );
                }
                // The kernel sometimes interrupts the dump while many connections come and go.
                Err(error) if left > 0 => {
                    tracing::debug!(%error, "forgetting connections failed, trying again");
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot forget connections with peers, which keep their former translation");
                }
            }
        }
    }

    async fn remove(&self, table: &TableName) -> Result<(), FirewallError> {
        let TableName { family, name } = table;
        // The first line creates the table if it does not exist, so that the second one cannot
        // fail.
        run_nft(
            &["--file", "-"],
            &format!("table {family} {name}\ndelete table {family} {name}\n"),
        )
        .await
        .map(drop)
    }
}

async fn forget_blocking(prefixes: Vec<IpNet>, buckets: Buckets) -> std::io::Result<usize> {
    let netlink = connections::open_netlink()?;
    // The kernel may list hundreds of thousands of connections.
    tokio::task::spawn_blocking(move || connections::forget_within(&netlink, &prefixes, buckets))
        .await?
}

/// The contents of a table, without its counters, and without the connections that the kernel
/// counts in the sets of [`LIMITS`].
async fn list_table(table: &TableName) -> Result<String, FirewallError> {
    let sets = (table.name == LIMITS).then_some("--terse");
    let arguments: Vec<&str> = ["--stateless"]
        .into_iter()
        .chain(sets)
        .chain(["list", "table", table.family, table.name])
        .collect();
    run_nft(&arguments, "").await
}

/// The comment of a listed table, or an empty string.
fn table_fingerprint(text: &str) -> String {
    let comment = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("comment \"")?.strip_suffix('"'));
    comment.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_the_comment_of_the_table() {
        let text =
            "table ip liqo {\n\tcomment \"abc123\"\n\tset remote {\n\t\ttype ipv4_addr\n\t}\n}\n";
        assert_eq!(table_fingerprint(text), "abc123");
        assert_eq!(table_fingerprint("table ip liqo {\n}\n"), "");
    }
}
