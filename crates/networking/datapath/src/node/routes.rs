//! Routes and rules, over netlink.

use std::{collections::BTreeSet, future::Future, net::IpAddr};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use liqo_network_model::{
    fabric::{MARK_MASK, OVERLAY, TUNNEL},
    node_plan::{MarkRule, NextHop, Route, UNREACHABLE_METRIC},
};
use rtnetlink::{
    Handle, IpVersion,
    packet_route::{
        AddressFamily,
        route::{
            RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
            RouteProtocol, RouteScope, RouteType,
        },
        rule::{RuleAction, RuleAttribute, RuleMessage},
    },
};

use super::{
    error::NodeError,
    links::{family_of, index_of, is_errno},
};

/// Marks our routes and rules. Nobody has registered this number.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(76);
/// The metric of our routes. Nobody else is likely to use it.
const METRIC: u32 = 760;
/// The bit of the MTU among locked metrics (`1 << RTAX_MTU`).
const LOCK_MTU: u32 = 1 << 2;
/// Errno for a missing route (ESRCH).
const NO_SUCH_PROCESS: i32 = 3;
/// Errno for a missing rule (ENOENT).
const NOT_FOUND: i32 = 2;
/// Errno for an address family that the kernel does not support (EAFNOSUPPORT).
const NO_SUCH_FAMILY: i32 = 97;

/// Our routes and rules on a node.
pub trait Routes: Send + Sync {
    fn routes(&self) -> impl Future<Output = Result<BTreeSet<Route>, NodeError>> + Send;
    /// Adds a route, or replaces the one to the same destination in the same table.
    fn put_route(&self, route: &Route) -> impl Future<Output = Result<(), NodeError>> + Send;
    /// Removes a route. No error if it does not exist.
    fn remove(&self, route: &Route) -> impl Future<Output = Result<(), NodeError>> + Send;
    fn rules(&self) -> impl Future<Output = Result<BTreeSet<MarkRule>, NodeError>> + Send;
    fn add_rule(&self, rule: &MarkRule) -> impl Future<Output = Result<(), NodeError>> + Send;
    /// Removes a rule. No error if it does not exist.
    fn remove_rule(&self, rule: &MarkRule) -> impl Future<Output = Result<(), NodeError>> + Send;
}

/// The routes and rules of a network namespace.
#[derive(Clone, Debug)]
pub struct NetlinkRoutes {
    handle: Handle,
}

impl NetlinkRoutes {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    async fn route_message(&self, route: &Route) -> Result<RouteMessage, NodeError> {
        let mut message = route_identity(route);
        let header = &mut message.header;
        let attributes = &mut message.attributes;
        match &route.next {
            NextHop::Unreachable => {}
            NextHop::Tunnel { source, mtu } => {
                attributes.push(RouteAttribute::Oif(index_of(&self.handle, TUNNEL).await?));
                attributes.extend(source.map(|source| RouteAttribute::PrefSource(source.into())));
                // The kernel ignores the MTU of a route for packets that it forwards unless it is
                // locked (IPv6, and IPv4 before Linux 5.10).
                attributes.extend(mtu.map(|mtu| {
                    RouteAttribute::Metrics(vec![
                        RouteMetric::Lock(LOCK_MTU),
                        RouteMetric::Mtu(mtu),
                    ])
                }));
            }
            NextHop::Overlay { hop, source, mtu } => {
                let index = index_of(&self.handle, OVERLAY).await?;
                attributes.extend(source.map(|source| RouteAttribute::PrefSource(source.into())));
                attributes
                    .extend(mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)])));
                header.flags.insert(RouteFlags::Onlink);
                attributes.push(RouteAttribute::Gateway((*hop).into()));
                attributes.push(RouteAttribute::Oif(index));
            }
        }
        Ok(message)
    }

    async fn routes_of_family(
        &self,
        family: AddressFamily,
    ) -> Result<Vec<RouteMessage>, NodeError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        let all = self
            .handle
            .route()
            .get(message)
            .execute()
            .try_collect::<Vec<RouteMessage>>()
            .await;
        empty_without_family(all).map_err(|source| NodeError::Read {
            what: "routes",
            source,
        })
    }

    async fn all_rules(&self, is_v6: bool) -> Result<Vec<RuleMessage>, NodeError> {
        let version = if is_v6 { IpVersion::V6 } else { IpVersion::V4 };
        let all = self
            .handle
            .rule()
            .get(version)
            .execute()
            .try_collect::<Vec<RuleMessage>>()
            .await;
        empty_without_family(all).map_err(|source| NodeError::Read {
            what: "rules",
            source,
        })
    }
}

/// An empty list for an address family that this kernel does not support.
fn empty_without_family<T>(
    all: Result<Vec<T>, rtnetlink::Error>,
) -> Result<Vec<T>, rtnetlink::Error> {
    match all {
        Err(error) if is_errno(&error, NO_SUCH_FAMILY) => Ok(Vec::new()),
        all => all,
    }
}

impl Routes for NetlinkRoutes {
    async fn routes(&self) -> Result<BTreeSet<Route>, NodeError> {
        let mut routes = BTreeSet::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let ours = self
                .routes_of_family(family)
                .await?
                .into_iter()
                .filter(|message| message.header.protocol == PROTOCOL);
            routes.extend(ours.filter_map(|message| parse_route(&message)));
        }
        Ok(routes)
    }

    async fn put_route(&self, route: &Route) -> Result<(), NodeError> {
        let message = self.route_message(route).await?;
        self.handle
            .route()
            .add(message)
            .replace()
            .execute()
            .await
            .map_err(|source| NodeError::Change {
                step: format!("routing {} by {:?}", route.destination, route.next),
                source,
            })
    }

    async fn remove(&self, route: &Route) -> Result<(), NodeError> {
        let mut message = route_identity(route);
        // Matches any scope.
        message.header.scope = RouteScope::NoWhere;
        match self.handle.route().del(message).execute().await {
            Err(error) if is_errno(&error, NO_SUCH_PROCESS) => Ok(()),
            outcome => outcome.map_err(|source| NodeError::Change {
                step: format!("removing the route to {}", route.destination),
                source,
            }),
        }
    }

    async fn rules(&self) -> Result<BTreeSet<MarkRule>, NodeError> {
        let mut rules = BTreeSet::new();
        for is_v6 in [false, true] {
            rules.extend(
                self.all_rules(is_v6)
                    .await?
                    .iter()
                    .filter_map(|message| parse_rule(message, is_v6)),
            );
        }
        Ok(rules)
    }

    async fn add_rule(&self, rule: &MarkRule) -> Result<(), NodeError> {
        let request = self
            .handle
            .rule()
            .add()
            .table_id(rule.table)
            .priority(rule.priority)
            .action(RuleAction::ToTable);
        let request = request.fw_mark(rule.mark);
        let mut request = if rule.is_from_tunnel {
            request.input_interface(TUNNEL)
        } else {
            request
        };
        request
            .message_mut()
            .attributes
            .push(RuleAttribute::FwMask(MARK_MASK));
        request
            .message_mut()
            .attributes
            .push(RuleAttribute::Protocol(PROTOCOL));
        if rule.is_v6 {
            request.v6().execute().await
        } else {
            request.v4().execute().await
        }
        .map_err(|source| NodeError::Change {
            step: format!("adding {rule:?}"),
            source,
        })
    }

    async fn remove_rule(&self, wanted: &MarkRule) -> Result<(), NodeError> {
        for message in self.all_rules(wanted.is_v6).await? {
            if parse_rule(&message, wanted.is_v6).as_ref() == Some(wanted) {
                match self.handle.rule().del(message).execute().await {
                    Err(error) if is_errno(&error, NOT_FOUND) => {}
                    outcome => outcome.map_err(|source| NodeError::Change {
                        step: format!("removing {wanted:?}"),
                        source,
                    })?,
                }
            }
        }
        Ok(())
    }
}

/// Others' routes to the same destination have other metrics, so neither replaces the other.
fn route_metric(route: &Route) -> u32 {
    if route.next == NextHop::Unreachable {
        UNREACHABLE_METRIC
    } else {
        METRIC
    }
}

/// The message with what identifies a route.
fn route_identity(route: &Route) -> RouteMessage {
    let mut message = RouteMessage::default();
    let header = &mut message.header;
    header.address_family = family_of(&route.destination.addr());
    header.destination_prefix_length = route.destination.prefix_len();
    header.protocol = PROTOCOL;
    header.scope = RouteScope::Universe;
    header.table = if route.table.is_some() {
        RouteHeader::RT_TABLE_UNSPEC
    } else {
        RouteHeader::RT_TABLE_MAIN
    };
    header.kind = if route.next == NextHop::Unreachable {
        RouteType::Unreachable
    } else {
        RouteType::Unicast
    };
    message
        .attributes
        .push(RouteAttribute::Destination(route.destination.addr().into()));
    message
        .attributes
        .extend(route.table.map(RouteAttribute::Table));
    message
        .attributes
        .push(RouteAttribute::Priority(route_metric(route)));
    message
}

/// Reads the kernel's message, if it is a route of the kinds that we add.
fn parse_route(message: &RouteMessage) -> Option<Route> {
    let (mut address, mut table, mut source, mut mtu) =
        (None, u32::from(message.header.table), None, None);
    let (mut hop, mut metric) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(destination) => address = plain_address(destination),
            RouteAttribute::Table(value) => table = *value,
            RouteAttribute::PrefSource(address) => source = plain_address(address),
            RouteAttribute::Priority(value) => metric = Some(*value),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|metric| {
                    if let RouteMetric::Mtu(mtu) = metric {
                        Some(*mtu)
                    } else {
                        None
                    }
                });
            }
            RouteAttribute::Gateway(address) => hop = plain_address(address),
            _ => {}
        }
    }
    let next = match (message.header.kind, hop) {
        (RouteType::Unreachable, _) if metric == Some(UNREACHABLE_METRIC) => NextHop::Unreachable,
        (RouteType::Unicast, None) => NextHop::Tunnel { source, mtu },
        (RouteType::Unicast, Some(hop)) => NextHop::Overlay { hop, source, mtu },
        _ => return None,
    };
    let destination = IpNet::new(address?, message.header.destination_prefix_length).ok()?;
    Some(Route {
        destination,
        table: (table != u32::from(RouteHeader::RT_TABLE_MAIN)).then_some(table),
        next,
    })
}

fn plain_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

/// Reads the kernel's message, if it is one of our rules.
fn parse_rule(message: &RuleMessage, is_v6: bool) -> Option<MarkRule> {
    let (mut mark, mut is_from_tunnel, mut table, mut priority, mut is_ours) =
        (None, false, None, None, false);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Iifname(device) => is_from_tunnel = device == TUNNEL,
            RuleAttribute::FwMark(value) => mark = Some(*value),
            RuleAttribute::Table(value) => table = Some(*value),
            RuleAttribute::Priority(value) => priority = Some(*value),
            RuleAttribute::Protocol(protocol) => is_ours = *protocol == PROTOCOL,
            _ => {}
        }
    }
    if !is_ours {
        return None;
    }
    // Earlier versions added rules without a mark. They differ from the plan, so the next pass
    // removes them.
    Some(MarkRule {
        is_v6,
        mark: mark.unwrap_or_default(),
        is_from_tunnel,
        table: table?,
        priority: priority?,
    })
}
