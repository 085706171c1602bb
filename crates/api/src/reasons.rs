//! Reasons of conditions: one enum for each condition, so that writers and readers cannot spell
//! them differently.
//!
//! A reader that matches on the enum does not compile when a writer gets a new reason. A reason
//! that does not parse comes from another version of Liqo.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $text:literal,)+ $(..$inner:ident)? })+) => {$(
        $(#[$doc])*
        #[allow(missing_docs, reason = "most names are clear")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$about])* $variant,)+ $($inner($inner))? }

        impl $name {
            /// All of them, without those that it takes over from another enum.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The text in the condition.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ $(Self::$inner(inner) => inner.as_str())? }
            }

            /// `None` if this version does not know the reason.
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)+
                    $(other if $inner::parse(other).is_some() => $inner::parse(other).map(Self::$inner),)?
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl From<$name> for String {
            fn from(reason: $name) -> Self {
                reason.as_str().to_owned()
            }
        }

        $(impl From<$inner> for $name {
            fn from(inner: $inner) -> Self {
                Self::$inner(inner)
            }
        })?
    )+};
}

reasons! {
    /// Why a call to a peer's auth endpoint failed. Several conditions have these reasons.
    CallReason {
        InvalidUrl = "InvalidURL",
        LoopbackAddress = "LoopbackAddress",
        /// The key of the cluster that answered does not match the cluster ID.
        IdentityMismatch = "IdentityMismatch",
        Unreachable = "Unreachable",
        InvalidAnswer = "InvalidAnswer",
        Unavailable = "Unavailable",
        /// This cluster could not do its part; the manager's log says more.
        LocalError = "LocalError",
    }

    /// Reasons of the working mode in the status of a [`ClusterConfig`](crate::ClusterConfig).
    TetheringReason {
        /// Nobody asks for tethering.
        NotWanted = "NotWanted",
        UnknownPeer = "UnknownPeer",
        /// This cluster borrows nothing from the peer.
        NotBorrowing = "NotBorrowing",
        /// The peer borrows nothing from this cluster.
        NotLending = "NotLending",
        LendsToOthers = "LendsToOthers",
        BorrowsFromOthers = "BorrowsFromOthers",
        /// The policy for the peer requires a contract, so that this cluster cannot offer
        /// everything.
        ContractRequired = "ContractRequired",
        /// Another cluster is tethered to this one, or asks for it.
        TethersOthers = "TethersOthers",
        PeerSilent = "PeerSilent",
        /// The peer has not answered yet, or what Tethered needs does not exist yet.
        Waiting = "Waiting",
        /// What Tethered needs did not come to exist in time.
        NotReady = "NotReady",
        RefusedByPeer = "RefusedByPeer",
        Granted = "Granted",
        Untethered = "Untethered",
        EndedByPeer = "EndedByPeer",
    }

    /// Reasons of [`TETHERING`](crate::TETHERING) and of
    /// [`links::TETHERING_GRANTED`](crate::links::TETHERING_GRANTED).
    TetheringAnswer {
        Granted = "Granted",
        /// The consumer does not ask any more.
        NotAsked = "NotAsked",
        /// No policy lets the consumer tether itself.
        NotAllowed = "NotAllowed",
        /// The provider is tethered itself, or on the way to or from that.
        Tethered = "Tethered",
    }

    /// Reasons of [`POOL_FOR_EACH_NODE`](crate::POOL_FOR_EACH_NODE).
    GranularityAnswer {
        Granted = "Granted",
        /// The consumer does not ask, or not any more.
        NotAsked = "NotAsked",
        /// The policy does not let the consumer choose.
        NotAllowed = "NotAllowed",
        /// A contract that both signed names other pools.
        BoundByContract = "BoundByContract",
        /// The consumer changed its mind a moment ago.
        ChangedRecently = "ChangedRecently",
    }

    /// Reasons of [`links::IDENTITY_VERIFIED`](crate::links::IDENTITY_VERIFIED).
    IdentityVerifiedReason {
        Waiting = "Waiting",
        Verified = "Verified",
        AuthUrlMissing = "AuthURLMissing",
        OwnCluster = "OwnCluster",
        /// Another `ForeignCluster` has the same cluster ID.
        Duplicate = "Duplicate",
        ..CallReason
    }

    /// Reasons of [`links::AUTHENTICATED`](crate::links::AUTHENTICATED). The provider chooses those
    /// of refusals.
    AuthenticatedReason {
        Waiting = "Waiting",
        Granted = "Granted",
        Ending = "Ending",
        /// The grant is not usable: its API server has no valid address or certificate.
        InvalidGrant = "InvalidGrant",
        /// Refused with a reason that is not a valid condition reason.
        Denied = "Denied",
        /// The request is not well formed or not properly signed.
        InvalidRequest = "InvalidRequest",
        /// The request was signed for another provider.
        WrongAudience = "WrongAudience",
        SameCluster = "SameCluster",
        /// The challenge is unknown or too old.
        ChallengeInvalid = "ChallengeInvalid",
        Replayed = "Replayed",
        Busy = "Busy",
        IncompatibleVersion = "IncompatibleVersion",
        /// A user of the provider refused this consumer.
        Blocked = "Blocked",
        TokenRequired = "TokenRequired",
        TokenInvalid = "TokenInvalid",
        TokenExpired = "TokenExpired",
        PendingApproval = "PendingApproval",
        /// Other clusters have the names that the provider could list this consumer under.
        NameTaken = "NameTaken",
        TooManyPending = "TooManyPending",
        /// The tenant namespace exists already, and Liqo did not create it.
        NamespaceTaken = "NamespaceTaken",
        /// The provider does not know the address of its own API server.
        AddressUnknown = "AddressUnknown",
        ..CallReason
    }

    /// Reasons of [`links::PEER_REACHABLE`](crate::links::PEER_REACHABLE).
    PeerReachableReason {
        Waiting = "Waiting",
        Reachable = "Reachable",
        AccessDenied = "AccessDenied",
        /// The CA that the provider named does not verify the API server's certificate.
        InvalidCertificate = "InvalidCertificate",
        /// The API server answers, but the manager does not renew its Lease.
        ManagerSilent = "ManagerSilent",
        /// The provider answers, but sent more than this cluster reads.
        LimitExceeded = "LimitExceeded",
        InvalidGrant = "InvalidGrant",
        ..CallReason
    }

    /// Reasons of [`links::RESOURCES_REQUESTED`](crate::links::RESOURCES_REQUESTED).
    ResourcesRequestedReason {
        Requested = "Requested",
        RequestFailed = "RequestFailed",
    }

    /// Reasons of [`links::OFFER_ACCEPTED`](crate::links::OFFER_ACCEPTED).
    OfferAcceptedReason {
        Accepted = "Accepted",
        ManualActionRequired = "ManualActionRequired",
        Refused = "Refused",
        /// The offers contain nothing that this cluster's policy accepts.
        NothingInIt = "NothingInIt",
        /// The offers cost more than this cluster's policy accepts, or in another currency.
        PriceTooHigh = "PriceTooHigh",
        NoOffer = "NoOffer",
    }

    /// Reasons of [`links::VIRTUAL_NODES_READY`](crate::links::VIRTUAL_NODES_READY).
    VirtualNodesReadyReason {
        VirtualNodesReady = "VirtualNodesReady",
        VirtualNodesNotReady = "VirtualNodesNotReady",
        NoVirtualNode = "NoVirtualNode",
    }

    /// Reasons of [`links::CONSUMER_AUTHORIZED`](crate::links::CONSUMER_AUTHORIZED).
    ConsumerAuthorizedReason {
        Granted = "Granted",
        Ending = "Ending",
        Blocked = "Blocked",
        PendingApproval = "PendingApproval",
    }

    /// Reasons of [`links::CONSUMER_REACHABLE`](crate::links::CONSUMER_REACHABLE).
    ConsumerReachableReason {
        Waiting = "Waiting",
        Reachable = "Reachable",
        Silent = "Silent",
        /// The consumer was silent until the provider ended the tenancy.
        Expired = "Expired",
    }

    /// Reasons of [`links::RESOURCES_OFFERED`](crate::links::RESOURCES_OFFERED) and of
    /// [`ANSWERED`](crate::ANSWERED).
    ResourcesOfferedReason {
        Offered = "Offered",
        NoPolicy = "NoPolicy",
        PluginFailed = "PluginFailed",
        /// The resource plugin offers nothing.
        NothingOffered = "NothingOffered",
        /// The policy shares 0 percent.
        NothingShared = "NothingShared",
        NothingFree = "NothingFree",
        /// The provider's pod network does not enforce `NetworkPolicies`, or the provider does not
        /// know yet whether it does.
        NotIsolated = "NotIsolated",
        /// Plugins promise more than the nodes have. The condition is True.
        Overcommitted = "Overcommitted",
        /// The consumer was silent for longer than the policy allows.
        ConsumerAbsent = "ConsumerAbsent",
        /// The request cannot be read.
        Unreadable = "Unreadable",
    }

    /// Reasons of [`links::NETWORK_AGREED`](crate::links::NETWORK_AGREED).
    NetworkAgreedReason {
        Agreed = "Agreed",
        /// The ranges of this cluster are not known.
        RangesUnknown = "RangesUnknown",
        /// The peer has not announced its network.
        NotAnnounced = "NotAnnounced",
        /// The peer's announcement is not valid.
        Refused = "Refused",
        /// No free prefix for the peer's ranges.
        NoRoom = "NoRoom",
        /// The peer has not said where it maps our ranges.
        NotSeen = "NotSeen",
    }

    /// Reasons of [`CONNECTED`](crate::CONNECTED), and of
    /// [`links::TUNNEL_CONNECTED`](crate::links::TUNNEL_CONNECTED), which repeats it.
    TunnelReason {
        Connected = "Connected",
        ConnectedOverTls = "ConnectedOverTLS",
        /// For example, another peer uses the same prefix.
        NotPossible = "NotPossible",
        NoGateway = "NoGateway",
        NoGatewayAtPeer = "NoGatewayAtPeer",
        /// The gateway has not reported on this peer yet.
        Connecting = "Connecting",
        NoAnswer = "NoAnswer",
        /// No address of the peer's gateway is known, so the peer must send first.
        NoEndpoint = "NoEndpoint",
    }

    /// Reasons of [`ADDRESSES_KNOWN`](crate::ADDRESSES_KNOWN).
    AddressesKnownReason {
        Found = "Found",
        /// The address of the auth endpoint is not known.
        AuthenticationAddress = "AuthenticationAddress",
        ApiServerAddress = "APIServerAddress",
    }

    /// Reasons of [`NETWORK_POLICIES_ENFORCED`](crate::NETWORK_POLICIES_ENFORCED).
    NetworkPoliciesEnforcedReason {
        Enforced = "Enforced",
        /// A connection passed that a policy forbids.
        NotEnforced = "NotEnforced",
        /// The manager could not try yet.
        NotTested = "NotTested",
    }

    /// Reasons of [`RESOLVED`](crate::RESOLVED).
    ResolvedReason {
        Resolved = "Resolved",
        /// Some entries of the domain do not describe a cluster.
        BrokenEntries = "BrokenEntries",
        /// The domain has no entry.
        NoEntry = "NoEntry",
        /// The DNS server does not answer.
        Unanswered = "Unanswered",
    }

    /// Reasons of [`ACTIVE`](crate::ACTIVE).
    ActiveReason {
        HoldsForPeers = "HoldsForPeers",
        NoPeer = "NoPeer",
    }

    /// Reasons of [`HONOURED`](crate::HONOURED).
    HonouredReason {
        InBounds = "InBounds",
        Overused = "Overused",
        Reclaiming = "Reclaiming",
    }

    /// Reasons of condition `Ready` of a [`NamespaceOffloading`](crate::NamespaceOffloading).
    NamespaceReadyReason {
        NamespacesReady = "NamespacesReady",
        NamespacesNotReady = "NamespacesNotReady",
        NamespaceNotAllowed = "NamespaceNotAllowed",
        /// It is Liqo's own namespace, which stays here. Nothing has to be reflected for that.
        NotNeeded = "NotNeeded",
        NoClusterSelected = "NoClusterSelected",
        /// The API server does not send this namespace's pods to the admission webhook yet.
        WebhookPending = "WebhookPending",
    }

    /// Reasons of [`WITHIN_BUDGET`](crate::WITHIN_BUDGET).
    WithinBudgetReason {
        WithinBudget = "WithinBudget",
        BudgetSpent = "BudgetSpent",
        /// The costs at a cluster cannot be counted: it has no contract, or asks for another
        /// currency.
        CostsNotCounted = "CostsNotCounted",
    }

    /// Reasons of condition `Ready` of a [`VirtualNode`](crate::VirtualNode).
    VirtualNodeReadyReason {
        NodeReady = "NodeReady",
        NodeNameTaken = "NodeNameTaken",
        NodeNotWritten = "NodeNotWritten",
        PeerUnreachable = "PeerUnreachable",
    }

    /// Reasons of condition `KubeletServing` of a [`VirtualNode`](crate::VirtualNode).
    KubeletServingReason {
        Signed = "Signed",
        SelfSigned = "SelfSigned",
    }

    /// Reasons of [`pods::OFFLOADED`](crate::pods::OFFLOADED). The provider chooses some of them.
    OffloadedReason {
        Offloaded = "Offloaded",
        Sending = "Sending",
        /// The provider accepted the pod, but not all objects to which the pod refers.
        NotReflected = "NotReflected",
        /// The provider accepted the pod and reports an address for it that is outside of the
        /// provider's prefixes.
        AddressRefused = "AddressRefused",
        /// The provider accepted the pod, and finds no node for it.
        Unschedulable = "Unschedulable",
        /// The provider accepted the pod, and cannot start it.
        NotStarted = "NotStarted",
        /// The provider accepted the pod, and not everything that changed since travels.
        ChangeRefused = "ChangeRefused",
        /// The pod runs until the end of a notice of the provider, which takes its node or its room
        /// back.
        EndsSoon = "EndsSoon",
        /// The provider has no route to this cluster's API server. Also the reason of an event.
        NoApiServer = "NoApiServer",
        ApiServerNotAllowed = "ApiServerNotAllowed",
        NoOffer = "NoOffer",
        OfferExceeded = "OfferExceeded",
        PoolWithdrawn = "PoolWithdrawn",
        /// Not both clusters signed the contract, or a breach keeps new pods away.
        ContractNotInForce = "ContractNotInForce",
        /// A budget of the consumer lets no new pod go to the provider.
        BudgetSpent = "BudgetSpent",
        /// The same, because the provider's costs cannot be counted for the budget.
        CostsNotCounted = "CostsNotCounted",
        NodeLeaving = "NodeLeaving",
        NamespaceNotOffloaded = "NamespaceNotOffloaded",
        NamespaceRefused = "NamespaceRefused",
        NamespaceNotReady = "NamespaceNotReady",
        OffloadingIsLocal = "OffloadingIsLocal",
        ClusterNotSelected = "ClusterNotSelected",
        NameTaken = "NameTaken",
        /// The provider's policy forbids it, or its API server.
        NotAllowed = "NotAllowed",
        /// The provider's API server does not accept the shadow pod.
        NotAccepted = "NotAccepted",
        /// The provider gave no reason.
        Refused = "Refused",
        LimitMissing = "LimitMissing",
        Invalid = "Invalid",
        Malformed = "Malformed",
        /// The pod is larger than what travels.
        TooLarge = "TooLarge",
        UnknownField = "UnknownField",
        HostNamespace = "HostNamespace",
        HostPath = "HostPath",
        HostPort = "HostPort",
        PersistentVolumeClaim = "PersistentVolumeClaim",
        VolumeType = "VolumeType",
        TokenProjection = "TokenProjection",
        ResourceClaims = "ResourceClaims",
        KindNotAllowed = "KindNotAllowed",
        ImageNotAllowed = "ImageNotAllowed",
        /// A probe or hook names a host.
        ProbeHost = "ProbeHost",
        /// Pods of a `DaemonSet` belong to their node.
        DaemonSet = "DaemonSet",
        /// Static pods belong to their node.
        Node = "Node",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_parses_what_it_prints() {
        let unreachable = AuthenticatedReason::from(CallReason::Unreachable);
        assert_eq!(String::from(unreachable), "Unreachable");
        assert_eq!(AuthenticatedReason::parse("Unreachable"), Some(unreachable));
        assert_eq!(
            TunnelReason::parse("ConnectedOverTLS"),
            Some(TunnelReason::ConnectedOverTls)
        );
        assert_eq!(TunnelReason::parse("ReasonOfANewerVersion"), None);
    }
}
