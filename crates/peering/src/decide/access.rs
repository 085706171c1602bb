//! Decides whether a signed request is granted: a pure function of the request and of what is known
//! about the signer.

use liqo_api::{ClusterId, PeeringIntent};
use liqo_signing::PublicKey;

use crate::{
    challenge::{ChallengeError, GenuineChallenge},
    protocol::{
        AccessRefusal, PeeringRequest, ProtocolRange, SignedEndRequest, negotiate_version,
        valid_cluster_name,
    },
};

/// Maximum number of clusters that wait for approval: the holder of a reusable token can make any
/// number of keys. Concurrent requests may exceed it by a few.
pub const MAX_PENDING: usize = 50;

/// The facts that the provider knows about a consumer's key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Facts that do not depend on each other.
pub struct KnownConsumer {
    /// Whether it has access.
    pub approved: bool,
    /// Whether an earlier peering is still being cleaned up.
    pub ending: bool,
    /// The name under which it was granted access; before that, the name in the record that Liqo
    /// created for it.
    pub cluster_name: Option<String>,
    /// Whether this cluster's user wants to lend to it.
    pub incoming: PeeringIntent,
    /// Whether the policy requires approval by a person.
    pub by_hand: bool,
    /// Whether the policy lets it in without a token.
    pub needs_no_token: bool,
    /// Whether it already waits for approval. It has shown a token for that.
    pub waits: bool,
}

/// A consumer that has proved its key, and whose request is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedConsumer {
    pub id: ClusterId,
    /// The key that the ID is derived from.
    pub public_key: PublicKey,
    /// A DNS label.
    pub name: String,
    pub protocol_version: u32,
}

/// The queue for approval, from the view of one consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApprovalQueue {
    /// Whether this consumer waits already.
    pub waits: bool,
    /// Number of clusters that wait.
    pub waiting: usize,
    /// Whether a `ForeignCluster` of this consumer exists, or a name for one is free.
    pub has_name: bool,
}

/// Whether a presented token is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenVerdict {
    /// No token was presented.
    Absent,
    /// Not one of ours, or used up.
    Unknown,
    Expired,
    /// Reusable, and as many clusters use it as may.
    UsedUp,
    /// Valid for this consumer.
    Valid(TokenClaim),
}

/// Exactly one state of the Secret of a token, so that no more consumers use it than may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaim {
    /// Name of the Secret.
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// Whether the Secret says already that this consumer uses it: an earlier request of it failed
    /// halfway.
    pub is_claimed: bool,
    /// Whether other consumers may use it too.
    pub is_reusable: bool,
    /// The consumers that use it, with this one, as the Secret says it.
    pub used_by: String,
}

/// The result of the checks that do not depend on the signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedRequest {
    pub challenge: GenuineChallenge,
    pub protocol_version: u32,
}

/// Everything that the decision on a [`PeeringRequest`] depends on.
#[derive(Clone, Debug)]
pub struct DecisionInput<'a> {
    pub signer: &'a ClusterId,
    pub request: &'a PeeringRequest,
    /// The result of [`check_request`].
    pub checked: CheckedRequest,
    pub known: &'a KnownConsumer,
    pub token: &'a TokenVerdict,
}

/// The provider's reaction to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// Spend the challenge, claim the token if one is named, give access, then discard a one-time
    /// token.
    Grant {
        challenge: GenuineChallenge,
        token: Option<TokenClaim>,
        protocol_version: u32,
    },
    /// A person has to approve the consumer first. Claim the token, if there is one, record that
    /// the consumer waits, then discard a one-time token.
    Pend {
        token: Option<TokenClaim>,
        /// The answer to the consumer.
        refusal: AccessRefusal,
    },
    Deny(AccessRefusal),
}

/// Reasons for refusals, as they are sent to the consumer.
pub mod reasons {
    use liqo_api::{AuthenticatedReason, CallReason};

    /// The request is malformed, or not properly signed.
    pub const INVALID_REQUEST: &str = AuthenticatedReason::InvalidRequest.as_str();
    /// The claims in the request are not those of the key that signed it.
    pub const IDENTITY_MISMATCH: &str = CallReason::IdentityMismatch.as_str();
    /// The request was signed for another provider.
    pub const WRONG_AUDIENCE: &str = AuthenticatedReason::WrongAudience.as_str();
    /// A cluster cannot peer with itself.
    pub const SAME_CLUSTER: &str = AuthenticatedReason::SameCluster.as_str();
    /// The challenge is unknown or too old: try again with a new one.
    pub const CHALLENGE_INVALID: &str = AuthenticatedReason::ChallengeInvalid.as_str();
    /// The same request came before.
    pub const REPLAYED: &str = AuthenticatedReason::Replayed.as_str();
    /// Overloaded: try again later.
    pub const BUSY: &str = AuthenticatedReason::Busy.as_str();
    /// The two sides have no protocol version in common.
    pub const INCOMPATIBLE_VERSION: &str = AuthenticatedReason::IncompatibleVersion.as_str();
    /// The provider's user does not want this consumer.
    pub const BLOCKED: &str = AuthenticatedReason::Blocked.as_str();
    /// The first contact needs a token.
    pub const TOKEN_REQUIRED: &str = AuthenticatedReason::TokenRequired.as_str();
    /// The token is unknown, or was used up.
    pub const TOKEN_INVALID: &str = AuthenticatedReason::TokenInvalid.as_str();
    /// A person has to approve the consumer.
    pub const PENDING_APPROVAL: &str = AuthenticatedReason::PendingApproval.as_str();
    /// A person has to approve the consumer, but both possible names of its record belong to other
    /// clusters.
    pub const NAME_TAKEN: &str = AuthenticatedReason::NameTaken.as_str();
    /// Too many clusters wait for approval: try again later.
    pub const TOO_MANY_PENDING: &str = AuthenticatedReason::TooManyPending.as_str();
    /// The token has expired.
    pub const TOKEN_EXPIRED: &str = AuthenticatedReason::TokenExpired.as_str();
    /// The tenant namespace exists, but Liqo did not create it.
    pub const NAMESPACE_TAKEN: &str = AuthenticatedReason::NamespaceTaken.as_str();
    /// The provider does not know its own address.
    pub const ADDRESS_UNKNOWN: &str = AuthenticatedReason::AddressUnknown.as_str();
}

/// Checks a request for access without reading from the cluster: it must be meant for us and
/// contain one of our challenges.
pub fn check_request(
    provider: &ClusterId,
    protocol: ProtocolRange,
    signer: &ClusterId,
    request: &PeeringRequest,
    challenge: Result<GenuineChallenge, ChallengeError>,
) -> Result<CheckedRequest, AccessRefusal> {
    check_parties(provider, signer, &request.audience, &request.cluster_id)?;
    if request.cluster_name.parse::<ClusterId>().is_ok() {
        return Err(refusal_because(
            reasons::INVALID_REQUEST,
            "clusterName looks like a cluster ID: choose another name",
        ));
    }
    if !valid_cluster_name(&request.cluster_name) {
        return Err(refusal_because(
            reasons::INVALID_REQUEST,
            "clusterName must be a DNS label: up to 63 of a-z, 0-9 and -",
        ));
    }
    let challenge = challenge.map_err(challenge_refusal)?;
    let protocol_version = negotiate_version(request.protocol, protocol)
        .map_err(|error| refusal_because(reasons::INCOMPATIBLE_VERSION, error.to_string()))?;
    Ok(CheckedRequest {
        challenge,
        protocol_version,
    })
}

/// Decides on a request for access.
pub fn decide_access(situation: &DecisionInput<'_>) -> AccessDecision {
    match decide_or_refuse(situation) {
        Ok(decision) => decision,
        Err(refusal) => AccessDecision::Deny(refusal),
    }
}

/// Decides whether to believe a signed request that ends a peering.
pub fn decide_end(
    provider: &ClusterId,
    signer: &ClusterId,
    request: &SignedEndRequest,
    challenge: Result<GenuineChallenge, ChallengeError>,
) -> Result<GenuineChallenge, AccessRefusal> {
    check_parties(provider, signer, &request.audience, &request.cluster_id)?;
    challenge.map_err(challenge_refusal)
}

/// The refusal of a request whose challenge is not accepted.
pub fn challenge_refusal(error: ChallengeError) -> AccessRefusal {
    let reason = match error {
        ChallengeError::Unknown | ChallengeError::Expired => reasons::CHALLENGE_INVALID,
        ChallengeError::Replayed => reasons::REPLAYED,
        ChallengeError::Busy | ChallengeError::Random => reasons::BUSY,
    };
    refusal_because(reason, error.to_string())
}

/// The refusal of a request whose token another request has just used.
pub fn token_used(token: &TokenClaim) -> AccessRefusal {
    if token.is_reusable {
        return refusal_because(
            reasons::BUSY,
            "another cluster uses the token at this moment: try again in some seconds",
        );
    }
    refusal_because(
        reasons::TOKEN_INVALID,
        "another request has just used the one-time token: generate a new one in the provider with `liqoctl generate peer-command`",
    )
}

/// Whether a key without tenancy and record has a valid token; if not, its request must cost the
/// cluster nothing.
pub fn admit_stranger(token: &TokenVerdict) -> Result<(), AccessRefusal> {
    judge_token(token).map(drop)
}

/// The refusal of a request that comes too soon after others, or while another one of the same
/// consumer is in progress.
pub fn too_often() -> AccessRefusal {
    refusal_because(
        reasons::BUSY,
        "too many requests, or another request of this cluster is in progress: try again in some seconds",
    )
}

/// The refusal of a request while an earlier peering is being cleaned up.
pub fn still_ending() -> AccessRefusal {
    refusal_because(
        reasons::BUSY,
        "the previous peering is still being cleaned up: try again in some seconds",
    )
}

fn decide_or_refuse(situation: &DecisionInput<'_>) -> Result<AccessDecision, AccessRefusal> {
    let DecisionInput {
        signer,
        request,
        known,
        ..
    } = situation;
    let CheckedRequest {
        challenge,
        protocol_version,
    } = situation.checked;
    if known.incoming == PeeringIntent::No {
        return Err(refusal_because(
            reasons::BLOCKED,
            format!(
                "the provider does not lend to this cluster: spec.incomingPeering is No in its ForeignCluster for {signer}"
            ),
        ));
    }
    if known.ending {
        return Err(still_ending());
    }
    check_name(known, request)?;
    // Nobody is asked to approve a stranger without a token. A cluster that waits has shown one,
    // which was spent then.
    let let_in = known.approved
        || known.waits
        || known.needs_no_token
        || known.incoming == PeeringIntent::Yes;
    let token = if let_in {
        None
    } else {
        judge_token(situation.token)?
    };
    if known.by_hand && !known.approved && known.incoming == PeeringIntent::Auto {
        let message = format!(
            "somebody at the provider has to approve this cluster with `liqoctl approve {signer}`; this cluster asks again until then"
        );
        return Ok(AccessDecision::Pend {
            token,
            refusal: refusal_because(reasons::PENDING_APPROVAL, message),
        });
    }
    Ok(AccessDecision::Grant {
        challenge,
        token,
        protocol_version,
    })
}

/// Whether to record that a consumer waits for approval (`false`: it is recorded already), or why
/// that is impossible.
pub fn admit_to_queue(queue: ApprovalQueue, name: &str) -> Result<bool, AccessRefusal> {
    if queue.waits {
        return Ok(false);
    }
    if queue.waiting >= MAX_PENDING {
        let message = format!(
            "{} clusters wait for approval at the provider, which accepts no more: somebody there has to decide on them",
            queue.waiting
        );
        return Err(refusal_because(reasons::TOO_MANY_PENDING, message));
    }
    if !queue.has_name {
        let message = format!(
            "the provider cannot queue this cluster for approval, because it knows others as {name}: set another clusterName, \
             or let somebody there rename or remove those ForeignClusters"
        );
        return Err(refusal_because(reasons::NAME_TAKEN, message));
    }
    Ok(true)
}

fn check_parties(
    provider: &ClusterId,
    signer: &ClusterId,
    audience: &str,
    claimed: &str,
) -> Result<(), AccessRefusal> {
    if claimed != signer.as_str() {
        return Err(refusal_because(
            reasons::IDENTITY_MISMATCH,
            format!(
                "the request is signed with the key of cluster {signer}, but claims to come from another cluster"
            ),
        ));
    }
    if audience != provider.as_str() {
        return Err(refusal_because(
            reasons::WRONG_AUDIENCE,
            format!(
                "the request is meant for another cluster than this one, {provider}: correct spec.clusterID of the ForeignCluster"
            ),
        ));
    }
    if signer == provider {
        return Err(refusal_because(
            reasons::SAME_CLUSTER,
            "a cluster cannot peer with itself",
        ));
    }
    Ok(())
}

/// The names of mapped namespaces contain the consumer's name, so it must not change after access
/// was granted, nor while a person decides on it by that name.
fn check_name(known: &KnownConsumer, request: &PeeringRequest) -> Result<(), AccessRefusal> {
    let Some(name) = known
        .cluster_name
        .as_ref()
        .filter(|name| **name != request.cluster_name)
    else {
        return Ok(());
    };
    if known.approved {
        let message = format!(
            "this key was granted access as cluster {name}: set clusterName back to that, or unpeer and peer again under the new name"
        );
        return Err(refusal_because(reasons::IDENTITY_MISMATCH, message));
    }
    if known.waits || known.by_hand || known.incoming == PeeringIntent::Yes {
        let message = format!(
            "the provider knows this key as cluster {name}: set clusterName back to that, or let somebody there remove its \
             ForeignCluster and peer again under the new name"
        );
        return Err(refusal_because(reasons::IDENTITY_MISMATCH, message));
    }
    Ok(())
}

fn judge_token(token: &TokenVerdict) -> Result<Option<TokenClaim>, AccessRefusal> {
    let next = "generate one in the provider with `liqoctl generate peer-command`";
    match token {
        TokenVerdict::Valid(token) => Ok(Some(token.clone())),
        TokenVerdict::Absent => Err(refusal_because(
            reasons::TOKEN_REQUIRED,
            format!("the first contact needs a token: {next}"),
        )),
        TokenVerdict::Unknown => Err(refusal_because(
            reasons::TOKEN_INVALID,
            format!("the token is wrong or was used before: {next}"),
        )),
        TokenVerdict::UsedUp => Err(refusal_because(
            reasons::TOKEN_INVALID,
            format!("as many clusters as may use the token use it already: {next}"),
        )),
        TokenVerdict::Expired => Err(refusal_because(
            reasons::TOKEN_EXPIRED,
            format!("the token has expired: {next}"),
        )),
    }
}

/// A refusal for one of the [`reasons`].
pub fn refusal_because(reason: &str, message: impl Into<String>) -> AccessRefusal {
    AccessRefusal {
        reason: reason.to_owned(),
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::*;

    use super::*;
    use crate::{challenge::Challenges, protocol::SecretText};

    struct Case {
        provider: ClusterId,
        signer: ClusterId,
        request: PeeringRequest,
        challenge: Result<GenuineChallenge, ChallengeError>,
        known: KnownConsumer,
        token: TokenVerdict,
    }

    fn genuine() -> GenuineChallenge {
        let challenges = Challenges::new().unwrap();
        challenges
            .check(&challenges.issue(Duration::ZERO).unwrap(), Duration::ZERO)
            .unwrap()
    }

    impl Case {
        /// A stranger with a good reusable token.
        fn good() -> Self {
            let provider = ClusterId::of_public_key(&[1; 32]);
            let signer = ClusterId::of_public_key(&[2; 32]);
            let request = PeeringRequest {
                challenge: "c".into(),
                audience: provider.to_string(),
                cluster_id: signer.to_string(),
                cluster_name: "rome".into(),
                protocol: ProtocolRange { min: 1, max: 1 },
                features: Vec::new(),
                token: Some(SecretText("t".into())),
            };
            Self {
                provider,
                signer,
                request,
                challenge: Ok(genuine()),
                known: KnownConsumer::default(),
                token: TokenVerdict::Valid(reusable()),
            }
        }

        fn decide(&self) -> AccessDecision {
            let protocol = ProtocolRange { min: 1, max: 2 };
            match check_request(
                &self.provider,
                protocol,
                &self.signer,
                &self.request,
                self.challenge,
            ) {
                Ok(checked) => decide_access(&DecisionInput {
                    signer: &self.signer,
                    request: &self.request,
                    checked,
                    known: &self.known,
                    token: &self.token,
                }),
                Err(refusal) => AccessDecision::Deny(refusal),
            }
        }

        fn reason(&self) -> String {
            match self.decide() {
                AccessDecision::Deny(refusal) | AccessDecision::Pend { refusal, .. } => {
                    refusal.reason
                }
                granted @ AccessDecision::Grant { .. } => panic!("{granted:?}"),
            }
        }

        fn spends(&self) -> Option<TokenClaim> {
            match self.decide() {
                AccessDecision::Grant { token, .. } => token,
                AccessDecision::Deny(refusal) | AccessDecision::Pend { refusal, .. } => {
                    panic!("{refusal:?}")
                }
            }
        }

        fn spends_to_wait(&self) -> Option<TokenClaim> {
            match self.decide() {
                AccessDecision::Pend { token, refusal }
                    if refusal.reason == reasons::PENDING_APPROVAL =>
                {
                    token
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn one_time() -> TokenClaim {
        TokenClaim {
            name: "t1".into(),
            uid: "u1".into(),
            resource_version: "7".into(),
            is_claimed: false,
            is_reusable: false,
            used_by: "rome".into(),
        }
    }

    fn reusable() -> TokenClaim {
        TokenClaim {
            is_reusable: true,
            ..one_time()
        }
    }

    #[test]
    fn who_loses_a_race_for_a_reusable_token_tries_again() {
        assert_eq!(token_used(&reusable()).reason, reasons::BUSY);
        assert_eq!(token_used(&one_time()).reason, reasons::TOKEN_INVALID);
    }

    #[test]
    fn a_stranger_with_a_reusable_token_is_let_in() {
        let case = Case::good();
        let expected = AccessDecision::Grant {
            challenge: case.challenge.unwrap(),
            token: Some(reusable()),
            protocol_version: 1,
        };
        assert_eq!(case.decide(), expected);
    }

    #[test]
    fn a_one_time_token_is_spent_by_the_request_that_it_lets_in() {
        let case = Case {
            token: TokenVerdict::Valid(one_time()),
            ..Case::good()
        };
        assert_eq!(case.spends(), Some(one_time()));
    }

    #[test]
    fn a_known_key_needs_no_token_and_spends_none() {
        let known = KnownConsumer {
            approved: true,
            cluster_name: Some("rome".into()),
            ..KnownConsumer::default()
        };
        for token in [
            TokenVerdict::Absent,
            TokenVerdict::Unknown,
            TokenVerdict::Expired,
            TokenVerdict::Valid(one_time()),
        ] {
            assert_eq!(
                Case {
                    known: known.clone(),
                    token,
                    ..Case::good()
                }
                .spends(),
                None
            );
        }
    }

    #[test]
    fn where_a_person_approves_a_token_is_spent_on_the_waiting() {
        let by_hand = KnownConsumer {
            by_hand: true,
            ..KnownConsumer::default()
        };
        let with = |token: TokenVerdict| Case {
            known: by_hand.clone(),
            token,
            ..Case::good()
        };
        assert_eq!(
            with(TokenVerdict::Valid(one_time())).spends_to_wait(),
            Some(one_time())
        );
        assert_eq!(
            with(TokenVerdict::Valid(reusable())).spends_to_wait(),
            Some(reusable())
        );
        for (token, reason) in [
            (TokenVerdict::Absent, reasons::TOKEN_REQUIRED),
            (TokenVerdict::Expired, reasons::TOKEN_EXPIRED),
        ] {
            assert_eq!(with(token).reason(), reason);
        }
        // A consumer that somebody approved, or that has access, gets access.
        let approved = KnownConsumer {
            incoming: PeeringIntent::Yes,
            ..by_hand.clone()
        };
        assert_eq!(
            Case {
                known: approved,
                token: TokenVerdict::Absent,
                ..Case::good()
            }
            .spends(),
            None
        );
        let known = KnownConsumer {
            approved: true,
            cluster_name: Some("rome".into()),
            ..by_hand
        };
        assert_eq!(
            Case {
                known,
                token: TokenVerdict::Absent,
                ..Case::good()
            }
            .spends(),
            None
        );
    }

    #[test]
    fn who_waits_for_approval_needs_no_token_again() {
        let waits = KnownConsumer {
            by_hand: true,
            waits: true,
            ..KnownConsumer::default()
        };
        for token in [
            TokenVerdict::Absent,
            TokenVerdict::Unknown,
            TokenVerdict::Expired,
            TokenVerdict::Valid(one_time()),
        ] {
            assert_eq!(
                Case {
                    known: waits.clone(),
                    token: token.clone(),
                    ..Case::good()
                }
                .spends_to_wait(),
                None
            );
            // The same if the policy does not require approval any more.
            let known = KnownConsumer {
                by_hand: false,
                ..waits.clone()
            };
            assert_eq!(
                Case {
                    known,
                    token,
                    ..Case::good()
                }
                .spends(),
                None
            );
        }
        let known = KnownConsumer {
            incoming: PeeringIntent::No,
            ..waits
        };
        assert_eq!(
            Case {
                known,
                ..Case::good()
            }
            .reason(),
            reasons::BLOCKED
        );
    }

    #[test]
    fn only_so_many_clusters_wait_for_approval() {
        let queue = |waiting| ApprovalQueue {
            waiting,
            has_name: true,
            ..ApprovalQueue::default()
        };
        assert_eq!(admit_to_queue(queue(MAX_PENDING - 1), "rome"), Ok(true));
        assert_eq!(
            admit_to_queue(queue(MAX_PENDING), "rome")
                .unwrap_err()
                .reason,
            reasons::TOO_MANY_PENDING
        );
        // A consumer that waits keeps its place, and is not recorded again.
        assert_eq!(
            admit_to_queue(
                ApprovalQueue {
                    waits: true,
                    ..queue(MAX_PENDING)
                },
                "rome"
            ),
            Ok(false)
        );
    }

    #[test]
    fn a_cluster_that_cannot_be_noted_is_told_so() {
        let refusal = admit_to_queue(ApprovalQueue::default(), "rome").unwrap_err();
        assert_eq!(refusal.reason, reasons::NAME_TAKEN);
        assert!(
            refusal
                .message
                .contains("others as rome: set another clusterName, or let"),
            "{}",
            refusal.message
        );
    }

    #[test]
    fn a_cluster_that_is_approved_under_one_name_does_not_come_under_another() {
        let seen = KnownConsumer {
            by_hand: true,
            cluster_name: Some("roma".into()),
            ..KnownConsumer::default()
        };
        for by_hand in [false, true] {
            let waits = KnownConsumer {
                by_hand,
                waits: true,
                ..seen.clone()
            };
            assert_eq!(
                Case {
                    known: waits,
                    ..Case::good()
                }
                .reason(),
                reasons::IDENTITY_MISMATCH
            );
            let approved = KnownConsumer {
                by_hand,
                incoming: PeeringIntent::Yes,
                ..seen.clone()
            };
            assert_eq!(
                Case {
                    known: approved,
                    ..Case::good()
                }
                .reason(),
                reasons::IDENTITY_MISMATCH
            );
        }
        let same = KnownConsumer {
            cluster_name: Some("rome".into()),
            incoming: PeeringIntent::Yes,
            ..seen.clone()
        };
        assert_eq!(
            Case {
                known: same,
                ..Case::good()
            }
            .spends(),
            None
        );
        // It is not recorded either if its record has another name. If nobody has to approve, the
        // name may change.
        assert_eq!(
            Case {
                known: seen.clone(),
                ..Case::good()
            }
            .reason(),
            reasons::IDENTITY_MISMATCH
        );
        assert_eq!(
            Case {
                known: KnownConsumer {
                    by_hand: false,
                    ..seen
                },
                ..Case::good()
            }
            .spends(),
            Some(reusable())
        );
    }

    #[test]
    fn a_cluster_that_the_user_named_needs_no_token() {
        let known = KnownConsumer {
            incoming: PeeringIntent::Yes,
            ..KnownConsumer::default()
        };
        assert_eq!(
            Case {
                known,
                token: TokenVerdict::Absent,
                ..Case::good()
            }
            .spends(),
            None
        );
    }

    #[test]
    fn where_the_policy_requires_no_token_a_cluster_comes_without_one_and_may_still_need_approval()
    {
        let open = KnownConsumer {
            needs_no_token: true,
            ..KnownConsumer::default()
        };
        for token in [
            TokenVerdict::Absent,
            TokenVerdict::Unknown,
            TokenVerdict::Valid(one_time()),
        ] {
            assert_eq!(
                Case {
                    known: open.clone(),
                    token: token.clone(),
                    ..Case::good()
                }
                .spends(),
                None
            );
            let by_hand = KnownConsumer {
                by_hand: true,
                ..open.clone()
            };
            assert_eq!(
                Case {
                    known: by_hand,
                    token,
                    ..Case::good()
                }
                .spends_to_wait(),
                None
            );
        }
        let blocked = KnownConsumer {
            incoming: PeeringIntent::No,
            ..open
        };
        assert_eq!(
            Case {
                known: blocked,
                ..Case::good()
            }
            .reason(),
            reasons::BLOCKED
        );
    }

    #[test]
    fn a_blocked_cluster_stays_out_whatever_it_has() {
        for approved in [false, true] {
            let known = KnownConsumer {
                approved,
                incoming: PeeringIntent::No,
                ..KnownConsumer::default()
            };
            assert_eq!(
                Case {
                    known,
                    ..Case::good()
                }
                .reason(),
                reasons::BLOCKED
            );
        }
    }

    #[test]
    fn no_token_is_spent_while_the_last_peering_is_cleaned_up() {
        let known = KnownConsumer {
            ending: true,
            ..KnownConsumer::default()
        };
        assert_eq!(
            Case {
                known,
                token: TokenVerdict::Valid(one_time()),
                ..Case::good()
            }
            .reason(),
            reasons::BUSY
        );
    }

    #[test]
    fn a_stranger_without_a_good_token_is_told_what_is_wrong_with_it() {
        for (token, reason) in [
            (TokenVerdict::Absent, reasons::TOKEN_REQUIRED),
            (TokenVerdict::Unknown, reasons::TOKEN_INVALID),
            (TokenVerdict::UsedUp, reasons::TOKEN_INVALID),
            (TokenVerdict::Expired, reasons::TOKEN_EXPIRED),
        ] {
            assert_eq!(
                Case {
                    token,
                    ..Case::good()
                }
                .reason(),
                reason
            );
        }
    }

    #[test]
    fn a_foreign_key_that_claims_a_known_id_is_refused() {
        let mut case = Case::good();
        case.known.approved = true;
        case.request.cluster_id = ClusterId::of_public_key(&[3; 32]).to_string();
        assert_eq!(case.reason(), reasons::IDENTITY_MISMATCH);
    }

    #[test]
    fn a_known_key_under_a_new_name_is_refused() {
        let known = KnownConsumer {
            approved: true,
            cluster_name: Some("roma".into()),
            ..KnownConsumer::default()
        };
        assert_eq!(
            Case {
                known,
                ..Case::good()
            }
            .reason(),
            reasons::IDENTITY_MISMATCH
        );
    }

    #[test]
    fn a_request_for_another_provider_is_refused() {
        let mut case = Case::good();
        case.request.audience = ClusterId::of_public_key(&[3; 32]).to_string();
        assert_eq!(case.reason(), reasons::WRONG_AUDIENCE);
    }

    #[test]
    fn a_cluster_cannot_peer_with_itself() {
        let mut case = Case::good();
        case.provider = case.signer.clone();
        case.request.audience = case.signer.to_string();
        assert_eq!(case.reason(), reasons::SAME_CLUSTER);
    }

    #[test]
    fn a_bad_challenge_is_refused_even_for_a_known_key() {
        for (error, reason) in [
            (ChallengeError::Expired, reasons::CHALLENGE_INVALID),
            (ChallengeError::Unknown, reasons::CHALLENGE_INVALID),
            (ChallengeError::Replayed, reasons::REPLAYED),
        ] {
            let known = KnownConsumer {
                approved: true,
                ..KnownConsumer::default()
            };
            assert_eq!(
                Case {
                    challenge: Err(error),
                    known,
                    ..Case::good()
                }
                .reason(),
                reason
            );
        }
    }

    #[test]
    fn versions_that_do_not_overlap_are_refused_before_a_token_is_spent() {
        let mut case = Case {
            token: TokenVerdict::Valid(one_time()),
            ..Case::good()
        };
        case.request.protocol = ProtocolRange { min: 3, max: 4 };
        assert_eq!(case.reason(), reasons::INCOMPATIBLE_VERSION);
    }

    #[test]
    fn a_name_that_is_no_dns_label_is_refused() {
        let mut case = Case::good();
        case.request.cluster_name = "../../etc".into();
        assert_eq!(case.reason(), reasons::INVALID_REQUEST);
    }

    #[test]
    fn a_name_that_may_be_the_id_of_another_cluster_is_refused() {
        let mut case = Case::good();
        case.request.cluster_name = ClusterId::of_public_key(&[3; 32]).to_string();
        let AccessDecision::Deny(refusal) = case.decide() else {
            panic!("not denied")
        };
        assert_eq!(refusal.reason, reasons::INVALID_REQUEST);
        assert!(
            refusal.message.contains("looks like a cluster ID"),
            "{}",
            refusal.message
        );
    }

    #[test]
    fn only_the_cluster_itself_can_end_its_peering() {
        let Case {
            provider,
            signer,
            challenge,
            ..
        } = Case::good();
        let mut request = SignedEndRequest {
            challenge: "c".into(),
            audience: provider.to_string(),
            cluster_id: signer.to_string(),
        };
        assert_eq!(
            decide_end(&provider, &signer, &request, challenge),
            Ok(challenge.unwrap())
        );
        assert_eq!(
            decide_end(&provider, &signer, &request, Err(ChallengeError::Replayed))
                .unwrap_err()
                .reason,
            reasons::REPLAYED
        );
        request.cluster_id = ClusterId::of_public_key(&[3; 32]).to_string();
        assert_eq!(
            decide_end(&provider, &signer, &request, challenge)
                .unwrap_err()
                .reason,
            reasons::IDENTITY_MISMATCH
        );
    }

    /// Requests that are signed by who sends them, with any contents.
    fn mutated_requests() -> impl Strategy<Value = PeeringRequest> {
        let text = serde_json::to_string(&Case::good().request).unwrap();
        mutated_text(Just(text))
            .prop_filter_map("not a request", |text| serde_json::from_str(&text).ok())
    }

    proptest! {
        #[test]
        fn a_mutated_request_is_denied_in_few_words_or_is_for_us_from_its_signer_under_a_valid_name(request in mutated_requests()) {
            let case = Case { request, ..Case::good() };
            match case.decide() {
                AccessDecision::Grant { protocol_version, .. } => {
                    prop_assert_eq!(&case.request.audience, case.provider.as_str());
                    prop_assert_eq!(&case.request.cluster_id, case.signer.as_str());
                    prop_assert!(valid_cluster_name(&case.request.cluster_name) && (1..=2).contains(&protocol_version));
                }
                AccessDecision::Deny(refusal) | AccessDecision::Pend { refusal, .. } => prop_assert!(refusal.message.len() < 1000),
            }
        }
    }
}
