//! nftables, by the program `nft`: it is the only reader of its own language, and it replaces a table in one transaction.

use std::{
    collections::BTreeMap,
    future::Future,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ipnet::IpNet;
use liqo_network::{
    ruleset::{GUARD, TABLE, Table},
    spread::Buckets,
};
use tokio::{io::AsyncWriteExt as _, process::Command};

use super::connections;

/// How long one run of `nft` may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often it is tried to have connections forgotten.
const TRIES: u32 = 3;

/// The families that our tables are of.
const FAMILIES: [&str; 2] = ["ip", "ip6"];

/// A table, without what it holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableName {
    /// `ip` or `ip6`.
    pub family: &'static str,
    /// Its name.
    pub name: &'static str,
}

impl TableName {
    /// That of this table.
    pub fn of(table: &Table) -> Self {
        Self { family: table.family, name: table.name }
    }
}

/// Why nftables are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// The program cannot be run.
    #[error("running nft: {0}; is nftables installed?")]
    Run(std::io::Error),
    /// It does not come to an end.
    #[error("nft {arguments}: no end after {} s", PATIENCE.as_secs())]
    Hangs {
        /// What it was to do.
        arguments: String,
    },
    /// It refused.
    #[error("nft {arguments}: {output}; does this process have NET_ADMIN, and the kernel nf_tables?")]
    Refused {
        /// What it was to do.
        arguments: String,
        /// What it said.
        output: String,
    },
}

/// The nftables of a node, as far as they are ours.
pub trait Firewall: Send + Sync {
    /// Our tables, and the fingerprint of what each holds; an empty one where others changed what it holds.
    fn tables(&self) -> impl Future<Output = Result<BTreeMap<TableName, String>, FirewallError>> + Send;
    /// Replaces a table as a whole, or makes it.
    fn replace(&self, table: &Table) -> impl Future<Output = Result<(), FirewallError>> + Send;
    /// Has the kernel forget the connections with these prefixes that are of these buckets, as far as it can: those that it does not
    /// forget have to be made again.
    fn forget_connections(&self, prefixes: &[IpNet], buckets: Buckets) -> impl Future<Output = ()> + Send;
    /// Removes a table; no error if it is not there.
    fn remove(&self, table: &TableName) -> impl Future<Output = Result<(), FirewallError>> + Send;
}

/// The nftables of the network namespace that this process is in.
#[derive(Clone, Debug, Default)]
pub struct Nft {
    /// How each table was listed when it had just been written, by which changes that others make are seen. What an earlier process
    /// wrote is taken for what its comment says.
    written: Arc<Mutex<BTreeMap<TableName, String>>>,
}

/// Runs `nft` with these arguments and this input, and returns what it prints.
async fn nft(arguments: &[&str], input: &str) -> Result<String, FirewallError> {
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
    let hangs = |_| FirewallError::Hangs { arguments: arguments.join(" ") };
    let output = tokio::time::timeout(PATIENCE, running).await.map_err(hangs)?.map_err(FirewallError::Run)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(FirewallError::Refused { arguments: arguments.join(" "), output: said })
}

impl Firewall for Nft {
    async fn tables(&self) -> Result<BTreeMap<TableName, String>, FirewallError> {
        let list = nft(&["list", "tables"], "").await?;
        let mut tables = BTreeMap::new();
        for family in FAMILIES {
            for name in [TABLE, GUARD] {
                let line = format!("table {family} {name}");
                if list.lines().any(|listed| listed.trim() == line) {
                    let table = TableName { family, name };
                    let text = list_table(&table).await?;
                    let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
                    let is_as_written = written.get(&table).is_none_or(|written| *written == text);
                    let fingerprint = if is_as_written { fingerprint(&text) } else { String::new() };
                    tables.insert(table, fingerprint);
                }
            }
        }
        Ok(tables)
    }

    async fn replace(&self, table: &Table) -> Result<(), FirewallError> {
        nft(&["--file", "-"], &table.script).await?;
        let name = TableName::of(table);
        let text = list_table(&name).await?;
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(name, text);
        Ok(())
    }

    async fn forget_connections(&self, prefixes: &[IpNet], buckets: Buckets) {
        for left in (0..TRIES).rev() {
            match forget(prefixes.to_vec(), buckets).await {
                Ok(forgotten) => return tracing::info!(forgotten, "connections with peers are translated anew"),
                // While many come and go the kernel interrupts the reader now and then.
                Err(error) if left > 0 => tracing::debug!(%error, "forgetting connections once more"),
                Err(error) => tracing::warn!(%error, "connections with peers keep their former translation"),
            }
        }
    }

    async fn remove(&self, table: &TableName) -> Result<(), FirewallError> {
        let TableName { family, name } = table;
        // What is made here, if it is not there, goes with the rest.
        nft(&["--file", "-"], &format!("table {family} {name}\ndelete table {family} {name}\n")).await.map(drop)
    }
}

async fn forget(prefixes: Vec<IpNet>, buckets: Buckets) -> std::io::Result<usize> {
    let netlink = connections::open()?;
    // There may be hundreds of thousands to read.
    tokio::task::spawn_blocking(move || connections::forget(&netlink, &prefixes, buckets)).await?
}

/// What a table holds, but for its counters.
async fn list_table(table: &TableName) -> Result<String, FirewallError> {
    nft(&["--stateless", "list", "table", table.family, table.name], "").await
}

/// The comment of a table as `nft` prints it; empty if it has none.
fn fingerprint(text: &str) -> String {
    let comment = text.lines().find_map(|line| line.trim().strip_prefix("comment \"")?.strip_suffix('"'));
    comment.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_the_comment_of_the_table() {
        let text = "table ip liqo {\n\tcomment \"abc123\"\n\tset remote {\n\t\ttype ipv4_addr\n\t}\n}\n";
        assert_eq!(fingerprint(text), "abc123");
        assert_eq!(fingerprint("table ip liqo {\n}\n"), "");
    }
}
