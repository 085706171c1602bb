//! The overlay's device and its neighbours, over netlink.

use std::{collections::BTreeSet, future::Future, net::IpAddr};

use futures::TryStreamExt as _;
use liqo_network_model::{
    fabric::{MacAddress, OVERLAY, OVERLAY_ID, OVERLAY_PORT},
    node_plan::Overlay,
};
use rtnetlink::{
    Handle, LinkUnspec, LinkVxlan,
    packet_route::{
        AddressFamily,
        link::{
            AfSpecInet, AfSpecUnspec, InetDevConf, InfoData, InfoVxlan, LinkAttribute, LinkFlags,
            LinkInfo, LinkMessage,
        },
        neighbour::{
            NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
        },
    },
};

use super::{connections::address_of, error::NodeError};

/// Errno for a missing device (ENODEV).
const NO_SUCH_DEVICE: i32 = 19;
/// Errno for a missing neighbour (ENOENT).
const NOT_FOUND: i32 = 2;
/// Reverse path filter in loose mode (RFC 3704): packets of nodes' pods come in by the overlay,
/// while the route to those pods uses another device.
const LOOSE: i32 = 2;

/// One entry about a neighbour of the overlay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NeighbourEntry {
    /// The Ethernet address of a next hop.
    Hop { address: IpAddr, mac: MacAddress },
    /// The node that packets for an Ethernet address go to.
    Forward {
        mac: MacAddress,
        /// The node's address in the network of the nodes.
        outer: IpAddr,
    },
}

impl NeighbourEntry {
    /// All neighbours that this overlay needs.
    pub fn all_of_overlay(overlay: &Overlay) -> Vec<Self> {
        let mut entries = Vec::new();
        for neighbour in &overlay.neighbours {
            let mac = neighbour.mac;
            let hops = neighbour.hops.iter();
            entries.extend(hops.map(|&address| Self::Hop { address, mac }));
            entries.push(Self::Forward {
                mac,
                outer: neighbour.outer,
            });
        }
        entries
    }
}

/// Our devices on a node.
pub trait Links: Send + Sync {
    /// The overlay's device, without its neighbours.
    fn overlay(&self) -> impl Future<Output = Result<Option<Overlay>, NodeError>> + Send;
    fn neighbours(
        &self,
    ) -> impl Future<Output = Result<BTreeSet<NeighbourEntry>, NodeError>> + Send;
    fn create_overlay(
        &self,
        overlay: &Overlay,
    ) -> impl Future<Output = Result<(), NodeError>> + Send;
    /// Changes the overlay's MTU.
    fn resize_overlay(&self, mtu: u32) -> impl Future<Output = Result<(), NodeError>> + Send;
    /// Removes a device. No error if it does not exist.
    fn remove(&self, device: &'static str) -> impl Future<Output = Result<(), NodeError>> + Send;
    fn add_neighbour(
        &self,
        entry: &NeighbourEntry,
    ) -> impl Future<Output = Result<(), NodeError>> + Send;
    /// No error if the entry does not exist.
    fn remove_neighbour(
        &self,
        entry: &NeighbourEntry,
    ) -> impl Future<Output = Result<(), NodeError>> + Send;
}

/// The devices of a network namespace.
#[derive(Clone, Debug)]
pub struct NetlinkLinks {
    handle: Handle,
}

impl NetlinkLinks {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    async fn find_link(&self, device: &'static str) -> Result<Option<LinkMessage>, NodeError> {
        device_named(&self.handle, device).await
    }

    async fn overlay_index(&self) -> Result<u32, NodeError> {
        index_of(&self.handle, OVERLAY).await
    }

    async fn neighbours_of(
        &self,
        family: AddressFamily,
    ) -> Result<Vec<NeighbourMessage>, NodeError> {
        let index = self.overlay_index().await?;
        let all: Vec<NeighbourMessage> = self
            .handle
            .neighbours()
            .get()
            .set_address_family(family)
            .execute()
            .try_collect()
            .await
            .map_err(|source| NodeError::Read {
                what: "neighbours",
                source,
            })?;
        Ok(all
            .into_iter()
            .filter(|one| {
                one.header.ifindex == index && one.header.state == NeighbourState::Permanent
            })
            .collect())
    }
}

pub(super) async fn device_named(
    handle: &Handle,
    device: &'static str,
) -> Result<Option<LinkMessage>, NodeError> {
    match handle
        .link()
        .get()
        .match_name(device)
        .execute()
        .try_next()
        .await
    {
        Ok(link) => Ok(link),
        Err(error) if is_errno(&error, NO_SUCH_DEVICE) => Ok(None),
        Err(source) => Err(NodeError::Read {
            what: "links",
            source,
        }),
    }
}

pub(super) async fn index_of(handle: &Handle, device: &'static str) -> Result<u32, NodeError> {
    Ok(device_named(handle, device)
        .await?
        .ok_or(NodeError::NoDevice { device })?
        .header
        .index)
}

/// Whether the kernel answered with this errno.
pub(super) fn is_errno(error: &rtnetlink::Error, errno: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -errno)
}

fn creation_failed(source: rtnetlink::Error) -> NodeError {
    NodeError::Change {
        step: format!("creating device {OVERLAY}"),
        source,
    }
}

fn read_overlay(link: &LinkMessage) -> Option<Overlay> {
    let (mut mac, mut mtu, mut local, mut id, mut port) = (None, None, None, None, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => mac = bytes.as_slice().try_into().ok().map(MacAddress),
            LinkAttribute::Mtu(value) => mtu = Some(*value),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    let LinkInfo::Data(InfoData::Vxlan(vxlan)) = info else {
                        continue;
                    };
                    for attribute in vxlan {
                        match attribute {
                            InfoVxlan::Id(value) => id = Some(*value),
                            InfoVxlan::Port(value) => port = Some(*value),
                            InfoVxlan::Local(address) => local = Some(IpAddr::V4(*address)),
                            InfoVxlan::Local6(address) => local = Some(IpAddr::V6(*address)),
                            _ => {}
                        }
                    }
                }
            }
            _ => {}
        }
    }
    let is_ours = id == Some(OVERLAY_ID)
        && port == Some(OVERLAY_PORT)
        && link.header.flags.contains(LinkFlags::Up);
    // A device with our name that is different or down gets no local address, so it differs from
    // the plan and is replaced.
    let local = local
        .filter(|_| is_ours)
        .unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
    Some(Overlay {
        local,
        mac: mac?,
        mtu: mtu?,
        neighbours: Vec::new(),
    })
}

impl Links for NetlinkLinks {
    async fn overlay(&self) -> Result<Option<Overlay>, NodeError> {
        Ok(self
            .find_link(OVERLAY)
            .await?
            .as_ref()
            .and_then(read_overlay))
    }

    async fn neighbours(&self) -> Result<BTreeSet<NeighbourEntry>, NodeError> {
        let mut neighbours = BTreeSet::new();
        for family in [
            AddressFamily::Inet,
            AddressFamily::Inet6,
            AddressFamily::Bridge,
        ] {
            neighbours.extend(
                self.neighbours_of(family)
                    .await?
                    .iter()
                    .filter_map(neighbour_entry),
            );
        }
        Ok(neighbours)
    }

    async fn create_overlay(&self, overlay: &Overlay) -> Result<(), NodeError> {
        let builder = LinkVxlan::new(OVERLAY, OVERLAY_ID)
            .port(OVERLAY_PORT)
            .learning(false);
        let builder = match overlay.local {
            IpAddr::V4(address) => builder.local(address),
            IpAddr::V6(address) => builder.local6(address).udp_zero_csum6_rx(true),
        };
        let message = builder
            .address(overlay.mac.0.to_vec())
            .mtu(overlay.mtu)
            .build();
        self.handle
            .link()
            .add(message)
            .execute()
            .await
            .map_err(creation_failed)?;
        let mut settings = InetDevConf::default();
        settings.rp_filter = LOOSE;
        // The kernel checks a device without an address strictly all the same. Gateways mark
        // packets that came through another gateway; with this setting the check uses the mark,
        // which leads to the table of that gateway.
        settings.src_vmark = 1;
        let family = AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(settings)]);
        let index = self.overlay_index().await?;
        let message = LinkUnspec::new_with_index(index)
            .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![family]))
            .build();
        self.handle
            .link()
            .set(message)
            .execute()
            .await
            .map_err(creation_failed)?;
        // Last: a device that is not up is not complete, and is replaced.
        self.handle
            .link()
            .set(LinkUnspec::new_with_index(index).up().build())
            .execute()
            .await
            .map_err(creation_failed)
    }

    async fn resize_overlay(&self, mtu: u32) -> Result<(), NodeError> {
        let message = LinkUnspec::new_with_index(self.overlay_index().await?)
            .mtu(mtu)
            .build();
        self.handle
            .link()
            .set(message)
            .execute()
            .await
            .map_err(|source| NodeError::Change {
                step: format!("setting the MTU of device {OVERLAY} to {mtu}"),
                source,
            })
    }

    async fn remove(&self, device: &'static str) -> Result<(), NodeError> {
        let Some(link) = self.find_link(device).await? else {
            return Ok(());
        };
        self.handle
            .link()
            .del(link.header.index)
            .execute()
            .await
            .map_err(|source| NodeError::Change {
                step: format!("removing device {device}"),
                source,
            })
    }

    async fn add_neighbour(&self, entry: &NeighbourEntry) -> Result<(), NodeError> {
        let index = self.overlay_index().await?;
        let neighbours = self.handle.neighbours();
        let request = match entry {
            NeighbourEntry::Hop { address, mac } => {
                neighbours.add(index, *address).link_layer_address(&mac.0)
            }
            NeighbourEntry::Forward { mac, outer } => neighbours
                .add_bridge(index, &mac.0)
                .destination(*outer)
                .flags(NeighbourFlags::Own),
        };
        let added = request.replace().execute().await;
        added.map_err(|source| NodeError::Change {
            step: format!("adding {entry:?} to device {OVERLAY}"),
            source,
        })
    }

    async fn remove_neighbour(&self, entry: &NeighbourEntry) -> Result<(), NodeError> {
        let index = self.overlay_index().await?;
        let mut message = NeighbourMessage::default();
        message.header.ifindex = index;
        match entry {
            NeighbourEntry::Hop { address, .. } => {
                message.header.family = family_of(address);
                message
                    .attributes
                    .push(NeighbourAttribute::Destination(neighbour_address(*address)));
            }
            NeighbourEntry::Forward { mac, outer } => {
                message.header.family = AddressFamily::Bridge;
                message.header.flags = NeighbourFlags::Own;
                message
                    .attributes
                    .push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
                message
                    .attributes
                    .push(NeighbourAttribute::Destination(neighbour_address(*outer)));
            }
        }
        match self.handle.neighbours().del(message).execute().await {
            Err(error) if is_errno(&error, NOT_FOUND) => Ok(()),
            outcome => outcome.map_err(|source| NodeError::Change {
                step: format!("removing {entry:?} from device {OVERLAY}"),
                source,
            }),
        }
    }
}

pub(super) fn family_of(address: &IpAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

fn neighbour_address(address: IpAddr) -> NeighbourAddress {
    match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    }
}

fn neighbour_entry(message: &NeighbourMessage) -> Option<NeighbourEntry> {
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            // The bridge family has raw addresses.
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => {
                address = address_of(bytes);
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(MacAddress);
            }
            _ => {}
        }
    }
    let (address, mac) = (address?, mac?);
    Some(match message.header.family {
        AddressFamily::Bridge => NeighbourEntry::Forward {
            mac,
            outer: address,
        },
        _ => NeighbourEntry::Hop { address, mac },
    })
}
