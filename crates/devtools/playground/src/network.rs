//! One bridge for each instance, one network namespace for each node, a link between the two.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use rustix::mount::{UnmountFlags, unmount};
use serde_json::Value;

use crate::{
    configuration::masquerade,
    error::{Error, Result},
    layout::{ClusterLayout, Instance, NodeLayout, gateway, gateway_v6},
    run::{run, run_with_input},
};

/// The file by which `ip netns` holds a namespace.
pub(crate) fn namespace_file(namespace: &str) -> String {
    format!("/run/netns/{namespace}")
}

/// Distinguishes a namespace from an earlier one of the same name.
pub(crate) fn namespace_inode(namespace: &str) -> Result<u64> {
    let file = namespace_file(namespace);
    let metadata = std::fs::metadata(&file).map_err(Error::file("read", file.as_ref()))?;
    Ok(std::os::unix::fs::MetadataExt::ino(&metadata))
}

/// Picks the third octet of a subnet that no route of this machine touches.
pub(crate) async fn choose_subnet(instance: &Instance) -> Result<u8> {
    let routes = run("ip", &["-j", "-4", "route", "show", "table", "all"]).await?;
    let routes: Value = serde_json::from_str(&routes).unwrap_or_default();
    let destinations: Vec<_> = routes
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|route| route["dst"].as_str())
        .collect();
    free_subnet(&instance.name, &destinations).ok_or_else(|| Error::NoSubnet {
        instance: instance.name.clone(),
    })
}

/// The search starts at a number derived from the name, so two instances that start at the same
/// time rarely collide.
fn free_subnet(instance: &str, destinations: &[&str]) -> Option<u8> {
    let start = instance
        .bytes()
        .fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    (0..=255u8)
        .map(|step| start.wrapping_add(step))
        .find(|octet| !destinations.iter().any(|route| touches(route, *octet)))
}

/// Whether a route's destination overlaps 172.30.`octet`.0/24. The default route touches nothing.
fn touches(destination: &str, octet: u8) -> bool {
    let (address, length) = destination.split_once('/').unwrap_or((destination, "32"));
    let (Ok(address), Ok(length)) = (address.parse::<Ipv4Addr>(), length.parse::<u32>()) else {
        return false;
    };
    let shift = 32 - length.clamp(1, 24);
    (u32::from(address) >> shift) == (u32::from(gateway(octet)) >> shift)
}

/// Sends packets between pods of one node through the packet filter, which translates replies of
/// Services back.
async fn ensure_bridge_filter() -> Result<()> {
    const SWITCH: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    if Path::new(SWITCH).exists() {
        return Ok(());
    }
    run("modprobe", &["br_netfilter"]).await?;
    // Each network namespace has its own switches, initially on. The nodes need them; other bridges
    // of this machine must not change.
    for switch in [SWITCH, "/proc/sys/net/bridge/bridge-nf-call-ip6tables"] {
        std::fs::write(switch, "0").map_err(Error::file("write", switch.as_ref()))?;
    }
    Ok(())
}

/// Creates the bridge if it is missing.
pub(crate) async fn ensure_bridge(instance: &Instance, subnet: u8, dual_stack: bool) -> Result<()> {
    ensure_bridge_filter().await?;
    let bridge = instance.bridge();
    if !links().await?.contains(&bridge) {
        run("ip", &["link", "add", &bridge, "type", "bridge"]).await?;
    }
    run(
        "ip",
        &[
            "address",
            "replace",
            &format!("{}/24", gateway(subnet)),
            "dev",
            &bridge,
        ],
    )
    .await?;
    if dual_stack {
        let switch = format!("/proc/sys/net/ipv6/conf/{bridge}/disable_ipv6");
        std::fs::write(&switch, "0").map_err(Error::file("write", switch.as_ref()))?;
        run(
            "ip",
            &[
                "address",
                "replace",
                &format!("{}/64", gateway_v6(subnet)),
                "dev",
                &bridge,
                "nodad",
            ],
        )
        .await?;
    }
    run("ip", &["link", "set", &bridge, "up"]).await?;
    Ok(())
}

/// Enables IPv6 and its forwarding in a node's namespace, without duplicate address detection:
/// addresses are unique here.
const WITH_IPV6: &str = "cd /proc/sys/net/ipv6/conf; for which in all default; do echo 0 > $which/disable_ipv6; echo 0 > $which/accept_dad; done; \
    echo 1 > all/forwarding; echo 1 > /proc/sys/net/bridge/bridge-nf-call-ip6tables";

/// Creates a node's namespace and link if they are missing, and repairs their content. Returns
/// whether the namespace is new.
pub(crate) async fn ensure_node(cluster: &ClusterLayout, node: &NodeLayout) -> Result<bool> {
    let namespace = &node.namespace;
    let missing = !namespaces().await?.contains(namespace);
    if missing {
        // Programs that still run may hold an earlier namespace without a name, and with it the
        // other end of the link.
        if links().await?.contains(&node.link) {
            run("ip", &["link", "delete", &node.link]).await?;
        }
        run("ip", &["netns", "add", namespace]).await?;
    }
    let within = format!("--net={}", namespace_file(namespace));
    if node.address_v6.is_some() {
        // Before the link exists: the setting for all links does not apply to existing ones.
        run("nsenter", &[&within, "sh", "-ec", WITH_IPV6]).await?;
    }
    if !links().await?.contains(&node.link) {
        run(
            "ip",
            &[
                "link", "add", &node.link, "type", "veth", "peer", "name", "eth0", "netns",
                namespace,
            ],
        )
        .await?;
    }
    run(
        "ip",
        &["link", "set", &node.link, "master", &cluster.bridge, "up"],
    )
    .await?;
    let mut inside = vec![
        "link set lo up".to_owned(),
        format!("address replace {}/24 dev eth0", node.address),
        "link set eth0 up".to_owned(),
        format!("route replace default via {}", cluster.gateway),
    ];
    if let Some(address) = node.address_v6 {
        inside.push(format!("address replace {address}/64 dev eth0 nodad"));
        inside.push(format!("route replace default via {}", cluster.gateway_v6));
    }
    run_with_input(
        "ip",
        &["-netns", namespace, "-batch", "-"],
        &inside.join("\n"),
    )
    .await?;
    // /proc/sys/net shows the namespace of the process that opens it.
    let script = "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables; nft -f -";
    run_with_input(
        "nsenter",
        &[&within, "sh", "-ec", script],
        &masquerade(&cluster.spec, node),
    )
    .await?;
    Ok(missing)
}

/// Whether kube-router has written all its rules into a node's kernel. The rule that accepts
/// permitted packets comes last.
pub(crate) async fn enforces_policies(node: &NodeLayout) -> Option<()> {
    let within = format!("--net={}", namespace_file(&node.namespace));
    let rules = run(
        "nsenter",
        &[&within, "iptables", "-w", "-S", "KUBE-ROUTER-FORWARD"],
    )
    .await
    .ok()?;
    rules.contains("-j ACCEPT").then_some(())
}

/// Adds routes to the pod ranges through the addresses of their nodes.
pub(crate) async fn route_pods(from: &NodeLayout, ranges: &[(String, IpAddr)]) -> Result<()> {
    let routes: Vec<_> = ranges
        .iter()
        .map(|(range, node)| format!("route replace {range} via {node}"))
        .collect();
    run_with_input(
        "ip",
        &["-netns", &from.namespace, "-batch", "-"],
        &routes.join("\n"),
    )
    .await
    .map(drop)
}

pub(crate) async fn is_there(node: &NodeLayout) -> Result<bool> {
    Ok(namespaces().await?.contains(&node.namespace))
}

/// Removes the routes to the pods of a node that is gone.
pub(crate) async fn forget_node(from: &NodeLayout, gone: IpAddr) -> Result<()> {
    let family = if gone.is_ipv4() { "-4" } else { "-6" };
    // The command fails if there is nothing to remove; that is fine.
    let _ = run(
        "ip",
        &[
            family,
            "-netns",
            &from.namespace,
            "route",
            "flush",
            "via",
            &gone.to_string(),
        ],
    )
    .await;
    let left = run(
        "ip",
        &[
            family,
            "-netns",
            &from.namespace,
            "-j",
            "route",
            "show",
            "via",
            &gone.to_string(),
        ],
    )
    .await?;
    if names(&left, "dst")?.is_empty() {
        return Ok(());
    }
    Err(Error::Damaged {
        path: namespace_file(&from.namespace).into(),
        reason: format!("it still has routes to {gone}"),
    })
}

/// Packets to these ranges are rejected at once instead of being lost.
pub(crate) async fn refuse(from: &NodeLayout, ranges: &[&str]) -> Result<()> {
    let routes: Vec<_> = ranges
        .iter()
        .map(|range| format!("route replace unreachable {range}"))
        .collect();
    run_with_input(
        "ip",
        &["-netns", &from.namespace, "-batch", "-"],
        &routes.join("\n"),
    )
    .await
    .map(drop)
}

/// Takes a node's link down or up.
pub(crate) async fn set_link(node: &NodeLayout, up: bool) -> Result<()> {
    run(
        "ip",
        &["link", "set", &node.link, if up { "up" } else { "down" }],
    )
    .await?;
    Ok(())
}

/// Removes a node's namespace and link.
pub(crate) async fn remove_node(node: &NodeLayout) -> Result<()> {
    if namespaces().await?.contains(&node.namespace) {
        run("ip", &["netns", "delete", &node.namespace]).await?;
    }
    remove_links(|name| *name == node.link).await
}

/// Removes all links and namespaces of an instance.
pub(crate) async fn remove(instance: &Instance) -> Result<()> {
    for namespace in namespaces()
        .await?
        .into_iter()
        .filter(|name| name.starts_with(&instance.prefix()))
    {
        run("ip", &["netns", "delete", &namespace]).await?;
    }
    if namespaces().await?.is_empty() {
        // `ip netns` mounts the directory of the namespaces on itself and leaves it so. A namespace
        // that appears now keeps it busy.
        let _ = unmount("/run/netns", UnmountFlags::empty());
        let _ = std::fs::remove_dir("/run/netns");
    }
    remove_links(|name| *name == instance.bridge() || name.starts_with(&instance.prefix())).await
}

async fn remove_links(is_ours: impl Fn(&String) -> bool) -> Result<()> {
    for link in links().await?.into_iter().filter(is_ours) {
        // A veth disappears some time after its namespace, so it may already be gone.
        match run("ip", &["link", "delete", &link]).await {
            Err(error) if links().await?.contains(&link) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

async fn links() -> Result<HashSet<String>> {
    names(&run("ip", &["-j", "link", "show"]).await?, "ifname")
}

async fn namespaces() -> Result<HashSet<String>> {
    names(&run("ip", &["-j", "netns", "list"]).await?, "name")
}

fn names(json: &str, key: &str) -> Result<HashSet<String>> {
    if json.trim().is_empty() {
        return Ok(HashSet::new());
    }
    let damaged = |error: serde_json::Error| Error::Damaged {
        path: "output of ip -j".into(),
        reason: error.to_string(),
    };
    let list: Vec<Value> = serde_json::from_str(json).map_err(damaged)?;
    Ok(list
        .iter()
        .filter_map(|entry| entry[key].as_str())
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_never_overlaps_a_route_of_the_machine() {
        let first = free_subnet("liqo", &["default"]).unwrap();
        let taken = format!("172.30.{first}.0/24");
        let second = free_subnet("liqo", &["default", &taken]).unwrap();
        assert_ne!(first, second);
        assert_eq!(free_subnet("liqo", &["172.16.0.0/12"]), None);
        assert_eq!(free_subnet("liqo", &["172.30.0.0/16"]), None);
    }

    #[test]
    fn a_single_address_takes_its_subnet() {
        assert!(touches("172.30.4.9", 4));
        assert!(!touches("172.30.5.9", 4));
        assert!(!touches("default", 4));
    }

    #[test]
    fn no_namespaces_at_all_is_an_empty_list() {
        assert!(names("", "name").unwrap().is_empty());
    }
}
